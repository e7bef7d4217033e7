// SPDX-License-Identifier: Apache-2.0
// Caches of the server that this run has started, through libcache.h. Every failure is a std::runtime_error with the
// library's sentence.
#pragma once

#include "capi/libcache.h"
#include "perf/bench/workload.h"

#include <vector>

namespace bench {

[[noreturn]] void failed(const char *call);
inline void must(int64_t result, const char *call) {
    if (result < 0) [[unlikely]]
        failed(call);
}

// This process's connection and session; made at the first call. A forked process makes its own client with connect().
cache_client *client();
uint32_t session();
cache_client *connect();

// One cache; destroyed with this object.
class Cache {
  public:
    explicit Cache(const Workload &w);
    ~Cache();
    Cache(const Cache &) = delete;
    Cache &operator=(const Cache &) = delete;

    cache *handle() const { return handle_; }
    uint32_t id() const { return id_; }

  private:
    uint32_t id_;
    cache *handle_ = nullptr;
};

// A row's one column: bytes.
struct Column {
    explicit Column(const Workload &w) : shape{static_cast<int64_t>(w.row_bytes)} {}
    Column(const Column &) = delete;
    Column &operator=(const Column &) = delete;
    const cache_column *of(const void *data) {
        column.data = const_cast<void *>(data);
        return &column;
    }
    int64_t shape[1];
    cache_column column{nullptr, static_cast<uint64_t>(shape[0]), shape, CACHE_UINT8, 1, {0, 0, 0, 0}};
};

// The cache that holds a whole workload: filled at the first call, kept till the end of the run.
cache *full_cache(const Workload &w);

} // namespace bench
