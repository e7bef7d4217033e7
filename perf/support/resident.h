// SPDX-License-Identifier: Apache-2.0
// What a process really has in memory, as the kernel counts it. Pure look-ups; any thread may call.
#pragma once

#include "capi/libcache.h"

#include <cstdint>
#include <sys/types.h>

namespace perf {

struct Resident {
    uint64_t bytes;     // all of it
    uint64_t own_bytes; // without pages of shared memory
};
Resident resident_of(pid_t pid); // throws std::runtime_error when there is no such process

// Keeper and broker together, without the pages of caches that they happen to map.
uint64_t server_bytes(const cache_server_stats &server);

} // namespace perf
