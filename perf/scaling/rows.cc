// SPDX-License-Identifier: Apache-2.0
// One process, so many rows, with ids 0..n-1 or with random ones of 63 bits. Each way stands beside its floor in this
// program: puts beside making the pages of the server's backing and copying into them, gets beside reading the same
// rows of a plain array.
#include "perf/bench/region_floor.h"
#include "perf/bench/workload.h"
#include "perf/scaling/scaling.h"
#include "perf/support/crew.h"
#include "perf/support/memory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

namespace scaling {
namespace {

constexpr uint32_t kCache = 1;
constexpr size_t kGets = 2'000'000; // of as many different rows if there are so many, else of all again and again

using Seconds = std::vector<double>;

Json ns_each(const Seconds &seconds, size_t n) {
    Json list = Json::array();
    for (const double each : seconds)
        list.push_back(each * 1e9 / static_cast<double>(n));
    return list;
}

// Numbers of rows that are equally far apart, in random order.
std::vector<uint32_t> rows_to_get(size_t rows) {
    const size_t n = std::min(rows, kGets), step = rows / n;
    std::vector<uint32_t> order = bench::shuffled(n);
    for (uint32_t &row : order)
        row = static_cast<uint32_t>(row * step);
    return order;
}

// A fresh cache, opened and filled, `repetitions` times. The last one stays.
cache *fill(const Session &session, const bench::Workload &w, unsigned repetitions, Seconds &seconds) {
    std::array<char, kRowBytes> row{};
    cache *handle = nullptr;
    for (unsigned i = 0; i < repetitions; ++i) {
        if (handle != nullptr) session.end(handle, kCache);
        seconds.push_back(seconds_of([&] {
            handle = session.open(kCache, w.random_ids ? 0 : w.rows);
            for (size_t r = 0; r < w.rows; ++r)
                put(handle, bench::id_of(w, r), row.data());
        }));
    }
    return handle;
}

Seconds fill_floor(const bench::Workload &w, unsigned repetitions) {
    std::array<char, kRowBytes> row{};
    Seconds seconds;
    for (unsigned i = 0; i < repetitions; ++i) {
        std::unique_ptr<bench::RegionFloor> region; // its end is not timed
        seconds.push_back(seconds_of([&] {
            region = std::make_unique<bench::RegionFloor>(w.bytes());
            for (size_t r = 0; r < w.rows; ++r) {
                asm volatile("" : : "r"(row.data()) : "memory"); // each row is copied, as it might be another
                memcpy(region->data() + r * kRowBytes, row.data(), kRowBytes);
            }
        }));
    }
    return seconds;
}

// Passes over these rows until kGets are done, `repetitions` times, after a pass that makes the page tables.
template <class Key, class Read>
Seconds read(const std::vector<Key> &keys, unsigned repetitions, const Read &read_one) {
    unsigned sum = 0;
    const auto pass = [&] {
        for (const Key key : keys)
            sum += read_one(key);
    };
    pass();
    const size_t passes = kGets / keys.size();
    Seconds seconds;
    for (unsigned i = 0; i < repetitions; ++i) {
        const int64_t start = now_ns();
        for (size_t p = 0; p < passes; ++p)
            pass();
        seconds.push_back(seconds_since(start) / static_cast<double>(passes));
    }
    asm volatile("" : : "r"(sum)); // what was read counts as used
    return seconds;
}

Seconds get_floor(const bench::Workload &w, const std::vector<uint32_t> &order, unsigned repetitions) {
    const perf::Memory plain(w.bytes());
    memset(plain.data(), 1, w.bytes());
    return read(order, repetitions,
                [&](uint32_t row) { return static_cast<unsigned char>(plain.data()[size_t{row} * kRowBytes]); });
}

// Until a fresh process has opened the full cache and read a row of it.
Json open_anew(const Session &session, int64_t id, unsigned repetitions) {
    Json seconds = Json::array();
    for (unsigned i = 0; i < repetitions; ++i)
        seconds.push_back(perf::run_crew(1, {[](unsigned) {}, [&](unsigned) { get(session.open(kCache), id); }}));
    return seconds;
}

} // namespace

Json rows(size_t n, bool random_ids, unsigned repetitions) {
    const bench::Workload w{"rows", n, kRowBytes, random_ids};
    const Session session;
    const std::vector<uint32_t> order = rows_to_get(n);
    std::vector<int64_t> ids;
    for (const uint32_t row : order)
        ids.push_back(bench::id_of(w, row));
    const Json put_floor_ns = ns_each(fill_floor(w, repetitions), n);
    const Json get_floor_ns = ns_each(get_floor(w, order, repetitions), order.size()); // its memory is free then
    Seconds put_seconds;
    cache *const handle = fill(session, w, repetitions, put_seconds);
    const Seconds get_seconds = read(ids, repetitions, [&](int64_t id) { return get(handle, id); });
    const cache_stats stats = stat_of(handle);
    if (stats.rows_in_memory != static_cast<int64_t>(n)) throw std::runtime_error("not all rows are in the cache");
    const auto count = static_cast<double>(n);
    const Json figures = {{"part", "rows"},
                          {"ids", random_ids ? "random" : "dense"},
                          {"rows", n},
                          {"put_ns", ns_each(put_seconds, n)},
                          {"put_floor_ns", put_floor_ns},
                          {"get_ns", ns_each(get_seconds, order.size())},
                          {"get_floor_ns", get_floor_ns},
                          {"header_bytes", static_cast<double>(stats.used_bytes - stats.row_bytes) / count},
                          {"index_bytes", static_cast<double>(stats.index_bytes) / count},
                          {"rest_bytes", stats.charged_bytes - stats.used_bytes - stats.index_bytes},
                          {"index_levels", stats.index_levels},
                          {"open_seconds", open_anew(session, bench::id_of(w, 0), repetitions)}};
    session.end(handle, kCache);
    return Json::array({figures});
}

} // namespace scaling
