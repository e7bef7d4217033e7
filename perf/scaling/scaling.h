// SPDX-License-Identifier: Apache-2.0
// How cost grows with what there is: each part adds its figures to a JSON array. They run one after the other in a
// process with one thread, against the server that LIBCACHE_DIR and LIBCACHE_PORT lead to. Failures are
// std::runtime_error.
#pragma once

#include "capi/libcache.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace scaling {

using Json = nlohmann::ordered_json;

inline constexpr size_t kRowBytes = 64;

void rows(size_t most, Json &results); // cost of put and get, memory a row, time to open, from 1e4 rows to `most`
void processes(unsigned most, Json &results); // gets and puts of 1 to `most` processes, with their slowest ones
void caches(unsigned most, Json &results);
void sessions(unsigned most, Json &results);

inline int64_t must(int64_t result, const char *call) {
    if (result < 0) throw std::runtime_error(std::string(call) + ": " + cache_last_error());
    return result;
}

// A connection of this process with a session that ends with this object.
class Session {
  public:
    Session() {
        must(cache_connect(nullptr, &client), "cache_connect");
        must(cache_session_create(client, &id), "cache_session_create");
    }
    ~Session() {
        cache_session_destroy(client, id);
        cache_disconnect(client);
    }
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;

    cache *open(uint32_t cache_id, uint64_t expected_rows = 0, uint64_t limit_bytes = 0) const {
        cache_options options = CACHE_OPTIONS_INIT;
        options.expected_rows = expected_rows;
        options.memory_limit_bytes = limit_bytes;
        cache *handle = nullptr;
        must(cache_open(client, id, cache_id, &options, &handle), "cache_open");
        return handle;
    }

    cache_client *client = nullptr;
    uint32_t id = 0;
};

inline void put(cache *handle, int64_t id, const void *row) {
    static const int64_t shape[] = {kRowBytes};
    const cache_column column{const_cast<void *>(row), kRowBytes, shape, CACHE_UINT8, 1, {}};
    must(cache_put(handle, id, &column, 1), "cache_put");
}

// Finds a row and reads its first byte.
inline unsigned get(cache *handle, int64_t id) {
    cache_view view;
    cache_column column;
    must(cache_get(handle, id, &view), "cache_get");
    must(cache_view_column(&view, 0, &column), "cache_view_column");
    const unsigned first = *static_cast<const unsigned char *>(column.data);
    cache_view_release(&view);
    return first;
}

cache_stats stat_of(cache *handle);
int64_t server_bytes(cache_client *client); // resident, of keeper and broker
int64_t now_ns();

} // namespace scaling
