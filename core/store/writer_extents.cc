// SPDX-License-Identifier: Apache-2.0
// The writer's extents: take, populate, retire, seal (PROTOCOL section 1). Everything here runs under the writer's
// mutex.
#include "core/common/page.h"
#include "core/common/pause.h"
#include "core/store/writer.h"

#include <algorithm>
#include <sys/mman.h>
#include <utility>

namespace libcache {
namespace {

constexpr size_t kMostHoles = 32; // they are searched under the mutex

} // namespace

// Tokens are hints: the extent's own word decides, by one CAS that a revoke may win instead.
Writer::Held *Writer::try_token(uint64_t raw, const Row &row, bool *stale) {
    *stale = true;
    if (!Token::valid(raw)) return nullptr;
    const Token token = Token::unpack(raw);
    const uint64_t chunks = map_.geometry().chunks;
    if (token.chunk >= chunks) return nullptr;
    Extent &extent = *map_.extent(token.chunk);
    uint64_t own = extent.own.load(std::memory_order_acquire); // [grant] bump and rows below are those of this grant
    const ExtentWord word = ExtentWord::unpack(own);
    if (word.state != ExtentState::Granted || word.slot != slot_number_ || word.seq != token.seq || word.len == 0 ||
        word.len > kMaxExtentChunks || word.len > chunks - token.chunk)
        return nullptr;
    const uint32_t all = static_cast<uint32_t>(word.len * (kChunkBytes / kUnitBytes));
    const Bump bump = Bump::unpack(extent.bump.load(std::memory_order_relaxed));
    const uint32_t limit = std::min(bump.limit, all);
    if (bump.used > limit) return nullptr;
    if (units_of(row, bump.used) > limit - bump.used) return *stale = false, nullptr; // stays for smaller rows
    const uint64_t rows = extent.rows.load(std::memory_order_relaxed);
    // All that may fail for want of memory comes before the extent is ours.
    if (spare_.empty()) spare_.push_back(&pool_.emplace_back());
    spare_.back()->holes.reserve(kMostHoles);
    open_.reserve(pool_.size());
    spare_.reserve(pool_.size());
    LIBCACHE_PAUSE("writer.take.2");
    // acq_rel [grant][revoke]: this CAS or the broker's wins, never both
    if (!extent.own.compare_exchange_strong(own, ExtentWord{ExtentState::Held, slot_number_, word.len, word.seq}.pack(),
                                            std::memory_order_acq_rel, std::memory_order_relaxed))
        return nullptr;
    LIBCACHE_PAUSE("writer.take.3");
    Held *const held = spare_.back();
    spare_.pop_back();
    held->chunk = token.chunk;
    held->seq = word.seq;
    held->units = all;
    held->used = bump.used;
    held->started = held->settled = 0;
    held->rows_at_take = rows;
    held->populated = round_down(uint64_t{bump.used} * kUnitBytes, page_bytes());
    held->open = true;
    open_.push_back(held);
    return held;
}

// A granted extent with room for the row, or null. Tells the broker when it took one, so that the ring is stocked again
// ahead of need. The ring is always emptied: an offer that is too small for this row is set aside for later ones, for
// if it stayed, the offers behind it would fill the ring.
Writer::Held *Writer::take(const Row &row) {
    Held *held = nullptr;
    bool stale = false;
    if (stub_ordered_ && !row.has_share()) return nullptr; // it may lie in the ring by now
    for (size_t i = 0; i < aside_.size() && held == nullptr;) {
        held = try_token(aside_[i], row, &stale);
        if (held != nullptr || stale)
            aside_.erase(aside_.begin() + static_cast<ptrdiff_t>(i));
        else
            i++;
    }
    // Counted once: a head that somebody scribbled must not keep us here.
    for (uint32_t left = grants_.waiting(); held == nullptr && left > 0; left--, grants_.advance()) {
        const uint64_t token = grants_.peek();
        held = try_token(token, row, &stale);
        if (held != nullptr || stale) continue;
        if (aside_.size() == kRingTokens) aside_.erase(aside_.begin()); // the broker offers it again when we wait
        aside_.push_back(token);
    }
    if (held != nullptr && row.has_share()) stub_ordered_ = false;
    if (held != nullptr) link_.send_want(header_->region_id, slot_number_, epoch_, Want{}, 0);
    return held;
}

uint32_t Writer::room(const Held &held) const {
    const Bump bump = Bump::unpack(map_.extent(held.chunk)->bump.load(std::memory_order_relaxed));
    const uint32_t limit = std::min(bump.limit, held.units);
    return held.used < limit ? limit - held.used : 0;
}

// The end of the page window that `end` bytes into the extent lie in. A window is what the broker makes and cuts as
// one: 2 MiB where the region has huge pages, else a chunk.
uint64_t Writer::window_end(const Held &held, uint64_t end) const {
    const uint64_t start = held.chunk * kChunkBytes;
    const uint64_t window = held.chunk < map_.geometry().huge_chunks ? kHugeBytes : kChunkBytes;
    return std::min(round_up(start + end, window) - start, uint64_t{held.units} * kUnitBytes);
}

// Makes our mapping of [populated, end) present: one call instead of a fault for each page. Others may place meanwhile.
void Writer::populate_to(std::unique_lock<std::mutex> &lock, Held &held, uint64_t end) {
    const uint64_t from = held.populated;
    held.populated = window_end(held, end);
    char *const address = map_.chunk_address(held.chunk) + from;
    const uint64_t bytes = held.populated - from;
    lock.unlock();
    (void)populate(address, bytes); // failure means page faults instead
}

// The extent is no more the one that new rows go to.
void Writer::retire(Held &held) {
    // seq_cst [inflight]: see publish()
    held.current.store(false, std::memory_order_seq_cst);
    if (in_flight(held) == 0) seal(held);
}

uint64_t Writer::in_flight(const Held &held) const {
    // seq_cst [inflight], and acq: the bytes of finished rows come before our seal
    const uint64_t published = map_.extent(held.chunk)->rows.load(std::memory_order_seq_cst) - held.rows_at_take;
    return held.started - held.settled - published;
}

void Writer::seal_if_done(Held &held) {
    std::lock_guard lock(mutex_);
    if (held.open && !open_for_more(held) && in_flight(held) == 0) seal(held);
}

void Writer::seal(Held &held) {
    // The list of holes ends here: the broker may lend the room above `used` to another process from now on, whose
    // death may move `used` below them.
    held.holes.clear();
    Extent &extent = *map_.extent(held.chunk);
    uint64_t own = extent.own.load(std::memory_order_acquire);
    ExtentWord word = ExtentWord::unpack(own);
    LIBCACHE_PAUSE("writer.seal.1");
    // rel [seal] pairs with the broker's acquire before trim and grant: all bytes of our rows. Repeats only when the
    // broker has cut `len` meanwhile.
    while (word.state == ExtentState::Held && word.slot == slot_number_ && word.seq == held.seq &&
           !extent.own.compare_exchange_weak(own, ExtentWord{ExtentState::Sealed, kNoSlot, word.len, word.seq}.pack(),
                                             std::memory_order_release, std::memory_order_acquire))
        word = ExtentWord::unpack(own);
    LIBCACHE_PAUSE("writer.seal.2");
    returns_.push({held.chunk, held.seq}); // a hint: when the ring is full the broker finds it by a walk
    // While rows are refused nobody sends messages: what was just given back must be told.
    if (header_->refused_chunks.load(std::memory_order_relaxed) != 0)
        link_.send_want(header_->region_id, slot_number_, epoch_, Want{}, 0);
    // Readers use another mapping: what stays mapped here would count twice in this process's memory.
    if (held.populated != 0) madvise(map_.chunk_address(held.chunk), held.populated, MADV_DONTNEED);
    held.open = false;
    open_.erase(std::find(open_.begin(), open_.end(), &held));
    spare_.push_back(&held);
}

void Writer::seal_all() {
    std::lock_guard lock(mutex_);
    for (Held **lane : {&current_, &stubs_})
        if (Held *const held = std::exchange(*lane, nullptr); held != nullptr) retire(*held);
    // Whatever is still open has rows in flight; who finishes the last of them seals it.
}

} // namespace libcache
