// SPDX-License-Identifier: Apache-2.0
#include "perf/scaling/scaling.h"

#include <chrono>
#include <fstream>

namespace scaling {
namespace {

int64_t resident_bytes(int32_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6)) * 1024;
    return 0;
}

} // namespace

cache_stats stat_of(cache *handle) {
    cache_stats stats{};
    stats.size = sizeof stats;
    must(cache_stat(handle, &stats), "cache_stat");
    return stats;
}

int64_t server_bytes(cache_client *client) {
    cache_server_stats stats{};
    stats.size = sizeof stats;
    must(cache_server_info(client, &stats), "cache_server_info");
    return resident_bytes(stats.keeper_pid) + resident_bytes(stats.broker_pid);
}

int64_t now_ns() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

} // namespace scaling
