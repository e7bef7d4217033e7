// SPDX-License-Identifier: Apache-2.0
// Keeping the grant rings stocked ahead of demand, answering wants, revoking, refusing.
#include "core/server/cache_region.h"

#include "core/common/error.h"
#include "core/common/log.h"
#include "core/common/pause.h"

#include <algorithm>

namespace libcache {
namespace {

constexpr uint32_t kFirstSmall = 16;    // 1 MiB
constexpr uint32_t kFirstHuge = 64;     // 4 MiB: a first epoch of small rows fills one while the next is made
constexpr uint64_t kLargestAhead = 512; // 32 MiB
constexpr size_t kOffersAhead = 4;
constexpr uint64_t kLeastAhead = 256;    // 16 MiB, in small extents; of large ones two
constexpr size_t kFewWriters = 8;        // so many get all of that as soon as they attach, more only when they write
constexpr int64_t kIdle = 2'000'000'000; // ns: then what nobody uses goes back
constexpr int64_t kQuick = 100'000'000;  // ns: an extent used up within this deserves a larger next one
constexpr int64_t kSlow = 2'000'000'000;
constexpr int64_t kHungry = 100'000'000;      // how long what a hungry client was given is safe from others
constexpr uint64_t kLeastStubBytes = 8 << 20; // kept from rows, if that is at most a quarter of the limit
constexpr uint64_t kChunkUnits = kChunkBytes / kUnitBytes;
constexpr uint32_t kWorthLending = 4096 / kUnitBytes; // room in a SEALED extent
constexpr uint32_t kRegrantTries = 4;
constexpr uint64_t kFarAhead = 4 * kLargestAhead; // chunks: no need to look at every extent at each message
constexpr uint64_t kEnoughToTell = 256;           // rows, how large the others will be

} // namespace

// Hints that extents were sealed: the room above their rows is free again.
void CacheRegion::drain_returns(Client &client) {
    uint64_t freed = 0;
    for (uint32_t i = 0; i < kRingTokens; ++i) {
        const uint64_t raw = client.back.peek();
        if (raw == 0 && client.back.waiting() == 0) break;
        allow_share();
        if (Token::valid(raw)) freed += extents_->trim(Token::unpack(raw).chunk);
        client.back.advance();
    }
    if (freed != 0) look_for_room();
}

// Forgets offers that were taken or revoked. Tokens that got lost are offered again at a want.
void CacheRegion::refresh_offers(uint32_t slot, Client &client) {
    std::erase_if(client.offers, [&](const Offer &o) {
        const ExtentWord w = extents_->word(o.chunk);
        return w.state != ExtentState::Granted || w.slot != slot || w.seq != o.seq;
    });
}

// An extent was taken: the next ones grow while they are used up quickly, and shrink when they are not.
void CacheRegion::adapt(Client &client) {
    const int64_t now = now_ns(), since = now - client.last_taken_ns;
    if (client.last_taken_ns != 0 && since < kQuick)
        client.next_chunks = std::min<uint32_t>(2 * client.next_chunks, kLargestAhead);
    else if (since > kSlow)
        client.next_chunks = std::max(client.next_chunks / 2, first_chunks());
    client.last_taken_ns = now;
}

uint32_t CacheRegion::first_chunks() const {
    return huge() ? kFirstHuge : kFirstSmall;
}

// What writers were lent ahead and have not touched for a while is taken back, and when none of them was heard of, the
// pages that nobody uses are given back. The next put waits for a moment, as the first one did.
void CacheRegion::retire_idle() {
    const int64_t long_ago = now_ns() - kIdle;
    if (state_ != State::Live || growth_.active || somebody_waits()) return;
    for (auto &[slot, client] : clients_) {
        if (client.last_taken_ns > long_ago || client.attached_ns > long_ago) continue;
        refresh_offers(slot, client); // those that were taken are another's by now
        for (const Offer &o : client.offers)
            extents_->revoke_granted(o.chunk);
        client.offers.clear();
        client.next_chunks = 0;
    }
    if (quiet_since_ns_ < long_ago && jobs_ == 0) (void)reclaim(extents_->can_give_back() * kChunkBytes, false);
}

// What one writer may be lent ahead, so that the last memory of a cache is not parked with one of them.
uint64_t CacheRegion::share(const Client &client) const {
    const uint64_t left = std::min(extents_->limit_left(), shop_.ledger.left()) / kChunkBytes + extents_->free_chunks();
    const uint64_t for_rows = std::min(left, row_room() / kChunkBytes), writers = std::max<size_t>(clients_.size(), 1);
    const uint64_t wish = std::min<uint64_t>(client.next_chunks, std::max<uint64_t>(to_come_ / writers, kFirstSmall));
    return std::min(wish, for_rows / (4 * writers));
}

// What the rows that the opener expects will take beyond what is lent, if they are like those that are there. No bound
// as long as there are few of them, nor when there are more than were expected.
void CacheRegion::estimate_what_comes() {
    if (to_come_ != kUnknown && to_come_ > kFarAhead) return; // stock() counts it down meanwhile
    to_come_ = kUnknown;
    const uint64_t expected = header()->expected_rows;
    if (expected == 0) return;
    uint64_t rows = 0, units = 0, there = 0;
    for (const Extents::Head &head : extents_->heads()) {
        const ExtentState state = head.word.state;
        if (state == ExtentState::Index) continue;
        there += head.word.len;
        if (state != ExtentState::Granted && state != ExtentState::Held && state != ExtentState::Sealed) continue;
        rows += map_.extent(head.chunk)->rows.load(std::memory_order_relaxed); // an estimate
        units += extents_->bump(head.chunk).used;
    }
    if (rows < kEnoughToTell || rows >= expected) return;
    const uint64_t all = (units + rows - 1) / rows * expected / kChunkUnits; // chunks
    to_come_ = all - std::min(all, there);
}

// In a cache that spills, a share of the limit stays for stubs and index levels. Each writer fills stubs into a chunk
// of its own: where the limit is small and they are many, it is more than the usual share, up to a quarter.
uint64_t CacheRegion::kept_from_rows() const {
    if (!spill_) return 0;
    const uint64_t of_writers = clients_.size() * kStubBytesOfWriter;
    // A cache of a few MiB spills nearly all of its rows, so 1/16 would be a chunk or two of stubs; and most of its
    // writers may attach when rows have filled it already.
    return std::max(limit_ / kStubShare, std::min(limit_ / kMostStubShare, std::max(of_writers, kLeastStubBytes)));
}

// What may still be lent when so many bytes are left to others.
uint64_t CacheRegion::room_but(uint64_t kept) const {
    const uint64_t most = limit_ - std::min(limit_, kept);
    const uint64_t lent = charged() - std::min(charged(), extents_->free_chunks() * kChunkBytes);
    return most - std::min(most, lent);
}

// Chunks that are lent to it and not taken, or being made for it.
uint64_t CacheRegion::ahead(const Client &client) const {
    uint64_t sum = client.jobs_chunks;
    for (const Offer &o : client.offers)
        sum += extents_->word(o.chunk).len;
    return sum;
}

void CacheRegion::stock_ahead(uint32_t slot, Client &client) {
    if (client.closing || client.hung_up || state_ != State::Live) return;
    if (client.next_chunks == 0) client.next_chunks = first_chunks();
    const size_t target = client.busy || clients_.size() <= kFewWriters ? kOffersAhead : 1;
    while (client.offers.size() + client.jobs < target) {
        if (ahead(client) >= std::max<uint64_t>(kLeastAhead, 2 * client.next_chunks)) return;
        const uint64_t size = share(client);
        if (size == 0) return;
        uint64_t chunk = extents_->find_free(size);
        if (chunk == Extents::kNone && stock(size, slot)) continue;
        if (chunk == Extents::kNone) chunk = extents_->largest_free(); // nothing can be made: what there is
        if (chunk == Extents::kNone || !offer(slot, client, chunk, size)) return;
    }
}

// Who says how many rows it expects is about to write them: its first extent is made while it opens the cache and
// attaches. If nobody comes it goes back as all else that nobody uses.
void CacheRegion::stock_first_writer() {
    Client first;
    first.next_chunks = first_chunks();
    if (const uint64_t size = header()->expected_rows != 0 ? share(first) : 0; size != 0) (void)stock(size, kNoSlot);
}

// Begins to make pages for an extent. False: no room.
bool CacheRegion::stock(uint64_t chunks, uint32_t slot) {
    if (now_ns() < no_memory_until_ns_) return false;
    uint64_t making = 0;
    const uint64_t chunk = extents_->begin_making(chunks, &making);
    if (chunk == Extents::kNone) return false;
    if (to_come_ != kUnknown) to_come_ -= std::min(to_come_, making);
    const uint32_t wish = static_cast<uint32_t>(chunks);
    uint64_t epoch = 0;
    if (Client *client = slot == kNoSlot ? nullptr : client_of(slot)) {
        ++client->jobs;
        client->jobs_chunks += making;
        client->largest_job = std::max(client->largest_job, wish);
        epoch = client->epoch;
    } else {
        ++growth_.jobs;
        growth_.largest_job = std::max(growth_.largest_job, wish);
        slot = kNoSlot;
    }
    submit(Work::Populate, chunk, making, slot, epoch, wish);
    return true;
}

void CacheRegion::push(Client &client, Offer offer) {
    // A full ring leaves the token out: the offer is made again when the client asks.
    (void)client.grant.push({offer.chunk, offer.seq});
}

bool CacheRegion::offer(uint32_t slot, Client &client, uint64_t chunk, uint64_t chunks) {
    if (client.grant.queued() >= kRingTokens) return false;
    chunks = std::min({chunks, extents_->free_run(chunk), kMaxExtentChunks});
    const Offer made{chunk, extents_->grant(chunk, chunks, slot)};
    client.offers.push_back(made);
    client.regrants_failed = 0;
    push(client, made); // [ring]
    LIBCACHE_PAUSE("broker.grant.3");
    return true;
}

// ---- wants

bool CacheRegion::somebody_waits() const {
    return std::any_of(clients_.begin(), clients_.end(),
                       [](const auto &entry) { return entry.second.want.extent || entry.second.want.grow; });
}

// Everybody who waits is looked after again: called whenever something has changed.
void CacheRegion::review() {
    if (state_ == State::Dying) return;
    pump_growth();
    if (state_ != State::Live) return;
    for (auto &[slot, client] : clients_) {
        if (client.want.grow) serve_level(slot, client);
        if (client.want.extent) serve_extent(slot, client);
    }
}

// One answer ends all that the slot waits for: its threads begin their steps again.
void CacheRegion::answer(uint32_t slot, Client &client, int code, uint64_t chunks, uint32_t cause) {
    Slot &s = *map_.slot(slot);
    s.full_cause.store(cause, std::memory_order_relaxed); // this and the next: shown by futex
    const bool stub = chunks != 0 && client.want.stub;
    s.answer.store(Answer{code, static_cast<uint32_t>(chunks), stub}.pack(), std::memory_order_relaxed);
    client.want = {};
    // rlx: a note for the next broker. A newer want of the client comes with a message of its own.
    s.want.store(0, std::memory_order_relaxed);
    LIBCACHE_PAUSE("broker.answer.1");
    wake(slot);
}

void CacheRegion::serve_extent(uint32_t slot, Client &client) {
    const uint64_t chunks = std::max(client.want.chunks, 1u);
    if (client.closing || client.hung_up) return answer(slot, client, CACHE_ESERVER, chunks);
    if (chunks > kMaxExtentChunks) return answer(slot, client, CACHE_EINVAL, chunks);
    refresh_offers(slot, client);
    if (offer_again(client, chunks)) return answer(slot, client, 0, 0);
    uint64_t chunk = 0;
    const For what = client.want.stub ? For::Stub : For::Row;
    switch (find_room(chunks, slot, what, &chunk)) {
    case Room::Wait: return;
    case Room::Have:
        (void)offer(slot, client, chunk, what == For::Stub ? chunks : std::max(chunks, share(client)));
        return satisfied(slot, client); // also with a full ring: the client empties it of what is stale
    case Room::None:
        if (chunks == 1 && offer_sealed(slot, client)) return answer(slot, client, 0, 0);
        return refuse(slot, client, chunks);
    }
}

// What it was just given is not taken away before it has had time to look.
void CacheRegion::satisfied(uint32_t slot, Client &client) {
    client.hungry_until_ns = now_ns() + kHungry;
    answer(slot, client, 0, 0);
}

// Offers of so many chunks that still stand: their tokens once more, since the client did not find them.
bool CacheRegion::offer_again(Client &client, uint64_t chunks) {
    bool any = false;
    for (const Offer &o : client.offers) {
        const Bump b = extents_->bump(o.chunk);
        if (b.limit < b.used || b.limit - b.used < chunks * kChunkUnits) continue;
        // With many tokens waiting it is among them; a ring full of doubles would have no room for what is new.
        if (client.grant.queued() < kRingTokens / 2) push(client, o);
        any = true;
    }
    if (any) client.hungry_until_ns = now_ns() + kHungry;
    return any;
}

// The last resort for small rows: the room that is left above the rows of a sealed extent.
bool CacheRegion::offer_sealed(uint32_t slot, Client &client) {
    const Offer last = client.last_regrant;
    if (last.seq != 0) {
        const ExtentWord w = extents_->word(last.chunk);
        const bool unused = w.seq == last.seq && extents_->bump(last.chunk).used == client.last_regrant_used;
        client.regrants_failed = unused ? client.regrants_failed + 1 : 0;
        client.last_regrant = {};
    }
    if (client.regrants_failed >= kRegrantTries || client.grant.queued() >= kRingTokens) return false;
    uint64_t best = Extents::kNone;
    uint32_t most = kWorthLending - 1;
    for (const Extents::Head &head : extents_->heads()) {
        if (head.word.state != ExtentState::Sealed) continue;
        const uint64_t used = extents_->bump(head.chunk).used, all = head.word.len * kChunkUnits;
        if (used < all && all - used > most && !(head.chunk == last.chunk && head.word.seq == last.seq))
            best = head.chunk, most = static_cast<uint32_t>(all - used);
    }
    if (best == Extents::kNone) return false;
    client.last_regrant_used = extents_->bump(best).used;
    client.last_regrant = {best, extents_->grant_sealed(best, slot)};
    client.offers.push_back(client.last_regrant);
    client.hungry_until_ns = now_ns() + kHungry;
    push(client, client.last_regrant);
    return true;
}

// Rows leave a share to stubs and levels, stubs a part of it to levels: a stub that the index has no room for is lost.
bool CacheRegion::may_have(uint64_t chunks, For what) const {
    return !spill_ || what == For::Level || (what == For::Stub ? stub_room() : row_room()) >= chunks * kChunkBytes;
}

// A FREE run of so many chunks for this slot (kNoSlot: for a level). Wait: it is being made, or may be had soon.
CacheRegion::Room CacheRegion::find_room(uint64_t chunks, uint32_t slot, For what, uint64_t *chunk) {
    const auto have = [&] {
        return may_have(chunks, what) && (*chunk = extents_->find_free(chunks)) != Extents::kNone;
    };
    if (have()) return Room::Have;
    const Client *client = slot == kNoSlot ? nullptr : client_of(slot);
    const uint32_t in_work = client ? client->largest_job : growth_.largest_job;
    if (in_work >= chunks) return Room::Wait;
    if (client && what == For::Row && share(*client) > chunks && stock(share(*client), slot)) return Room::Wait;
    if (may_have(chunks, what) && stock(chunks, slot)) return Room::Wait;
    trim_all();
    if (have()) return Room::Have;
    const bool blocked = revoke(chunks, slot, what);
    if (have()) return Room::Have;
    if (!may_have(chunks, what)) return blocked || jobs_ != 0 ? Room::Wait : Room::None; // stock may come back
    if (make_contiguous(chunks) || blocked || jobs_ != 0) return Room::Wait;
    const uint64_t making = bytes_to_make(chunks), room = shop_.ledger.room();
    if (extents_->limit_left() >= chunks * kChunkBytes && room < making &&
        (shop_.punching != 0 || shop_.reclaim_elsewhere(making - room, names_.region_id)))
        return Room::Wait;
    return Room::None;
}

// What making so many chunks may take: whole units, and a page of the table.
uint64_t CacheRegion::bytes_to_make(uint64_t chunks) const {
    const uint64_t units = round_up(chunks * kChunkBytes, huge() ? kHugeBytes : kChunkBytes);
    return std::min(extents_->limit_left(), units + kChunkBytes);
}

void CacheRegion::trim_all() {
    for (const Extents::Head &head : extents_->heads())
        extents_->trim(head.chunk);
}

// Takes from others what they do not use, until there is a run of `chunks`. True: something may be had a little later.
bool CacheRegion::revoke(uint64_t chunks, uint32_t slot, For what) {
    const auto enough = [&] { return may_have(chunks, what) && extents_->find_free(chunks) != Extents::kNone; };
    const int64_t now = now_ns();
    bool blocked = false;
    const std::vector<Extents::Head> heads = extents_->heads();
    for (const Extents::Head &head : heads) {
        if (head.word.state != ExtentState::Granted) continue;
        const Client *owner = client_of(head.word.slot);
        // Two hungry clients must not take turns at nothing: what one was given stays for a while.
        if (owner && head.word.slot != slot &&
            (now < owner->hungry_until_ns || (owner->want.extent && now - owner->want_since_ns < kHungry))) {
            blocked = true;
            continue;
        }
        if (extents_->revoke_granted(head.chunk) && enough()) return blocked;
    }
    for (const Extents::Head &head : heads)
        if (head.word.state == ExtentState::Held && extents_->cut_held(head.chunk) != 0 && enough()) break;
    return blocked;
}

// Free chunks in pieces too short: their pages are given back to make room for a longer run elsewhere in the span.
bool CacheRegion::make_contiguous(uint64_t chunks) {
    // Made in whole units, with a page of the table: what is left of the limit may hold the run, but not that.
    const uint64_t unit = huge() ? kHugeBytes / kChunkBytes : 1, making = round_up(chunks, unit) + 1;
    const uint64_t missing = making - std::min(making, extents_->room_bytes() / kChunkBytes);
    if (missing == 0 || missing > extents_->can_give_back()) return false;
    bool begun = false;
    uint64_t chunk, given;
    for (uint64_t left = missing; left > 0 && extents_->begin_giving_back(left, &chunk, &given);
         left -= std::min(left, given)) {
        submit(Work::Punch, chunk, given, kNoSlot, 0, 0);
        begun = true;
    }
    return begun;
}

// Why so many chunks are not to be had: enum cache_cause.
uint32_t CacheRegion::full_cause_of(uint64_t chunks) const {
    const uint64_t bytes = chunks * kChunkBytes, left = extents_->limit_left();
    if (left < bytes || bytes > shop_.ledger.limit()) return CACHE_FULL_SIZE;
    const uint64_t making = bytes_to_make(chunks);
    if (shop_.ledger.left() < making) return CACHE_FULL_SERVER;
    // What the kernel has just refused counts, whatever is said to be available.
    const bool short_of_memory = shop_.ledger.room() < making || now_ns() < no_memory_until_ns_;
    return short_of_memory ? CACHE_FULL_MEMORY : CACHE_FULL_SIZE; // in pieces too short
}

void CacheRegion::refuse(uint32_t slot, Client &client, uint64_t chunks) {
    log_line(LogLevel::Debug, "cache %u/%u: slot %u is refused %llu chunks", names_.session_id, names_.cache_id, slot,
             static_cast<unsigned long long>(chunks));
    const uint32_t cause = full_cause_of(chunks);
    const bool stub = client.want.stub; // the answer ends the want
    answer(slot, client, CACHE_EFULL, chunks, cause);
    refused_.add(static_cast<uint32_t>(chunks), stub);
    publish_refusals(cause);
}

void CacheRegion::publish_refusals(uint32_t cause) {
    header()->refused_cause.store(cause, std::memory_order_relaxed);            // the hint's
    header()->refused_chunks.store(refused_.pack(), std::memory_order_relaxed); // a hint
}

// Takes the hint back when it may be wrong. Cheap while nothing is refused.
void CacheRegion::look_for_room() {
    if (!refused_.any()) return;
    const auto room_for = [&](uint64_t chunks, For what) {
        const uint64_t with_tables = (chunks + chunks / 64 + 1) * kChunkBytes;
        return may_have(chunks, what) && (extents_->find_free(chunks) != Extents::kNone ||
                                          (now_ns() >= no_memory_until_ns_ && extents_->room_bytes() >= with_tables));
    };
    if ((refused_.stubs != 0 && room_for(refused_.stubs, For::Stub)) || (refused_.levels && room_for(1, For::Level)))
        allow_share();
    if (refused_.rows == 0 || !room_for(refused_.rows, For::Row)) return;
    refused_ = {};
    header()->refused_chunks.store(0, std::memory_order_relaxed); // a hint
}

// Stubs and levels may be asked for again: when there is room, when an extent was sealed, which may have some above its
// rows (offer_sealed), and at each tick.
void CacheRegion::allow_share() {
    if (refused_.stubs == 0 && !refused_.levels) return;
    refused_.stubs = 0;
    refused_.levels = false;
    header()->refused_chunks.store(refused_.pack(), std::memory_order_relaxed); // a hint
}

} // namespace libcache
