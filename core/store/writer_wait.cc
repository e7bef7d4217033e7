// SPDX-License-Identifier: Apache-2.0
// The writer waiting for the broker, in the order of PROTOCOL "Waiting": read the futex word, look again, set `want`,
// send the message, let go of the mutex, wait. Whoever is woken begins its step again.
#include "core/common/error.h"
#include "core/common/futex.h"
#include "core/common/pause.h"
#include "core/control/socket.h"
#include "core/shm/refused.h"
#include "core/store/writer.h"

#include <algorithm>
#include <string>

namespace libcache {
namespace {

constexpr int64_t kLookAtSocketEveryNs = 1'000'000'000;

unsigned long long big(uint64_t n) {
    return n;
}

// A refusal's cause and what to do about it, as the end of its sentence.
const char *why_full(uint32_t cause) {
    switch (cause) {
    case CACHE_FULL_SERVER:
        return "the server's caches together hold all that they may (--memory_cap_ratio): destroying one helps";
    case CACHE_FULL_MEMORY:
        return "the machine or its cgroup has no more left than the server's headroom (--headroom): freeing memory "
               "helps";
    default: return "its limit leaves no more: a larger memory limit helps";
    }
}

const char *or_spilling(const RegionHeader &header) {
    return (header.flags & kRegionSpill) != 0 ? "" : ", or spilling";
}

// Each writer fills stubs into pieces of its own: many of them in a small cache use up what is kept for stubs, though
// there is room in the pieces of others. Then the sentence goes on with the limit that so many need.
std::string for_its_writers(const RegionMap &map, uint32_t cause) {
    const RegionHeader &header = *map.header();
    const uint64_t slots = std::min(header.slots_top.load(std::memory_order_acquire), map.geometry().slots);
    uint64_t writers = 0;
    for (uint32_t i = 0; i < slots; ++i)
        writers += SlotWord::unpack(map.slot(i)->owner.load(std::memory_order_relaxed)).state == SlotState::Active;
    const uint64_t enough = writers * kStubBytesOfWriter * kMostStubShare;
    if (cause != CACHE_FULL_SIZE || header.limit_bytes >= enough) return "";
    return ", with the " + std::to_string(writers) + " processes that write to it now one of at least " +
           std::to_string(enough) + " bytes";
}

} // namespace

// The row's id for a sentence: one that is appended gets its own when it is published.
long long Writer::named(int64_t row_id) const {
    const bool appended = (header_->flags & kRegionBuild) != 0;
    return appended ? static_cast<long long>(header_->next.load(std::memory_order_relaxed)) : row_id;
}

// 0, or why nothing will come any more.
int Writer::still_ours(int64_t row_id) const {
    if (header_->state.load(std::memory_order_acquire) != static_cast<uint64_t>(CacheState::Live))
        return fail(CACHE_EGONE,
                    "cache %u of session %u was destroyed: row %lld is not stored; close the handle and open the cache "
                    "again, it will be empty",
                    header_->cache_id, header_->session_id, named(row_id));
    const SlotWord owner = SlotWord::unpack(slot_->owner.load(std::memory_order_acquire));
    if (owner.state != SlotState::Active || owner.epoch != epoch_)
        return fail(CACHE_EGONE,
                    "the server took this process for ended and reclaimed its writing slot %u in cache %u of session "
                    "%u; open the cache again",
                    slot_number_, header_->cache_id, header_->session_id);
    if (!link_.alive())
        return fail(CACHE_ESERVER,
                    "the server on port %u has ended: row %lld is not stored; rows of cache %u of session %u stay "
                    "readable, no more fit; for more, start a server with cache_admin --start -p %u and connect anew",
                    link_.port(), named(row_id), header_->cache_id, header_->session_id, link_.port());
    return 0;
}

int Writer::refused(const Need &need, Answer answer, uint32_t cause) const {
    const uint64_t in_use = header_->charged_bytes.load(std::memory_order_relaxed);
    const long long row_id = named(need.row_id);
    const Want want = need.want;
    if (answer.code == CACHE_EFULL && want.stub && need.row_bytes == sizeof(RowHeader))
        return full_of(cause,
                       fail(CACHE_EFULL,
                            "row %lld cannot be spilled: cache %u of session %u has no memory for the %llu "
                            "bytes that name its place on disk: %llu of its limit of %llu bytes are in use; %s%s",
                            row_id, header_->cache_id, header_->session_id, big(need.row_bytes), big(in_use),
                            big(header_->limit_bytes), why_full(cause), for_its_writers(map_, cause).c_str()));
    if (answer.code == CACHE_EFULL && want.extent)
        return full_of(
            cause,
            fail(
                CACHE_EFULL,
                "row %lld of %llu bytes does not fit in cache %u of session %u: %llu of its limit of %llu bytes are in "
                "use (memory comes in pieces of %llu); %s%s",
                row_id, big(need.row_bytes), header_->cache_id, header_->session_id, big(in_use),
                big(header_->limit_bytes), big(kChunkBytes), why_full(cause), or_spilling(*header_)));
    if (answer.code == CACHE_EFULL)
        return full_of(cause,
                       fail(CACHE_EFULL,
                            "no room for index level %u of cache %u of session %u, which row %lld needs: %llu of its "
                            "limit of %llu bytes are in use; %s",
                            want.levels, header_->cache_id, header_->session_id, row_id, big(in_use),
                            big(header_->limit_bytes), why_full(cause)));
    return fail(answer.code < 0 ? answer.code : CACHE_ECORRUPT,
                "the server refused %s for row %lld of cache %u of session %u",
                want.extent ? "memory" : "an index level", row_id, header_->cache_id, header_->session_id);
}

int Writer::wait_answer(std::unique_lock<std::mutex> &lock, uint32_t seen, const Need &need, Deadline *deadline) {
    const auto [want, row_id, row_bytes] = need;
    const int64_t now = now_ns();
    if (deadline->at_ns == 0) deadline->at_ns = now + deadline->timeout_ns;
    if (now >= deadline->at_ns)
        return fail(CACHE_ETIMEOUT,
                    "the server did not provide %s for row %lld of cache %u of session %u within %lld ms; see its log",
                    want.extent ? "memory" : "an index level", static_cast<long long>(row_id), header_->cache_id,
                    header_->session_id, static_cast<long long>(deadline->timeout_ns / 1'000'000));
    slot_->want_id.store(static_cast<uint64_t>(row_id), std::memory_order_relaxed);
    // rel: with want_id. What a new broker begins with; the message is what this one reads
    slot_->want.store(want.pack(), std::memory_order_release);
    LIBCACHE_PAUSE("writer.wait.1");
    link_.send_want(header_->region_id, slot_number_, epoch_, want, row_id);
    lock.unlock();
    futex_wait(&slot_->futex, seen, std::min(deadline->at_ns - now, kLookAtSocketEveryNs));
    lock.lock();
    // acq pairs with the broker's +1 rel: its answer and its grants were stored before
    if (slot_->futex.load(std::memory_order_acquire) == seen) return still_ours(row_id);
    const Answer answer = Answer::unpack(slot_->answer.load(std::memory_order_relaxed));
    if (!answer.refuses(want)) return still_ours(row_id);
    const uint64_t cause = slot_->full_cause.load(std::memory_order_relaxed);
    return refused(need, answer, static_cast<uint32_t>(cause));
}

// In a cache that spills: a row that would have to wait for memory goes to the file while an extent for stubs is under
// way, for nobody could tell the two apart.
int Writer::full_but_for_stubs(const Row &row) const {
    return full_of(CACHE_FULL_SIZE, fail(CACHE_EFULL,
                                         "cache %u of session %u is full: there is memory for the stub of row %lld, "
                                         "not for itself",
                                         header_->cache_id, header_->session_id, static_cast<long long>(row.row_id)));
}

int Writer::wait_for_extent(std::unique_lock<std::mutex> &lock, uint32_t seen, const Row &row, Deadline *deadline) {
    const uint64_t bytes = uint64_t{units_of(row, 0)} * kUnitBytes;
    const Want want{true, false, 0, static_cast<uint32_t>(round_up(bytes, kChunkBytes) / kChunkBytes), row.has_share()};
    const Need need{want, row.row_id, row.bytes(0)};
    // A hint of the broker: full is said without a message for each row. It is cleared when room appears.
    const Refused known = Refused::unpack(header_->refused_chunks.load(std::memory_order_relaxed));
    const bool full = known.covers(want.chunks, want.stub);
    if (row.may_spill && (full || stub_ordered_)) return CACHE_EFULL; // each row that spills comes by here
    if (int rc = still_ours(row.row_id); rc != 0) return rc;
    if (stub_ordered_ && !row.has_share()) return full_but_for_stubs(row);
    if (full) {
        const uint64_t cause = header_->refused_cause.load(std::memory_order_relaxed); // the hint's
        return refused(need, {CACHE_EFULL, want.chunks}, static_cast<uint32_t>(cause));
    }
    if (want.stub) stub_ordered_ = true;
    const int rc = wait_answer(lock, seen, need, deadline);
    if (want.stub && rc != 0) stub_ordered_ = false;
    return rc;
}

int Writer::wait_for_level(uint32_t levels, int64_t row_id, Deadline *deadline) {
    std::unique_lock lock(mutex_);
    if (int rc = still_ours(row_id); rc != 0) return rc;
    const uint32_t seen = slot_->futex.load(std::memory_order_acquire);
    if (int rc = index_.refresh(); rc != 0) return rc; // a level that cannot be: nothing would come of waiting
    if (index_.known() > levels) return 0;             // it has come: look again
    const Need need{Want{false, true, levels, 0}, row_id, 0};
    // A hint, as for extents.
    if (Refused::unpack(header_->refused_chunks.load(std::memory_order_relaxed)).levels) {
        const uint64_t cause = header_->refused_cause.load(std::memory_order_relaxed); // the hint's
        return refused(need, {CACHE_EFULL, 0}, static_cast<uint32_t>(cause));
    }
    return wait_answer(lock, seen, need, deadline);
}

} // namespace libcache
