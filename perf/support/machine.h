// SPDX-License-Identifier: Apache-2.0
// What a figure must be read with: the machine, the kernel, the build. Pure look-ups; any thread may call.
#pragma once

#include "capi/libcache.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace perf {

struct Machine {
    std::string processor; // as /proc/cpuinfo names it
    unsigned cpus;         // that this process may use
    uint64_t memory_bytes;
    std::string kernel;  // release
    std::string library; // version of libcache.so
    std::string build;   // compiler and flags of this program
};
Machine this_machine();

std::string backing_of(const cache_server_stats &server); // one sentence: which pages, and why

} // namespace perf
