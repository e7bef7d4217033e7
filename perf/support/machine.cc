// SPDX-License-Identifier: Apache-2.0
#include "perf/support/machine.h"

#include <fstream>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifndef PERF_BUILD_FLAGS
#error "perf.mk passes the flags of the build in PERF_BUILD_FLAGS"
#endif

namespace perf {
namespace {

std::string processor_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("model name"))
            if (const size_t colon = line.find(':'); colon + 2 < line.size()) return line.substr(colon + 2);
    return "unknown";
}

unsigned usable_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(CPU_COUNT(&set));
    return static_cast<unsigned>(sysconf(_SC_NPROCESSORS_ONLN));
}

} // namespace

Machine this_machine() {
    utsname name{};
    uname(&name);
    return {processor_name(),
            usable_cpus(),
            static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)),
            name.release,
            cache_version(),
            "g++ " __VERSION__ ", " PERF_BUILD_FLAGS};
}

std::string backing_of(const cache_server_stats &server) {
    return std::string(server.huge_pages ? "huge pages: " : "4 KiB pages: ") + server.backing_reason;
}

} // namespace perf
