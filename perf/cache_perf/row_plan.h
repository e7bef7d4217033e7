// SPDX-License-Identifier: Apache-2.0
// Which row has which id, size and bytes: computed from its number, so that a reader can check what it gets without
// being told. Pure functions; any thread may call.
#pragma once

#include "perf/cache_perf/options.h"

#include <cstddef>

namespace perf {

class RowPlan {
  public:
    explicit RowPlan(const Options &options)
        : random_ids_(options.random_ids), min_(options.row_min), max_(options.row_max) {}

    int64_t id(uint64_t row) const; // different rows, different ids
    size_t bytes(uint64_t row) const;
    size_t largest() const { return max_; }
    uint64_t first_word(uint64_t row) const;

    // All bytes of a row; or, in a buffer made before, only its first word.
    void make(uint64_t row, char *data) const;
    void stamp(uint64_t row, char *data) const;
    // The first difference between `data` and the row's bytes, or bytes(row).
    size_t first_difference(uint64_t row, const char *data) const;

  private:
    bool random_ids_;
    uint64_t min_, max_;
};

} // namespace perf
