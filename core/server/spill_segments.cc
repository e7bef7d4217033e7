// SPDX-License-Identifier: Apache-2.0
#include "core/server/spill_segments.h"

#include "core/common/error.h"
#include "core/common/pause.h"

namespace libcache {

ExtentWord SpillSegments::word(uint64_t segment) const {
    const ExtentWord none{ExtentState::Empty, kNoSlot, 0, 0};
    if (segment >= extents_.spill_top()) return none;
    const ExtentWord w = ExtentWord::unpack(own(segment));
    return w.len > map_.geometry().spill_segments - segment || uint32_t(w.state) >= uint32_t(ExtentState::Index) ? none
                                                                                                                 : w;
}

// As in Extents: the sequence number of an entry outlives every change of its state.
void SpillSegments::store(uint64_t segment, ExtentState state, uint64_t len, std::memory_order order, uint32_t slot) {
    const uint32_t seq = ExtentWord::unpack(own(segment)).seq;
    entry(segment).own.store(ExtentWord{state, slot, static_cast<uint32_t>(len), seq}.pack(), order);
}

void SpillSegments::count(uint64_t segments, bool more) {
    // Never more back than this cache has, as in Extents::uncharge().
    const uint64_t bytes = more ? segments * kSegmentBytes : std::min(used_, segments * kSegmentBytes);
    used_ = more ? used_ + bytes : used_ - bytes;
    ledger_.used = more ? ledger_.used + bytes : ledger_.used - std::min(ledger_.used, bytes);
}

int SpillSegments::load() {
    for (uint64_t segment = 0; segment < extents_.spill_top();) {
        const ExtentWord w = word(segment);
        if (w.len == 0)
            return fail(CACHE_ECORRUPT, "spill segment %llu has an impossible word",
                        static_cast<unsigned long long>(segment));
        if (w.state != ExtentState::Empty) count(w.len, true);
        segment += w.len;
    }
    return 0;
}

bool SpillSegments::next(uint64_t *at, Head *head) {
    ExtentWord w = word(*at);
    if (w.len == 0) return false; // the end, or scribbled: what is behind cannot be found
    // Dies between: shorter runs, merged by the next walk. The right one's word stays as it is, hidden.
    while (w.state == ExtentState::Free || w.state == ExtentState::Empty) {
        const ExtentWord right = word(*at + w.len);
        if (right.len == 0 || right.state != w.state || right.len > kMaxRunChunks - w.len) break;
        w.len += right.len;
        store(*at, w.state, w.len, std::memory_order_release); // rel: with what it hides
    }
    const uint64_t used = entry(*at).used.load(std::memory_order_acquire); // [walk] the holder's places before
    *head = {*at, w, std::min(used, w.len * kSegmentBytes)};
    *at += w.len;
    return true;
}

uint64_t SpillSegments::begin_making(uint64_t segments) {
    const uint64_t all = map_.geometry().spill_segments;
    if (segments == 0 || segments > all) return kNone;
    if (extents_.spill_top() == 0) {
        // The first page, and one head over all that there may ever be.
        if (!extents_.provide_spill_pages(1)) return kNone;
        entry(0).own.store(ExtentWord{ExtentState::Empty, kNoSlot, static_cast<uint32_t>(all), 0}.pack(),
                           std::memory_order_relaxed); // shown by spill_top
        LIBCACHE_PAUSE("broker.spill.table");
        extents_.show_spill_pages(1);
    }
    Head head;
    for (uint64_t at = 0; next(&at, &head);) {
        if (head.word.state != ExtentState::Empty || head.word.len < segments) continue;
        const uint64_t end = head.segment + segments, rest = head.word.len - segments;
        if (rest != 0) { // an entry for the head of what is left
            if (!extents_.provide_spill_pages(end + 1)) return kNone;
            extents_.show_spill_pages(end + 1);
            store(end, ExtentState::Empty, rest, std::memory_order_relaxed); // hidden; shown by the next store
        }
        LIBCACHE_PAUSE("broker.spill.make.1");
        count(segments, true);
        store(head.segment, ExtentState::Busy, segments, std::memory_order_release); // rel: with the head it shows
        LIBCACHE_PAUSE("broker.spill.make.2");
        return head.segment;
    }
    return kNone;
}

void SpillSegments::made(uint64_t segment) {
    LIBCACHE_PAUSE("broker.spill.make.3");
    store(segment, ExtentState::Free, word(segment).len, std::memory_order_release);
}

void SpillSegments::gave_back(uint64_t segment) {
    const uint64_t len = word(segment).len;
    LIBCACHE_PAUSE("broker.spill.punch.2");
    store(segment, ExtentState::Empty, len, std::memory_order_release);
    count(len, false);
}

void SpillSegments::begin_giving_back(uint64_t segment) {
    store(segment, ExtentState::Busy, word(segment).len, std::memory_order_release);
    LIBCACHE_PAUSE("broker.spill.punch.1");
}

uint32_t SpillSegments::grant(const Head &free, uint64_t segments, uint32_t slot) {
    SpillSegment &s = entry(free.segment);
    const uint64_t rest = free.word.len - segments;
    if (rest != 0) store(free.segment + segments, ExtentState::Free, rest, std::memory_order_relaxed); // shown below
    const ExtentWord w{ExtentState::Granted, slot, static_cast<uint32_t>(segments),
                       (free.word.seq + 1) & ExtentWord::kSeqMask};
    s.used.store(0, std::memory_order_relaxed); // these three: shown by the store of own
    s.rows.store(0, std::memory_order_relaxed);
    s.bytes.store(0, std::memory_order_relaxed);
    LIBCACHE_PAUSE("broker.spill.grant.1");
    s.own.store(w.pack(), std::memory_order_release); // [grant] pairs with the client's CAS
    LIBCACHE_PAUSE("broker.spill.grant.2");
    return w.seq;
}

uint32_t SpillSegments::grant_sealed(const Head &sealed, uint32_t slot) {
    const ExtentWord w{ExtentState::Granted, slot, sealed.word.len, (sealed.word.seq + 1) & ExtentWord::kSeqMask};
    LIBCACHE_PAUSE("broker.spill.regrant.1");
    entry(sealed.segment).own.store(w.pack(), std::memory_order_release); // [grant]
    return w.seq;
}

void SpillSegments::trim(const Head &sealed) {
    const uint64_t keep = (sealed.used + kSegmentBytes - 1) / kSegmentBytes;
    if (keep >= sealed.word.len) return;
    if (keep == 0) return store(sealed.segment, ExtentState::Free, sealed.word.len, std::memory_order_release);
    store(sealed.segment + keep, ExtentState::Free, sealed.word.len - keep, std::memory_order_relaxed); // hidden
    LIBCACHE_PAUSE("broker.spill.trim.1");
    store(sealed.segment, ExtentState::Sealed, keep, std::memory_order_release); // rel: with the head it shows
}

void SpillSegments::revoke(uint64_t segment) {
    uint64_t seen = own(segment);
    const ExtentWord w = ExtentWord::unpack(seen);
    if (w.state != ExtentState::Granted) return;
    const bool used = entry(segment).used.load(std::memory_order_relaxed) != 0; // we wrote it at the grant
    const ExtentWord after{used ? ExtentState::Sealed : ExtentState::Free, kNoSlot, w.len, w.seq};
    LIBCACHE_PAUSE("broker.spill.revoke.1");
    // acq_rel [revoke]: this CAS or the client's take wins, never both
    entry(segment).own.compare_exchange_strong(seen, after.pack(), std::memory_order_acq_rel,
                                               std::memory_order_acquire);
}

void SpillSegments::seal_recovered(uint64_t segment, uint64_t used, uint64_t rows, uint64_t bytes) {
    SpillSegment &s = entry(segment);
    const uint64_t len = word(segment).len;
    s.used.store(used, std::memory_order_relaxed); // the owner is dead; these three: shown by the store of own
    s.rows.store(rows, std::memory_order_relaxed);
    s.bytes.store(bytes, std::memory_order_relaxed);
    LIBCACHE_PAUSE("broker.spill.recover.1");
    store(segment, ExtentState::Sealed, len, std::memory_order_release);
}

} // namespace libcache
