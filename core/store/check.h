// SPDX-License-Identifier: Apache-2.0
// The invariants of a cache region as a function: tests call it after everything. Reads only, through a mapping of the
// whole region; meaningful when nobody writes meanwhile.
#pragma once

#include "core/shm/region.h"

#include <string>
#include <vector>

namespace libcache {

// True if every invariant holds. Else, and for what is merely noteworthy, lines are appended to *report (may be null).
//  1. the header's constants are those that were checked, and its limit and flags go with them; top_bytes, table_top,
//     slots_top, levels in range; each slot's state is one of the table, its rings tell of no more tokens than fit
//  2. walking by length lands on heads up to table_top; every state is one of the table; lengths fit
//  3. charged_bytes = header, slots, table pages and the lengths of all heads that are not EMPTY, and <= limit_bytes
//  4. GRANTED and HELD name an ACTIVE slot; used <= limit <= length there, used <= length in SEALED
//  5. [0, used) of each extent is a chain of whole headers; of a SEALED one `rows` counts the live ones, `bytes` goes
//     with what they have, `dead` is not more than is dead; so many entries of the index name it
//  6. each index entry names a row with its id and tag below `used` of an extent that holds rows; no id stands twice;
//     hashed windows have no gap
//  7. each INDEX extent belongs to exactly one level, whose number it says, and each level lies in one
//  8. each live row's header is intact and fits its layout; layouts are stored without a gap; they and the schema are
//     whole
//  9. each stub points below `used` of a run of spill segments that is lent or SEALED, no two to the same bytes;
//     `rows` of a SEALED run counts them, `bytes` is not more than they take; GRANTED and HELD runs name an ACTIVE slot
// 10. the rows of a stream are those below its next id, and at most one more; its builder is an ACTIVE slot
bool region_check(const RegionMap &map, std::string *report);

// The same while writers and broker go on: a sentence per fault. Steps that are half done look like faults, so what
// seems wrong is looked at again, with growing pauses of together about a third of a second, and is one only if it
// looks the same each time.
std::vector<std::string> region_check_live(const RegionMap &map);

} // namespace libcache
