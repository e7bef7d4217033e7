// SPDX-License-Identifier: Apache-2.0
// Reading one row after the other in shuffled order (rows G1, G2, G3 and G4 of the targets), each way beside the plain
// array and LMDB. Time is per row: items_per_second counts rows.
#include "perf/bench/cache_store.h"
#include "perf/bench/lmdb_store.h"
#include "perf/bench/plain_store.h"
#include "perf/bench/register.h"

#include <benchmark/benchmark.h>
#include <cstring>

namespace bench {
namespace {

constexpr size_t kPass = 1000; // rows of one iteration; every workload is a whole number of them
constexpr size_t kBatch = 32;
constexpr size_t kGather = 64;

// Walks through a shuffled workload, `step` entries at a time, and begins again where fewer are left.
template <class T> class Walk {
  public:
    Walk(std::vector<T> order, size_t step) : order_(std::move(order)), step_(step) {}
    const T *next() {
        if (at_ + step_ > order_.size()) at_ = 0;
        const T *const here = order_.data() + at_;
        at_ += step_;
        return here;
    }

  private:
    std::vector<T> order_;
    size_t step_, at_ = 0;
};

void count(benchmark::State &state, size_t rows) {
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(rows));
}

// The first byte of a row that a view holds.
unsigned touch(const cache_view &view) {
    cache_column column;
    must(cache_view_column(&view, 0, &column), "cache_view_column");
    return *static_cast<const unsigned char *>(column.data);
}

void get(benchmark::State &state, const Workload &w) {
    cache *const rows = full_cache(w);
    Walk<int64_t> ids(shuffled_ids(w), kPass);
    unsigned sum = 0;
    for (auto _ : state) {
        const int64_t *const pass = ids.next();
        for (size_t i = 0; i < kPass; ++i) {
            cache_view view;
            must(cache_get(rows, pass[i], &view), "cache_get");
            sum += touch(view);
            cache_view_release(&view);
        }
    }
    benchmark::DoNotOptimize(sum);
    count(state, kPass);
}

void get_batch(benchmark::State &state, const Workload &w) {
    cache *const rows = full_cache(w);
    Walk<int64_t> ids(shuffled_ids(w), kBatch);
    cache_view views[kBatch];
    unsigned sum = 0;
    for (auto _ : state) {
        if (cache_get_batch(rows, ids.next(), kBatch, views) != kBatch) throw std::runtime_error(cache_last_error());
        for (cache_view &view : views) {
            sum += touch(view);
            cache_view_release(&view);
        }
    }
    benchmark::DoNotOptimize(sum);
    count(state, kBatch);
}

void get_miss(benchmark::State &state, const Workload &w) {
    cache *const rows = full_cache(w);
    Walk<int64_t> ids(shuffled_ids(w), kPass);
    size_t hits = 0;
    for (auto _ : state) {
        const int64_t *const pass = ids.next();
        for (size_t i = 0; i < kPass; ++i) {
            cache_view view;
            // Beyond the last id, where a partly filled cache looks as well.
            hits += cache_get(rows, static_cast<int64_t>(w.rows) + pass[i], &view) == 0;
        }
    }
    if (hits != 0) throw std::runtime_error("rows were found that nobody stored");
    count(state, kPass);
}

// The index alone: is the row there?
void look_up(benchmark::State &state, const Workload &w) {
    cache *const rows = full_cache(w);
    Walk<int64_t> ids(shuffled_ids(w), kBatch);
    uint8_t found[kBatch];
    for (auto _ : state)
        if (cache_contains(rows, ids.next(), kBatch, found) != kBatch) throw std::runtime_error(cache_last_error());
    count(state, kBatch);
}

void plain_touch(benchmark::State &state, const Workload &w) {
    const char *const rows = plain_rows(w);
    Walk<uint32_t> order(shuffled(w.rows), kPass);
    unsigned sum = 0;
    for (auto _ : state) {
        const uint32_t *const pass = order.next();
        for (size_t i = 0; i < kPass; ++i)
            sum += static_cast<unsigned char>(rows[pass[i] * w.row_bytes]);
    }
    benchmark::DoNotOptimize(sum);
    count(state, kPass);
}

void lmdb_touch(benchmark::State &state, const Workload &w) {
    const Lmdb &rows = full_lmdb(w);
    Walk<int64_t> ids(shuffled_ids(w), kPass);
    unsigned sum = 0;
    for (auto _ : state) {
        const int64_t *const pass = ids.next();
        for (size_t i = 0; i < kPass; ++i)
            sum += static_cast<unsigned char>(*rows.get(pass[i]));
    }
    benchmark::DoNotOptimize(sum);
    count(state, kPass);
}

void gather(benchmark::State &state, const Workload &w) {
    cache *const rows = full_cache(w);
    Walk<int64_t> ids(shuffled_ids(w), kGather);
    std::vector<char> buffer(kGather * w.row_bytes);
    for (auto _ : state) {
        const int64_t copied = cache_gather(rows, ids.next(), kGather, 0, buffer.data(), w.row_bytes, nullptr);
        if (copied != kGather) throw std::runtime_error(cache_last_error());
        benchmark::ClobberMemory();
    }
    count(state, kGather);
}

void plain_gather(benchmark::State &state, const Workload &w) {
    const char *const rows = plain_rows(w);
    Walk<uint32_t> order(shuffled(w.rows), kGather);
    std::vector<char> buffer(kGather * w.row_bytes);
    for (auto _ : state) {
        const uint32_t *const pass = order.next();
        for (size_t i = 0; i < kGather; ++i)
            memcpy(buffer.data() + i * w.row_bytes, rows + pass[i] * w.row_bytes, w.row_bytes);
        benchmark::ClobberMemory();
    }
    count(state, kGather);
}

void lmdb_gather(benchmark::State &state, const Workload &w) {
    const Lmdb &rows = full_lmdb(w);
    Walk<int64_t> ids(shuffled_ids(w), kGather);
    std::vector<char> buffer(kGather * w.row_bytes);
    for (auto _ : state) {
        const int64_t *const pass = ids.next();
        for (size_t i = 0; i < kGather; ++i)
            memcpy(buffer.data() + i * w.row_bytes, rows.get(pass[i]), w.row_bytes);
        benchmark::ClobberMemory();
    }
    count(state, kGather);
}

} // namespace

void register_reading() {
    for (const Workload &w : training_sets()) {
        add("G1/get", w, get);
        add("G1/floor", w, plain_touch);
        add("G1/lmdb", w, lmdb_touch);
        add("miss/get", w, get_miss);
        add("G2/get_batch", w, get_batch);
        add("G2/floor", w, plain_touch);
        add("G3/gather", w, gather);
        add("G3/floor", w, plain_gather);
        add("G3/lmdb", w, lmdb_gather);
    }
    for (const Workload &w : light_sets()) {
        add("G4/get", w, get);
        add("G4/floor", w, plain_touch);
        add("index/contains", w, look_up);
        add("index/floor", w, plain_touch);
    }
}

} // namespace bench
