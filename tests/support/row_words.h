// SPDX-License-Identifier: Apache-2.0
// Where the words of a row stand in a region that this process writes to: for tests that change them.
#pragma once

#include "core/shm/layout.h"
#include "tests/support/server.h"
#include "tests/support/writable_region.h"

namespace libcache {

// The entry by which row `id` is found.
inline AtomicU64 &entry_of(char *region, int64_t id) {
    const auto &header = *reinterpret_cast<const RegionHeader *>(region);
    for (uint64_t k = 0; k < header.levels.load(std::memory_order_acquire); k++) {
        const Level &level = header.level[k];
        auto *const entries = reinterpret_cast<AtomicU64 *>(region + level.offset.load(std::memory_order_relaxed));
        for (uint64_t i = 0; i < level.slots.load(std::memory_order_relaxed); i++) {
            const uint64_t entry = entries[i].load(std::memory_order_acquire);
            if (entry == 0) continue;
            if (reinterpret_cast<const RowHeader *>(region + IndexEntry::offset(entry))->row_id == id)
                return entries[i];
        }
    }
    test_die("row %ld is in no level", long(id));
}

inline RowHeader &row_of(char *region, int64_t id) {
    return *reinterpret_cast<RowHeader *>(region + IndexEntry::offset(entry_of(region, id).load()));
}

// As they would stand if its writer had meant them.
inline void make_check_right(RowHeader &row) {
    row.check = row_check(row.layout, row.row_id, row.bytes, row.n_columns);
}

} // namespace libcache
