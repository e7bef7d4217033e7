// SPDX-License-Identifier: Apache-2.0
// The server region: a small memfd with what a new broker must know when the old one is gone. The keeper makes it and
// writes the configuration before the first broker starts; afterwards one broker at a time writes. No client maps it,
// so it is trusted.
//
// An entry is used when its state says so, and its state is stored last: LIVE after all else, EMPTY after the keeper
// has forgotten what it named.
#pragma once

#include "core/control/socket.h"
#include "core/shm/layout.h"

#include <boost/interprocess/mapped_region.hpp>
#include <cstdint>

namespace libcache {

inline constexpr uint64_t kServerMagic = 0x31307672'7363636cULL; // "lccsrv01"
inline constexpr uint32_t kMaxSessions = 16384;
inline constexpr uint32_t kMaxCaches = 4096;
inline constexpr uint32_t kMaxOpens = 65536;
inline constexpr uint32_t kMaxDestroyers = 16384;

enum GroupAccess : uint32_t { kGroupNone = 0, kGroupRead = 1, kGroupWrite = 2 };

struct ServerConfig { // constant once the first broker runs
    uint32_t port, tcp_port, workers, log_level;
    int32_t keeper_pid;
    uint32_t huge_pages, distrust_peerpidfd, group_access; // GroupAccess
    uint32_t group_id, no_pidfd, end_with_keeper, reserved;
    uint64_t server_id, memory_limit_bytes, spill_limit_bytes, headroom_bytes, idle_ttl_ns;
    char hostname[64], spill_dir[512], backing_reason[256], folder[128], log_path[384], program[384];
};

enum class EntryState : uint64_t { Empty = 0, Live = 1, Dying = 2 };
using AtomicState = std::atomic<EntryState>;
static_assert(AtomicState::is_always_lock_free);

struct SessionEntry {
    AtomicState state;
    uint64_t conn_id, number;   // the request that made it: a repeated one finds it
    uint32_t session_id, flags; // enum cache_session_flags
    char name[64];
    uint64_t reserved2[4];
};
static_assert(sizeof(SessionEntry) == 128);

struct CacheEntry {
    AtomicState state;
    uint64_t region_id;
    uint32_t session_id, cache_id;
    uint64_t conn_id, number; // the request that made it
    uint64_t limit_bytes;
    uint64_t idle_since_ns; // CLOCK_MONOTONIC when the last process left it; 0: it is open
    uint64_t reserved[9];
};
static_assert(sizeof(CacheEntry) == 128);

struct OpenEntry { // this connection has this cache open; conn_id 0: unused
    AtomicU64 conn_id;
    uint64_t region_id;
};
static_assert(sizeof(OpenEntry) == 16);

struct DestroyerEntry { // the last DESTROY of this connection; conn_id 0: unused
    AtomicU64 conn_id;
    AtomicU64 number; // of the request; stored last
    AtomicU64 region_id;
    uint64_t reserved;
};
static_assert(sizeof(DestroyerEntry) == 32);

struct ServerHeader {
    uint64_t magic, bytes;
    AtomicU64 generation;   // of brokers, this one included; rel after the new one knows all
    AtomicU64 next_conn_id; // raised before an id is used: none is ever used twice
    AtomicU64 next_region_id;
    AtomicU64 next_object_id; // of listeners
    ServerConfig config;
};
static_assert(offsetof(ServerHeader, generation) == 16 && offsetof(ServerHeader, config) == 48);
static_assert(sizeof(ServerHeader) < 4096);

struct ServerTables {
    alignas(4096) ServerHeader header;
    alignas(4096) SessionEntry session[kMaxSessions];
    CacheEntry cache[kMaxCaches];
    OpenEntry open[kMaxOpens];
    DestroyerEntry destroyer[kMaxDestroyers];
};
static_assert(std::is_standard_layout_v<ServerTables>);
static_assert(offsetof(ServerTables, session) == 4096 && offsetof(ServerTables, cache) == 4096 + 128 * kMaxSessions);

class ServerRegion {
  public:
    // The keeper's: a fresh region holding `config`. 0 or CACHE_E*.
    [[nodiscard]] int make(const ServerConfig &config, Fd *file);
    // A broker's.
    [[nodiscard]] int open(int fd);

    ServerTables *operator->() const { return static_cast<ServerTables *>(map_.get_address()); }
    const ServerConfig &config() const { return (*this)->header.config; }

  private:
    boost::interprocess::mapped_region map_;
    [[nodiscard]] int map(int fd);
};

} // namespace libcache
