// SPDX-License-Identifier: Apache-2.0
// One process, ever more rows, with ids 0..n-1 and with random ones of 63 bits.
#include "perf/bench/workload.h"
#include "perf/scaling/scaling.h"
#include "perf/support/crew.h"

#include <algorithm>
#include <array>

namespace scaling {
namespace {

constexpr size_t kLeast = 10'000;
constexpr size_t kGets = 2'000'000; // at most, of as many different rows

double ns_each(int64_t since, size_t n) {
    return static_cast<double>(now_ns() - since) / static_cast<double>(n);
}

double put_all(cache *handle, const bench::Workload &w) {
    std::array<char, kRowBytes> row{};
    const int64_t start = now_ns();
    for (size_t i = 0; i < w.rows; ++i)
        put(handle, bench::id_of(w, i), row.data());
    return ns_each(start, w.rows);
}

// Of rows that are equally far apart, in random order. A first pass makes the page tables.
double get_some(cache *handle, const bench::Workload &w) {
    const size_t n = std::min(w.rows, kGets), step = w.rows / n;
    std::vector<int64_t> ids;
    for (const uint32_t i : bench::shuffled(n))
        ids.push_back(bench::id_of(w, i * step));
    unsigned sum = 0;
    int64_t start = 0;
    for (int pass = 0; pass < 2; ++pass) {
        start = now_ns();
        for (const int64_t id : ids)
            sum += get(handle, id);
    }
    const double ns = ns_each(start, n);
    asm volatile("" : : "r"(sum)); // what was read counts as used
    return ns;
}

// Seconds until a fresh process has opened the full cache and read a row of it.
double open_anew(const Session &session, uint32_t cache_id, int64_t id) {
    const auto open = [&](unsigned) { get(session.open(cache_id), id); };
    return perf::run_crew(1, {[](unsigned) {}, open});
}

void measure(const Session &session, uint32_t cache_id, const bench::Workload &w, Json &results) {
    cache *const handle = session.open(cache_id, w.random_ids ? 0 : w.rows);
    const double put_ns = put_all(handle, w), get_ns = get_some(handle, w);
    const cache_stats stats = stat_of(handle);
    if (stats.rows_in_memory != static_cast<int64_t>(w.rows)) throw std::runtime_error("not all rows are there");
    const auto n = static_cast<double>(w.rows);
    results.push_back({{"part", "rows"},
                       {"ids", w.random_ids ? "random" : "dense"},
                       {"rows", w.rows},
                       {"put_ns", put_ns},
                       {"get_ns", get_ns},
                       {"header_bytes", static_cast<double>(stats.used_bytes - stats.row_bytes) / n},
                       {"index_bytes", static_cast<double>(stats.index_bytes) / n},
                       {"rest_bytes", stats.charged_bytes - stats.used_bytes - stats.index_bytes},
                       {"index_levels", stats.index_levels},
                       {"open_seconds", open_anew(session, cache_id, bench::id_of(w, 0))}});
    cache_close(handle);
    must(cache_destroy(session.client, session.id, cache_id), "cache_destroy");
}

} // namespace

void rows(size_t most, Json &results) {
    const Session session;
    uint32_t cache_id = 0;
    std::vector<size_t> counts;
    for (size_t n = kLeast; n < most; n *= 10)
        counts.push_back(n);
    counts.push_back(most);
    for (const bool random : {false, true})
        for (const size_t n : counts) {
            fprintf(stderr, "%zu rows, %s ids\n", n, random ? "random" : "dense");
            measure(session, ++cache_id, {"rows", n, kRowBytes, random}, results);
        }
}

} // namespace scaling
