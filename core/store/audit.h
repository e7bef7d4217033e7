// SPDX-License-Identifier: Apache-2.0
// Walks the rows of one extent and tells the live ones: those to which the index (for layouts and the schema, the
// header) points. Used by the broker's recovery of a dead writer and by the checker. Reads only.
#pragma once

#include "core/store/index.h"

namespace libcache {

struct ExtentAudit {
    uint32_t used = 0;       // end of the last live row, in units
    uint64_t rows = 0;       // live rows, layouts and the schema not counted
    uint64_t bytes = 0;      // their bytes without headers: at least what their columns have
    uint64_t dead_units = 0; // rows that nobody can find below `used`
    bool clear = true;       // false: a stride leads out of the extent; `used` is then all of it
};

// `extent`: the first byte of the extent in a mapping in which [0, used) units of it can be read; `offset`: the same
// from the start of the region. `index` is attached to the region whose header is `header`.
ExtentAudit audit_extent(Index &index, const RegionHeader &header, const char *extent, uint64_t offset, uint32_t used);

// True if the row at `offset` is live. `row` is a copy of its header.
bool row_is_live(Index &index, const RegionHeader &header, const RowHeader &row, uint64_t offset);

} // namespace libcache
