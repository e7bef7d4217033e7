// SPDX-License-Identifier: Apache-2.0
// How cost grows with what there is: each part gives its figures as a JSON array of objects. Parts run in a process
// with one thread, against the server that LIBCACHE_DIR and LIBCACHE_PORT lead to. What is measured several times is a
// list of all its values. Failures are std::runtime_error.
#pragma once

#include "capi/libcache.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace scaling {

using Json = nlohmann::ordered_json;

inline constexpr size_t kRowBytes = 64;

// Cost of put and get beside their floors, memory a row, time to open: for one number of rows of 64 bytes.
Json rows(size_t rows, bool random_ids, unsigned repetitions);
// Gets and puts of 1, 2, 4, ... `most` processes, with the slowest one's percentiles.
Json processes(unsigned most, unsigned repetitions);
// 1, 10, 100, ... `most` caches open at once, and as many sessions.
Json caches(unsigned most, unsigned repetitions);
Json sessions(unsigned most, unsigned repetitions);
// How much of a limit its rows are when the first one is refused; what a server and a reader have for themselves.
Json memory(uint64_t limit_bytes);

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
    // Closes and destroys it; returns when its memory is free, so that the next one's is not made meanwhile.
    void end(cache *handle, uint32_t cache_id) const;

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
cache_server_stats server_of(cache_client *client);
int64_t now_ns();
inline double seconds_since(int64_t start_ns) {
    return static_cast<double>(now_ns() - start_ns) / 1e9;
}
double seconds_of(const std::function<void()> &work);
// The value below which `share` of them lie.
double percentile(std::vector<double> values, double share);

} // namespace scaling
