// SPDX-License-Identifier: Apache-2.0
// The lock-free index of a cache: levels of one-word entries (layout.h, PROTOCOL: insert oldest first, look up newest
// first). Used by readers and writers of every process and, read-only, by the broker's recovery and the checker.
// find() is wait-free; insert() is lock-free: a lost CAS means another writer has published.
#pragma once

#include "core/shm/layout.h"

#include <cstdint>

namespace libcache {

// What one process knows of the levels of one region: pointers and sizes, checked once when first seen. Levels only
// grow, so a stale copy is a prefix. Any number of threads may use it; refresh() is safe from all of them.
class Index {
  public:
    struct KnownLevel {
        LevelKind kind;
        uint32_t number;
        uint64_t first, slots;
        AtomicU64 *entries;
    };

    // `base`: the region's first byte in this process, `bytes` of which are mapped. With a read-only mapping only
    // find() and the like may be called.
    void attach(char *base, uint64_t data_offset, uint64_t region_bytes);

    // The row's offset in the region, or 0. The header it names has the id; nothing else of it is checked.
    uint64_t find(int64_t row_id);
    void prefetch(int64_t row_id);

    enum class Insert { Won, Present, NoRoom };
    // Publishes `offset` for row_id: every byte of the row written before is visible to whoever finds it [publish].
    // NoRoom: all levels passed, ask for another; *levels is how many were passed.
    Insert insert(int64_t row_id, uint64_t offset, uint32_t *levels);

    // True if the index holds exactly this offset for this id: the row is live.
    bool holds(int64_t row_id, uint64_t offset);

    // Levels seen so far after looking again; CACHE_ECORRUPT if one that the header counts is impossible.
    int refresh(uint32_t *levels = nullptr);
    const KnownLevel &level(uint32_t k) const { return level_[k]; }
    uint32_t known() const { return known_.load(std::memory_order_acquire); }

  private:
    RegionHeader *header_ = nullptr;
    char *base_ = nullptr;
    uint64_t data_offset_ = 0, region_bytes_ = 0;
    AtomicU32 known_{0};
    KnownLevel level_[kMaxLevels];
    uint64_t match(const KnownLevel &level, uint64_t slot, uint64_t tag, int64_t row_id) const;
};

} // namespace libcache
