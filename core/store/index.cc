// SPDX-License-Identifier: Apache-2.0
#include "core/store/index.h"

#include "core/common/error.h"
#include "core/common/pause.h"

#include <algorithm>

namespace libcache {

void Index::attach(char *entries, const char *rows, uint64_t data_offset, uint64_t region_bytes) {
    header_ = reinterpret_cast<const RegionHeader *>(rows);
    entries_ = entries;
    rows_ = rows;
    data_offset_ = data_offset;
    region_bytes_ = region_bytes;
    known_.store(0, std::memory_order_relaxed);
}

int Index::refresh() {
    // acq [level] pairs with the broker's store of levels: the level's numbers and its zeroed entries came before
    const uint64_t counted = header_->levels.load(std::memory_order_acquire);
    const uint32_t levels = static_cast<uint32_t>(std::min<uint64_t>(counted, kMaxLevels));
    for (uint32_t k = known_.load(std::memory_order_acquire); k < levels; k++) {
        const Level &shared = header_->level[k];
        const uint64_t kind = shared.kind.load(std::memory_order_relaxed);
        const uint64_t slots = shared.slots.load(std::memory_order_relaxed);
        const uint64_t offset = shared.offset.load(std::memory_order_relaxed);
        const uint64_t end = top();
        const bool dense = kind == static_cast<uint64_t>(LevelKind::Dense);
        if ((!dense && kind != static_cast<uint64_t>(LevelKind::Hash)) || slots < kWindow || slots > (1ULL << 40) ||
            (!dense && slots % kWindow != 0) || offset % 128 != 0 || offset < data_offset_ || offset >= end ||
            slots > (end - offset) / sizeof(uint64_t))
            return fail(CACHE_ECORRUPT, "level %u of the cache's index is impossible: kind %llu, %llu slots at %llu", k,
                        static_cast<unsigned long long>(kind), static_cast<unsigned long long>(slots),
                        static_cast<unsigned long long>(offset));
        const auto *const fresh = new KnownLevel{LevelKind(kind), shared.first.load(std::memory_order_relaxed), slots,
                                                 reinterpret_cast<AtomicU64 *>(entries_ + offset)};
        const KnownLevel *seen = nullptr;
        // rel: the numbers before the pointer. Lost: another thread's reading stays
        if (!level_[k].compare_exchange_strong(seen, fresh, std::memory_order_release, std::memory_order_relaxed))
            delete fresh;
        if (const KnownLevel &agreed = level(k); k == 0 && agreed.kind == LevelKind::Dense && agreed.first == 0) {
            start_entries_.store(agreed.entries, std::memory_order_relaxed);
            start_slots_.store(agreed.slots, std::memory_order_release); // rel: pairs with dense_start()
        }
        // rel: pairs with the acquire loads of known_. Another thread may be ahead: only ever raise it
        uint32_t before = k;
        known_.compare_exchange_strong(before, k + 1, std::memory_order_release, std::memory_order_relaxed);
    }
    return 0;
}

Index::~Index() {
    for (auto &level : level_)
        delete level.load(std::memory_order_relaxed); // nobody else is left
}

bool Index::reaches_now(uint64_t offset, uint64_t bytes) const {
    const uint64_t end = top();
    seen_top_.store(end, std::memory_order_relaxed);
    return offset <= end && bytes <= end - offset;
}

uint64_t Index::find_hashed(const KnownLevel &hashed, uint32_t k, int64_t row_id) const {
    const uint64_t hash = index_hash(row_id, k);
    const AtomicU64 *const window = hashed.entries + index_window(hash, hashed.slots);
    for (uint64_t i = 0; i < kWindow; i++) {
        const uint64_t e = window[i].load(std::memory_order_acquire); // [publish] as in offset_in()
        if (e == 0) return 0;                                         // ends this level: windows fill in order
        if (IndexEntry::tag(e) != (hash & 0xffff)) continue;
        const uint64_t offset = row_offset(e);
        if (offset != 0 && header_id(offset) == row_id) return offset;
    }
    return 0;
}

uint64_t Index::find_in_levels(uint32_t levels, int64_t row_id) const {
    prefetch_entry(row_id);               // of a few levels at once: most look-ups go past the newest one
    for (uint32_t k = levels; k-- > 0;) { // newest first: most rows are there
        const KnownLevel &known_level = level(k);
        const uint64_t at = static_cast<uint64_t>(row_id) - known_level.first;
        const uint64_t offset = known_level.kind == LevelKind::Hash ? find_hashed(known_level, k, row_id)
                                : at < known_level.slots            ? find_dense(known_level.entries[at], row_id)
                                                                    : 0;
        if (offset != 0) return offset;
    }
    return 0;
}

void Index::prefetch_entry(int64_t row_id) const {
    constexpr uint32_t kAhead = 3; // levels double: seven of eight rows are in these
    const uint32_t levels = known();
    for (uint32_t k = levels; k-- > 0 && k + kAhead >= levels;) {
        const KnownLevel &l = level(k);
        if (l.kind == LevelKind::Hash) {
            const AtomicU64 *const window = l.entries + index_window(index_hash(row_id, k), l.slots);
            prefetch_to_read(window);
            prefetch_to_read(window + kWindow / 2); // its second line
        } else if (const uint64_t at = static_cast<uint64_t>(row_id) - l.first; at < l.slots) {
            prefetch_to_read(&l.entries[at]);
        }
    }
}

uint64_t Index::candidate(int64_t row_id) const {
    for (uint32_t k = known(); k-- > 0;) {
        const KnownLevel &l = level(k);
        if (l.kind == LevelKind::Dense) {
            const uint64_t at = static_cast<uint64_t>(row_id) - l.first;
            if (const uint64_t offset = at < l.slots ? offset_in(l.entries[at]) : 0; offset != 0) return offset;
            continue;
        }
        const uint64_t hash = index_hash(row_id, k);
        const AtomicU64 *const window = l.entries + index_window(hash, l.slots);
        for (uint64_t i = 0; i < kWindow; i++) {
            const uint64_t e = window[i].load(std::memory_order_acquire); // [publish] as in offset_in()
            if (e == 0) break;
            if (IndexEntry::tag(e) == (hash & 0xffff)) return IndexEntry::offset(e);
        }
    }
    return 0;
}

Index::Insert Index::insert_at(AtomicU64 &entry, uint64_t mine, int64_t row_id) {
    uint64_t seen = entry.load(std::memory_order_acquire); // [publish] we may read the header it names
    if (seen == 0) {
        LIBCACHE_PAUSE("index.insert.1");
        // rel [publish] pairs with find_in(): the row's bytes before the entry. acq on failure: as the load above.
        if (entry.compare_exchange_strong(seen, mine, std::memory_order_acq_rel, std::memory_order_acquire))
            return Insert::Won;
    }
    if (IndexEntry::tag(seen) != IndexEntry::tag(mine)) return Insert::NoRoom;
    const uint64_t offset = row_offset(seen);
    return offset != 0 && header_id(offset) == row_id ? Insert::Present : Insert::NoRoom;
}

// NoRoom: this level has no place left for the id.
Index::Insert Index::insert_in(uint32_t k, int64_t row_id, uint64_t offset) {
    const KnownLevel &l = level(k);
    const uint64_t hash = index_hash(row_id, k);
    const uint64_t mine = IndexEntry::pack(hash, offset);
    if (l.kind == LevelKind::Dense) {
        const uint64_t at = static_cast<uint64_t>(row_id) - l.first;
        return at < l.slots ? insert_at(l.entries[at], mine, row_id) : Insert::NoRoom;
    }
    AtomicU64 *const window = l.entries + index_window(hash, l.slots);
    for (uint64_t i = 0; i < kWindow; i++)
        if (const Insert result = insert_at(window[i], mine, row_id); result != Insert::NoRoom) return result;
    return Insert::NoRoom;
}

// Oldest first. Slots never empty again, so all that the first winner of an id passed by stays full of other ids, and
// whoever else has this id arrives at the same slot: each id is published exactly once while levels are added.
Index::Insert Index::insert(int64_t row_id, uint64_t offset, uint32_t *levels) {
    for (uint32_t k = 0;;) {
        for (const uint32_t known_now = known(); k < known_now; k++)
            if (const Insert result = insert_in(k, row_id, offset); result != Insert::NoRoom) return result;
        refresh(); // an impossible level ends the levels: NoRoom below
        if (k == known()) {
            *levels = k;
            return Insert::NoRoom;
        }
    }
}

bool Index::holds(int64_t row_id, uint64_t offset) {
    refresh();
    for (uint32_t k = known(); k-- > 0;) {
        const KnownLevel &l = level(k);
        const uint64_t hash = index_hash(row_id, k);
        const bool dense = l.kind == LevelKind::Dense;
        const uint64_t at = dense ? static_cast<uint64_t>(row_id) - l.first : index_window(hash, l.slots);
        if (at >= l.slots) continue;
        for (uint64_t i = 0; i < (dense ? 1 : kWindow); i++) {
            // acq [publish]: recovery goes on to read the row
            const uint64_t e = l.entries[at + i].load(std::memory_order_acquire);
            if (e == 0) break;
            if (IndexEntry::offset(e) == offset && IndexEntry::tag(e) == (hash & 0xffff)) return true;
        }
    }
    return false;
}

} // namespace libcache
