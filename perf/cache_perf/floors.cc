// SPDX-License-Identifier: Apache-2.0
#include "perf/cache_perf/floors.h"

#include "perf/cache_perf/call_timer.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace perf {
namespace {

constexpr uint64_t kMostBytes = 256 << 20; // beyond all processor caches, and made in a moment
constexpr uint64_t kMostRows = 1 << 20;
constexpr uint64_t kClockReadings = 100'000;

double seconds_since(int64_t start_ns) {
    return static_cast<double>(now_ns() - start_ns) / 1e9;
}

// Times `call(i)` for i = 0..n-1 as a worker times its calls.
template <class Call> Spread time_calls(uint64_t n, double *seconds, Call call) {
    std::vector<Sample> samples(n);
    CallTimer timer(samples.data());
    const int64_t start = now_ns();
    for (uint64_t i = 0; i < n; ++i) {
        timer.begin();
        call(i);
        timer.end();
    }
    *seconds = seconds_since(start);
    for (Sample &sample : samples)
        sample &= ~kCold;
    return spread_of(std::move(samples));
}

} // namespace

Floors measure_floors(const Options &options, const RowPlan &plan, Pages pages) {
    Floors floors;
    floors.pages = pages;
    std::vector<uint64_t> places;
    for (uint64_t i = 0; i < std::min(options.rows, kMostRows); ++i) {
        if (i != 0 && floors.bytes + plan.bytes(i) > kMostBytes) break;
        places.push_back(floors.bytes);
        floors.bytes += plan.bytes(i);
    }
    floors.rows = places.size();

    Memory memory(floors.bytes, pages, false);
    const int64_t start = now_ns();
    memory.make_present();
    // What was made is whole huge pages; what counts is the share that the rows take.
    floors.populate_seconds =
        seconds_since(start) * static_cast<double>(floors.bytes) / static_cast<double>(memory.bytes());

    std::vector<char> row(plan.largest());
    floors.copy_in = time_calls(floors.rows, &floors.copy_in_seconds, [&](uint64_t i) {
        memcpy(memory.data() + places[i], row.data(), plan.bytes(i));
        asm volatile("" : : : "memory"); // the copy is to happen
    });
    std::vector<uint64_t> order(floors.rows);
    std::iota(order.begin(), order.end(), uint64_t{0});
    if (options.shuffle) std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
    floors.copy_out = time_calls(floors.rows, &floors.copy_out_seconds, [&](uint64_t i) {
        memcpy(row.data(), memory.data() + places[order[i]], plan.bytes(order[i]));
        asm volatile("" : : : "memory");
    });
    double ignored = 0;
    floors.clock = time_calls(kClockReadings, &ignored, [](uint64_t) {});
    return floors;
}

} // namespace perf
