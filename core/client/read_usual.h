// SPDX-License-Identifier: Apache-2.0
// The usual read, inline: a hit by a dense id, of a layout that this process has read before. Some 60 instructions from
// cache_get to the filled view; all that is not usual is read.cc's.
#pragma once

#include "core/client/cache.h"

namespace libcache {

// A row that was found and checked.
struct FoundRow {
    const char *row = nullptr;      // its header
    const Layout *layout = nullptr; // null: the row carries its column table
    uint64_t bytes = 0;
    uint32_t n_columns = 0;
    uint32_t residue = 0;
};

// The usual row, by itself and with few instructions: one of a known layout. The offset may be anything. The row's id,
// columns and length are compared with what they must be, so its check word has nothing to add. False: it may be right
// or wrong, look with check_row().
inline bool usual_row(Region &region, uint64_t offset, int64_t row_id, FoundRow *found) {
    const uint64_t room = region.index.room_at(offset);
    if (room < sizeof(RowHeader)) return false;
    const char *const row = region.map.base() + offset;
    const auto &shared = *reinterpret_cast<const RowHeader *>(row);
    const Layout *const layout = region.layouts.known(__atomic_load_n(&shared.layout, __ATOMIC_RELAXED));
    const uint32_t residue = residue_of(offset);
    if (layout == nullptr || __atomic_load_n(&shared.row_id, __ATOMIC_RELAXED) != row_id) return false;
    const uint64_t bytes = layout->row_bytes(residue, false);
    if (__atomic_load_n(&shared.bytes, __ATOMIC_RELAXED) != bytes ||
        __atomic_load_n(&shared.n_columns, __ATOMIC_RELAXED) != layout->n_columns() || bytes > room)
        return false;
    *found = {row, layout, bytes, layout->n_columns(), residue};
    return true;
}

// What is wrong with the row's columns, given the number of its layout, or null. Fills found->layout; all else of it is
// there.
const char *layout_fault(Region &region, uint32_t layout, FoundRow *found);

inline void fill_view(cache &handle, int64_t row_id, const FoundRow &found, cache_view *view) {
    *view = {&handle,
             row_id,
             {reinterpret_cast<uintptr_t>(found.row), reinterpret_cast<uintptr_t>(found.layout), found.bytes,
              uint64_t{found.residue} << 32 | found.n_columns, 0, 0}};
}

// False: nothing was done, ask get_row(), which finds every row and words every failure.
inline bool get_usual_row(cache &handle, int64_t row_id, cache_view *view) noexcept {
    Region &region = *handle.region;
    const Index::DenseStart start = region.index.dense_start();
    if (!start.covers(row_id) || !handle.live()) return false;
    FoundRow found;
    if (!usual_row(region, Index::offset_in(start.entries[row_id]), row_id, &found)) return false;
    fill_view(handle, row_id, found, view);
    return true;
}

// A column of a row of a stored layout. Field by field: a copy of the whole view would wait for its stores.
inline bool usual_column(const cache_view &view, uint32_t i, cache_column *column) noexcept {
    const auto *const layout = reinterpret_cast<const Layout *>(view.reserved[1]);
    const uint64_t packed = view.reserved[3]; // {residue:32 | columns:32}
    if (layout == nullptr || i >= static_cast<uint32_t>(packed)) return false;
    layout->describe(reinterpret_cast<const char *>(view.reserved[0]), static_cast<uint32_t>(packed >> 32), i, column);
    return true;
}

} // namespace libcache
