// SPDX-License-Identifier: Apache-2.0
// One connection to the server of a port, and what the commands ask through it. A call that fails throws Failure.
#pragma once

#include "capi/libcache.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace admin {

struct Session {
    uint32_t id = 0;
    std::string name;
    bool kept = false;
    std::vector<cache_stats> caches;        // ascending by cache id
    std::vector<std::vector<int32_t>> pids; // of the processes that have each of them
};

struct Destroyed { // and still mapped
    cache_stats stats;
    std::vector<int32_t> pids;
};

struct Listing {
    std::vector<Session> sessions; // ascending by id
    std::vector<Destroyed> destroyed;
};

class Connection {
  public:
    explicit Connection(unsigned port);
    ~Connection() { cache_disconnect(client_); }
    Connection(const Connection &) = delete;
    Connection &operator=(const Connection &) = delete;

    uint32_t make_session(const std::string &name, bool keep = false); // "": a session without a name
    void destroy_session(uint32_t session_id);
    void destroy_cache(uint32_t session_id, uint32_t cache_id);
    Listing list();
    cache_server_stats server_info();
    // The faults of a cache, each row looked at too if `rows`. Nothing: it was destroyed meanwhile.
    std::optional<std::vector<std::string>> faults(uint32_t session_id, uint32_t cache_id, bool rows);
    void stop_server();

  private:
    void check(int result) const;

    unsigned port_;
    cache_client *client_ = nullptr;
};

} // namespace admin
