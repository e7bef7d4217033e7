// SPDX-License-Identifier: Apache-2.0
// Grant and return rings: order, full and empty, wrap of the indices, peers that lie or die.
#include "core/shm/ring.h"

#include <criterion/criterion.h>
#include <memory>
#include <thread>

using namespace libcache;

namespace {
std::unique_ptr<TokenRing> ring_at(uint64_t index) {
    auto ring = std::make_unique<TokenRing>();
    ring->head.store(index, std::memory_order_relaxed);
    ring->tail.store(index, std::memory_order_relaxed);
    for (AtomicU64 &token : ring->token)
        token.store(0, std::memory_order_relaxed);
    return ring;
}
Token token(uint64_t i) {
    return {i, uint32_t(i % 1000)};
}
} // namespace

Test(rings, an_empty_ring_shows_nothing) {
    const auto ring = ring_at(0);
    const RingConsumer consumer(ring.get());
    cr_assert_eq(consumer.peek(), 0);
    cr_assert_eq(consumer.waiting(), 0);
}

Test(rings, tokens_come_out_in_order_and_a_full_ring_refuses) {
    const auto ring = ring_at(0);
    RingProducer producer(ring.get());
    RingConsumer consumer(ring.get());
    for (uint64_t i = 0; i < kRingTokens; i++)
        cr_assert(producer.push(token(i)));
    cr_assert_not(producer.push(token(99)));
    cr_assert_eq(producer.queued(), kRingTokens);
    cr_assert_eq(consumer.waiting(), kRingTokens);
    for (uint64_t i = 0; i < kRingTokens; i++) {
        cr_assert_eq(consumer.peek(uint32_t(kRingTokens - 1 - i)), token(kRingTokens - 1).pack());
        cr_assert_eq(consumer.peek(), token(i).pack());
        consumer.advance();
    }
    cr_assert_eq(consumer.peek(), 0);
    cr_assert_eq(producer.queued(), 0);
    cr_assert(producer.push(token(100)));
    cr_assert_eq(consumer.peek(), token(100).pack());
}

Test(rings, peeking_beyond_what_waits_shows_nothing) {
    const auto ring = ring_at(0);
    RingProducer producer(ring.get());
    const RingConsumer consumer(ring.get());
    producer.push(token(1));
    producer.push(token(2));
    cr_assert_eq(consumer.peek(1), token(2).pack());
    cr_assert_eq(consumer.peek(2), 0);
    cr_assert_eq(consumer.peek(kRingTokens), 0);
    cr_assert_eq(consumer.peek(UINT32_MAX), 0);
}

Test(rings, indices_wrap_around_their_64_bits) {
    const auto ring = ring_at(UINT64_MAX - 10);
    RingProducer producer(ring.get());
    RingConsumer consumer(ring.get());
    uint64_t out = 0;
    for (uint64_t in = 0; in < 1000; in++) {
        cr_assert(producer.push(token(in)));
        if (in % 3 != 2) continue;
        for (int n = 0; n < 3; n++, out++) {
            cr_assert_eq(consumer.peek(), token(out).pack());
            consumer.advance();
        }
    }
}

Test(rings, whatever_a_lying_consumer_says_only_the_64_tokens_are_touched) {
    struct {
        uint64_t before = 0x1111;
        TokenRing ring{};
        uint64_t after = 0x2222;
    } guarded;
    RingProducer producer(&guarded.ring);
    for (uint64_t lie : {uint64_t{0}, uint64_t{1} << 63, UINT64_MAX, uint64_t{12345678901}}) {
        guarded.ring.tail.store(lie, std::memory_order_relaxed);
        for (uint64_t i = 0; i < 200; i++)
            producer.push(token(i)); // true or false, both are allowed
    }
    cr_assert(guarded.before == 0x1111 && guarded.after == 0x2222);
}

Test(rings, whatever_a_lying_producer_says_at_most_64_tokens_wait) {
    const auto ring = ring_at(0);
    for (AtomicU64 &any : ring->token)
        any.store(token(5).pack(), std::memory_order_relaxed);
    RingConsumer consumer(ring.get());
    for (uint64_t lie : {UINT64_MAX, uint64_t{1} << 40, uint64_t{65}}) {
        ring->head.store(lie, std::memory_order_relaxed);
        cr_assert_leq(consumer.waiting(), kRingTokens);
        for (uint32_t i = 0; i < 200; i++)
            consumer.peek(i);
        cr_assert_eq(consumer.peek(kRingTokens), 0);
        for (int i = 0; i < 1000; i++) {
            consumer.peek();
            consumer.advance();
        }
    }
}

Test(rings, a_new_producer_goes_on_where_the_dead_one_stopped) {
    const auto ring = ring_at(0);
    RingConsumer consumer(ring.get());
    {
        RingProducer dead(ring.get());
        for (uint64_t i = 0; i < 5; i++)
            dead.push(token(i));
    }
    consumer.advance();
    RingProducer heir(ring.get());
    cr_assert_eq(heir.queued(), 4);
    heir.push(token(5));
    for (uint64_t i = 1; i <= 5; i++) {
        cr_assert_eq(consumer.peek(), token(i).pack());
        consumer.advance();
    }
    cr_assert_eq(consumer.peek(), 0);
}

Test(rings, a_new_consumer_goes_on_where_the_dead_one_stopped) {
    const auto ring = ring_at(0);
    RingProducer producer(ring.get());
    for (uint64_t i = 0; i < 5; i++)
        producer.push(token(i));
    {
        RingConsumer dead(ring.get());
        dead.advance();
        dead.advance();
    }
    RingConsumer heir(ring.get());
    cr_assert_eq(heir.waiting(), 3);
    cr_assert_eq(heir.peek(), token(2).pack());
}

Test(rings, two_threads_pass_every_token_once_and_in_order) {
    const auto ring = ring_at(UINT64_MAX - 1000);
    constexpr uint64_t kTokens = 200000;
    std::thread writer([&] {
        RingProducer producer(ring.get());
        for (uint64_t i = 0; i < kTokens;)
            if (producer.push(token(i)))
                i++;
            else
                std::this_thread::yield();
    });
    RingConsumer consumer(ring.get());
    for (uint64_t i = 0; i < kTokens;) {
        const uint64_t got = consumer.peek();
        if (got == 0) {
            std::this_thread::yield();
            continue;
        }
        if (got != token(i).pack()) cr_assert_fail("token %lu came as %lu", i, Token::unpack(got).chunk);
        consumer.advance();
        i++;
    }
    writer.join();
}
