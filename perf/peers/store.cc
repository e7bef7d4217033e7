// SPDX-License-Identifier: Apache-2.0
#include "perf/peers/store.h"

#include "capi/libcache.h"

#include <algorithm>
#include <cstring>
#include <lmdb.h>
#include <stdexcept>
#include <sys/utsname.h>

namespace peers {
namespace {

constexpr size_t kRows = 64;

// The first line of what a command writes: "memcached 1.6.18".
std::string said_by(const char *command) {
    const std::unique_ptr<FILE, int (*)(FILE *)> out(popen(command, "r"), pclose);
    char line[256] = "";
    if (!out || !fgets(line, sizeof line, out.get())) return std::string(command) + " says nothing";
    return std::string(line).substr(0, strcspn(line, "\n"));
}

std::string nothing() {
    return "";
}
std::string libcache_version() {
    return cache_version();
}
std::string lmdb_version() {
    int major = 0, minor = 0, patch = 0;
    mdb_version(&major, &minor, &patch);
    return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}
std::string kernel_version() {
    utsname name{};
    uname(&name);
    return std::string(name.sysname) + " " + name.release;
}
std::string redis_version() {
    const std::string line = said_by("redis-server --version"); // "Redis server v=7.0.15 sha=..."
    const size_t at = line.find("v=");
    return at == std::string::npos ? line : line.substr(at + 2, line.find(' ', at) - at - 2);
}
std::string memcached_version() {
    const std::string line = said_by("memcached --version");
    return line.substr(line.find(' ') + 1);
}

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

void Source::check(const char *found, int64_t id) {
    if (memcmp(found, row(id), row_bytes_) != 0)
        throw std::runtime_error("row " + std::to_string(id) + " does not have the bytes that were written");
}

void missing(const char *peer, int64_t id) {
    throw std::runtime_error(std::string(peer) + " has no row " + std::to_string(id));
}

const std::vector<Peer> &all_peers() {
    static const std::vector<Peer> peers = {
        {"floor", "a plain array on the pages of libcache's server: its pages made and memcpy; a byte read; memcpy",
         nothing, make_floor},
        {"libcache", "cache_put, cache_get, cache_gather of 32; expected_rows given", libcache_version, make_libcache},
        {"LMDB", "on tmpfs, MDB_WRITEMAP and MDB_NOSYNC, 1,000 rows a transaction", lmdb_version, make_lmdb},
        {"files", "one per row, on tmpfs", kernel_version, make_files},
        {"Redis", "over a Unix socket, 32 commands in a pipeline, nothing saved to disk", redis_version, make_redis},
        {"memcached", "over a Unix socket, sets without answers, 32 keys in a get", memcached_version, make_memcached},
    };
    return peers;
}

} // namespace peers
