// SPDX-License-Identifier: Apache-2.0
// label_orders [rounds]: [grant], [ring] and [publish], each without the others. A token comes through the ring after
// the grant it names, so either of the two orders alone is enough for a writer, and a weaker one is not noticed behind
// the other; and whoever finds a row has mostly met its writer elsewhere before. Here bytes are written before and
// after a single one of them. Made for TSan.
#include "tests/support/fake_region.h"

#include "core/server/extents.h"
#include "core/shm/ring.h"
#include "core/store/index.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

using namespace libcache;

namespace {

constexpr uint64_t kLimit = 8 << 20;

// What two threads do in turn: `give` the first one, `taken` the second one until it is true.
void take_turns(uint64_t rounds, const std::function<void(uint64_t)> &give,
                const std::function<bool(uint64_t)> &taken) {
    std::atomic<uint64_t> begun{0}, done{0};
    std::thread second([&] {
        for (uint64_t round = 1; round <= rounds; round++) {
            while (begun.load(std::memory_order_acquire) < round) // carries what stands before the round only
                std::this_thread::yield();
            while (!taken(round))
                std::this_thread::yield();
            done.store(round, std::memory_order_release); // pairs with the first one's wait for it
        }
    });
    for (uint64_t round = 1; round <= rounds; round++) {
        begun.store(round, std::memory_order_release); // pairs with the second one's wait for it
        give(round);
        while (done.load(std::memory_order_acquire) < round)
            std::this_thread::yield();
    }
    second.join();
}

// Bytes as two owners in a row write them: `give` is what the first one does after it, `taken` what the second one
// waits for.
void hand_over(uint64_t rounds, char *bytes, const std::function<void()> &give, const std::function<bool()> &taken) {
    take_turns(
        rounds, [&](uint64_t) { memset(bytes, 1, 64), give(); },
        [&](uint64_t) {
            if (!taken()) return false;
            memset(bytes, 2, 64);
            return true;
        });
}

void check_grant(uint64_t rounds) {
    FakeRegion region(kLimit);
    Ledger ledger(kLimit);
    Extents extents(region.map(), kLimit, ledger);
    uint64_t making = 0;
    if (extents.start() != 0) test_die("no memory for the tables of a fake region");
    const uint64_t chunk = extents.begin_making(1, &making);
    extents.made(chunk);
    AtomicU64 &own = region.map().extent(chunk)->own;
    uint32_t last_seq = ExtentWord::unpack(own.load(std::memory_order_relaxed)).seq;
    hand_over(
        rounds, region.map().chunk_address(chunk),
        [&] {
            extents.revoke_granted(chunk); // that of the round before
            extents.grant(chunk, 1, 3);
        },
        [&] {
            const uint64_t seen = own.load(std::memory_order_acquire); // [grant], as Writer::try_token()
            const ExtentWord word = ExtentWord::unpack(seen);
            if (word.state != ExtentState::Granted || word.seq == last_seq) return false;
            last_seq = word.seq;
            return true;
        });
}

void check_ring(uint64_t rounds) {
    FakeRegion region(kLimit);
    Slot &slot = *region.map().slot(0);
    RingProducer producer(&slot.grant);
    RingConsumer consumer(&slot.grant);
    hand_over(
        rounds, region.at(region.geometry().data_offset),
        [&] {
            if (!producer.push({1, 1})) test_die("a ring of one token is full");
        },
        [&] {
            if (!Token::valid(consumer.peek())) return false;
            consumer.advance();
            return true;
        });
}

// The two ways of publishing have a CAS each: `usual` is that of an id of the dense start.
void check_publish(uint64_t rounds, LevelKind kind, bool usual) {
    FakeRegion region(kLimit);
    constexpr uint64_t kRow = 4 * kUnitBytes;
    const uint64_t rows = region.map().chunk_offset(
        region.take(round_up((rounds + 1) * kRow, kChunkBytes) / kChunkBytes, ExtentState::Sealed));
    region.add_level(kind, 0, round_up(4 * (rounds + 1), kWindow));
    Index index, second_index; // as two processes have one each
    for (Index *each : {&index, &second_index}) {
        each->attach(region.at(0), region.at(0), region.geometry().data_offset, region.geometry().region_bytes);
        if (each->refresh() != 0 || each->known() != 1) test_die("a level was not seen");
    }
    take_turns(
        rounds,
        [&](uint64_t round) {
            region.write_header(rows + round * kRow, int64_t(round), kRow / kUnitBytes);
            memset(region.at(rows + round * kRow + sizeof(RowHeader)), 1, kRow - sizeof(RowHeader));
            uint32_t levels = 0;
            const bool won = usual ? index.insert_usual(int64_t(round), rows + round * kRow)
                                   : index.insert(int64_t(round), rows + round * kRow, &levels) == Index::Insert::Won;
            if (!won) test_die("row %lu was not published", static_cast<unsigned long>(round));
        },
        [&](uint64_t round) {
            const uint64_t offset = second_index.find(int64_t(round)); // reads its header
            if (offset == 0) return false;
            if (*region.at(offset + sizeof(RowHeader)) != 1)
                test_die("row %lu is torn", static_cast<unsigned long>(round));
            return true;
        });
}

} // namespace

int main(int argc, char **argv) {
    const uint64_t rounds = argc > 1 ? strtoull(argv[1], nullptr, 10) : 300;
    test_watchdog(200);
    check_grant(rounds);
    check_ring(rounds);
    check_publish(rounds, LevelKind::Dense, true);
    check_publish(rounds, LevelKind::Dense, false);
    check_publish(rounds, LevelKind::Hash, false);
    printf("%lu rounds each\n", rounds);
    return 0;
}
