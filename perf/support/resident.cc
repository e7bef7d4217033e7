// SPDX-License-Identifier: Apache-2.0
#include "perf/support/resident.h"

#include <fstream>
#include <stdexcept>
#include <string>

namespace perf {

Resident resident_of(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/status");
    uint64_t anonymous = 0, files = 0, shared = 0;
    bool found = false;
    for (std::string line; std::getline(file, line);) {
        const size_t colon = line.find(':');
        if (!line.starts_with("Rss") || colon == std::string::npos) continue;
        const uint64_t bytes = std::stoull(line.substr(colon + 1)) * 1024;
        if (line.starts_with("RssAnon")) anonymous = bytes;
        if (line.starts_with("RssFile")) files = bytes;
        if (line.starts_with("RssShmem")) shared = bytes;
        found = true;
    }
    if (!found) throw std::runtime_error("process " + std::to_string(pid) + " has ended: its memory cannot be counted");
    return {anonymous + files + shared, anonymous + files};
}

uint64_t server_bytes(const cache_server_stats &server) {
    uint64_t bytes = 0;
    for (const pid_t pid : {server.keeper_pid, server.broker_pid})
        if (pid > 0) bytes += resident_of(pid).own_bytes;
    return bytes;
}

} // namespace perf
