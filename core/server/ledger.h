// SPDX-License-Identifier: Apache-2.0
// What all caches of this server are charged together, and what is left: of the server's share of the memory, and of
// the machine and its cgroups just now, less what is to be left to others. A private sum derived from the regions; used
// by the broker's control thread.
#pragma once

#include "core/server/memory.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace libcache {

class Ledger {
  public:
    explicit Ledger(uint64_t limit_bytes, uint64_t headroom_bytes = 0)
        : limit_(limit_bytes), headroom_(headroom_bytes) {}

    uint64_t limit() const { return limit_; }
    uint64_t charged() const { return charged_; }
    uint64_t left() const { return limit_ - std::min(limit_, charged_); }

    // Bytes that may be made now.
    uint64_t room() const {
        const uint64_t available = gauge_.bytes();
        return std::min(left(), available - std::min(available, headroom_ + making_));
    }
    // Why there is no room: a part of a sentence.
    std::string shortage() const;
    uint32_t shortage_cause() const; // the same as enum cache_cause
    uint64_t headroom() const { return headroom_; }
    uint64_t available() const { return gauge_.bytes(); }
    // Bytes that are missing to the headroom: others have taken them.
    uint64_t missing() const { return headroom_ - std::min(headroom_, gauge_.bytes()); }

    void charge(uint64_t bytes) { charged_ += bytes; }
    void uncharge(uint64_t bytes) { charged_ -= std::min(charged_, bytes); }

    // Bytes that are charged but whose pages are still being made, so that the machine does not count them yet.
    void making(uint64_t bytes) { making_ += bytes; }
    void made(uint64_t bytes) {
        making_ -= std::min(making_, bytes);
        gauge_.made(bytes);
    }

  private:
    mutable MemoryGauge gauge_{MemoryGauge::Reading::Available};
    const uint64_t limit_, headroom_;
    uint64_t charged_ = 0, making_ = 0;
};

} // namespace libcache
