// SPDX-License-Identifier: Apache-2.0
// row_calls SESSION get|batch|gather|put ROWS PASSES: ROWS rows of 788 bytes are stored, then read PASSES times (put:
// so many more are stored PASSES times). perf/syscalls/count runs it under strace with different numbers of passes:
// what one more pass adds is what its rows cost. Needs a server, found as cache_connect() does.
#include "capi/libcache.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr size_t kRowBytes = 788;
constexpr size_t kBatch = 64;

void must(int64_t result, const char *call) {
    if (result >= 0) return;
    fprintf(stderr, "row_calls: %s: %s\n", call, cache_last_error());
    exit(1);
}

cache *open_cache(cache_client *client, uint32_t session, uint32_t id) {
    cache *handle = nullptr;
    must(cache_open(client, session, id, nullptr, &handle), "cache_open");
    return handle;
}

void put_all(cache *handle, int64_t rows) {
    std::vector<char> bytes(kRowBytes, 'x');
    const int64_t shape = kRowBytes;
    const cache_column column{bytes.data(), kRowBytes, &shape, CACHE_UINT8, 1, {0, 0, 0, 0}};
    for (int64_t id = 0; id < rows; ++id)
        must(cache_put(handle, id, &column, 1), "cache_put");
}

void get_all(cache *handle, int64_t rows) {
    for (int64_t id = 0; id < rows; ++id) {
        cache_view view;
        must(cache_get(handle, id, &view), "cache_get");
        cache_view_release(&view);
    }
}

void read_in_batches(cache *handle, int64_t rows, bool gather) {
    std::vector<cache_view> views(kBatch);
    std::vector<char> buffer(kBatch * kRowBytes);
    std::vector<int64_t> ids(kBatch);
    for (int64_t first = 0; first + static_cast<int64_t>(kBatch) <= rows; first += kBatch) {
        for (size_t i = 0; i < kBatch; ++i)
            ids[i] = first + static_cast<int64_t>(i);
        if (gather)
            must(cache_gather(handle, ids.data(), kBatch, 0, buffer.data(), kRowBytes, nullptr), "cache_gather");
        else
            must(cache_get_batch(handle, ids.data(), kBatch, views.data()), "cache_get_batch");
    }
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: row_calls SESSION get|batch|gather|put ROWS PASSES\n");
        return 2;
    }
    const auto session = static_cast<uint32_t>(strtoul(argv[1], nullptr, 10));
    const std::string what = argv[2];
    const int64_t rows = strtoll(argv[3], nullptr, 10), passes = strtoll(argv[4], nullptr, 10);
    cache_client *client = nullptr;
    must(cache_connect(nullptr, &client), "cache_connect");
    cache *const handle = open_cache(client, session, 1);
    put_all(handle, rows);
    for (int64_t pass = 0; pass < passes; ++pass) {
        if (what == "put")
            put_all(handle, rows * (pass + 2)); // the first rows are there: rows more are stored
        else if (what == "get")
            get_all(handle, rows);
        else
            read_in_batches(handle, rows, what == "gather");
    }
    cache_close(handle);
    must(cache_destroy(client, session, 1), "cache_destroy");
    cache_disconnect(client);
}
