// SPDX-License-Identifier: Apache-2.0
// A broker of one region inside the test's own process: lends extents and adds levels by the server's own transitions
// (core/server/extents.h), and takes back what it lent as often as it can, to disturb the writers. All sides use one
// mapping, so that TSan sees every access. Writers are writer_of(slot); one thread calls step().
#pragma once

#include "core/common/futex.h"
#include "core/server/extents.h"
#include "core/shm/ring.h"
#include "core/store/layouts.h"
#include "core/store/writer.h"
#include "tests/support/fake_region.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

namespace libcache {

// Messages are not needed: the broker looks at every slot in each step.
class SilentLink : public BrokerLink {
  public:
    bool send_want(uint64_t, uint32_t, uint64_t, Want, int64_t) override { return true; }
    bool alive() override { return true; }
    unsigned port() const override { return 0; }
};

class FakeBroker {
  public:
    static constexpr uint32_t kSlots = 4;
    static constexpr uint64_t kEpoch = 5;
    static constexpr int64_t kPatienceNs = 60'000'000'000;
    static constexpr int64_t kTimeoutNs = int64_t{60} * 1000000000;

    FakeBroker(uint64_t limit_bytes, unsigned seed, uint64_t spill_segments = 0)
        : region_(limit_bytes, false, spill_segments), ledger_(limit_bytes),
          extents_(region_.map(), limit_bytes, ledger_), random_(seed) {
        if (extents_.start() != 0) test_die("no memory for the tables of a fake region");
        for (uint32_t s = 0; s < kSlots; s++) {
            slot(s).owner.store(SlotWord{SlotState::Active, kEpoch}.pack(), std::memory_order_release);
            grants_[s] = RingProducer(&slot(s).grant);
            returns_[s] = RingConsumer(&slot(s).back);
        }
        layouts_.attach(region_.at(0), region_.geometry().data_offset, region_.geometry().region_bytes);
        for (uint32_t s = 0; s < kSlots; s++)
            writers_.emplace_back(region_.map(), region_.map(), s, kEpoch, link_, layouts_);
    }

    FakeRegion &region() { return region_; }
    Extents &extents() { return extents_; }
    Layouts &layouts() { return layouts_; }
    Writer &writer_of(uint32_t s) { return writers_[s]; }
    void attach(Index &index) {
        index.attach(region_.at(0), region_.at(0), region_.geometry().data_offset, region_.geometry().region_bytes);
    }

    // One round over all slots.
    void step() {
        for (uint32_t s = 0; s < kSlots; s++) {
            while (const uint64_t raw = returns_[s].peek()) {
                returns_[s].advance();
                if (Token::valid(raw)) extents_.trim(Token::unpack(raw).chunk);
            }
            bool offered = false;
            if (grants_[s].queued() < 2) offered = lend(s, 1 + random_() % 4);
            offered |= answer_want(s);
            if (offered) wake(s);
        }
        if (random_() % 8 == 0) disturb();
    }

    // Lends a fresh extent to slot `s`; its first chunk, Extents::kNone for want of room.
    uint64_t lend_fresh(uint32_t s, uint64_t chunks) {
        const uint64_t chunk = free_run(chunks);
        if (chunk == Extents::kNone) return chunk;
        if (!grants_[s].push({chunk, extents_.grant(chunk, chunks, s)})) test_die("the grant ring is full");
        wake(s);
        return chunk;
    }

    // Lends the room that is left in a sealed extent.
    void lend_rest(uint32_t s, uint64_t chunk) {
        if (!grants_[s].push({chunk, extents_.grant_sealed(chunk, s)})) test_die("the grant ring is full");
        wake(s);
    }

    // What is lent and not taken comes back, and what is sealed is trimmed: nothing may be HELD or GRANTED then.
    void settle() {
        for (const Extents::Head &head : extents_.heads()) {
            if (head.word.state == ExtentState::Granted) extents_.revoke_granted(head.chunk);
            if (head.word.state == ExtentState::Sealed) extents_.trim(head.chunk);
        }
    }

  private:
    FakeRegion region_;
    Ledger ledger_;
    Extents extents_;
    SilentLink link_;
    Layouts layouts_;
    RingProducer grants_[kSlots];
    RingConsumer returns_[kSlots];
    std::deque<Writer> writers_;
    std::mt19937 random_;

    Slot &slot(uint32_t s) { return *region_.map().slot(s); }

    uint64_t free_run(uint64_t chunks) {
        if (const uint64_t found = extents_.find_free(chunks); found != Extents::kNone) return found;
        uint64_t making = 0;
        const uint64_t chunk = extents_.begin_making(chunks, &making);
        if (chunk == Extents::kNone) return Extents::kNone;
        if (populate(region_.map().chunk_address(chunk), making * kChunkBytes) != 0) test_die("populate");
        extents_.made(chunk);
        return extents_.find_free(chunks);
    }

    bool lend(uint32_t s, uint64_t chunks) {
        if (random_() % 2) // the room that is left in a sealed extent
            for (const Extents::Head &head : extents_.heads())
                if (head.word.state == ExtentState::Sealed &&
                    extents_.bump(head.chunk).used * kUnitBytes + 4096 < head.word.len * kChunkBytes && chunks == 1)
                    return grants_[s].push({head.chunk, extents_.grant_sealed(head.chunk, s)});
        const uint64_t chunk = free_run(chunks);
        return chunk != Extents::kNone && grants_[s].push({chunk, extents_.grant(chunk, chunks, s)});
    }

    bool answer_want(uint32_t s) {
        const uint64_t raw = slot(s).want.load(std::memory_order_acquire);
        if (raw == 0) return false;
        const Want want = Want::unpack(raw);
        bool done = true;
        if (want.extent) done = lend(s, want.chunks);
        if (want.grow && region_.header()->levels.load(std::memory_order_relaxed) <= want.levels) done &= grow();
        // Cleared only if it is still the same: a newer one is answered in the next step.
        uint64_t seen = raw;
        slot(s).want.compare_exchange_strong(seen, 0, std::memory_order_relaxed);
        const Answer answer = done ? Answer{0, 0} : Answer{CACHE_EFULL, want.chunks, want.stub};
        slot(s).answer.store(answer.pack(), std::memory_order_relaxed);
        return true;
    }

    bool grow() {
        RegionHeader *h = region_.header();
        const uint64_t k = h->levels.load(std::memory_order_relaxed);
        uint64_t slots = 0;
        for (uint64_t i = 0; i < k; i++)
            slots += h->level[i].slots.load(std::memory_order_relaxed);
        slots = std::max<uint64_t>(slots, 64); // small on purpose: levels shall grow often
        const uint64_t chunks = round_up(slots * 8, kChunkBytes) / kChunkBytes, chunk = free_run(chunks);
        if (chunk == Extents::kNone) return false;
        extents_.make_index(chunk, chunks, uint32_t(k));
        memset(region_.map().chunk_address(chunk), 0, chunks * kChunkBytes);
        h->level[k].kind.store(uint64_t(k == 0 ? LevelKind::Dense : LevelKind::Hash), std::memory_order_relaxed);
        h->level[k].first.store(0, std::memory_order_relaxed);
        h->level[k].slots.store(slots, std::memory_order_relaxed);
        h->level[k].offset.store(region_.map().chunk_offset(chunk), std::memory_order_relaxed);
        h->levels.store(k + 1, std::memory_order_release); // [level]
        return true;
    }

    void wake(uint32_t s) {
        slot(s).futex.fetch_add(1, std::memory_order_release);
        futex_wake_all(&slot(s).futex);
    }

    // Takes back one extent that is lent, or cuts one that is held.
    void disturb() {
        const std::vector<Extents::Head> heads = extents_.heads();
        if (heads.empty()) return;
        const Extents::Head &head = heads[random_() % heads.size()];
        if (head.word.state == ExtentState::Granted) extents_.revoke_granted(head.chunk);
        if (head.word.state == ExtentState::Held) extents_.cut_held(head.chunk);
    }
};

} // namespace libcache
