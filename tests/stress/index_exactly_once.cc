// SPDX-License-Identifier: Apache-2.0
// index_exactly_once [threads [seconds [seed]]]: every thread inserts every id, several times, while levels are added;
// readers look rows up and verify their bytes. Each id must be won once. Threads over one mapping: made for TSan.
#include "core/store/index.h"
#include "tests/support/fake_region.h"
#include "tests/support/rows.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

using namespace libcache;

namespace {

constexpr uint64_t kIds = 4000, kTimes = 2;
constexpr uint32_t kStride = 8; // units: a header and 96 bytes that prove themselves
constexpr uint64_t kRowBytes = kStride * kUnitBytes;

struct Round {
    const uint32_t n_threads;
    FakeRegion region;
    Index index;
    uint64_t rows;
    std::vector<std::atomic<uint32_t>> wins;
    AtomicU64 wanted{0};
    std::atomic<uint32_t> running;

    explicit Round(uint32_t threads)
        : n_threads(threads), region(256 << 20),
          rows(region.map().chunk_offset(region.take(
              round_up(kIds * kTimes * threads * kRowBytes, kChunkBytes) / kChunkBytes, ExtentState::Sealed))),
          wins(kIds), running(threads) {
        index.attach(region.at(0), region.at(0), region.geometry().data_offset, region.geometry().region_bytes);
        region.add_level(LevelKind::Dense, 0, 64);
    }
};

int64_t id_of(uint64_t n) {
    return n % 2 ? int64_t(n) : int64_t(rows::mix(n) >> 1);
}

void check_row(Round &round, uint64_t n, bool must) {
    const uint64_t offset = round.index.find(id_of(n));
    if (offset == 0) {
        if (must) test_die("row %ld is missing", id_of(n));
        return;
    }
    const char *row = round.region.at(offset);
    if (reinterpret_cast<const RowHeader *>(row)->row_id != id_of(n) ||
        rows::first_wrong(row + sizeof(RowHeader), kRowBytes - sizeof(RowHeader), id_of(n), 0) >= 0)
        test_die("row %ld is wrong at %lu", id_of(n), offset);
}

void insert(Round &round, uint64_t n, uint64_t place) {
    const int64_t id = id_of(n);
    const uint64_t offset = round.rows + place * kRowBytes;
    round.region.write_header(offset, id, kStride);
    rows::fill(round.region.at(offset) + sizeof(RowHeader), kRowBytes - sizeof(RowHeader), id, 0);
    for (;;) {
        uint32_t passed = 0;
        const Index::Insert result = round.index.insert(id, offset, &passed);
        if (result == Index::Insert::Won) round.wins[n].fetch_add(1);
        if (result != Index::Insert::NoRoom) return;
        uint64_t seen = round.wanted.load();
        while (seen < passed && !round.wanted.compare_exchange_weak(seen, passed)) {
        }
        std::this_thread::yield();
    }
}

void work(Round &round, uint32_t thread, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<uint64_t> order(kIds * kTimes);
    for (uint64_t i = 0; i < order.size(); i++)
        order[i] = i % kIds;
    std::shuffle(order.begin(), order.end(), random);
    uint64_t place = thread * order.size();
    for (uint64_t n : order) {
        insert(round, n, place++);
        check_row(round, n, true);
        check_row(round, random() % kIds, false);
    }
    round.running.fetch_sub(1);
}

void run_round(uint32_t n_threads, unsigned seed) {
    Round round(n_threads);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < n_threads; t++)
        threads.emplace_back(work, std::ref(round), t, seed * 1000 + t);
    for (uint64_t slots = 64; round.running.load() != 0; std::this_thread::yield())
        if (round.wanted.load() == round.region.header()->levels.load(std::memory_order_relaxed)) {
            round.region.add_level(LevelKind::Hash, 0, slots);
            slots *= 2;
        }
    for (std::thread &thread : threads)
        thread.join();
    for (uint64_t n = 0; n < kIds; n++) {
        if (round.wins[n].load() != 1) test_die("row %ld was won %u times", id_of(n), round.wins[n].load());
        check_row(round, n, true);
    }
}

} // namespace

int main(int argc, char **argv) {
    const uint32_t threads = argc > 1 ? uint32_t(atoi(argv[1])) : 6;
    const int seconds = argc > 2 ? atoi(argv[2]) : 4;
    const unsigned seed = argc > 3 ? unsigned(atoi(argv[3])) : unsigned(time(nullptr));
    printf("index_exactly_once %u %d %u\n", threads, seconds, seed);
    fflush(stdout);
    test_watchdog(unsigned(seconds) + 200);
    const time_t end = time(nullptr) + seconds;
    unsigned rounds = 0;
    do
        run_round(threads, seed + rounds++);
    while (time(nullptr) < end);
    printf("%u rounds of %lu rows, put %lu times by each of %u threads\n", rounds, kIds, kTimes, threads);
    return 0;
}
