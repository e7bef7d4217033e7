// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/plain_store.h"

#include "perf/support/memory.h"

#include <algorithm>
#include <map>

namespace bench {
namespace {

constexpr size_t kSourceBytes = 128 << 10; // well inside a second-level cache

} // namespace

const char *plain_rows(const Workload &w) {
    static std::map<std::string, perf::Memory> arrays;
    perf::Memory &found = arrays[w.name];
    if (found.data() == nullptr) {
        found = perf::Memory(w.bytes());
        for (size_t i = 0; i < w.rows; ++i)
            make_row(w, i, found.data() + i * w.row_bytes);
    }
    return found.data();
}

Source::Source(const Workload &w) : bytes_(w.row_bytes) {
    const size_t rows = std::max<size_t>(1, kSourceBytes / w.row_bytes);
    rows_.resize(rows * bytes_);
    for (size_t i = 0; i < rows; ++i)
        make_row(w, i, rows_.data() + i * bytes_);
}

} // namespace bench
