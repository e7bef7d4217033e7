// SPDX-License-Identifier: Apache-2.0
// Lending file space to the writers of a spilling cache: what is lent, when it is made, when it goes back to the disk.
#include "core/server/cache_region.h"

#include "core/common/error.h"
#include "core/common/log.h"
#include "core/common/pause.h"
#include "core/server/spill_folder.h"
#include "core/store/index.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace libcache {
namespace {

constexpr uint64_t kLargestAhead = 8;               // segments: 64 MiB
constexpr uint64_t kStockShare = 4;                 // times as much must be left of the limit to make a run ahead
constexpr int64_t kQuick = 250'000'000;             // ns: a run used up within this deserves a longer next one
constexpr int64_t kIdle = 2'000'000'000;            // ns: then free segments go back to the disk
constexpr int64_t kNoSpacePause = 1'000'000'000;    // ns: a disk that was full is not asked again before
constexpr uint64_t kWorthFirst = kSegmentBytes / 4; // room of a SEALED run that is lent before new space is made
constexpr uint64_t kWorthLast = 64 << 10;           // ... when no new space is to be had

unsigned long long big(uint64_t n) {
    return n;
}

} // namespace

// ---- lending

int CacheRegion::lend_spill(uint64_t conn_id, const wire::Spill &wish, SpillRun *run) {
    if (!spill_)
        return fail(CACHE_ENOTSUP, "cache %u of session %u does not spill", names_.cache_id, names_.session_id);
    Client *client = client_of(wish.slot);
    if (!client || client->person.conn_id != conn_id || client->epoch != wish.epoch || client->closing)
        return fail(CACHE_EINVAL, "slot %u of cache %u of session %u is not this process's", wish.slot, names_.cache_id,
                    names_.session_id);
    if (wish.bytes == 0 || wish.bytes > map_.geometry().spill_segments * kSegmentBytes)
        return full_of(CACHE_FULL_DISK,
                       fail(CACHE_EFULL, "a row of %llu bytes cannot be spilled: the file may have %llu bytes",
                            big(wish.bytes), big(map_.geometry().spill_segments * kSegmentBytes)));
    if (wish.len != 0 && !std::exchange(ring_told_, true))
        log_line(LogLevel::Warning,
                 "cache %u/%u: process %d may not use io_uring (%s): it writes and reads spilled rows one at a time "
                 "(said once)",
                 names_.session_id, names_.cache_id, client->person.pid, strerror(static_cast<int>(wish.len)));
    const uint64_t needed = (wish.bytes + kSegmentBytes - 1) / kSegmentBytes;
    const bool quick = spill_ahead(*client) > 1;
    trim_spill();
    if (lend_what_is_there(*client, wish, needed, std::max(wish.bytes, kWorthFirst), run)) {
        if (quick) stock_spill(*client, wish.slot);
        return 0;
    }
    if (client->spill_making) return kSpillWait;
    if (make_spill(*client, wish.slot, std::max(needed, spill_ahead(*client))) ||
        make_spill(*client, wish.slot, needed))
        return kSpillWait;
    if (lend_what_is_there(*client, wish, needed, std::max(wish.bytes, kWorthLast), run)) return 0;
    // Free segments in runs too short may be what the limit, or the disk, is short of.
    if (give_back_spill() || spill_giving_back_ != 0) return kSpillWait;
    return refuse_spill(needed);
}

// How long a run the slot should get: longer while runs are used up quickly.
uint64_t CacheRegion::spill_ahead(Client &client) const {
    const bool quick = now_ns() - client.spill_lent_ns < kQuick;
    return quick ? std::min(2 * std::max<uint64_t>(client.spill_len, 1), kLargestAhead) : 1;
}

void CacheRegion::trim_spill() {
    SpillSegments::Head head;
    for (uint64_t at = 0; spill_->next(&at, &head);)
        if (head.word.state == ExtentState::Sealed) spill_->trim(head);
}

// A run that is GRANTED to the slot already, the SEALED one with the most room if that is `worth` it, or the shortest
// FREE one that is long enough.
bool CacheRegion::lend_what_is_there(Client &client, const wire::Spill &wish, uint64_t needed, uint64_t worth,
                                     SpillRun *run) {
    SpillSegments::Head head, free{}, sealed{};
    for (uint64_t at = 0; spill_->next(&at, &head);) {
        switch (head.word.state) {
        case ExtentState::Granted:
            if (head.word.slot == wish.slot && head.room() >= wish.bytes)
                return *run = {head.segment, head.word.len, head.word.seq}, true;
            break;
        case ExtentState::Sealed:
            if (head.room() >= worth && head.room() > sealed.room()) sealed = head;
            break;
        case ExtentState::Free:
            if (head.word.len >= needed && (free.word.len == 0 || head.word.len < free.word.len)) free = head;
            break;
        default: break;
        }
    }
    if (sealed.word.len != 0) {
        *run = {sealed.segment, sealed.word.len, spill_->grant_sealed(sealed, wish.slot)};
    } else if (free.word.len != 0) {
        const uint64_t len = std::min<uint64_t>(free.word.len, std::max(needed, spill_ahead(client)));
        *run = {free.segment, static_cast<uint32_t>(len), spill_->grant(free, len, wish.slot)};
    } else {
        return false;
    }
    client.spill_lent_ns = spill_lent_ns_ = now_ns();
    client.spill_len = run->len;
    return true;
}

// Begins to make file space for this slot. False: the limit or the disk does not allow it.
bool CacheRegion::make_spill(Client &client, uint32_t slot, uint64_t segments) {
    if (segments * kSegmentBytes > shop_.spill.left()) return false;
    if (now_ns() < spill_full_until_ns_ && segments >= spill_full_) return false;
    const uint64_t segment = spill_->begin_making(segments);
    if (segment == SpillSegments::kNone) return false;
    client.spill_making = true;
    submit(Work::Allocate, segment, segments, slot, client.epoch, 0);
    return true;
}

// The next run of a slot that uses them up quickly, while it writes into this one: fallocate waits for the file's lock
// behind the writes that are under way, and the put that asked would wait with it. Not from the last of the limit,
// which other caches may need; what nobody asks for goes back as any free segment (tick_spill).
void CacheRegion::stock_spill(Client &client, uint32_t slot) {
    if (client.spill_making) return;
    SpillSegments::Head head;
    for (uint64_t at = 0; spill_->next(&at, &head);)
        if (head.word.state == ExtentState::Free) return;
    const uint64_t segments = spill_ahead(client);
    if (shop_.spill.left() / kSegmentBytes >= kStockShare * segments) (void)make_spill(client, slot, segments);
}

// Free segments go back to the disk. False: there are none.
bool CacheRegion::give_back_spill() {
    if (!spill_can_punch_) return false;
    bool any = false;
    SpillSegments::Head head;
    for (uint64_t at = 0; spill_->next(&at, &head);) {
        if (head.word.state != ExtentState::Free) continue;
        spill_->begin_giving_back(head.segment);
        ++spill_giving_back_;
        submit(Work::Release, head.segment, head.word.len, kNoSlot, 0, 0);
        any = true;
    }
    return any;
}

int CacheRegion::refuse_spill(uint64_t needed) {
    spill_refused_ = spill_refused_ == 0 ? needed : std::min(spill_refused_, needed);
    header()->spill_refused.store(spill_refused_, std::memory_order_relaxed); // a hint
    const bool limit = needed * kSegmentBytes > shop_.spill.left();
    const bool once = !spill_told_;
    spill_told_ = true;
    const uint32_t cause = limit ? CACHE_FULL_SPILL_LIMIT : spill_error_ == 0 ? CACHE_FULL_SIZE : CACHE_FULL_DISK;
    header()->spill_refused_cause.store(cause, std::memory_order_relaxed); // the hint's
    int rc;
    if (limit)
        rc =
            fail(CACHE_EFULL, "the spill limit of %llu bytes (--spill_limit) is used up: %llu bytes are lent to caches",
                 big(shop_.spill.limit), big(shop_.spill.used));
    else if (spill_error_ == 0)
        rc = fail(CACHE_EFULL, "cache %u of session %u has no room for its table of spilled rows: raise its size",
                  names_.cache_id, names_.session_id);
    else
        rc = fail(spill_error_ == ENOSPC || spill_error_ == EDQUOT || spill_error_ == EFBIG ? CACHE_EFULL : CACHE_EIO,
                  "the spill folder has no room for %llu more bytes: %s", big(needed * kSegmentBytes),
                  strerror(spill_error_));
    (void)full_of(cause, rc);
    if (once)
        log_line(LogLevel::Warning, "cache %u/%u: %s; its rows are not cached until there is room (said once)",
                 names_.session_id, names_.cache_id, last_error());
    return rc;
}

// ---- what the disk's thread brings back

void CacheRegion::spill_done(const Job &job) {
    if (job.work == Work::Release) {
        --spill_giving_back_;
        // A file system that cannot punch keeps its space: it stays ours to lend.
        spill_can_punch_ &= job.result == 0;
        job.result == 0 ? spill_->gave_back(job.head) : spill_->made(job.head);
        return;
    }
    if (Client *client = client_of(job.slot); client && client->epoch == job.epoch) client->spill_making = false;
    if (job.result == 0) {
        spill_->made(job.head);
        return;
    }
    // The thread has punched what it had made.
    spill_error_ = job.error;
    spill_full_ = job.chunks;
    spill_full_until_ns_ = now_ns() + kNoSpacePause;
    spill_->gave_back(job.head);
}

// Takes the hint back when there may be room again, and gives back what nobody has asked for in a while.
void CacheRegion::tick_spill() {
    if (!spill_) return;
    const int64_t now = now_ns();
    if (now - spill_lent_ns_ > kIdle && spill_giving_back_ == 0) {
        trim_spill();
        give_back_spill();
    }
    if (spill_refused_ == 0 || now < spill_full_until_ns_) return;
    const uint64_t bytes = spill_refused_ * kSegmentBytes;
    if (shop_.spill.left() < bytes || file_system_room(spill_file_.get()) < bytes) return;
    spill_refused_ = 0;
    spill_told_ = false;
    header()->spill_refused.store(0, std::memory_order_relaxed); // a hint
}

// ---- deaths

bool CacheRegion::holds_spill(uint32_t slot) {
    SpillSegments::Head head;
    for (uint64_t at = 0; spill_ && spill_->next(&at, &head);)
        if (head.word.state == ExtentState::Held && head.word.slot == slot) return true;
    return false;
}

void CacheRegion::take_back_spill(uint32_t slot) {
    SpillSegments::Head head;
    for (uint64_t at = 0; spill_ && spill_->next(&at, &head);)
        if (head.word.state == ExtentState::Granted && head.word.slot == slot) spill_->revoke(head.segment);
}

namespace {

struct SpillAudit { // of one run
    uint64_t used = 0, rows = 0, bytes = 0;
};
using SpillAudits = std::map<uint64_t, std::pair<uint64_t, SpillAudit>>; // first byte -> end, what was found

void audit_stub(const RowHeader &row, SpillAudits *runs) {
    const SpillStub stub = SpillStub::unpack(row.layout, row.bytes, row.n_columns);
    auto run = runs->upper_bound(stub.offset);
    if (run == runs->begin()) return;
    --run;
    auto &[end, found] = run->second;
    if (stub.offset >= end) return;
    ++found.rows;
    found.bytes += stub.bytes - std::min<uint64_t>(stub.bytes, sizeof(RowHeader));
    // A stub that leads out of its run is damage: all of the run is kept then.
    found.used = std::max(found.used, std::min(stub.offset + stub.bytes, end) - run->first);
}

// The stubs that a level's entries name.
void audit_level(const RegionMap &whole, const Index &index, uint64_t chunk, uint64_t slots, SpillAudits *runs) {
    const auto *const entries = reinterpret_cast<const AtomicU64 *>(whole.chunk_address(chunk));
    for (uint64_t i = 0; i < slots; ++i) {
        const uint64_t entry = entries[i].load(std::memory_order_acquire); // [publish]
        const uint64_t offset = entry == 0 ? 0 : index.row_offset(entry);
        if (offset == 0) continue;
        RowHeader row{};
        memcpy(&row, whole.base() + offset, sizeof row);
        if (SpillStub::is(row.layout)) audit_stub(row, runs);
    }
}

} // namespace

// Runs that a dead slot HELD: what no stub points to is lost, and free. One walk of the index serves all of them.
int CacheRegion::recover_spill(uint32_t slot) {
    take_back_spill(slot);
    SpillAudits runs;
    SpillSegments::Head head;
    for (uint64_t at = 0; spill_ && spill_->next(&at, &head);)
        if (head.word.state == ExtentState::Held && head.word.slot == slot)
            runs[head.segment * kSegmentBytes] = {(head.segment + head.word.len) * kSegmentBytes, {}};
    if (runs.empty()) return 0;
    RegionMap whole;
    if (int rc = map_whole(&whole); rc != 0) return rc;
    // Every published stub is found through the index, wherever it stands: by the levels that this broker knows, for
    // a header that the dead process scribbled could tell of one that goes on and on.
    const auto index = std::make_unique<Index>();
    index->attach(whole.base(), whole.base(), whole.geometry().data_offset, whole.geometry().region_bytes);
    for (const LevelFact &level : level_)
        audit_level(whole, *index, level.chunk, level.slots, &runs);
    for (const auto &[start, run] : runs)
        spill_->seal_recovered(start / kSegmentBytes, run.second.used, run.second.rows, run.second.bytes);
    trim_spill();
    return 0;
}

// ---- a new broker

int CacheRegion::load_spill() {
    const bool wanted = map_.geometry().spill_segments != 0;
    if (wanted != static_cast<bool>(spill_file_))
        return fail(CACHE_ECORRUPT, "the keeper holds %s file of spilled rows", wanted ? "no" : "an unwanted");
    if (!wanted) return 0;
    spill_ = std::make_unique<SpillSegments>(map_, *extents_, shop_.spill);
    spill_refused_ = header()->spill_refused.load(std::memory_order_relaxed); // a hint
    return spill_->load();
}

// BUSY leftovers, and runs GRANTED to nobody.
void CacheRegion::restore_spill() {
    SpillSegments::Head head;
    for (uint64_t at = 0; spill_ && spill_->next(&at, &head);) {
        if (head.word.state == ExtentState::Busy) { // its space may be there or not; given back it is for certain not
            ++spill_giving_back_;
            submit(Work::Release, head.segment, head.word.len, kNoSlot, 0, 0);
        }
        if (head.word.state == ExtentState::Granted && !client_of(head.word.slot)) spill_->revoke(head.segment);
        LIBCACHE_PAUSE("restart.spill");
    }
}

} // namespace libcache
