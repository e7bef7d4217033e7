// SPDX-License-Identifier: Apache-2.0
// A server with a spill folder, and caches so small that most rows go there.
#pragma once

#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <sys/vfs.h>

// A folder of its own that vanishes with it.
class SpillFolder {
  public:
    explicit SpillFolder(const std::string &where = "/var/tmp") : path_(where + "/libcache-spill-XXXXXX") {
        if (mkdtemp(path_.data()) == nullptr) test_die("mkdtemp %s", path_.c_str());
    }
    SpillFolder(const SpillFolder &) = delete;
    SpillFolder &operator=(const SpillFolder &) = delete;
    ~SpillFolder() { std::filesystem::remove_all(path_); }
    const std::string &path() const { return path_; }
    bool empty() const { return std::filesystem::is_empty(path_); }
    uint64_t room() const {
        struct statfs st {};
        return statfs(path_.c_str(), &st) == 0 ? uint64_t(st.f_bavail) * uint64_t(st.f_bsize) : 0;
    }

  private:
    std::string path_;
};

inline cache_options spilling(uint64_t limit_bytes) {
    cache_options options = options_with_limit(limit_bytes);
    options.spill = 1;
    return options;
}

// Server, session and a spilling cache; at its end the regions are checked and the folder must be empty.
struct SpillSession {
    std::unique_ptr<SpillFolder> own_folder;
    SpillFolder &folder;
    std::vector<const char *> arguments;
    test_server *server;
    cache_client *client = nullptr;
    uint32_t id = 0;
    cache *rows = nullptr; // cache 1

    explicit SpillSession(uint64_t limit_bytes = 4 << 20, const char *where = "/var/tmp",
                          const char *limit_mb = nullptr)
        : own_folder(std::make_unique<SpillFolder>(where)), folder(*own_folder) {
        std::vector<const char *> more;
        if (limit_mb != nullptr) more = {"--spill_limit", limit_mb};
        begin(limit_bytes, more);
    }
    SpillSession(uint64_t limit_bytes, const std::vector<const char *> &more)
        : own_folder(std::make_unique<SpillFolder>("/var/tmp")), folder(*own_folder) {
        begin(limit_bytes, more);
    }
    SpillSession(uint64_t limit_bytes, SpillFolder &in) : folder(in) { begin(limit_bytes, {}); }
    SpillSession(const SpillSession &) = delete;
    SpillSession &operator=(const SpillSession &) = delete;
    ~SpillSession() {
        OK(cache_close(rows));
        OK(cache_disconnect(client));
        test_server_stop(server);
        cr_assert(folder.empty(), "something is left in %s", folder.path().c_str());
    }

    cache *open(uint32_t cache_id, const cache_options &options) const {
        cache *handle = nullptr;
        OK(cache_open(client, id, cache_id, &options, &handle));
        return handle;
    }
    cache_stats stat(cache *handle = nullptr) const {
        cache_stats stats{};
        stats.size = sizeof stats;
        OK(cache_stat(handle ? handle : rows, &stats));
        return stats;
    }

  private:
    void begin(uint64_t limit_bytes, const std::vector<const char *> &more) {
        arguments = {"--spilldir", folder.path().c_str()};
        arguments.insert(arguments.end(), more.begin(), more.end());
        arguments.push_back(nullptr);
        server = test_server_start(arguments.data());
        OK(cache_connect(nullptr, &client));
        OK(cache_session_create(client, &id));
        rows = open(1, spilling(limit_bytes));
    }
};
