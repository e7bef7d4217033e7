// SPDX-License-Identifier: Apache-2.0
// Rows that a cache of SpillSession has on disk, and a batch that reads them: by a ring of the thread.
#pragma once

#include "tests/support/spill.h"

inline constexpr uint64_t kSpilledLargest = 60'000;

// Puts rows from `first` on until ten of them are on disk: their ids.
inline std::vector<int64_t> spill_rows(const SpillSession &s, int64_t first) {
    std::vector<int64_t> spilled;
    for (int64_t id = first; spilled.size() < 10; id++) {
        const int64_t before = s.stat().rows_spilled;
        OK(rows::put(s.rows, id, kSpilledLargest));
        OK(cache_flush(s.rows));
        if (s.stat().rows_spilled > before) spilled.push_back(id); // there may be room in memory between others
    }
    return spilled;
}

// "" if all are there and right.
inline std::string read_batch(cache *handle, const std::vector<int64_t> &ids) {
    std::vector<cache_view> views(ids.size());
    if (const int64_t n = cache_get_batch(handle, ids.data(), ids.size(), views.data()); n != std::ssize(ids))
        return "a batch of spilled rows: " + std::to_string(n) + " " + cache_last_error();
    for (size_t i = 0; i < ids.size(); i++) {
        if (std::string wrong = rows::Row(ids[i], kSpilledLargest).difference(views[i]); !wrong.empty()) return wrong;
        if (cache_view_release(&views[i]) != 0) return cache_last_error();
    }
    return "";
}
