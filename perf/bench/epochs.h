// SPDX-License-Identifier: Apache-2.0
// The time of one pass over fresh memory: the middle one of several, not their mean. A virtual machine may give pages
// that have been free for a while back to its host; a pass that meets some waits for the host at each of them, and
// takes many times as long as the others.
#pragma once

#include <algorithm>
#include <benchmark/benchmark.h>
#include <vector>

namespace bench {

inline constexpr size_t kEpochs = 5; // of one iteration

// `seconds_of_one()` does one pass and tells how long it took.
template <typename Epoch> void time_epochs(benchmark::State &state, size_t rows, Epoch seconds_of_one) {
    for (auto _ : state) {
        std::vector<double> seconds(kEpochs);
        std::generate(seconds.begin(), seconds.end(), seconds_of_one);
        std::nth_element(seconds.begin(), seconds.begin() + kEpochs / 2, seconds.end());
        state.SetIterationTime(seconds[kEpochs / 2]);
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(rows));
}

} // namespace bench
