// SPDX-License-Identifier: Apache-2.0
// The machine and the running server, as the object "machine" of a file of figures.
#pragma once

#include "perf/support/machine.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace perf {

// Asks the server that LIBCACHE_DIR and LIBCACHE_PORT lead to for its pages.
inline nlohmann::ordered_json machine_as_json() {
    cache_server_stats server{};
    server.size = sizeof server;
    cache_client *client = nullptr;
    const bool asked = cache_connect(nullptr, &client) == 0 && cache_server_info(client, &server) == 0;
    cache_disconnect(client);
    if (!asked) throw std::runtime_error(std::string("which pages does the server use? ") + cache_last_error());
    const Machine machine = this_machine();
    return {{"processor", machine.processor}, {"cpus", machine.cpus},        {"memory_bytes", machine.memory_bytes},
            {"kernel", machine.kernel},       {"libcache", machine.library}, {"build", machine.build},
            {"backing", backing_of(server)}};
}

} // namespace perf
