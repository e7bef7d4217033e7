// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/workload.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace bench {

const std::vector<Workload> &training_sets() {
    static const std::vector<Workload> sets = {{"M", 60'000, 788}, {"C", 50'000, 3'076}, {"I", 8'000, 150'532}};
    return sets;
}

const std::vector<Workload> &light_sets() {
    static const std::vector<Workload> sets = [] {
        std::vector<Workload> made;
        for (const bool random : {false, true})
            for (size_t rows = 10'000; rows <= 10'000'000; rows *= 10)
                made.push_back({(random ? "random:" : "dense:") + std::to_string(rows), rows, 64, random});
        return made;
    }();
    return sets;
}

// Odd factors and shifts are bijections of 63 bits, so no two rows get one id.
int64_t id_of(const Workload &w, size_t row) {
    if (!w.random_ids) return static_cast<int64_t>(row);
    constexpr uint64_t kMask = ~uint64_t{0} >> 1;
    uint64_t x = (row + 1) * 0x9e3779b97f4a7c15ULL & kMask;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ULL & kMask;
    return static_cast<int64_t>(x ^ x >> 32);
}

void make_row(const Workload &w, size_t row, char *bytes) {
    const uint64_t first = (row + 1) * 0x9e3779b97f4a7c15ULL;
    for (size_t at = 0; at < w.row_bytes; at += sizeof first) {
        const uint64_t word = first + at;
        memcpy(bytes + at, &word, std::min(sizeof word, w.row_bytes - at));
    }
}

std::vector<uint32_t> shuffled(size_t n) {
    std::vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(20260101));
    return order;
}

std::vector<int64_t> shuffled_ids(const Workload &w) {
    std::vector<int64_t> ids;
    for (const uint32_t row : shuffled(w.rows))
        ids.push_back(id_of(w, row));
    return ids;
}

} // namespace bench
