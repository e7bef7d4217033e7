// SPDX-License-Identifier: Apache-2.0
// Which cache each connection's last DESTROY destroyed, kept in the server region until that connection ends. A request
// that comes again to a new broker is the connection's last one (the client has one under way), and region ids are
// never used twice: so a repeat is told from a new request whatever has become of that cache's name since.
#pragma once

#include "core/server/cache_region.h"
#include "core/server/server_region.h"

#include <map>

namespace libcache {

// The request that asks for something, so that a repeated one finds what the first one made.
struct Asker {
    uint64_t conn_id, number;
};

class Destroyers {
  public:
    explicit Destroyers(ServerRegion &server) : server_(server) {}

    void restore();
    // Before the cache's word says DYING: who dies in between has destroyed nothing, and the region is LIVE still.
    [[nodiscard]] int note(const Asker &asker, const CacheNames &names);
    uint64_t region_of(const Asker &asker) const; // 0: that request has not begun to destroy anything
    void forget(uint64_t conn_id);

  private:
    ServerRegion &server_;
    std::map<uint64_t, DestroyerEntry *> known_; // by connection: mirrors the table
    DestroyerEntry *entry_of(uint64_t conn_id);
};

} // namespace libcache
