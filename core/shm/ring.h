// SPDX-License-Identifier: Apache-2.0
// The two ends of a TokenRing (layout.h): one producing process, one consuming process, any of which may die or lie.
// Both ends keep their own index privately and mask it at each use, so a token that a peer scribbles is the worst that
// can arrive. Wait-free. Not our Boost.Lockfree: a spsc_queue in shared memory trusts the indices it finds there.
#pragma once

#include "core/shm/layout.h"

namespace libcache {

class RingProducer {
  public:
    RingProducer() = default;
    // A new producer of an old ring begins where the mirrored index stands.
    explicit RingProducer(TokenRing *ring) : ring_(ring), head_(ring->head.load(std::memory_order_relaxed)) {}

    // False if the ring is full as far as the consumer has told.
    bool push(Token token) {
        // acq: the consumer has read what it counts here before we overwrite it [ring]
        if (head_ - ring_->tail.load(std::memory_order_acquire) >= kRingTokens) return false;
        ring_->token[head_ % kRingTokens].store(token.pack(), std::memory_order_relaxed);
        ring_->head.store(++head_, std::memory_order_release); // [ring] pairs with RingConsumer: token before index
        return true;
    }
    uint64_t queued() const { return head_ - ring_->tail.load(std::memory_order_relaxed); } // a hint

  private:
    TokenRing *ring_ = nullptr;
    uint64_t head_ = 0;
};

class RingConsumer {
  public:
    RingConsumer() = default;
    explicit RingConsumer(TokenRing *ring) : ring_(ring), tail_(ring->tail.load(std::memory_order_relaxed)) {}

    // The i-th waiting token (i = 0: the next one), or 0 when there are not so many.
    uint64_t peek(uint32_t i = 0) const {
        // acq [ring]: pairs with RingProducer::push. A lying head only shows more of the 64 tokens that exist.
        const uint64_t waiting = ring_->head.load(std::memory_order_acquire) - tail_;
        if (i >= waiting || i >= kRingTokens) return 0;
        return ring_->token[(tail_ + i) % kRingTokens].load(std::memory_order_relaxed);
    }
    uint32_t waiting() const {
        const uint64_t n = ring_->head.load(std::memory_order_acquire) - tail_;
        return n < kRingTokens ? static_cast<uint32_t>(n) : kRingTokens;
    }
    void advance() { ring_->tail.store(++tail_, std::memory_order_release); } // [ring] the producer may overwrite

  private:
    TokenRing *ring_ = nullptr;
    uint64_t tail_ = 0;
};

} // namespace libcache
