// SPDX-License-Identifier: Apache-2.0
// The spiller's runs of segments: taken as extents are, by a CAS of the run's own word (PROTOCOL section 1). Everything
// here runs under the spiller's mutex, but for the time in which the broker is asked for one.
#include "core/spill/spiller.h"

#include "core/common/error.h"
#include "core/common/pause.h"

#include <algorithm>

namespace libcache {
namespace {

constexpr int kTries = 16; // runs that were taken back between the broker's answer and our CAS

} // namespace

// The row's place: in the run that was taken for it, else in the one at hand, which has room.
void Spiller::use_room(Flight *flight) {
    if (flight->run == nullptr)
        flight->run = current_;
    else
        keep(flight->run, flight->where.bytes);
    Run &run = *flight->run;
    flight->where.offset = run.start() + run.used;
    run.used += flight->where.bytes;
    run.flights++;
    // rel: with the words of the stubs that were published before; recovery looks at the stubs alone
    segment(run).used.store(run.used, std::memory_order_release);
    LIBCACHE_PAUSE("spill.used");
}

// A run was taken, of which a row is to get so many bytes. For the rows to come whichever has more room left.
void Spiller::keep(Run *taken, uint64_t bytes) {
    if (current_ != nullptr && taken->room() - bytes < current_->room()) {
        if (bytes == 0) retire(*taken); // else when the row's flight ends
        return;
    }
    Run *const old = std::exchange(current_, taken);
    if (old != nullptr) retire(*old);
}

// Without the mutex while the broker is asked. 0 and no run: another thread has asked meanwhile, look again.
int Spiller::take_run(std::unique_lock<std::mutex> &lock, uint64_t bytes, int64_t timeout_ns, Run **run) {
    const RegionHeader &header = *map_.header();
    for (int tries = 0; tries < kTries; tries++) {
        // A run that was told and is not taken yet the broker tells again: two who ask at once would be told the same.
        if (asking_) return changed_.wait(lock), 0;
        // A hint of the broker: full is said without a message for each row.
        const uint64_t known = header.spill_refused.load(std::memory_order_relaxed);
        if (known != 0 && bytes > (known - 1) * kSegmentBytes)
            return full_of(static_cast<uint32_t>(header.spill_refused_cause.load(std::memory_order_relaxed)),
                           fail(CACHE_EFULL,
                                "cache %u of session %u is full and so is its room for spilled rows: %llu bytes are "
                                "not to be had; see the server's log",
                                header.cache_id, header.session_id, static_cast<unsigned long long>(bytes)));
        SpillLink::Run granted{};
        const int refusal = ring_->refusal();
        asking_ = true;
        lock.unlock();
        const int rc = link_.grant(bytes, refusal, timeout_ns, &granted);
        lock.lock();
        asking_ = false;
        changed_.notify_all();
        if (rc != 0) return rc;
        if (try_run(granted, bytes, run)) return 0;
    }
    return fail(CACHE_ETIMEOUT,
                "the server takes back each run of the spill file of cache %u of session %u before it is "
                "used; see its log",
                header.cache_id, header.session_id);
}

bool Spiller::try_run(const SpillLink::Run &granted, uint64_t bytes, Run **run) {
    // acq pairs with the broker's store of spill_top: the entry has its page
    const uint64_t top =
        std::min(map_.header()->spill_top.load(std::memory_order_acquire), map_.geometry().spill_segments);
    if (granted.segment >= top) return false;
    SpillSegment &entry = *map_.segment(granted.segment);
    uint64_t own = entry.own.load(std::memory_order_acquire); // [grant] `used` below is that of this grant
    const ExtentWord word = ExtentWord::unpack(own);
    const uint64_t used = entry.used.load(std::memory_order_relaxed);
    if (word.state != ExtentState::Granted || word.slot != slot_number_ || word.seq != granted.seq || word.len == 0 ||
        word.len > map_.geometry().spill_segments - granted.segment || used > word.len * kSegmentBytes ||
        used % kUnitBytes != 0 || bytes > word.len * kSegmentBytes - used)
        return false;
    runs_.push_back({granted.segment, word.len, word.seq, used}); // what may fail comes before the run is ours
    LIBCACHE_PAUSE("spill.take.1");
    // acq_rel [grant][revoke]: this CAS or the broker's wins, never both
    if (!entry.own.compare_exchange_strong(own, ExtentWord{ExtentState::Held, slot_number_, word.len, word.seq}.pack(),
                                           std::memory_order_acq_rel, std::memory_order_relaxed)) {
        runs_.pop_back();
        return false;
    }
    LIBCACHE_PAUSE("spill.take.2");
    *run = &runs_.back();
    return true;
}

// No more rows go there.
void Spiller::retire(Run &run) {
    if (run.flights == 0) seal(run);
}

void Spiller::seal(Run &run) {
    SpillSegment &entry = segment(run);
    uint64_t own = entry.own.load(std::memory_order_acquire);
    const ExtentWord word = ExtentWord::unpack(own);
    LIBCACHE_PAUSE("spill.seal.1");
    // rel [seal] pairs with the broker's acquire before trim and grant: used, rows and bytes
    if (word.state == ExtentState::Held && word.slot == slot_number_ && word.seq == run.seq)
        (void)entry.own.compare_exchange_strong(own,
                                                ExtentWord{ExtentState::Sealed, kNoSlot, word.len, word.seq}.pack(),
                                                std::memory_order_release, std::memory_order_relaxed);
    LIBCACHE_PAUSE("spill.seal.2");
    runs_.remove_if([&](const Run &other) { return &other == &run; });
}

} // namespace libcache
