// SPDX-License-Identifier: Apache-2.0
// Making a region, attaching and releasing writers, and what the populating thread brings back.
#include "core/server/cache_region.h"

#include "core/common/error.h"
#include "core/common/futex.h"
#include "core/common/log.h"
#include "core/common/pause.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <fstream>
#include <sstream>

namespace libcache {
namespace {

// A row needs 48 bytes and an entry: more ids than this in one level could never be filled within the limit.
constexpr uint64_t kBytesPerExpectedRow = 64;
constexpr uint64_t kSmallestDense = 4096;
constexpr int64_t kNoMemoryPause = 200'000'000; // ns

void empty_ring(TokenRing &ring) {
    ring.head.store(0, std::memory_order_relaxed); // shown by the slot's ACTIVE
    ring.tail.store(0, std::memory_order_relaxed);
    for (AtomicU64 &token : ring.token)
        token.store(0, std::memory_order_relaxed);
}

} // namespace

uint64_t process_start_time(int pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    if (!std::getline(file, line)) return 0;
    // The name in parentheses may hold blanks; after it come the fields from number 3 on, and ours is 22.
    const size_t end = line.rfind(')');
    std::istringstream fields(end == std::string::npos ? std::string() : line.substr(end + 1));
    std::string field;
    for (int i = 3; i <= 22; ++i)
        if (!(fields >> field)) return 0;
    return std::strtoull(field.c_str(), nullptr, 10);
}

CacheRegion::CacheRegion(Shop &shop, CacheNames names, uint64_t limit_bytes, Fd file, Fd spill_file)
    : shop_(shop), names_(names), limit_(limit_bytes), file_(std::move(file)), spill_file_(std::move(spill_file)) {}

CacheRegion::~CacheRegion() = default;

int CacheRegion::make(const CacheWish &wish) {
    const Geometry geometry = Geometry::for_limit(limit_, wish.huge, wish.spill_segments);
    if (int rc = map_.map_as(file_.get(), geometry, RegionAccess::Control); rc != 0) return rc;
    extents_ = std::make_unique<Extents>(map_, limit_, shop_.ledger);
    if (int rc = extents_->start(); rc != 0) return rc;
    if (spills()) spill_ = std::make_unique<SpillSegments>(map_, *extents_, shop_.spill);
    describe(wish);
    const uint64_t rows = std::min(wish.expected_rows, limit_ / kBytesPerExpectedRow);
    begin_growth(LevelKind::Dense, 0, std::max(rows, kSmallestDense));
    pump_growth();
    if (!failed_) return 0;
    return full_of(shop_.ledger.shortage_cause(),
                   fail(CACHE_EFULL, "the server has no memory for the index of a new cache: %s",
                        shop_.ledger.shortage().c_str()));
}

// All of the header but its magic: nobody else has the region yet.
void CacheRegion::describe(const CacheWish &wish) {
    const Geometry &g = map_.geometry();
    RegionHeader &h = *header();
    h.version = kFormatVersion;
    h.flags =
        (g.huge_chunks != 0 ? kRegionHuge : 0u) | (wish.build ? kRegionBuild : 0u) | (spills() ? kRegionSpill : 0u);
    h.stamp = kLayoutStamp;
    h.region_bytes = g.region_bytes;
    h.slots_offset = g.slots_offset;
    h.slots = g.slots;
    h.table_offset = g.table_offset;
    h.chunks = g.chunks;
    h.data_offset = g.data_offset;
    h.huge_chunks = g.huge_chunks;
    h.spill_offset = g.spill_offset;
    h.spill_segments = g.spill_segments;
    h.limit_bytes = limit_;
    h.region_id = names_.region_id;
    h.session_id = names_.session_id;
    h.cache_id = names_.cache_id;
    h.expected_rows = wish.expected_rows;
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    h.created_ns = static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
    h.state.store(uint64_t(CacheState::Live), std::memory_order_relaxed); // this and all below: shown by magic
    h.top_bytes.store(g.data_offset, std::memory_order_relaxed);
    h.generation.store(shop_.generation, std::memory_order_relaxed);
    tag_ = wish.tag;
    label_ = wish.label;
    memcpy(h.tag, tag_.c_str(), std::min(tag_.size() + 1, sizeof h.tag));
    memcpy(h.label, label_.c_str(), std::min(label_.size() + 1, sizeof h.label));
}

void CacheRegion::publish() {
    state_ = State::Live;
    LIBCACHE_PAUSE("broker.publish.1");
    header()->magic.store(kRegionMagic, std::memory_order_release); // [ready] pairs with RegionMap::open: all above
    stock_first_writer();
}

// ---- writers

const CacheRegion::Client *CacheRegion::find(uint64_t conn_id) const {
    for (const auto &[slot, client] : clients_)
        if (client.person.conn_id == conn_id) return &client;
    return nullptr;
}

std::map<uint32_t, CacheRegion::Client>::iterator CacheRegion::slot_of(uint64_t conn_id) {
    return std::find_if(clients_.begin(), clients_.end(),
                        [&](const auto &entry) { return entry.second.person.conn_id == conn_id; });
}

CacheRegion::Client *CacheRegion::client_of(uint32_t slot) {
    const auto at = clients_.find(slot);
    return at == clients_.end() ? nullptr : &at->second;
}

int CacheRegion::attach(const Person &person, uint32_t *slot, uint64_t *epoch) {
    if (auto at = slot_of(person.conn_id); at != clients_.end()) {
        at->second.closing = false; // closed with a reservation open, and opened again
        *slot = at->first;
        *epoch = at->second.epoch;
        return 0;
    }
    uint32_t free_slot = 0; // the lowest: slots in use stay close together
    while (clients_.count(free_slot) != 0)
        ++free_slot;
    if (free_slot >= map_.geometry().slots)
        return fail(CACHE_ELIMIT, "cache %u of session %u has %llu writers, more are not possible", names_.cache_id,
                    names_.session_id, static_cast<unsigned long long>(map_.geometry().slots));
    if (int rc = extents_->provide_slot(free_slot); rc != 0) return rc;

    Slot &s = *map_.slot(free_slot);
    Client &client = clients_[free_slot];
    client.person = person;
    client.epoch = SlotWord::unpack(s.owner.load(std::memory_order_relaxed)).epoch; // only we write it
    s.conn_id.store(person.conn_id, std::memory_order_relaxed); // this and all below: shown by ACTIVE
    s.pid.store(static_cast<uint64_t>(person.pid), std::memory_order_relaxed);
    s.start_time.store(person.start_time, std::memory_order_relaxed);
    s.answer.store(0, std::memory_order_relaxed);
    s.want.store(0, std::memory_order_relaxed);
    empty_ring(s.grant);
    empty_ring(s.back);
    client.grant = RingProducer(&s.grant);
    client.back = RingConsumer(&s.back);
    client.attached_ns = quiet_since_ns_ = now_ns();
    LIBCACHE_PAUSE("broker.attach.1");
    s.owner.store(SlotWord{SlotState::Active, client.epoch}.pack(), std::memory_order_release); // with all above
    stock_ahead(free_slot, client);
    *slot = free_slot;
    *epoch = client.epoch;
    return 0;
}

void CacheRegion::message(uint64_t conn_id, uint32_t slot, uint64_t epoch, Want want, int64_t row_id) {
    Client *client = client_of(slot);
    if (!client || client->person.conn_id != conn_id || client->epoch != epoch || state_ != State::Live) return;
    drain_returns(*client);
    refresh_offers(slot, *client);
    if (want.extent || want.grow) {
        if (!client->want.extent && !client->want.grow) client->want_since_ns = now_ns();
        if (want.extent) merge_want(*client, want);
        if (want.grow) client->row_id = row_id, client->want.levels = want.levels;
        client->want.grow |= want.grow;
    } else {
        adapt(*client);
    }
    client->busy = true;
    quiet_since_ns_ = now_ns();
    grow_ahead();
    estimate_what_comes();
    review();
    if (client_of(slot) && !somebody_waits()) stock_ahead(slot, *client);
}

// Threads of one process may wait for different things at once. The largest extent answers all of them; but room for
// stubs is kept from rows, so a want for stubs goes alone, and before: its answer makes the others ask again.
void CacheRegion::merge_want(Client &client, Want want) {
    if (client.want.extent && client.want.stub && !want.stub) return;
    const bool alone = !client.want.extent || want.stub != client.want.stub;
    client.want.chunks = alone ? want.chunks : std::max(client.want.chunks, want.chunks);
    client.want.extent = true;
    client.want.stub = want.stub;
}

void CacheRegion::take_back_granted(uint32_t slot) {
    for (const Extents::Head &head : extents_->heads())
        if (head.word.state == ExtentState::Granted && head.word.slot == slot) extents_->revoke_granted(head.chunk);
    take_back_spill(slot);
    look_for_room();
}

void CacheRegion::vacate(uint32_t slot, Client &client) {
    end_building(slot); // before somebody else can have the slot
    LIBCACHE_PAUSE("broker.vacate.1");
    // rel: who attaches next comes after all that was done about the last owner
    map_.slot(slot)->owner.store(SlotWord{SlotState::Vacant, client.epoch + 1}.pack(), std::memory_order_release);
    clients_.erase(slot);
    review();
}

// True if nothing is HELD by the slot any more; then it is vacant.
bool CacheRegion::released(uint32_t slot, Client &client) {
    for (const Extents::Head &head : extents_->heads())
        if (head.word.state == ExtentState::Held && head.word.slot == slot) return false;
    if (holds_spill(slot)) return false;
    vacate(slot, client);
    return true;
}

void CacheRegion::close(uint64_t conn_id) {
    const auto at = slot_of(conn_id);
    if (at == clients_.end() || state_ == State::Dying) return;
    const uint32_t slot = at->first;
    Client &client = at->second;
    client.closing = true;
    client.want = {};
    end_building(slot);
    drain_returns(client);
    take_back_granted(slot);
    // A reservation that is still open keeps its extent, and so the slot, until the process ends.
    if (released(slot, client))
        log_line(LogLevel::Debug, "cache %u/%u: slot %u closed", names_.session_id, names_.cache_id, slot);
}

void CacheRegion::hung_up(uint64_t conn_id) {
    if (const auto at = slot_of(conn_id); at != clients_.end()) at->second.hung_up = true;
}

void CacheRegion::died(uint64_t conn_id) {
    const auto at = slot_of(conn_id);
    if (at != clients_.end() && state_ != State::Dying) recover_slot(at->first);
    if (state_ == State::Dying && at != clients_.end()) clients_.erase(at);
}

std::vector<CacheRegion::Person> CacheRegion::found_writers() const {
    std::vector<Person> found;
    for (const auto &[slot, client] : clients_)
        found.push_back(client.person);
    return found;
}

void CacheRegion::wake(uint32_t slot) {
    Slot &s = *map_.slot(slot);
    s.futex.fetch_add(1, std::memory_order_release); // pairs with the waiter's acquire: grants, levels, answer before
    futex_wake_all(&s.futex);
}

void CacheRegion::wake_all() {
    for (const auto &[slot, client] : clients_) {
        // An old refusal is no answer to what is waited for now: it would fail a put whose room is on its way. rlx:
        // before the futex word, which wake() stores
        map_.slot(slot)->answer.store(0, std::memory_order_relaxed);
        wake(slot);
    }
}

// ---- jobs

void CacheRegion::submit(Work work, uint64_t chunk, uint64_t chunks, uint32_t slot, uint64_t epoch, uint32_t wish) {
    auto job = std::make_unique<Job>();
    job->work = work;
    job->region_id = names_.region_id;
    job->fd = works_on_disk(work) ? spill_file_.get() : file_.get();
    job->geometry = map_.geometry();
    job->cancelled = cancelled_;
    job->head = chunk;
    job->chunks = chunks;
    job->slot = slot;
    job->epoch = epoch;
    job->wish = wish;
    ++jobs_;
    if (work == Work::Punch) ++shop_.punching;
    (works_on_disk(work) ? shop_.disk : shop_.populator).submit(std::move(job));
}

void CacheRegion::job_done(const Job &job) {
    --jobs_;
    switch (job.work) {
    case Work::Populate: stocked(job); break;
    case Work::Zero: zeroed(job); break;
    case Work::Punch:
        --shop_.punching;
        if (job.result != 0) holes_are_holes_ = false;
        extents_->gave_back(job.head);
        look_for_room();
        break;
    case Work::Allocate:
    case Work::Release: spill_done(job); break;
    }
    if (state_ != State::Dying) review();
}

void CacheRegion::stocked(const Job &job) {
    shop_.ledger.made(job.chunks * kChunkBytes);
    Client *client = job.slot == kNoSlot ? nullptr : client_of(job.slot);
    if (client && client->epoch != job.epoch) client = nullptr;
    if (client) client->jobs_chunks -= job.chunks;
    if (client && --client->jobs == 0) client->largest_job = 0;
    if (job.slot == kNoSlot && --growth_.jobs == 0) growth_.largest_job = 0;
    if (job.result != 0) {
        // Some pages may be there: all of it goes back.
        no_memory_until_ns_ = now_ns() + kNoMemoryPause;
        submit(Work::Punch, job.head, job.chunks, kNoSlot, 0, 0);
        return;
    }
    extents_->note_pages(job.head, job.chunks, job.small_units);
    extents_->made(job.head);
    if (job.slot == kNoSlot && state_ != State::Dying && holes_are_holes_) {
        growth_.fresh = job.head, growth_.fresh_chunks = job.chunks;
        pump_growth();
        growth_.fresh_chunks = 0; // from here on somebody else may be lent it
    }
    look_for_room();
    if (!client || client->closing || client->hung_up || state_ != State::Live) return;
    // Whom it was made for gets it before anybody else is looked after: else two who wait, each for a run that it has
    // to take from the other, would make and give back pages for ever.
    const uint64_t needed = client->want.extent ? std::max(client->want.chunks, 1u) : job.wish;
    const uint64_t chunk = extents_->find_free(needed);
    if (chunk == Extents::kNone || !offer(job.slot, *client, chunk, std::max<uint64_t>(needed, job.wish))) return;
    if (client->want.extent) satisfied(job.slot, *client);
}

// ---- life

void CacheRegion::tick() {
    if (state_ == State::Dying) return;
    look_for_room();
    // Also without a sign of room: what a writer gave back inside an extent that it holds is seen only by who is asked.
    allow_share();
    tick_spill();
    review();
    retire_idle();
    for (auto &[slot, client] : clients_)
        if (client.closing && released(slot, client)) break; // the map has changed; the others at the next tick
}

bool CacheRegion::restless() const {
    return state_ != State::Live || refused_.any() || growth_.active || somebody_waits() ||
           std::any_of(clients_.begin(), clients_.end(), [](const auto &entry) { return entry.second.closing; });
}

bool CacheRegion::reclaim(uint64_t bytes, bool stock) {
    if (state_ != State::Live || (somebody_waits() && !stock)) return false;
    trim_all();
    if (stock)
        for (const Extents::Head &head : extents_->heads())
            if (head.word.state == ExtentState::Granted) extents_->revoke_granted(head.chunk);
    bool begun = false;
    uint64_t chunk, chunks;
    for (uint64_t left = (bytes + kChunkBytes - 1) / kChunkBytes;
         left > 0 && extents_->begin_giving_back(left, &chunk, &chunks); left -= std::min(left, chunks)) {
        submit(Work::Punch, chunk, chunks, kNoSlot, 0, 0);
        begun = true;
    }
    return begun;
}

void CacheRegion::die() {
    if (state_ == State::Dying) return;
    state_ = State::Dying;
    cancelled_->store(true, std::memory_order_relaxed); // a wish to hurry
    if (!map_) return;                                  // a region that could not even be mapped
    header()->state.store(uint64_t(CacheState::Dying), std::memory_order_release); // readers and writers look per call
    wake_all();
}

// The charge stays until nobody else has the file: then a write lease on the only description is granted.
bool CacheRegion::can_go() {
    if (state_ != State::Dying || jobs_ != 0) return false;
    sample_.reset();
    map_ = RegionMap();
    if (fcntl(file_.get(), F_SETLEASE, F_WRLCK) != 0) {
        if (errno != EAGAIN)
            log_line(LogLevel::Warning, "cache %u/%u: the lease that tells whether it is still mapped failed: %s",
                     names_.session_id, names_.cache_id, strerror(errno));
        return errno != EAGAIN;
    }
    fcntl(file_.get(), F_SETLEASE, F_UNLCK);
    return true;
}

} // namespace libcache
