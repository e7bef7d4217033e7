// SPDX-License-Identifier: Apache-2.0
// The segment words of one spilling cache, as the broker changes them: as extents.h, for the file. Every function is
// one transition; a walk over the heads takes the place of mirrors, since a cache has few runs. Used by the broker's
// control thread alone.
#pragma once

#include "core/server/extents.h"

#include <cstdint>

namespace libcache {

// What all spill files of a server take, against --spill_limit.
struct SpillLedger {
    uint64_t limit = 0; // bytes, 0: as much as the file system gives
    uint64_t used = 0;
    uint64_t left() const { return limit == 0 ? ~uint64_t{0} : limit - std::min(limit, used); }
};

class SpillSegments {
  public:
    static constexpr uint64_t kNone = ~uint64_t{0};
    struct Head {
        uint64_t segment;
        ExtentWord word;
        uint64_t used; // bytes; of SEALED, GRANTED and HELD; never more than the run has
        uint64_t room() const { return word.len * kSegmentBytes - used; }
    };

    // `extents` charges the table's pages.
    SpillSegments(const RegionMap &map, Extents &extents, SpillLedger &ledger)
        : map_(map), extents_(extents), ledger_(ledger) {}
    ~SpillSegments() { ledger_.used -= std::min(ledger_.used, used_); }
    SpillSegments(const SpillSegments &) = delete;
    SpillSegments &operator=(const SpillSegments &) = delete;

    // An old region's: the sum from the words. 0 or CACHE_ECORRUPT.
    [[nodiscard]] int load();

    uint64_t used_bytes() const { return used_; } // file space
    // The head at or after `segment`, merged with its like; false: there is none. Walk: for (at = 0; next(&at, &head);)
    bool next(uint64_t *at, Head *head);

    // EMPTY -> BUSY, counted in the ledger; kNone: no room in the table.
    uint64_t begin_making(uint64_t segments);
    void made(uint64_t segment);              // BUSY -> FREE
    void gave_back(uint64_t segment);         // BUSY -> EMPTY
    void begin_giving_back(uint64_t segment); // FREE -> BUSY

    uint32_t grant(const Head &free, uint64_t segments, uint32_t slot); // FREE, its first segments -> GRANTED
    uint32_t grant_sealed(const Head &sealed, uint32_t slot);           // SEALED -> GRANTED, the room above `used`
    void trim(const Head &sealed);                                      // what lies above `used` becomes FREE
    void revoke(uint64_t segment); // GRANTED -> FREE or SEALED, if the client is not faster
    // HELD of a dead slot -> SEALED with what recovery found.
    void seal_recovered(uint64_t segment, uint64_t used, uint64_t rows, uint64_t bytes);

  private:
    const RegionMap &map_;
    Extents &extents_;
    SpillLedger &ledger_;
    uint64_t used_ = 0;

    SpillSegment &entry(uint64_t segment) const { return *map_.segment(segment); }
    uint64_t own(uint64_t segment) const { return entry(segment).own.load(std::memory_order_acquire); } // [seal]
    ExtentWord word(uint64_t segment) const;
    void store(uint64_t segment, ExtentState state, uint64_t len, std::memory_order order, uint32_t slot = kNoSlot);
    void count(uint64_t segments, bool more);
};

} // namespace libcache
