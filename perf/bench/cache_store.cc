// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/cache_store.h"

#include <map>
#include <memory>
#include <stdexcept>
#include <string>

namespace bench {

void failed(const char *call) {
    throw std::runtime_error(std::string(call) + ": " + cache_last_error());
}

cache_client *connect() {
    cache_client *made = nullptr;
    must(cache_connect(nullptr, &made), "cache_connect");
    return made;
}

cache_client *client() {
    static cache_client *const made = connect();
    return made;
}

uint32_t session() {
    static const uint32_t id = [] {
        uint32_t made = 0;
        must(cache_session_create(client(), &made), "cache_session_create");
        return made;
    }();
    return id;
}

Cache::Cache(const Workload &w) {
    static uint32_t last_id = 0;
    id_ = ++last_id;
    cache_options options = CACHE_OPTIONS_INIT;
    options.expected_rows = w.random_ids ? 0 : w.rows;
    must(cache_open(client(), session(), id_, &options, &handle_), "cache_open");
}

Cache::~Cache() {
    cache_close(handle_);
    cache_destroy(client(), session(), id_);
}

cache *full_cache(const Workload &w) {
    static std::map<std::string, std::unique_ptr<Cache>> caches;
    std::unique_ptr<Cache> &found = caches[w.name];
    if (found) return found->handle();
    found = std::make_unique<Cache>(w);
    Column column(w);
    std::vector<char> row(w.row_bytes);
    for (const uint32_t i : shuffled(w.rows)) {
        make_row(w, i, row.data());
        must(cache_put(found->handle(), id_of(w, i), column.of(row.data()), 1), "cache_put");
    }
    return found->handle();
}

} // namespace bench
