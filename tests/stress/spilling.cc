// SPDX-License-Identifier: Apache-2.0
// spilling [threads [seconds [seed]]]: threads of one process spill the same rows, read each other's, flush and wait
// for them. One row of each id must come of it, and be right. Threads over one mapping: made for TSan.
#include "tests/support/fake_spill.h"

#include "core/common/error.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

using namespace libcache;

namespace {

constexpr int64_t kIds = 1500;

uint64_t bytes_of(int64_t id) {
    const uint64_t n = rows::mix(uint64_t(id) + 5);
    return id % 300 == 7 ? (1 << 20) + n % 500'000 : id % 20 == 3 ? n % 300'000 : n % 3000;
}

struct Round {
    FakeSpill spill;
    std::array<std::atomic<uint32_t>, kIds> wins{};
};

void spill_all(Round &round, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> order(kIds);
    std::iota(order.begin(), order.end(), 0);
    // Threads are close together, so that they meet at the same ids.
    for (size_t at = 0; at < order.size(); at += 50)
        std::shuffle(order.begin() + ptrdiff_t(at), order.begin() + ptrdiff_t(std::min(order.size(), at + 50)), random);
    for (const int64_t id : order) {
        const int rc = round.spill.put(id, bytes_of(id));
        if (rc < 0) test_die("put %ld: %s", id, last_error());
        if (rc == 0) round.wins[size_t(id)].fetch_add(1);
        Spiller &spiller = round.spill.spiller();
        const unsigned what = random() % 64;
        if (what == 0 && spiller.flush() != 0) test_die("flush: %s", last_error());
        if (what < 8) { // who has put it, or was told that it is there, finds it
            spiller.wait_for(id);
            if (!round.spill.check(id, bytes_of(id))) test_die("row %ld is missing", id);
        }
        if (what == 8) (void)spiller.writes(order[random() % order.size()]);
        if (what == 9) spiller.wait_for(kIds + id); // nobody puts it
    }
}

void run_round(uint32_t n_threads, unsigned seed) {
    Round round;
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < n_threads; t++)
        threads.emplace_back(spill_all, std::ref(round), seed * 1000 + t);
    for (std::thread &thread : threads)
        thread.join();
    if (round.spill.spiller().flush() != 0) test_die("flush: %s", last_error());
    for (int64_t id = 0; id < kIds; id++) {
        if (round.wins[size_t(id)].load() != 1)
            test_die("row %ld was stored %u times", id, round.wins[size_t(id)].load());
        if (!round.spill.check(id, bytes_of(id))) test_die("row %ld is missing", id);
    }
    round.spill.end();
    uint64_t rows = 0;
    for (uint64_t run = 0; run < round.spill.lent(); run++) {
        if (round.spill.word(run).state != ExtentState::Sealed) test_die("run %lu is not sealed", run);
        rows += round.spill.rows_of(run);
    }
    if (rows != uint64_t(kIds)) test_die("%lu rows in the runs instead of %ld", rows, kIds);
}

} // namespace

int main(int argc, char **argv) {
    const uint32_t threads = argc > 1 ? uint32_t(atoi(argv[1])) : 4;
    const int seconds = argc > 2 ? atoi(argv[2]) : 3;
    const unsigned seed = argc > 3 ? unsigned(atoi(argv[3])) : unsigned(time(nullptr));
    printf("spilling %u %d %u\n", threads, seconds, seed);
    fflush(stdout);
    test_watchdog(unsigned(seconds) + 200);
    const time_t end = time(nullptr) + seconds;
    unsigned rounds = 0;
    do
        run_round(threads, seed + rounds++);
    while (time(nullptr) < end);
    printf("%u rounds of %ld rows by %u threads\n", rounds, kIds, threads);
    return 0;
}
