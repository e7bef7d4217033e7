// SPDX-License-Identifier: Apache-2.0
#include "core/server/caches.h"

#include "core/common/error.h"
#include "core/common/log.h"
#include "core/common/pause.h"
#include "core/server/spill_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/random.h>

namespace libcache {
namespace {

// Only one broker at a time writes the server region, and a new one starts after the old one was waited for: relaxed
// would do for reading. Stores are release, so that the entry stands when its state does.
EntryState state_of(const AtomicState &state) {
    return state.load(std::memory_order_acquire);
}

unsigned long long big(uint64_t n) {
    return n;
}

} // namespace

// ---- sessions

SessionEntry *Caches::free_session() {
    for (SessionEntry &entry : server_->session)
        if (state_of(entry.state) == EntryState::Empty) return &entry;
    return nullptr;
}

int Caches::add_session(const Asker &asker, const std::string &name, uint32_t flags, uint32_t *session_id) {
    SessionEntry *entry = free_session();
    if (!entry)
        return fail(CACHE_ELIMIT, "the server has %u sessions, more are not possible: end some with cache_admin -d",
                    kMaxSessions);
    uint32_t id = 0;
    while (id == 0 || sessions_.count(id) != 0)
        if (getrandom(&id, sizeof id, 0) != sizeof id) return fail(CACHE_EIO, "getrandom failed: %s", strerror(errno));
    entry->session_id = id;
    entry->conn_id = asker.conn_id;
    entry->number = asker.number;
    entry->flags = flags;
    memset(entry->name, 0, sizeof entry->name);
    memcpy(entry->name, name.c_str(), std::min(name.size(), sizeof entry->name - 1));
    LIBCACHE_PAUSE("broker.session.1");
    entry->state.store(EntryState::Live, std::memory_order_release); // with all above
    LIBCACHE_PAUSE("broker.session.2");
    sessions_[id] = entry;
    *session_id = id;
    log_line(LogLevel::Info, "session %u made%s%s", id, name.empty() ? "" : ", named ", name.c_str());
    return 0;
}

int Caches::create_session(const Asker &asker, uint32_t flags, uint32_t *session_id) {
    for (const auto &[id, entry] : sessions_)
        if (entry->conn_id == asker.conn_id && entry->number == asker.number && entry->name[0] == 0)
            return *session_id = id, 0; // asked for again
    return add_session(asker, "", flags, session_id);
}

int Caches::open_session(const Asker &asker, const std::string &name, uint32_t flags, uint32_t *session_id) {
    for (const auto &[id, entry] : sessions_)
        if (name == entry->name) return entry->flags |= flags, *session_id = id, 0;
    return add_session(asker, name, flags, session_id);
}

int Caches::require_session(uint32_t session_id) const {
    if (sessions_.count(session_id) != 0) return 0;
    return fail(CACHE_ENOSESSION, "session %u does not exist: make one with cache_admin -g", session_id);
}

const char *Caches::session_name(uint32_t session_id) const {
    const auto at = sessions_.find(session_id);
    return at == sessions_.end() ? "" : at->second->name;
}

uint32_t Caches::session_flags(uint32_t session_id) const {
    const auto at = sessions_.find(session_id);
    return at == sessions_.end() ? 0 : at->second->flags;
}

int Caches::destroy_session(uint32_t session_id) {
    if (int rc = require_session(session_id); rc != 0) return rc;
    SessionEntry *entry = sessions_[session_id];
    entry->state.store(EntryState::Dying, std::memory_order_release); // from here on a new broker goes on with it
    LIBCACHE_PAUSE("broker.destroy.1");
    bury_session(*entry);
    log_line(LogLevel::Info, "session %u ended", session_id);
    return 0;
}

void Caches::bury_session(SessionEntry &entry) {
    std::vector<CacheRegion *> doomed;
    for (const auto &[id, cache] : caches_)
        if (cache.region->names().session_id == entry.session_id) doomed.push_back(cache.region.get());
    for (CacheRegion *region : doomed)
        destroy(*region);
    LIBCACHE_PAUSE("broker.destroy.3");
    sessions_.erase(entry.session_id);
    entry.state.store(EntryState::Empty, std::memory_order_release);
}

// ---- caches

CacheRegion *Caches::find(Name name) const {
    const auto at = by_name_.find(name);
    return at == by_name_.end() ? nullptr : find(at->second);
}

CacheRegion *Caches::find(uint64_t region_id) const {
    const auto at = caches_.find(region_id);
    return at == caches_.end() ? nullptr : at->second.region.get();
}

std::vector<CacheRegion *> Caches::all() const {
    std::vector<CacheRegion *> regions;
    for (const auto &[id, cache] : caches_)
        regions.push_back(cache.region.get());
    return regions;
}

CacheEntry *Caches::free_cache() {
    for (CacheEntry &entry : server_->cache)
        if (state_of(entry.state) == EntryState::Empty) return &entry;
    return nullptr;
}

int Caches::create(const Asker &asker, Name name, const CacheWish &wish, CacheRegion **region) {
    if (caches_.size() >= kMaxCaches)
        return fail(CACHE_ELIMIT, "the server has %u caches, more are not possible: destroy some", kMaxCaches);
    // Raised before it is used: no id is ever used twice.
    const uint64_t id = server_->header.next_region_id.fetch_add(1, std::memory_order_relaxed);
    Fd file, spill_file;
    const uint64_t bytes = Geometry::for_limit(wish.limit_bytes, wish.huge, wish.spill_segments).region_bytes;
    if (int rc = backing_.make_region(bytes, &file); rc != 0) return rc;
    if (wish.spill_segments != 0)
        if (int rc = make_spill_file(server_.config().spill_dir, &spill_file); rc != 0) return rc;
    auto fresh = std::make_unique<CacheRegion>(shop_, CacheNames{id, name.first, name.second}, wish.limit_bytes,
                                               std::move(file), std::move(spill_file));
    if (int rc = fresh->make(wish); rc != 0) return rc;
    *region = fresh.get();
    caches_[id] = {nullptr, std::move(fresh), asker};
    by_name_[name] = id;
    return 0;
}

// The first index level has come. The keeper has the region before anybody learns of it, and its entry is last.
void Caches::finish(Cache &cache) {
    CacheRegion &region = *cache.region;
    CacheEntry *entry = free_cache(); // there is one: create() counted
    const CacheNames &names = region.names();
    region.publish();
    keeper_.deposit(HeldKind::Region, names.region_id, region.file(), region.spill_file());
    LIBCACHE_PAUSE("broker.create.1");
    entry->region_id = names.region_id;
    entry->session_id = names.session_id;
    entry->cache_id = names.cache_id;
    entry->conn_id = cache.asker.conn_id;
    entry->number = cache.asker.number;
    entry->limit_bytes = region.limit_bytes();
    LIBCACHE_PAUSE("broker.create.2");
    entry->state.store(EntryState::Live, std::memory_order_release); // with all above
    LIBCACHE_PAUSE("broker.create.3");
    cache.entry = entry;
    log_line(LogLevel::Info, "cache %u of session %u made: region %llu, limit %llu bytes", names.cache_id,
             names.session_id, big(names.region_id), big(region.limit_bytes()));
    made_(region, 0);
}

bool Caches::was_created_by(const CacheRegion &region, const Asker &asker) const {
    const auto at = caches_.find(region.names().region_id);
    return at != caches_.end() && at->second.asker.conn_id == asker.conn_id && at->second.asker.number == asker.number;
}

// What only began is not meant: it was noted, and the word did not follow.
bool Caches::has_destroyed(const Asker &asker) const {
    const uint64_t region_id = destroyers_.region_of(asker);
    const CacheRegion *region = region_id != 0 ? find(region_id) : nullptr;
    return region_id != 0 && (!region || region->state() == CacheRegion::State::Dying);
}

int Caches::destroy(CacheRegion &region, const Asker &asker) {
    if (int rc = destroyers_.note(asker, region.names()); rc != 0) return rc;
    destroy(region);
    return 0;
}

void Caches::destroy(CacheRegion &region) {
    const CacheNames names = region.names();
    Cache &cache = caches_.at(names.region_id);
    if (const auto at = by_name_.find({names.session_id, names.cache_id});
        at != by_name_.end() && at->second == names.region_id)
        by_name_.erase(at);
    if (cache.entry) cache.entry->state.store(EntryState::Dying, std::memory_order_release); // the word first
    LIBCACHE_PAUSE("broker.destroy.2");
    const bool was_making = region.state() == CacheRegion::State::Making;
    cache.dying_ns = now_ns();
    region.die();
    if (was_making)
        made_(region, fail(CACHE_EGONE, "cache %u of session %u was destroyed while it was being made", names.cache_id,
                           names.session_id));
}

bool Caches::next(const Name *last, Listed *listed) const {
    const Name from = last ? Name{last->first, last->second} : Name{0, 0};
    for (auto session = sessions_.lower_bound(from.first); session != sessions_.end(); ++session) {
        const bool resumed = last && session->first == from.first; // this session has been begun
        auto cache = resumed ? by_name_.upper_bound(from) : by_name_.lower_bound({session->first, 0});
        for (; cache != by_name_.end() && cache->first.first == session->first; ++cache)
            if (CacheRegion *region = find(cache->second); region->state() == CacheRegion::State::Live)
                return *listed = {session->first, region}, true;
        if (!resumed) return *listed = {session->first, nullptr}, true;
    }
    return false;
}

// ---- who has what open

void Caches::note_open(uint64_t conn_id, uint64_t region_id) {
    OpenEntry *unused = nullptr;
    for (OpenEntry &entry : server_->open) {
        const uint64_t owner = entry.conn_id.load(std::memory_order_relaxed); // one broker at a time
        if (owner == conn_id && entry.region_id == region_id) return;
        if (owner == 0 && !unused) unused = &entry;
        if (owner == 0 && &entry > &server_->open[open_top_]) break; // none beyond was ever used
    }
    if (!unused) return; // a statistic less
    if (const auto at = caches_.find(region_id); at != caches_.end() && at->second.entry)
        at->second.entry->idle_since_ns = 0;
    unused->region_id = region_id;
    unused->conn_id.store(conn_id, std::memory_order_release); // with the line above
    open_top_ = std::max<size_t>(open_top_, static_cast<size_t>(unused - server_->open));
}

void Caches::note_closed(uint64_t conn_id, uint64_t region_id) {
    for (size_t i = 0; i <= open_top_; ++i) {
        OpenEntry &entry = server_->open[i];
        if (entry.conn_id.load(std::memory_order_relaxed) == conn_id &&
            (region_id == 0 || entry.region_id == region_id))
            entry.conn_id.store(0, std::memory_order_release); // unused again
    }
    note_idle();
}

void Caches::note_gone(uint64_t conn_id) {
    note_closed(conn_id, 0);
    destroyers_.forget(conn_id);
}

bool Caches::has_session(const char *name) const {
    return std::any_of(sessions_.begin(), sessions_.end(),
                       [&](const auto &s) { return !strcmp(name, s.second->name); });
}

bool Caches::has_open(uint64_t conn_id, uint64_t region_id) const {
    for (size_t i = 0; i <= open_top_; ++i) {
        const OpenEntry &entry = server_->open[i];
        if (entry.conn_id.load(std::memory_order_relaxed) == conn_id && entry.region_id == region_id) return true;
    }
    return false;
}

int64_t Caches::readers(uint64_t region_id) const {
    int64_t count = 0;
    for (size_t i = 0; i <= open_top_; ++i) {
        const OpenEntry &entry = server_->open[i];
        count += entry.conn_id.load(std::memory_order_relaxed) != 0 && entry.region_id == region_id;
    }
    return count;
}

// ---- events

// A cache that was being made stands, or cannot.
void Caches::settle(Cache &cache) {
    if (cache.region->ready()) {
        finish(cache);
    } else if (cache.region->failed() && cache.region->state() == CacheRegion::State::Making) {
        const CacheNames &names = cache.region->names();
        by_name_.erase({names.session_id, names.cache_id});
        made_(*cache.region,
              full_of(shop_.ledger.shortage_cause(),
                      fail(CACHE_EFULL, "the server has no memory for the index of cache %u of session %u: %s",
                           names.cache_id, names.session_id, shop_.ledger.shortage().c_str())));
        cache.region->die();
    }
}

void Caches::job_done(const Job &job) {
    const auto at = caches_.find(job.region_id);
    if (at == caches_.end()) return;
    Cache &cache = at->second;
    cache.region->job_done(job);
    settle(cache);
    if (job.work == Work::Punch) // room for others, maybe
        for (const auto &[id, other] : caches_)
            if (other.region.get() != cache.region.get()) other.region->tick();
    remove_if_gone(job.region_id);
}

// A dying cache goes when nobody else has it: word DYING stands, the keeper forgets, the word is EMPTY last.
void Caches::remove_if_gone(uint64_t region_id) {
    const auto at = caches_.find(region_id);
    if (at == caches_.end() || !at->second.region->can_go()) return;
    const CacheNames names = at->second.region->names();
    if (CacheEntry *entry = at->second.entry) {
        keeper_.forget(HeldKind::Region, region_id);
        LIBCACHE_PAUSE("broker.remove.1");
        entry->state.store(EntryState::Empty, std::memory_order_release);
    }
    caches_.erase(at); // closes the file and takes the charge back
    log_line(LogLevel::Info, "cache %u of session %u is gone, its memory is free", names.cache_id, names.session_id);
}

void Caches::tick() {
    note_idle();
    std::vector<uint64_t> ids;
    for (const auto &[id, cache] : caches_)
        ids.push_back(id);
    for (uint64_t id : ids) {
        Cache &cache = caches_.at(id);
        cache.region->tick();
        settle(cache);
        remove_if_gone(id);
    }
}

bool Caches::restless() const {
    return std::any_of(caches_.begin(), caches_.end(),
                       [](const auto &entry) { return entry.second.region->restless(); });
}

// ---- a new broker

void Caches::restore_cache(CacheEntry &entry) {
    const auto held = held_.find(entry.region_id);
    const CacheNames names{entry.region_id, entry.session_id, entry.cache_id};
    if (held == held_.end()) { // it was forgotten, only the last word is missing
        entry.state.store(EntryState::Empty, std::memory_order_release);
        return;
    }
    auto region = std::make_unique<CacheRegion>(shop_, names, entry.limit_bytes, std::move(held->second.first),
                                                std::move(held->second.second));
    held_.erase(held);
    const int rc = region->restore();
    if (rc != 0)
        log_line(LogLevel::Error, "cache %u of session %u cannot be served any more: %s", names.cache_id,
                 names.session_id, last_error());
    CacheRegion &known = *region;
    caches_[names.region_id] = {&entry, std::move(region), {entry.conn_id, entry.number}};
    if (rc == 0 && state_of(entry.state) == EntryState::Live) {
        by_name_[{names.session_id, names.cache_id}] = names.region_id;
    } else {
        entry.state.store(EntryState::Dying, std::memory_order_release);
        known.die();
    }
}

void Caches::restore() {
    for (SessionEntry &entry : server_->session)
        if (state_of(entry.state) != EntryState::Empty) sessions_[entry.session_id] = &entry;
    for (size_t i = 0; i < kMaxOpens; ++i)
        if (server_->open[i].conn_id.load(std::memory_order_relaxed) != 0) open_top_ = i;
    destroyers_.restore();
    for (CacheEntry &entry : server_->cache)
        if (state_of(entry.state) != EntryState::Empty) restore_cache(entry);
    // Deposited, but no word names them: nobody ever knew of them.
    for (const auto &[region_id, files] : held_)
        keeper_.forget(HeldKind::Region, region_id);
    held_.clear();
    std::vector<SessionEntry *> dying;
    for (const auto &[id, entry] : sessions_)
        if (state_of(entry->state) == EntryState::Dying) dying.push_back(entry);
    for (SessionEntry *entry : dying)
        bury_session(*entry);
}

} // namespace libcache
