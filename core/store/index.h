// SPDX-License-Identifier: Apache-2.0
// The lock-free index of a cache: levels of one-word entries (layout.h; PROTOCOL: insert oldest first, look up newest
// first). Used by readers and writers of every process and, read-only, by the broker's recovery and the checker.
// find() is wait-free; insert() is lock-free: a lost CAS means another writer has published.
#pragma once

#include "core/common/prefetch.h"
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
        const DenseStart start = dense_start();
        if (start.covers(row_id)) return find_dense(start.entries[row_id], row_id);
        look_for_levels();
        return find_in_levels(known_.load(std::memory_order_acquire), row_id);
    }

    // The first level where it is dense, which it is as soon as ids from 0 on are stored: the usual case. The place of
    // an id that it covers is this id's alone, so that no other level need be asked.
    struct DenseStart {
        AtomicU64 *entries;
        uint64_t slots; // 0: no such level is known
        bool covers(int64_t row_id) const { return static_cast<uint64_t>(row_id) < slots; }
        // For an id that it covers: fetch its entry's line, to be written.
        void prefetch_for_insert(int64_t row_id) const { prefetch_to_write(&entries[row_id]); }
    };
    DenseStart dense_start() const {
        // acq: pairs with refresh(): the entries' place before their number
        const uint64_t slots = start_slots_.load(std::memory_order_acquire);
        return {start_entries_.load(std::memory_order_relaxed), slots};
    }
    // An id's entry loaded: 0, or where a row is said to be. Nothing of that is checked: see room_at() and has_id().
    static uint64_t offset_in(const AtomicU64 &entry) {
        // acq [publish] pairs with insert(): the row's bytes were written before
        return IndexEntry::offset(entry.load(std::memory_order_acquire));
    }
    // Bytes from `offset` on that may be touched by what this process has seen; fewer than a header: no row, or ask
    // find(), which looks again.
    uint64_t room_at(uint64_t offset) const {
        const uint64_t end = seen_top_.load(std::memory_order_relaxed);
        return offset >= data_offset_ && offset <= end ? end - offset : 0;
    }

    // True if a row with this id stands at `offset`, which may be anything.
    bool has_id(uint64_t offset, int64_t row_id) const {
        return offset >= data_offset_ && reaches(offset, sizeof(RowHeader)) && header_id(offset) == row_id;
    }
    // Fetch ahead what is looked at next of the row there; no offset does harm.
    void prefetch_header(uint64_t offset) const {
        prefetch_to_read(rows_ + offset);
        prefetch_to_read(rows_ + offset + sizeof(RowHeader) + kCacheLine - 1); // where a big first column begins
    }

    // Fetch ahead where the row's entry may be. A hint.
    void prefetch_entry(int64_t row_id) const;
    // Where the row most likely is, by its entry alone: 0, no level has it; else anything, to be checked with has_id().
    // If that says no, only find() knows.
    uint64_t candidate(int64_t row_id) const;

    enum class Insert { Won, Present, NoRoom };
    // Publishes `offset` for row_id: every byte of the row written before is visible to whoever finds it [publish].
    // NoRoom: all levels passed, ask for another; *levels is how many were passed.
    Insert insert(int64_t row_id, uint64_t offset, uint32_t *levels);
    // The usual case of insert() by itself: an id of the dense start, not there yet. False: nothing was done.
    bool insert_usual(int64_t row_id, uint64_t offset) {
        const DenseStart start = dense_start();
        return start.covers(row_id) && Index::publish_at(start.entries[row_id], row_id, offset);
    }

    // True if the index holds exactly this offset for this id: the row is live.
    bool holds(int64_t row_id, uint64_t offset);

    struct KnownLevel {
        LevelKind kind;
        uint64_t first, slots;
        AtomicU64 *entries;
    };
    // Looks for new levels; CACHE_ECORRUPT if one that the header counts is impossible, and ends before it.
    int refresh();
    // The same if there is something new.
    void look_for_levels() {
        // rlx: an older count only hides rows published since, as if the look-up had come earlier; refresh() acquires
        if (header_->levels.load(std::memory_order_relaxed) != known_.load(std::memory_order_relaxed)) refresh();
    }
    uint32_t known() const { return known_.load(std::memory_order_acquire); }
    // k < known(). acq pairs with refresh(): the numbers before the pointer
    const KnownLevel &level(uint32_t k) const { return *level_[k].load(std::memory_order_acquire); }

    // The offset in `e` if a row header can lie there, else 0. Called after `e` was loaded, since only an older
    // top_bytes could make a row that was just published look impossible.
    uint64_t row_offset(uint64_t e) const {
        const uint64_t offset = IndexEntry::offset(e);
        return offset >= data_offset_ && reaches(offset, sizeof(RowHeader)) ? offset : 0;
    }
    // True if [offset, offset + bytes) may be touched. Mostly decided by what was seen before: top_bytes only grows, so
    // an old copy says no too often, never yes.
    bool reaches(uint64_t offset, uint64_t bytes) const {
        const uint64_t end = seen_top_.load(std::memory_order_relaxed);
        return (offset <= end && bytes <= end - offset) || reaches_now(offset, bytes);
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
    mutable AtomicU64 seen_top_{0};                   // a checked copy of top_bytes, maybe an older one
    std::atomic<AtomicU64 *> start_entries_{nullptr}; // of DenseStart
    AtomicU64 start_slots_{0};
    // Made by whichever thread sees a level first, never changed: all threads use one reading of the shared numbers.
    std::atomic<const KnownLevel *> level_[kMaxLevels] = {};

    int64_t header_id(uint64_t offset) const { return reinterpret_cast<const RowHeader *>(rows_ + offset)->row_id; }
    uint64_t find_dense(const AtomicU64 &entry, int64_t row_id) const {
        const uint64_t offset = offset_in(entry);
        return has_id(offset, row_id) ? offset : 0;
    }
    [[gnu::noinline, gnu::cold]] bool reaches_now(uint64_t offset, uint64_t bytes) const; // by top_bytes itself
    uint64_t find_hashed(const KnownLevel &hashed, uint32_t k, int64_t row_id) const;
    uint64_t find_in_levels(uint32_t levels, int64_t row_id) const;
    static bool publish_at(AtomicU64 &entry, int64_t row_id, uint64_t offset) {
        uint64_t empty = 0;
        // rel [publish] as in insert_at()
        return entry.compare_exchange_strong(empty, IndexEntry::pack(index_hash(row_id, 0), offset),
                                             std::memory_order_release, std::memory_order_relaxed);
    }
    Insert insert_in(uint32_t k, int64_t row_id, uint64_t offset);
    Insert insert_at(AtomicU64 &entry, uint64_t mine, int64_t row_id);
};

} // namespace libcache
