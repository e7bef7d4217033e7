// SPDX-License-Identifier: Apache-2.0
// Index levels (PROTOCOL section 2, Grow): a run of FREE chunks becomes an INDEX extent, is zeroed by the populating
// thread and then counted in the header. One level at a time.
#include "core/server/cache_region.h"

#include "core/common/error.h"
#include "core/common/log.h"
#include "core/common/pause.h"

#include <algorithm>

namespace libcache {
namespace {

constexpr uint64_t kEntriesPerChunk = kChunkBytes / sizeof(uint64_t);
constexpr uint64_t kSmallestHash = 4096;

} // namespace

uint64_t CacheRegion::all_slots() const {
    uint64_t slots = 0;
    for (const LevelFact &level : level_)
        slots += level.slots;
    return slots;
}

uint64_t CacheRegion::dense_end() const {
    uint64_t end = 0;
    for (const LevelFact &level : level_)
        if (level.kind == LevelKind::Dense) end = std::max(end, level.first + level.slots);
    return end;
}

// A level fills whole chunks: what it would leave of its last one could be lent to nobody.
void CacheRegion::begin_growth(LevelKind kind, uint64_t first, uint64_t slots) {
    growth_.active = true;
    growth_.kind = kind;
    growth_.first = first;
    growth_.chunks = std::min((slots + kEntriesPerChunk - 1) / kEntriesPerChunk, kMaxExtentChunks);
    growth_.slots = growth_.chunks * kEntriesPerChunk;
}

// Takes the wanted level one step further, if it can be.
void CacheRegion::pump_growth() {
    while (growth_.active && !growth_.zeroing) {
        uint64_t chunk = 0;
        const Room room = find_room(growth_.chunks, kNoSlot, For::Level, &chunk);
        if (room == Room::Wait) return;
        if (room == Room::Have) {
            extents_->make_index(chunk, growth_.chunks, static_cast<uint32_t>(level_.size()));
            // What was made for it just now is zero. All else has been somebody's.
            if (chunk >= growth_.fresh && chunk + growth_.chunks <= growth_.fresh + growth_.fresh_chunks)
                return publish_level(chunk);
            growth_.zeroing = true;
            submit(Work::Zero, chunk, growth_.chunks, kNoSlot, 0, 0);
        } else if (!smaller_growth()) {
            return fail_growth();
        }
    }
}

// No room for this one: a smaller level serves too, as long as there is memory for rows.
bool CacheRegion::smaller_growth() {
    if (level_.empty()) { // the first level: any dense one will do
        if (growth_.chunks == 1) return false;
        begin_growth(LevelKind::Dense, 0, growth_.slots / 2);
        return true;
    }
    if (growth_.kind == LevelKind::Hash && growth_.chunks == 1) return false;
    begin_growth(LevelKind::Hash, 0, growth_.kind == LevelKind::Dense ? kSmallestHash : growth_.slots / 2);
    return true;
}

void CacheRegion::fail_growth() {
    growth_.active = false;
    if (level_.empty()) {
        failed_ = true;
        return;
    }
    log_line(LogLevel::Debug, "cache %u/%u: no room for index level %zu", names_.session_id, names_.cache_id,
             level_.size());
    const uint32_t cause = full_cause_of(growth_.chunks);
    for (auto &[slot, client] : clients_)
        if (client.want.grow) answer(slot, client, CACHE_EFULL, 0, cause);
    refused_.levels = true;
    publish_refusals(cause);
}

void CacheRegion::zeroed(const Job &job) {
    growth_.zeroing = false;
    if (job.result == 0 && state_ != State::Dying) return publish_level(job.head);
    extents_->free_index(job.head);
    fail_growth();
}

void CacheRegion::publish_level(uint64_t chunk) {
    const uint32_t number = static_cast<uint32_t>(level_.size());
    Level &level = header()->level[number];
    level.kind.store(uint64_t(growth_.kind), std::memory_order_relaxed); // these four: shown by levels
    level.first.store(growth_.first, std::memory_order_relaxed);
    level.slots.store(growth_.slots, std::memory_order_relaxed);
    level.offset.store(map_.chunk_offset(chunk), std::memory_order_relaxed);
    LIBCACHE_PAUSE("broker.grow.2");
    // rel [level] pairs with Index::refresh: the level's numbers and its zeroed entries
    header()->levels.store(number + 1, std::memory_order_release);
    LIBCACHE_PAUSE("broker.grow.3");
    level_.push_back({growth_.kind, growth_.first, growth_.slots, chunk});
    growth_.active = false;
    sample_.reset();
    log_line(LogLevel::Debug, "cache %u/%u: index level %u of %llu entries", names_.session_id, names_.cache_id, number,
             static_cast<unsigned long long>(growth_.slots));
    for (auto &[slot, client] : clients_)
        if (client.want.grow) answer(slot, client, 0, 0);
}

void CacheRegion::serve_level(uint32_t slot, Client &client) {
    if (level_.size() > client.want.levels) return answer(slot, client, 0, 0);
    if (client.closing || client.hung_up) return answer(slot, client, CACHE_ESERVER, 0);
    if (!growth_.active) grow_for(client.row_id);
}

// Entries that the next level may have. In a cache that spills it is at most a quarter of what is left: each row that
// it finds there needs a stub as well, four entries long.
uint64_t CacheRegion::largest_level() const {
    const uint64_t slots = std::max(all_slots(), kSmallestHash);
    return spill_ ? std::min(slots, std::max(room_but(0) / kLevelShare / sizeof(uint64_t), kEntriesPerChunk)) : slots;
}

// A level for a row that none of the levels has a place for.
void CacheRegion::grow_for(int64_t row_id) {
    if (level_.size() >= kMaxLevels) return fail_growth();
    const uint64_t dense = dense_end(), id = static_cast<uint64_t>(row_id), more = std::min(dense, largest_level());
    // rows() counts what stands in hashed levels too: that estimate is taken off
    const bool dense_is_used = rows() >= hashed_rows() + dense / 2;
    if (id >= dense && id < dense + more && dense_is_used)
        begin_growth(LevelKind::Dense, dense, more);
    else
        begin_growth(LevelKind::Hash, 0, largest_level());
    pump_growth();
}

// Ahead of need: the next level comes when the newest hashed one is half full, or, while all ids are dense, when three
// quarters of them are there and more rows than the opener expected.
void CacheRegion::grow_ahead() {
    if (growth_.active || state_ != State::Live || level_.empty() || level_.size() >= kMaxLevels) return;
    if (level_.back().kind == LevelKind::Dense) {
        const uint64_t dense = dense_end(), count = rows();
        if (all_slots() != dense || count < dense / 4 * 3 || count <= header()->expected_rows) return;
        begin_growth(LevelKind::Dense, dense, std::min(dense, largest_level()));
        return pump_growth();
    }
    if (!newest_half_full()) return;
    begin_growth(LevelKind::Hash, 0, largest_level());
    pump_growth();
}

uint64_t CacheRegion::rows() const {
    uint64_t sum = 0;
    for (const Extents::Head &head : extents_->heads())
        if (head.word.state == ExtentState::Granted || head.word.state == ExtentState::Held ||
            head.word.state == ExtentState::Sealed)
            sum += map_.extent(head.chunk)->rows.load(std::memory_order_relaxed); // an estimate
    return sum;
}

namespace {

// Entries in use among those of a level's first chunk. Hashed ids are spread evenly: it stands for all of them.
uint64_t used_in(const WindowMap &window) {
    const auto *entries = reinterpret_cast<const AtomicU64 *>(window.address());
    return static_cast<uint64_t>(std::count_if(entries, entries + kEntriesPerChunk, [](const AtomicU64 &e) {
        return e.load(std::memory_order_relaxed) != 0; // an estimate
    }));
}

} // namespace

uint64_t CacheRegion::hashed_rows() const {
    uint64_t sum = 0;
    for (const LevelFact &level : level_) {
        WindowMap window;
        if (level.kind == LevelKind::Hash && window.map(file_.get(), map_.geometry(), level.chunk, 1) == 0)
            sum += used_in(window) * (level.slots / kEntriesPerChunk);
    }
    return sum;
}

bool CacheRegion::newest_half_full() {
    if (level_.empty() || level_.back().kind != LevelKind::Hash) return false;
    if (!sample_) {
        sample_.emplace();
        if (sample_->map(file_.get(), map_.geometry(), level_.back().chunk, 1) != 0) return sample_.reset(), false;
    }
    return used_in(*sample_) >= kEntriesPerChunk / 2;
}

// A new broker's: the levels that the header counts.
int CacheRegion::load_levels() {
    const uint64_t levels = header()->levels.load(std::memory_order_acquire); // [level]
    const Geometry &g = map_.geometry();
    for (uint32_t k = 0; k < levels && k < kMaxLevels; ++k) {
        const Level &shared = header()->level[k];
        const uint64_t kind = shared.kind.load(std::memory_order_relaxed);
        const uint64_t slots = shared.slots.load(std::memory_order_relaxed);
        const uint64_t offset = shared.offset.load(std::memory_order_relaxed);
        const uint64_t chunk = offset < g.data_offset ? g.chunks : (offset - g.data_offset) / kChunkBytes;
        if ((kind != uint64_t(LevelKind::Dense) && kind != uint64_t(LevelKind::Hash)) || chunk >= g.chunks ||
            offset % kChunkBytes != 0 || slots % kEntriesPerChunk != 0 ||
            slots / kEntriesPerChunk > extents_->word(chunk).len || extents_->word(chunk).state != ExtentState::Index)
            return fail(CACHE_ECORRUPT, "index level %u of a region is impossible", k);
        level_.push_back({LevelKind(kind), shared.first.load(std::memory_order_relaxed), slots, chunk});
    }
    return 0;
}

} // namespace libcache
