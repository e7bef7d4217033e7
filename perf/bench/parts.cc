// SPDX-License-Identifier: Apache-2.0
// Parts of the data path by themselves: a token through a ring, a row's columns told apart from known ones, a layout
// made new. Beside a floor that does the part's work without its checks.
#include "perf/bench/register.h"

#include "core/shm/ring.h"
#include "core/store/row.h"

#include <benchmark/benchmark.h>
#include <memory>

namespace bench {
namespace {

using libcache::Layout;

void ring_token(benchmark::State &state) {
    const auto ring = std::make_unique<libcache::TokenRing>();
    libcache::RingProducer producer(ring.get());
    libcache::RingConsumer consumer(ring.get());
    uint64_t sum = 0, chunk = 0;
    for (auto _ : state) {
        producer.push({chunk++, 1});
        sum += consumer.peek();
        consumer.advance();
    }
    benchmark::DoNotOptimize(sum);
}

void array_token(benchmark::State &state) {
    uint64_t token[libcache::kRingTokens] = {};
    uint64_t sum = 0, at = 0;
    for (auto _ : state) {
        token[at % libcache::kRingTokens] = libcache::Token{at, 1}.pack();
        benchmark::ClobberMemory();
        sum += token[at++ % libcache::kRingTokens];
    }
    benchmark::DoNotOptimize(sum);
}

// An image and its label, as most rows are.
struct TwoColumns {
    int64_t image_shape[3] = {28, 28, 1};
    char image[784] = {};
    int32_t label = 7;
    cache_column columns[2] = {{image, sizeof image, image_shape, CACHE_UINT8, 3, {0, 0, 0, 0}},
                               {&label, sizeof label, nullptr, CACHE_INT32, 0, {0, 0, 0, 0}}};
};

void layout_matches(benchmark::State &state) {
    TwoColumns row;
    const std::unique_ptr<const Layout> layout = Layout::of(row.columns, 2);
    for (auto _ : state) {
        benchmark::DoNotOptimize(row);
        bool same = layout->matches(row.columns, 2);
        benchmark::DoNotOptimize(same);
    }
}

void layout_made(benchmark::State &state) {
    TwoColumns row;
    for (auto _ : state) {
        benchmark::DoNotOptimize(row);
        std::unique_ptr<const Layout> layout;
        if (libcache::check_columns(row.columns, 2, false) == 0) layout = Layout::of(row.columns, 2);
        benchmark::DoNotOptimize(layout);
    }
}

void headers_compared(benchmark::State &state) {
    TwoColumns row, like;
    for (auto _ : state) {
        benchmark::DoNotOptimize(row);
        bool same = row.columns[0].bytes == like.columns[0].bytes && row.columns[1].bytes == like.columns[1].bytes;
        benchmark::DoNotOptimize(same);
    }
}

} // namespace

void register_parts() {
    benchmark::RegisterBenchmark("ring/token/1", ring_token);
    benchmark::RegisterBenchmark("ring/floor/1", array_token);
    benchmark::RegisterBenchmark("layout/matches/2", layout_matches);
    benchmark::RegisterBenchmark("layout/made/2", layout_made);
    benchmark::RegisterBenchmark("layout/floor/2", headers_compared);
}

} // namespace bench
