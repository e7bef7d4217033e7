// SPDX-License-Identifier: Apache-2.0
// The lock-free index of a cache: levels of one-word entries (layout.h; PROTOCOL: insert oldest first, look up newest
// first). Used by readers and writers of every process and, read-only, by the broker's recovery and the checker.
// find() is wait-free; insert() is lock-free: a lost CAS means another writer has published.
#pragma once

#include "core/shm/layout.h"

#include <cstdint>

namespace libcache {

// What one process knows of the levels of one region: places and sizes, checked once when first seen. Levels only
// grow, so a stale copy is a prefix. Any number of threads may use it.
class Index {
  public:
    // `entries`: the region's first byte in the mapping through which entries are read and, for insert(), changed.
    // `rows`: the same in the mapping through which row headers are read; it is touched for every match, so it should
    // be the one that readers use anyway.
    Index() = default;
    ~Index();
    Index(const Index &) = delete;
    Index &operator=(const Index &) = delete;
    void attach(char *entries, const char *rows, uint64_t data_offset, uint64_t region_bytes);

    // The row's offset in the region, or 0. The header it names lies inside the region and has the id; nothing else of
    // it is checked. Wait-free.
    uint64_t find(int64_t row_id) {
        look_for_levels();
        for (uint32_t k = known_.load(std::memory_order_acquire); k-- > 0;) // newest first: most rows are there
            if (const uint64_t offset = find_in(k, row_id)) return offset;
        return 0;
    }

    // Fetch ahead the entry of a row, then, from the entry, the row itself. Hints.
    void prefetch_entry(int64_t row_id) const;
    void prefetch_row(int64_t row_id) const;

    enum class Insert { Won, Present, NoRoom };
    // Publishes `offset` for row_id: every byte of the row written before is visible to whoever finds it [publish].
    // NoRoom: all levels passed, ask for another; *levels is how many were passed.
    Insert insert(int64_t row_id, uint64_t offset, uint32_t *levels);

    // True if the index holds exactly this offset for this id: the row is live.
    bool holds(int64_t row_id, uint64_t offset);

    struct KnownLevel {
        LevelKind kind;
        uint64_t first, slots;
        AtomicU64 *entries;
    };
    // Looks for new levels; CACHE_ECORRUPT if one that the header counts is impossible, and ends before it.
    int refresh();
    uint32_t known() const { return known_.load(std::memory_order_acquire); }
    // k < known(). acq pairs with refresh(): the numbers before the pointer
    const KnownLevel &level(uint32_t k) const { return *level_[k].load(std::memory_order_acquire); }

    // The offset in `e` if a row header can lie there, else 0. Called after `e` was loaded, since only an older
    // top_bytes could make a row that was just published look impossible.
    uint64_t row_offset(uint64_t e) const {
        const uint64_t offset = IndexEntry::offset(e);
        return offset >= data_offset_ && offset + sizeof(RowHeader) <= top() ? offset : 0;
    }
    // End of what may be touched, as a checked number.
    uint64_t top() const {
        const uint64_t top_bytes = header_->top_bytes.load(std::memory_order_acquire);
        return top_bytes < region_bytes_ ? top_bytes : region_bytes_;
    }

  private:
    const RegionHeader *header_ = nullptr;
    char *entries_ = nullptr;
    const char *rows_ = nullptr;
    uint64_t data_offset_ = 0, region_bytes_ = 0;
    AtomicU32 known_{0};
    // Made by whichever thread sees a level first, never changed: all threads use one reading of the shared numbers.
    std::atomic<const KnownLevel *> level_[kMaxLevels] = {};

    void look_for_levels() {
        // rlx: an older count only hides rows published since, as if the look-up had come earlier; refresh() acquires
        if (header_->levels.load(std::memory_order_relaxed) != known_.load(std::memory_order_relaxed)) refresh();
    }
    int64_t header_id(uint64_t offset) const { return reinterpret_cast<const RowHeader *>(rows_ + offset)->row_id; }
    uint64_t find_in(uint32_t k, int64_t row_id) const {
        const KnownLevel &known = level(k);
        const AtomicU64 *const entries = known.entries;
        if (known.kind == LevelKind::Dense) {
            const uint64_t at = static_cast<uint64_t>(row_id) - known.first;
            if (at >= known.slots) return 0;
            // acq [publish] pairs with insert(): the row's bytes were written before
            const uint64_t e = entries[at].load(std::memory_order_acquire);
            if (e == 0) return 0;
            const uint64_t offset = row_offset(e);
            return offset != 0 && header_id(offset) == row_id ? offset : 0;
        }
        const uint64_t hash = index_hash(row_id, k);
        const AtomicU64 *const window = entries + index_window(hash, known.slots);
        for (uint64_t i = 0; i < kWindow; i++) {
            const uint64_t e = window[i].load(std::memory_order_acquire); // [publish] as above
            if (e == 0) return 0;                                         // ends this level: windows fill in order
            if (IndexEntry::tag(e) != (hash & 0xffff)) continue;
            const uint64_t offset = row_offset(e);
            if (offset != 0 && header_id(offset) == row_id) return offset;
        }
        return 0;
    }
    Insert insert_in(uint32_t k, int64_t row_id, uint64_t offset);
    Insert insert_at(AtomicU64 &entry, uint64_t mine, int64_t row_id);
};

} // namespace libcache
