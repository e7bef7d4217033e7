// SPDX-License-Identifier: Apache-2.0
// The floor: the rows one after the other in plain memory on huge pages.
#pragma once

#include "perf/bench/workload.h"

namespace bench {

// A workload's rows in the order of their numbers, row_bytes each: made at the first call, kept till the end.
const char *plain_rows(const Workload &w);

// A few rows to write again and again, as a decoder leaves them: they stay in the processor's cache.
class Source {
  public:
    explicit Source(const Workload &w);
    const char *next() {
        const char *const row = rows_.data() + at_;
        at_ = at_ + bytes_ == rows_.size() ? 0 : at_ + bytes_;
        return row;
    }

  private:
    size_t bytes_, at_ = 0;
    std::vector<char> rows_;
};

} // namespace bench
