// SPDX-License-Identifier: Apache-2.0
// label_orders [rounds]: [grant] and [ring], each without the other. A token comes through the ring after the grant it
// names, so either of the two orders alone is enough for a writer, and a weaker one is not noticed behind the other:
// here bytes are written before and after a single one of them. Made for TSan.
#include "tests/support/fake_region.h"

#include "core/server/extents.h"
#include "core/shm/ring.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

using namespace libcache;

namespace {

constexpr uint64_t kLimit = 8 << 20;

// Bytes as two owners in a row write them: `give` is what the first one does after it, `taken` what the second one
// waits for.
void hand_over(uint64_t rounds, char *bytes, const std::function<void()> &give, const std::function<bool()> &taken) {
    std::atomic<uint64_t> begun{0}, done{0};
    std::thread second([&] {
        for (uint64_t round = 1; round <= rounds; round++) {
            while (begun.load(std::memory_order_acquire) < round) // carries what stands before the round only
                std::this_thread::yield();
            while (!taken())
                std::this_thread::yield();
            memset(bytes, 2, 64);
            done.store(round, std::memory_order_release); // pairs with the first one's wait for it
        }
    });
    for (uint64_t round = 1; round <= rounds; round++) {
        begun.store(round, std::memory_order_release); // pairs with the second one's wait for it
        memset(bytes, 1, 64);
        give();
        while (done.load(std::memory_order_acquire) < round)
            std::this_thread::yield();
    }
    second.join();
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

} // namespace

int main(int argc, char **argv) {
    const uint64_t rounds = argc > 1 ? strtoull(argv[1], nullptr, 10) : 300;
    test_watchdog(200);
    check_grant(rounds);
    check_ring(rounds);
    printf("%lu rounds each\n", rounds);
    return 0;
}
