// SPDX-License-Identifier: Apache-2.0
// What a region holds, summed over the words that are the truth. Used by cache_stat (any client, read-only mapping) and
// by the broker's listing. Runs beside writers and beside the broker's splits and merges: the figures are of about now.
#pragma once

#include "capi/libcache.h"
#include "core/shm/region.h"

namespace libcache {

// Fills everything but `size` and `readers`.
void region_statistics(const RegionMap &map, cache_stats *stats);

// Calls visit(chunk, word) for each extent head in order. Lands on heads only as long as nobody splits or merges; else
// on words that were heads a moment ago. Ends at table_top or at an impossible length.
template <typename Visit> uint64_t for_each_extent(const RegionMap &map, Visit visit) {
    const uint64_t table_top = map.header()->table_top.load(std::memory_order_acquire);
    const uint64_t end = table_top < map.geometry().chunks ? table_top : map.geometry().chunks;
    uint64_t chunk = 0;
    while (chunk < end) {
        // acq [grant]: what the word's last writer did before is seen
        const ExtentWord word = ExtentWord::unpack(map.extent(chunk)->own.load(std::memory_order_acquire));
        if (word.len == 0 || word.len > map.geometry().chunks - chunk) break;
        visit(chunk, word);
        chunk += word.len;
    }
    return chunk;
}

} // namespace libcache
