// SPDX-License-Identifier: Apache-2.0
#include "perf/peers/store.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace peers {
namespace {

constexpr size_t kRows = 64;

} // namespace

Source::Source(const Workload &w) : row_bytes_(w.row_bytes), rows_(kRows * w.row_bytes) {
    for (size_t i = 0; i < kRows; ++i)
        bench::make_row(w, i, rows_.data() + i * row_bytes_);
}

const char *Source::row(int64_t id) {
    char *const row = rows_.data() + static_cast<size_t>(id) % kRows * row_bytes_;
    memcpy(row, &id, sizeof id);
    return row;
}

void Source::check(const char *row, int64_t id) {
    if (memcmp(row, &id, sizeof id) != 0)
        throw std::runtime_error("row " + std::to_string(id) + " has another's bytes");
}

void missing(const char *peer, int64_t id) {
    throw std::runtime_error(std::string(peer) + " has no row " + std::to_string(id));
}

const std::vector<Peer> &all_peers() {
    static const std::vector<Peer> peers = {
        {"libcache", "cache_put, cache_get, cache_gather of 32", make_libcache},
        {"LMDB", "on tmpfs, MDB_WRITEMAP and MDB_NOSYNC, 1,000 rows a transaction", make_lmdb},
        {"files", "one per row, on tmpfs", make_files},
        {"Redis", "over a Unix socket, 32 commands in a pipeline, nothing saved to disk", make_redis},
        {"memcached", "over a Unix socket, 32 keys in a get", make_memcached},
    };
    return peers;
}

} // namespace peers
