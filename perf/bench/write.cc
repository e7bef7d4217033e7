// SPDX-License-Identifier: Apache-2.0
// Writing (rows W1, W2 and W3 of the targets). W1 is the put alone: bursts that fit into the memory granted by then,
// beside memcpy into memory that was written before (the floor) and into memory as fresh as the cache's (fresh). W2 is
// a whole first epoch: a fresh cache, every row, no pause, beside making the pages of the server's own backing and
// memcpy. W3 counts the page faults of W2's writing process.
#include "perf/bench/cache_store.h"
#include "perf/bench/epochs.h"
#include "perf/bench/lmdb_store.h"
#include "perf/bench/plain_store.h"
#include "perf/bench/region_floor.h"
#include "perf/bench/register.h"
#include "perf/support/memory.h"

#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cstring>
#include <memory>
#include <sys/resource.h>
#include <thread>

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

size_t burst_rows(const Workload &w) {
    return std::max<size_t>(1, (1 << 20) / w.row_bytes);
}

// Untimed: until the server has lent what a burst needs, or lends no more for now.
void wait_for_grants(cache *handle, const Workload &w) {
    const auto enough = static_cast<int64_t>(2 * burst_rows(w) * (w.row_bytes + 64));
    cache_stats stats{};
    stats.size = sizeof stats;
    for (const auto deadline = Clock::now() + std::chrono::milliseconds(100); Clock::now() < deadline;) {
        must(cache_stat(handle, &stats), "cache_stat");
        if (stats.granted_bytes >= enough) return;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

using PutOne = void (*)(cache *, int64_t id, Column &, const char *row);

void put_one(cache *handle, int64_t id, Column &column, const char *row) {
    must(cache_put(handle, id, column.of(row), 1), "cache_put");
}

void reserve_one(cache *handle, int64_t id, Column &column, const char *row) {
    cache_column room = *column.of(nullptr);
    cache_reservation *reservation = nullptr;
    must(cache_reserve(handle, id, &room, 1, &reservation), "cache_reserve");
    memcpy(room.data, row, room.bytes);
    must(cache_commit(reservation), "cache_commit");
}

template <PutOne put> void bursts(benchmark::State &state, const Workload &w) {
    Source source(w);
    Column column(w);
    const std::vector<uint32_t> order = shuffled(w.rows);
    const size_t burst = burst_rows(w);
    std::unique_ptr<Cache> cache;
    size_t at = w.rows;
    for (auto _ : state) {
        if (at + burst > w.rows) { // full: begin again in a fresh one, whose first row attaches this process
            cache.reset();
            cache = std::make_unique<Cache>(w);
            put(cache->handle(), order[0], column, source.next());
            at = 1;
        }
        wait_for_grants(cache->handle(), w);
        const auto start = Clock::now();
        for (size_t i = 0; i < burst; ++i)
            put(cache->handle(), order[at + i], column, source.next());
        state.SetIterationTime(seconds_since(start));
        at += burst;
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(burst));
}

void plain_bursts(benchmark::State &state, const Workload &w) {
    Source source(w);
    const perf::Memory rows(w.bytes());
    const size_t burst = burst_rows(w);
    size_t at = 0;
    for (auto _ : state) {
        if (at + burst > w.rows) at = 0;
        const auto start = Clock::now();
        for (size_t i = 0; i < burst; ++i)
            memcpy(rows.data() + (at + i) * w.row_bytes, source.next(), w.row_bytes);
        state.SetIterationTime(seconds_since(start));
        at += burst;
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(burst));
}

// The same into memory that was made but never touched, which is what a put writes to.
void fresh_bursts(benchmark::State &state, const Workload &w) {
    Source source(w);
    std::unique_ptr<RegionFloor> region;
    const size_t burst = burst_rows(w);
    size_t at = w.rows;
    for (auto _ : state) {
        if (at + burst > w.rows) {
            region.reset();
            region = std::make_unique<RegionFloor>(w.bytes());
            at = 0;
        }
        const auto start = Clock::now();
        for (size_t i = 0; i < burst; ++i)
            memcpy(region->data() + (at + i) * w.row_bytes, source.next(), w.row_bytes);
        state.SetIterationTime(seconds_since(start));
        at += burst;
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(burst));
}

// LMDB in one transaction. `whole`: with making the store.
template <bool whole> void lmdb_epoch(benchmark::State &state, const Workload &w) {
    Source source(w);
    const std::vector<uint32_t> order = shuffled(w.rows);
    time_epochs(state, w.rows, [&] {
        auto start = Clock::now();
        Lmdb store(w);
        if (!whole) start = Clock::now();
        store.begin_writing();
        for (const uint32_t row : order)
            store.put(row, source.next());
        store.commit();
        return seconds_since(start);
    });
}

long page_faults() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

void epoch(benchmark::State &state, const Workload &w) {
    Source source(w);
    Column column(w);
    const std::vector<uint32_t> order = shuffled(w.rows);
    long faults = 0;
    size_t epochs = 0;
    client(), session(); // untimed
    time_epochs(state, w.rows, [&] {
        const long before = page_faults();
        const auto start = Clock::now();
        Cache cache(w);
        for (const uint32_t row : order)
            put_one(cache.handle(), row, column, source.next());
        const double seconds = seconds_since(start);
        faults += page_faults() - before;
        ++epochs;
        return seconds;
    });
    state.counters["faults_per_1000_rows"] =
        1000 * static_cast<double>(faults) / (static_cast<double>(epochs) * static_cast<double>(w.rows));
}

void floor_epoch(benchmark::State &state, const Workload &w) {
    Source source(w);
    time_epochs(state, w.rows, [&] {
        const auto start = Clock::now();
        RegionFloor region(w.bytes());
        for (size_t i = 0; i < w.rows; ++i)
            memcpy(region.data() + i * w.row_bytes, source.next(), w.row_bytes);
        return seconds_since(start);
    });
}

} // namespace

void register_writing() {
    for (const Workload &w : training_sets()) {
        add("W1/put", w, bursts<put_one>)->UseManualTime();
        add("W1/reserve", w, bursts<reserve_one>)->UseManualTime();
        add("W1/floor", w, plain_bursts)->UseManualTime();
        add("W1/fresh", w, fresh_bursts)->UseManualTime();
        add("W1/lmdb", w, lmdb_epoch<false>)->UseManualTime();
        add("W2/epoch", w, epoch)->UseManualTime();
        add("W2/floor", w, floor_epoch)->UseManualTime();
        add("W2/lmdb", w, lmdb_epoch<true>)->UseManualTime();
    }
}

} // namespace bench
