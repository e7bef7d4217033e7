// SPDX-License-Identifier: Apache-2.0
// The benchmarks by name: ROW/SUBJECT/WORKLOAD, where ROW is a row of the targets and SUBJECT a way of libcache,
// `floor` or `lmdb`. perf/compare pairs them by these names.
#pragma once

#include "perf/bench/workload.h"

#include <benchmark/benchmark.h>

namespace bench {

using Body = void (*)(benchmark::State &, const Workload &);

inline benchmark::internal::Benchmark *add(const std::string &row_and_subject, const Workload &w, Body body) {
    return benchmark::RegisterBenchmark((row_and_subject + "/" + w.name).c_str(),
                                        [&w, body](benchmark::State &state) { body(state, w); });
}

void register_reading();
void register_writing();
void register_processes();
void register_parts();

} // namespace bench
