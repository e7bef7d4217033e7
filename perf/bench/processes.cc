// SPDX-License-Identifier: Apache-2.0
// Several processes on one cache: readers (G6), writers (W4), and a fresh reader's first pass beside its second (G5).
// items_per_second counts the rows of all processes together.
#include "perf/bench/cache_store.h"
#include "perf/bench/epochs.h"
#include "perf/bench/plain_store.h"
#include "perf/bench/register.h"
#include "perf/support/crew.h"

#include <benchmark/benchmark.h>
#include <stdexcept>

namespace bench {
namespace {

constexpr size_t kLine = 64;

unsigned read_pass(cache *rows, const std::vector<int64_t> &ids) {
    unsigned sum = 0;
    for (const int64_t id : ids) {
        cache_view view;
        cache_column column;
        must(cache_get(rows, id, &view), "cache_get");
        must(cache_view_column(&view, 0, &column), "cache_view_column");
        sum += *static_cast<const unsigned char *>(column.data);
        cache_view_release(&view);
    }
    return sum;
}

// Every process reads all rows, `passes` times, through the handle it has inherited.
void readers(benchmark::State &state, const Workload &w) {
    constexpr int kPasses = 20;
    const auto processes = static_cast<unsigned>(state.range(0));
    cache *const rows = full_cache(w);
    const std::vector<int64_t> ids = shuffled_ids(w);
    const auto prepare = [&](unsigned) { benchmark::DoNotOptimize(read_pass(rows, ids)); };
    const auto work = [&](unsigned) {
        for (int i = 0; i < kPasses; ++i)
            benchmark::DoNotOptimize(read_pass(rows, ids));
    };
    for (auto _ : state)
        state.SetIterationTime(perf::run_crew(processes, {prepare, work}));
    state.SetItemsProcessed(state.iterations() * kPasses * processes * static_cast<int64_t>(w.rows));
}

// The rows are shared out among the processes, each of which has attached by a row of its own before.
void writers(benchmark::State &state, const Workload &w) {
    const auto processes = static_cast<unsigned>(state.range(0));
    const std::vector<uint32_t> order = shuffled(w.rows);
    client(), session(); // before the fork: the members' sessions are this one
    time_epochs(state, w.rows, [&] {
        Cache shared(w);
        Source source(w);
        Column column(w);
        const auto put = [&](int64_t id) {
            must(cache_put(shared.handle(), id, column.of(source.next()), 1), "cache_put");
        };
        const auto prepare = [&](unsigned member) { put(static_cast<int64_t>(w.rows + member)); };
        const auto work = [&](unsigned member) {
            for (size_t i = member; i < w.rows; i += processes)
                put(order[i]);
        };
        return perf::run_crew(processes, {prepare, work});
    });
}

// One word of each cache line of every row.
unsigned long sum_rows(cache *rows, const std::vector<int64_t> &ids) {
    unsigned long sum = 0;
    for (const int64_t id : ids) {
        cache_view view;
        cache_column column;
        must(cache_get(rows, id, &view), "cache_get");
        must(cache_view_column(&view, 0, &column), "cache_view_column");
        const char *const data = static_cast<const char *>(column.data);
        for (size_t at = 0; at + sizeof sum <= column.bytes; at += kLine)
            sum += *reinterpret_cast<const unsigned long *>(data + at);
        cache_view_release(&view);
    }
    return sum;
}

// A process that opens the full cache anew; its second pass has everything mapped.
template <bool second> void fresh_reader(benchmark::State &state, const Workload &w) {
    const std::vector<int64_t> ids = shuffled_ids(w);
    // Which one it is, by its number in the session.
    cache_stats stats{};
    stats.size = sizeof stats;
    must(cache_stat(full_cache(w), &stats), "cache_stat");
    cache *own = nullptr; // of the member
    const auto prepare = [&](unsigned) {
        must(cache_open(connect(), session(), stats.cache_id, nullptr, &own), "cache_open");
        if (second) benchmark::DoNotOptimize(sum_rows(own, ids));
    };
    const auto work = [&](unsigned) { benchmark::DoNotOptimize(sum_rows(own, ids)); };
    for (auto _ : state)
        state.SetIterationTime(perf::run_crew(1, {prepare, work}));
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(w.rows));
}

} // namespace

void register_processes() {
    const std::vector<Workload> &sets = training_sets();
    for (const Workload &w : sets) {
        add("G5/first_pass", w, fresh_reader<false>)->UseManualTime();
        add("G5/second_pass", w, fresh_reader<true>)->UseManualTime();
    }
    for (const int processes : {1, 2, 64})
        add("G6/get", sets[0], readers)->Arg(processes)->ArgName("processes")->UseManualTime();
    for (const Workload &w : sets)
        for (const int processes : {1, 2})
            add("W4/put", w, writers)->Arg(processes)->ArgName("processes")->UseManualTime();
}

} // namespace bench
