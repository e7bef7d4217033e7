// SPDX-License-Identifier: Apache-2.0
// The command line and environment of cache_server, checked. Used by main alone.
#pragma once

#include "core/common/log.h"
#include "core/shm/backing.h"

#include <cstdint>
#include <optional>
#include <string>

namespace libcache {

struct ServerOptions {
    bool foreground = false;
    bool end_with_keeper = false; // the broker does not go on alone
    unsigned port = 50052;
    bool port_given = false; // by -p or the environment: its TCP port must be ours
    unsigned workers = 1;
    std::string warning; // for the user, when a wish was adjusted
    std::string spill_dir;
    uint64_t spill_limit_bytes = 0;         // 0: none
    std::optional<uint64_t> headroom_bytes; // empty: by the limit
    uint64_t idle_ttl_seconds = 0;          // 0: never
    LogLevel log_level = LogLevel::Info;
    double memory_cap_ratio = 0.8;
    unsigned shared_memory_gb = 0; // 0: not given. Without effect
    std::string hostname = "127.0.0.1";
    BackingWish backing = BackingWish::Auto;
    std::string group; // whose members are admitted besides this user; "": nobody
    uint32_t group_id = 0;
    bool group_write = false;
};

// Reads and checks everything that can be checked before a process is made. True: go on. Else *status is what to exit
// with, and all has been said (help and version on stdout, errors on stderr).
bool parse_options(int argc, char **argv, ServerOptions *options, int *status);

} // namespace libcache
