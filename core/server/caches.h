// SPDX-License-Identifier: Apache-2.0
// All sessions and caches of the server: the tables in the server region are the truth, the maps here mirror them.
// Used by the broker's control thread. Parts: caches.cc; making_room.cc dropping old caches.
#pragma once

#include "core/server/cache_region.h"
#include "core/server/destroyers.h"
#include "core/server/keeper_link.h"
#include "core/server/server_region.h"
#include "core/shm/backing.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace libcache {

class Caches {
  public:
    Caches(ServerRegion &server, KeeperLink &keeper, const Backing &backing, Shop &shop)
        : server_(server), keeper_(keeper), backing_(backing), shop_(shop), destroyers_(server) {}

    // ---- sessions
    // flags: enum cache_session_flags, added to those of a session that is there.
    [[nodiscard]] int create_session(const Asker &asker, uint32_t flags, uint32_t *session_id);
    [[nodiscard]] int open_session(const Asker &asker, const std::string &name, uint32_t flags, uint32_t *session_id);
    [[nodiscard]] int destroy_session(uint32_t session_id);
    [[nodiscard]] int require_session(uint32_t session_id) const;
    const char *session_name(uint32_t session_id) const;
    uint32_t session_flags(uint32_t session_id) const;

    // ---- caches
    using Name = std::pair<uint32_t, uint32_t>; // session, cache
    CacheRegion *find(Name name) const;         // Live or Making
    CacheRegion *find(uint64_t region_id) const;
    // Begins a new cache; it is Live when made() has been called with it.
    [[nodiscard]] int create(const Asker &asker, Name name, const CacheWish &wish, CacheRegion **region);
    bool was_created_by(const CacheRegion &region, const Asker &asker) const;
    void destroy(CacheRegion &region);
    [[nodiscard]] int destroy(CacheRegion &region, const Asker &asker); // 0, or nothing was done
    bool has_destroyed(const Asker &asker) const;

    // The entry of a listing that follows `last` (none: the first): {session, cache}; region null: a session without.
    struct Listed {
        uint32_t session_id;
        CacheRegion *region;
    };
    bool next(const Name *last, Listed *listed) const;

    size_t session_count() const { return sessions_.size(); }
    size_t cache_count() const { return by_name_.size(); }
    std::vector<CacheRegion *> all() const; // dying ones included

    // ---- who has what open, for statistics and across restarts
    void note_open(uint64_t conn_id, uint64_t region_id);
    void note_closed(uint64_t conn_id, uint64_t region_id); // region_id 0: all of this connection
    void note_gone(uint64_t conn_id);                       // this connection has ended
    int64_t readers(uint64_t region_id) const;
    bool has_session(const char *name) const;
    bool has_open(uint64_t conn_id, uint64_t region_id) const;
    int64_t attached(const CacheRegion &region) const; // processes: readers, and writers that have opened nothing
    // How long nobody has had it open, 0 while somebody has.
    int64_t idle_ns(const CacheRegion &region) const;

    // ---- old caches make room (making_room.cc)
    // What would be free if all caches were dropped that nobody has open and no session keeps.
    uint64_t droppable_bytes() const;
    // Drops such caches, least recently used first, until about so many bytes are on their way. False: there are none.
    bool drop_idle(uint64_t bytes, const char *why);
    void drop_expired(int64_t ttl_ns);

    // ---- events
    using Made = std::function<void(CacheRegion &region, int result)>;
    void on_made(Made made) { made_ = std::move(made); }
    void job_done(const Job &job);
    void tick();
    bool restless() const;

    // ---- a new broker: descriptors from the keeper, then all at once
    void hold(uint64_t region_id, Fd file, Fd spill_file) {
        held_[region_id] = {std::move(file), std::move(spill_file)};
    }
    void restore();

  private:
    struct Cache {
        CacheEntry *entry = nullptr; // null while Making
        std::unique_ptr<CacheRegion> region;
        Asker asker{};
        int64_t dying_ns = 0; // when it was destroyed; 0: it was not
    };
    ServerRegion &server_;
    KeeperLink &keeper_;
    const Backing &backing_;
    Shop &shop_;
    Destroyers destroyers_;
    Made made_;
    std::map<uint32_t, SessionEntry *> sessions_;
    std::map<uint64_t, Cache> caches_;           // by region id
    std::map<Name, uint64_t> by_name_;           // not of dying ones
    std::map<uint64_t, std::pair<Fd, Fd>> held_; // region and spill file
    size_t open_top_ = 0;                        // no entry beyond was ever used

    SessionEntry *free_session();
    int add_session(const Asker &asker, const std::string &name, uint32_t flags, uint32_t *session_id);
    void bury_session(SessionEntry &entry);
    CacheEntry *free_cache();
    void finish(Cache &cache);
    void settle(Cache &cache);
    void remove_if_gone(uint64_t region_id);
    void note_idle();
    bool droppable(const Cache &cache) const;
    void drop(Cache &cache, const char *why);
    void restore_cache(CacheEntry &entry);
};

} // namespace libcache
