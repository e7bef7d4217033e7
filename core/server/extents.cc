// SPDX-License-Identifier: Apache-2.0
#include "core/server/extents.h"

#include "core/common/error.h"
#include "core/common/page.h"
#include "core/common/pause.h"

#include <algorithm>

namespace libcache {
namespace {

constexpr uint64_t kFirstSlots = 8; // writers: they need no room from a cache that is full
constexpr uint64_t kChunkUnits = kChunkBytes / kUnitBytes;

// The slots follow the header, in its last page where pages are large.
uint64_t slot_pages_bytes(uint64_t slots) {
    return round_up(kHeaderBytes + slots * sizeof(Slot), page_bytes()) - kHeaderBytes;
}
uint64_t table_pages_bytes(uint64_t entries) {
    return round_up(entries * sizeof(Extent), page_bytes());
}
uint64_t spill_pages_bytes(uint64_t entries) {
    return round_up(entries * sizeof(SpillSegment), page_bytes());
}

} // namespace

// ---- charging and pages of header, slots and table -----------------------------------------------------------------

void Extents::charge(uint64_t bytes) {
    charged_ += bytes;
    ledger_.charge(bytes);
    header_->charged_bytes.store(charged_, std::memory_order_relaxed); // for statistics only
}

// Lengths that a client scribbled may come to more than this cache has: that must not be taken from what others have.
void Extents::uncharge(uint64_t bytes) {
    bytes = std::min(charged_, bytes);
    charged_ -= bytes;
    ledger_.uncharge(bytes);
    header_->charged_bytes.store(charged_, std::memory_order_relaxed); // for statistics only
}

uint64_t Extents::limit_left() const {
    return limit_ - std::min(limit_, charged_);
}

uint64_t Extents::room_bytes() const {
    const uint64_t left = limit_left();
    return left == 0 ? 0 : std::min(left, ledger_.room());
}

bool Extents::provide_pages(uint64_t offset, uint64_t bytes) {
    if (bytes == 0) return true;
    if (bytes > room_bytes() || populate(map_.base() + offset, bytes) != 0) return false;
    charge(bytes);
    return true;
}

int Extents::provide_slot(uint32_t slot) {
    const Geometry &g = map_.geometry();
    if (slot < slots_top_) return 0;
    const uint64_t have = slot_pages_bytes(slots_top_), need = slot_pages_bytes(slot + 1);
    if (!provide_pages(g.slots_offset + have, need - have))
        return full_of(need - have > limit_left() ? uint32_t{CACHE_FULL_SIZE} : ledger_.shortage_cause(),
                       fail(CACHE_EFULL, "no room for the slot of another writer: the cache has %llu bytes left",
                            static_cast<unsigned long long>(limit_left())));
    slots_top_ = std::min(need / sizeof(Slot), g.slots);
    header_->slots_top.store(slots_top_, std::memory_order_release); // rel: whoever reads it finds pages
    return 0;
}

uint64_t Extents::table_bytes_for(uint64_t entries) const {
    return entries <= table_top_ ? 0 : table_pages_bytes(entries) - table_pages_bytes(table_top_);
}

// Pages for the first `entries` entries. All that lies beyond the chain of heads is EMPTY; it gets a head as soon as
// the table reaches there, because a run has a longest length.
bool Extents::provide_table(uint64_t entries) {
    const Geometry &g = map_.geometry();
    if (entries <= table_top_) return true;
    if (!provide_pages(g.table_offset + table_pages_bytes(table_top_), table_bytes_for(entries))) return false;
    table_top_ = std::min(table_pages_bytes(entries) / sizeof(Extent), g.chunks);
    while (covered_ < table_top_) {
        const uint64_t run = std::min(g.chunks - covered_, kMaxRunChunks);
        store(covered_, ExtentState::Empty, run, std::memory_order_relaxed); // shown by table_top
        empty_[covered_] = run;
        covered_ += run;
    }
    LIBCACHE_PAUSE("broker.table.1");
    // rel: whoever reads the new top finds pages and the heads in them
    header_->table_top.store(table_top_, std::memory_order_release);
    return true;
}

bool Extents::provide_spill_pages(uint64_t entries) {
    if (entries <= spill_top_) return true;
    const uint64_t have = spill_pages_bytes(spill_top_);
    return provide_pages(map_.geometry().spill_offset + have, spill_pages_bytes(entries) - have);
}

void Extents::show_spill_pages(uint64_t entries) {
    if (entries <= spill_top_) return;
    spill_top_ = std::min(spill_pages_bytes(entries) / sizeof(SpillSegment), map_.geometry().spill_segments);
    // rel: whoever reads the new top finds pages and the heads in them
    header_->spill_top.store(spill_top_, std::memory_order_release);
}

int Extents::start() {
    const Geometry &g = map_.geometry();
    const uint64_t slots = std::min(kFirstSlots, g.slots);
    if (provide_pages(0, kHeaderBytes + slot_pages_bytes(0)) && provide_slot(static_cast<uint32_t>(slots - 1)) == 0 &&
        provide_table(1))
        return 0;
    return full_of(
        ledger_.shortage_cause(),
        fail(CACHE_EFULL, "the server has no memory for the tables of a new cache: %s", ledger_.shortage().c_str()));
}

int Extents::load() {
    const Geometry &g = map_.geometry();
    const uint64_t slots_top = header_->slots_top.load(std::memory_order_acquire);
    const uint64_t table_top = header_->table_top.load(std::memory_order_acquire);
    const uint64_t spill_top = header_->spill_top.load(std::memory_order_acquire);
    if (slots_top > g.slots || table_top > g.chunks || table_top == 0 || spill_top > g.spill_segments)
        return fail(CACHE_ECORRUPT,
                    "the tables of a region end at slot %llu of %llu, chunk %llu of %llu and segment %llu of %llu",
                    static_cast<unsigned long long>(slots_top), static_cast<unsigned long long>(g.slots),
                    static_cast<unsigned long long>(table_top), static_cast<unsigned long long>(g.chunks),
                    static_cast<unsigned long long>(spill_top), static_cast<unsigned long long>(g.spill_segments));
    slots_top_ = slots_top, table_top_ = table_top, spill_top_ = spill_top;
    std::vector<Head> runs;
    uint64_t chunk = 0, chunks = 0;
    while (chunk < table_top_) {
        const ExtentWord w = word(chunk);
        if (w.len == 0)
            return fail(CACHE_ECORRUPT, "extent %llu has an impossible length", static_cast<unsigned long long>(chunk));
        if (w.state == ExtentState::Empty || w.state == ExtentState::Free) runs.push_back({chunk, w});
        if (w.state != ExtentState::Empty) chunks += w.len;
        chunk += w.len;
    }
    covered_ = chunk;
    for (const Head &run : runs)
        set_run(run.chunk, run.word.len, run.word.state); // merges what a death left apart
    charge(kHeaderBytes + slot_pages_bytes(slots_top_) + table_pages_bytes(table_top_) + spill_pages_bytes(spill_top_) +
           chunks * kChunkBytes);
    return 0;
}

// ---- words

ExtentWord Extents::word(uint64_t chunk) const {
    const ExtentWord none{ExtentState::Empty, kNoSlot, 0, 0};
    if (chunk >= table_top_) return none;
    const ExtentWord w = ExtentWord::unpack(own(chunk));
    return w.len == 0 || w.len > map_.geometry().chunks - chunk || uint32_t(w.state) > uint32_t(ExtentState::Index)
               ? none
               : w;
}

std::vector<Extents::Head> Extents::heads() const {
    std::vector<Head> found;
    for (uint64_t chunk = 0; chunk < covered_;) {
        const ExtentWord w = word(chunk);
        if (w.len == 0) break; // beyond the table, or scribbled: what is behind cannot be found
        if (w.state != ExtentState::Empty) found.push_back({chunk, w});
        chunk += w.len;
    }
    return found;
}

// The sequence number of a chunk's entry outlives every change of its state: it tells grants apart.
void Extents::store(uint64_t chunk, ExtentState state, uint64_t len, std::memory_order order, uint32_t slot) {
    const uint32_t seq = ExtentWord::unpack(own(chunk)).seq;
    extent(chunk).own.store(ExtentWord{state, slot, static_cast<uint32_t>(len), seq}.pack(), order);
}

// The head at `chunk` (anything but GRANTED and HELD) becomes a FREE or EMPTY run and is merged with its neighbours.
// Dies anywhere: shorter runs, merged by whoever touches them next.
uint64_t Extents::set_run(uint64_t chunk, uint64_t chunks, ExtentState state) {
    std::map<uint64_t, uint64_t> &runs = state == ExtentState::Free ? free_ : empty_;
    if (state == ExtentState::Free) free_chunks_ += chunks;
    uint64_t len = chunks;
    auto right = runs.find(chunk + chunks);
    if (right != runs.end() && len + right->second <= kMaxRunChunks) {
        len += right->second;
        runs.erase(right); // cppcheck-suppress mismatchingContainerIterator ; runs is one of the two by reference
    }
    // rel: the right neighbour's word stays as it is, hidden, saying FREE or EMPTY
    store(chunk, state, len, std::memory_order_release);
    LIBCACHE_PAUSE("broker.merge.1");
    auto left = runs.lower_bound(chunk);
    if (left != runs.begin() && (--left)->first + left->second == chunk && left->second + len <= kMaxRunChunks) {
        left->second += len;
        store(left->first, state, left->second, std::memory_order_release); // rel: as above
        return left->first;
    }
    runs[chunk] = len;
    return chunk;
}

// ---- making pages and giving them back

uint64_t Extents::find_free(uint64_t chunks) const {
    uint64_t best = kNone, best_len = ~uint64_t{0};
    for (const auto &[chunk, len] : free_)
        if (len >= chunks && len < best_len) best = chunk, best_len = len;
    return best;
}

uint64_t Extents::largest_free() const {
    const auto longest =
        std::max_element(free_.begin(), free_.end(), [](const auto &a, const auto &b) { return a.second < b.second; });
    return longest == free_.end() ? kNone : longest->first;
}

uint64_t Extents::free_run(uint64_t chunk) const {
    const auto run = free_.find(chunk);
    return run == free_.end() ? 0 : run->second;
}

// A place for `chunks` in an EMPTY run: among the huge pages whole units, or (`small`) beyond them.
bool Extents::choose_empty(uint64_t chunks, bool small, uint64_t *head, uint64_t *at, uint64_t *taken) const {
    const uint64_t huge = map_.geometry().huge_chunks, room = room_bytes();
    for (const auto &[run, len] : empty_) {
        *head = run;
        *at = small ? std::max(run, huge) : round_up(run, kUnitChunks);
        if (!small && *at >= huge) continue;
        const uint64_t end = run + len, units = round_up(chunks, kUnitChunks);
        *taken = !small && *at + units <= huge ? units : chunks;
        if (*at + *taken > end) continue;
        const uint64_t entries = std::min(*at + *taken + 1, map_.geometry().chunks);
        if (*taken * kChunkBytes + table_bytes_for(entries) <= room) return true;
    }
    return false;
}

// Part of a FREE or EMPTY run becomes BUSY. Dies before the last store: the new heads are hidden inside the old
// length, or the run is cut in two.
void Extents::begin_busy(std::map<uint64_t, uint64_t> &runs, ExtentState state, uint64_t head, uint64_t at,
                         uint64_t chunks) {
    const auto run = runs.find(head);
    const uint64_t end = head + run->second;
    runs.erase(run);
    if (at > head) {
        store(at, state, end - at, std::memory_order_relaxed); // hidden; shown by the next store
        LIBCACHE_PAUSE("broker.split.1");
        store(head, state, at - head, std::memory_order_release); // rel: with the head it shows
        runs[head] = at - head;
    }
    if (at + chunks < end) {
        store(at + chunks, state, end - at - chunks, std::memory_order_relaxed); // hidden, as above
        runs[at + chunks] = end - at - chunks;
    }
    LIBCACHE_PAUSE("broker.stock.1");
    store(at, ExtentState::Busy, chunks, std::memory_order_release); // rel: with the head it shows
    if (state == ExtentState::Free) free_chunks_ -= chunks;
}

uint64_t Extents::begin_making(uint64_t chunks, uint64_t *making) {
    uint64_t head, at;
    if (chunks == 0 ||
        (!choose_empty(chunks, false, &head, &at, making) && !choose_empty(chunks, true, &head, &at, making)))
        return kNone;
    // One entry more than the extent: the head of what is left of the run.
    if (!provide_table(std::min(at + *making + 1, map_.geometry().chunks))) return kNone;
    charge(*making * kChunkBytes);
    ledger_.making(*making * kChunkBytes);
    begin_busy(empty_, ExtentState::Empty, head, at, *making);
    return at;
}

uint64_t Extents::made(uint64_t chunk) {
    const uint64_t len = word(chunk).len, end = map_.chunk_offset(chunk + len);
    LIBCACHE_PAUSE("broker.stock.2");
    // rel: what may be touched is told before anything there is lent. Only we write it.
    if (end > header_->top_bytes.load(std::memory_order_relaxed))
        header_->top_bytes.store(end, std::memory_order_release);
    LIBCACHE_PAUSE("broker.stock.3");
    return set_run(chunk, len, ExtentState::Free);
}

void Extents::note_pages(uint64_t chunk, uint64_t chunks, const std::vector<uint64_t> &small_units) {
    const uint64_t end = std::min(chunk + chunks, map_.geometry().huge_chunks);
    for (uint64_t unit = round_down(chunk, kUnitChunks); unit < end; unit += kUnitChunks) // rlx: a statistic
        extent(unit).huge.store(1, std::memory_order_relaxed);
    for (uint64_t unit : small_units)
        extent(unit).huge.store(0, std::memory_order_relaxed);
}

void Extents::gave_back(uint64_t chunk) {
    const uint64_t len = word(chunk).len;
    LIBCACHE_PAUSE("broker.punch.2");
    set_run(chunk, len, ExtentState::Empty);
    uncharge(len * kChunkBytes);
}

namespace {

// The part of a FREE run that can be given back: whole units among huge pages, or what lies beyond them.
bool returnable(uint64_t run, uint64_t len, uint64_t huge, uint64_t *at, uint64_t *chunks) {
    const uint64_t end = run + len;
    *at = round_up(run, Extents::kUnitChunks);
    const uint64_t unit_end = round_down(std::min(end, huge), Extents::kUnitChunks);
    if (run < huge && *at < unit_end) return *chunks = unit_end - *at, true;
    *at = std::max(run, huge);
    return *at < end && (*chunks = end - *at, true);
}

} // namespace

bool Extents::begin_giving_back(uint64_t chunks, uint64_t *chunk, uint64_t *begun) {
    // Highest first: the lower part of the region stays dense.
    for (auto run = free_.rbegin(); run != free_.rend(); ++run) {
        if (!returnable(run->first, run->second, map_.geometry().huge_chunks, chunk, begun)) continue;
        *begun = std::min(*begun, round_up(chunks, window(*chunk)));
        begin_busy(free_, ExtentState::Free, run->first, *chunk, *begun);
        LIBCACHE_PAUSE("broker.punch.1");
        return true;
    }
    return false;
}

uint64_t Extents::can_give_back() const {
    uint64_t sum = 0, at, chunks;
    for (const auto &[run, len] : free_)
        if (returnable(run, len, map_.geometry().huge_chunks, &at, &chunks)) sum += chunks;
    return sum;
}

// ---- lending

// The first `chunks` of a FREE run leave it; the rest's head stands, hidden until the caller stores the first word.
void Extents::take_from_free(uint64_t chunk, uint64_t chunks) {
    const auto run = free_.find(chunk);
    const uint64_t rest = run->second - chunks;
    free_.erase(run);
    free_chunks_ -= chunks;
    if (rest == 0) return;
    store(chunk + chunks, ExtentState::Free, rest, std::memory_order_relaxed); // shown by the next store of own
    free_[chunk + chunks] = rest;
}

uint32_t Extents::grant(uint64_t chunk, uint64_t chunks, uint32_t slot) {
    take_from_free(chunk, chunks);
    Extent &e = extent(chunk);
    const ExtentWord w{ExtentState::Granted, slot, static_cast<uint32_t>(chunks),
                       (ExtentWord::unpack(own(chunk)).seq + 1) & ExtentWord::kSeqMask};
    // rlx: all four are shown by the store of own
    e.bump.store(Bump{0, static_cast<uint32_t>(chunks * kChunkUnits)}.pack(), std::memory_order_relaxed);
    e.rows.store(0, std::memory_order_relaxed);
    e.bytes.store(0, std::memory_order_relaxed);
    e.dead.store(0, std::memory_order_relaxed);
    LIBCACHE_PAUSE("broker.grant.1");
    e.own.store(w.pack(), std::memory_order_release); // [grant] pairs with the client's take: bump before
    LIBCACHE_PAUSE("broker.grant.2");
    return w.seq;
}

uint32_t Extents::grant_sealed(uint64_t chunk, uint32_t slot) {
    Extent &e = extent(chunk);
    const ExtentWord old = word(chunk);
    const ExtentWord w{ExtentState::Granted, slot, old.len, (old.seq + 1) & ExtentWord::kSeqMask};
    e.bump.store(Bump{bump(chunk).used, static_cast<uint32_t>(old.len * kChunkUnits)}.pack(),
                 std::memory_order_relaxed); // shown by the store of own
    LIBCACHE_PAUSE("broker.regrant.1");
    e.own.store(w.pack(), std::memory_order_release); // [grant]
    return w.seq;
}

void Extents::make_index(uint64_t chunk, uint64_t chunks, uint32_t level) {
    take_from_free(chunk, chunks);
    LIBCACHE_PAUSE("broker.grow.1");
    store(chunk, ExtentState::Index, chunks, std::memory_order_release, level); // rel: with the rest's head
}

void Extents::free_index(uint64_t chunk) {
    set_run(chunk, word(chunk).len, ExtentState::Free);
}

uint64_t Extents::trim(uint64_t chunk) {
    const ExtentWord w = word(chunk);
    if (w.state != ExtentState::Sealed) return 0;
    const uint64_t keep = (bump(chunk).used + kChunkUnits - 1) / kChunkUnits;
    if (keep >= w.len) return 0; // also: a number that somebody scribbled
    const uint64_t rest = w.len - keep;
    if (keep == 0) return set_run(chunk, w.len, ExtentState::Free), w.len;
    store(chunk + keep, ExtentState::Free, rest, std::memory_order_relaxed); // hidden; shown by the next store
    LIBCACHE_PAUSE("broker.trim.1");
    store(chunk, ExtentState::Sealed, keep, std::memory_order_release); // rel: with the head it shows
    LIBCACHE_PAUSE("broker.trim.2");
    set_run(chunk + keep, rest, ExtentState::Free);
    return rest;
}

bool Extents::revoke_granted(uint64_t chunk) {
    uint64_t seen = own(chunk);
    const ExtentWord w = ExtentWord::unpack(seen);
    // A length that was changed since the caller's walk would make a FREE run that leads out of the table.
    if (w.state != ExtentState::Granted || w.len == 0 || w.len > map_.geometry().chunks - chunk) return false;
    const bool used = bump(chunk).used != 0;
    const ExtentWord after{used ? ExtentState::Sealed : ExtentState::Free, kNoSlot, w.len, w.seq};
    LIBCACHE_PAUSE("broker.revoke.1");
    // acq_rel [revoke]: this CAS or the client's take wins, never both
    if (!extent(chunk).own.compare_exchange_strong(seen, after.pack(), std::memory_order_acq_rel,
                                                   std::memory_order_acquire))
        return false;
    if (used) return trim(chunk), true;
    set_run(chunk, w.len, ExtentState::Free);
    return true;
}

uint64_t Extents::cut_held(uint64_t chunk) {
    Extent &e = extent(chunk);
    const uint64_t start = chunk * kChunkBytes, window_bytes = window(chunk) * kChunkBytes;
    uint64_t seen = e.bump.load(std::memory_order_acquire), limit = 0; // [walk]
    for (;;) {
        const Bump b = Bump::unpack(seen);
        // The client writes its next header before its CAS shows it: 4,096 bytes above `used` stay, and the window
        // they lie in, whose pages it may be making.
        const uint64_t end = round_up(start + uint64_t{b.used} * kUnitBytes + 4096, window_bytes) - start;
        limit = std::min<uint64_t>(b.limit, end / kUnitBytes);
        if (limit == b.limit) break; // nothing to lower; an earlier cut may be unfinished
        // acq_rel [revoke]: either the client's `used` or this limit comes first, never both beyond it
        if (e.bump.compare_exchange_weak(seen, Bump{b.used, static_cast<uint32_t>(limit)}.pack(),
                                         std::memory_order_acq_rel, std::memory_order_acquire))
            break;
    }
    LIBCACHE_PAUSE("broker.cut.1");
    const uint64_t keep = (limit + kChunkUnits - 1) / kChunkUnits;
    uint64_t word_seen = own(chunk);
    ExtentWord w = ExtentWord::unpack(word_seen);
    if (keep == 0 || keep >= w.len || w.len > map_.geometry().chunks - chunk) return 0;
    const uint64_t rest = w.len - keep;
    store(chunk + keep, ExtentState::Free, rest, std::memory_order_relaxed); // hidden; shown by the CAS
    LIBCACHE_PAUSE("broker.cut.2");
    // By CAS, because the client may seal meanwhile. acq_rel: shows the new head, sees the client's bytes.
    while ((w.state == ExtentState::Held || w.state == ExtentState::Sealed) && w.len == keep + rest) {
        const ExtentWord after{w.state, w.slot, static_cast<uint32_t>(keep), w.seq};
        if (e.own.compare_exchange_weak(word_seen, after.pack(), std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
            LIBCACHE_PAUSE("broker.cut.3");
            set_run(chunk + keep, rest, ExtentState::Free);
            return rest;
        }
        w = ExtentWord::unpack(word_seen);
    }
    return 0;
}

void Extents::seal_recovered(uint64_t chunk, uint32_t used, uint64_t rows, uint64_t bytes, uint64_t dead_units) {
    Extent &e = extent(chunk);
    const uint64_t len = word(chunk).len;
    // rlx: the owner is dead, and all are shown by the store of own
    e.bump.store(Bump{used, static_cast<uint32_t>(len * kChunkUnits)}.pack(), std::memory_order_relaxed);
    e.rows.store(rows, std::memory_order_relaxed);
    e.bytes.store(bytes, std::memory_order_relaxed);
    e.dead.store(dead_units, std::memory_order_relaxed);
    LIBCACHE_PAUSE("broker.recover.2");
    store(chunk, ExtentState::Sealed, len, std::memory_order_release);
    LIBCACHE_PAUSE("broker.recover.3");
    trim(chunk);
}

} // namespace libcache
