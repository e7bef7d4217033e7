// SPDX-License-Identifier: Apache-2.0
// lending [threads [seconds [seed]]]: writers of several slots against a broker that lends, takes back and cuts extents
// and adds index levels all the time. Every id is put by every thread; one row each must come of it, and be right.
// Threads over one mapping: made for TSan.
#include "tests/support/fake_broker.h"
#include "tests/support/rows.h"

#include "core/common/error.h"
#include "core/store/audit.h"
#include "core/store/check.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>

using namespace libcache;

namespace {

constexpr int64_t kIds = 3000;
constexpr uint64_t kLimit = 24 << 20;

struct Round {
    FakeBroker broker;
    Index index;
    std::vector<std::atomic<uint32_t>> wins;
    std::atomic<uint32_t> running;

    Round(uint32_t threads, unsigned seed) : broker(kLimit, seed), wins(kIds), running(threads) {
        broker.attach(index);
    }
};

int64_t id_of(int64_t n) {
    return n % 2 ? n : int64_t(rows::mix(uint64_t(n)) >> 1);
}
uint64_t bytes_of(int64_t id) {
    return rows::mix(uint64_t(id) + 5) % (id % 50 == 0 ? 150000 : 3000);
}

// The one column of row `id`.
struct OneColumn {
    int64_t shape;
    cache_column column;
    explicit OneColumn(int64_t id)
        : shape(int64_t(bytes_of(id))), column{this, uint64_t(shape), &shape, CACHE_UINT8, 1, {}} {}
    OneColumn(const OneColumn &) = delete;
    OneColumn &operator=(const OneColumn &) = delete;
};

char *column_at(Round &round, uint64_t offset, const Layout &layout, bool in_line) {
    const uint32_t residue = residue_of(offset);
    return round.broker.region().at(offset) +
           (in_line ? layout.column_offset_in_line(residue, 0) : layout.column_offset(residue, 0));
}

// Reads whatever stands for `id`, if anything.
void check_row(Round &round, int64_t id, bool must) {
    const uint64_t offset = round.index.find(id);
    if (offset == 0) {
        if (must) test_die("row %ld is missing", id);
        return;
    }
    const OneColumn one(id);
    const auto layout = Layout::of(&one.column, 1);
    RowHeader header;
    memcpy(&header, round.broker.region().at(offset), sizeof header);
    if (header.row_id != id || header.n_columns != 1 ||
        header.check != row_check(header.layout, header.row_id, header.bytes, header.n_columns))
        test_die("row %ld has a wrong header at %lu", id, offset);
    const bool in_line = header.layout == kInlineLayout;
    const int64_t wrong = rows::first_wrong(column_at(round, offset, *layout, in_line), bytes_of(id), id, 0);
    if (wrong >= 0) test_die("row %ld is wrong from byte %ld of %lu on", id, wrong, bytes_of(id));
}

void put_row(Round &round, Writer &writer, int64_t n, std::mt19937 &random) {
    const int64_t id = id_of(n);
    const OneColumn one(id);
    const auto layout = Layout::of(&one.column, 1);
    uint32_t number = kInlineLayout;
    const int known = round.broker.layouts().find(&one.column, 1);
    if (known >= 0)
        number = uint32_t(known);
    else if (n % 97 == 0 && writer.store_layout(*layout, FakeBroker::kTimeoutNs, &number) != 0)
        test_die("store_layout: %s", last_error());
    Writer::Place place;
    if (writer.place({layout.get(), number, id, FakeBroker::kTimeoutNs}, &place) != 0)
        test_die("placing row %ld: %s", id, last_error());
    const bool in_line = number == kInlineLayout;
    if (in_line) memcpy(place.address + sizeof(RowHeader), layout->table(), layout->table_bytes());
    rows::fill(column_at(round, place.offset, *layout, in_line), bytes_of(id), id, 0);
    if (random() % 16 == 0) return writer.give_back(place); // an abort; this thread comes back to the id below
    const int result = writer.publish(place);
    if (result < 0) test_die("publishing row %ld: %s", id, last_error());
    if (result == 0) round.wins[size_t(n)].fetch_add(1);
}

void write_all(Round &round, uint32_t slot, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> order(kIds);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    Writer &writer = round.broker.writer_of(slot);
    for (int64_t n : order)
        do {
            put_row(round, writer, n, random);
            check_row(round, id_of(order[random() % order.size()]), false);
        } while (round.index.find(id_of(n)) == 0);
    round.running.fetch_sub(1);
}

// Every extent's own count against what the index says, and all words against the sum.
void check_region_words(Round &round) {
    uint64_t rows = 0;
    for (const Extents::Head &head : round.broker.extents().heads()) {
        if (head.word.state == ExtentState::Held || head.word.state == ExtentState::Granted)
            test_die("extent %lu is still lent to slot %u", head.chunk, head.word.slot);
        if (head.word.state != ExtentState::Sealed) continue;
        RegionMap &map = round.broker.region().map();
        const Bump bump = round.broker.extents().bump(head.chunk);
        const ExtentAudit audit = audit_extent(round.index, *map.header(), map.chunk_address(head.chunk),
                                               map.chunk_offset(head.chunk), bump.used);
        const uint64_t counted = map.extent(head.chunk)->rows.load(std::memory_order_relaxed);
        if (!audit.clear || audit.rows != counted)
            test_die("extent %lu counts %lu rows, has %lu", head.chunk, counted, audit.rows);
        rows += audit.rows;
    }
    if (rows != uint64_t(kIds)) test_die("%lu rows in the extents instead of %ld", rows, kIds);
    Ledger ledger(kLimit);
    Extents anew(round.broker.region().map(), kLimit, ledger);
    if (anew.load() != 0 || anew.charged() != round.broker.extents().charged())
        test_die("charged %lu by the words, %lu by the broker", anew.charged(), round.broker.extents().charged());
    std::string report;
    if (!region_check(round.broker.region().map(), &report)) test_die("region_check:\n%s", report.c_str());
}

void run_round(uint32_t n_threads, unsigned seed) {
    Round round(n_threads, seed);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < n_threads; t++)
        threads.emplace_back(write_all, std::ref(round), t % FakeBroker::kSlots, seed * 1000 + t);
    while (round.running.load() != 0)
        round.broker.step();
    for (std::thread &thread : threads)
        thread.join();
    for (uint32_t s = 0; s < FakeBroker::kSlots; s++)
        round.broker.writer_of(s).seal_all();
    round.broker.settle();
    for (int64_t n = 0; n < kIds; n++) {
        if (round.wins[size_t(n)].load() != 1)
            test_die("row %ld was stored %u times", id_of(n), round.wins[size_t(n)].load());
        check_row(round, id_of(n), true);
    }
    check_region_words(round);
}

} // namespace

int main(int argc, char **argv) {
    const uint32_t threads = argc > 1 ? uint32_t(atoi(argv[1])) : 6;
    const int seconds = argc > 2 ? atoi(argv[2]) : 5;
    const unsigned seed = argc > 3 ? unsigned(atoi(argv[3])) : unsigned(time(nullptr));
    printf("lending %u %d %u\n", threads, seconds, seed);
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
