// SPDX-License-Identifier: Apache-2.0
#include "core/server/destroyers.h"

#include "core/common/error.h"
#include "core/common/pause.h"

namespace libcache {

// One broker at a time, and a new one starts when the old one was waited for: relaxed would do for reading. Stores are
// release so that they are made in this order, for a broker may die between any two.

void Destroyers::restore() {
    for (DestroyerEntry &entry : server_->destroyer)
        if (const uint64_t conn_id = entry.conn_id.load(std::memory_order_relaxed); conn_id != 0)
            known_[conn_id] = &entry;
}

DestroyerEntry *Destroyers::entry_of(uint64_t conn_id) {
    if (const auto at = known_.find(conn_id); at != known_.end()) return at->second;
    for (DestroyerEntry &entry : server_->destroyer)
        if (entry.conn_id.load(std::memory_order_relaxed) == 0) return known_[conn_id] = &entry;
    return nullptr;
}

int Destroyers::note(const Asker &asker, const CacheNames &names) {
    DestroyerEntry *entry = entry_of(asker.conn_id);
    if (!entry)
        return fail(CACHE_ELIMIT,
                    "cache %u of session %u was not destroyed: %u processes that still run have each destroyed a "
                    "cache, and the server keeps note of no more: let one of them do it, end some of them, or "
                    "destroy the whole session",
                    names.cache_id, names.session_id, kMaxDestroyers);
    entry->number.store(0, std::memory_order_release); // until it goes with this region, it is no request's
    entry->conn_id.store(asker.conn_id, std::memory_order_release);
    entry->region_id.store(names.region_id, std::memory_order_release);
    LIBCACHE_PAUSE("broker.destroy.4");
    entry->number.store(asker.number, std::memory_order_release);
    return 0;
}

uint64_t Destroyers::region_of(const Asker &asker) const {
    const auto at = known_.find(asker.conn_id);
    if (at == known_.end() || at->second->number.load(std::memory_order_relaxed) != asker.number) return 0;
    return at->second->region_id.load(std::memory_order_relaxed);
}

void Destroyers::forget(uint64_t conn_id) {
    const auto at = known_.find(conn_id);
    if (at == known_.end()) return;
    at->second->conn_id.store(0, std::memory_order_release);
    known_.erase(at);
}

} // namespace libcache
