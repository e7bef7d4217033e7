// SPDX-License-Identifier: Apache-2.0
#include "perf/scaling/scaling.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace scaling {
namespace {

constexpr auto kPatience = std::chrono::seconds(60); // a busy machine is no failure

} // namespace

void Session::end(cache *handle, uint32_t cache_id) const {
    cache_close(handle);
    must(cache_destroy(client, id, cache_id), "cache_destroy");
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (server_of(client).memory_used_bytes > 0 && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

cache_stats stat_of(cache *handle) {
    cache_stats stats{};
    stats.size = sizeof stats;
    must(cache_stat(handle, &stats), "cache_stat");
    return stats;
}

cache_server_stats server_of(cache_client *client) {
    cache_server_stats stats{};
    stats.size = sizeof stats;
    must(cache_server_info(client, &stats), "cache_server_info");
    return stats;
}

int64_t now_ns() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

double seconds_of(const std::function<void()> &work) {
    const int64_t start = now_ns();
    work();
    return seconds_since(start);
}

double percentile(std::vector<double> values, double share) {
    const auto at = values.begin() + static_cast<ptrdiff_t>(static_cast<double>(values.size() - 1) * share);
    std::nth_element(values.begin(), at, values.end());
    return *at;
}

} // namespace scaling
