// SPDX-License-Identifier: Apache-2.0
// Caches with a limit below their data: a server with a spill folder, writers of such caches, and the judgement.
#pragma once

#include "tests/crash/crash.h"

#include <filesystem>
#include <string>

namespace crash {

constexpr int64_t kSpillIds = 1200;
constexpr uint64_t kSpillLargest = 20'000; // bytes of a row's big column
constexpr uint64_t kSpillLimit = 3 << 20;  // a quarter of them
constexpr int64_t kLargeId = kSpillIds;    // more than a staging buffer: written by the put itself
constexpr uint64_t kLargeBytes = 1'500'000;

// Empty at its end. A test that fails leaves it in $TMPDIR, which tests/run.py removes.
struct SpillFolder {
    std::string path;
    const char *arguments[3]; // of a server

    SpillFolder()
        : path(std::string(getenv("TMPDIR") ? getenv("TMPDIR") : "/var/tmp") + "/libcache-spill-XXXXXX"),
          arguments{"--spilldir", path.c_str(), nullptr} {
        if (mkdtemp(path.data()) == nullptr) test_die("mkdtemp %s", path.c_str());
    }
    SpillFolder(const SpillFolder &) = delete;
    SpillFolder &operator=(const SpillFolder &) = delete;
    ~SpillFolder() {
        if (rmdir(path.c_str()) != 0) test_die("something is left in %s", path.c_str());
    }
    bool empty() const { return std::filesystem::is_empty(path); }
};

inline cache *open_spilling(cache_client *client, uint32_t session_id, uint32_t cache_id) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.memory_limit_bytes = kSpillLimit;
    options.spill = 1;
    cache *handle = nullptr;
    must(cache_open(client, session_id, cache_id, &options, &handle), "cache_open of a cache that spills");
    return handle;
}

inline int put_large(cache *handle) {
    std::vector<unsigned char> bytes(kLargeBytes);
    rows::fill(bytes.data(), kLargeBytes, kLargeId, 0);
    const auto shape = int64_t(kLargeBytes);
    const cache_column column{bytes.data(), kLargeBytes, &shape, CACHE_UINT8, 1, {}};
    return cache_put(handle, kLargeId, &column, 1);
}

// A writer: puts ids in an order of its own until all are there, reading what it finds.
inline int spill_all(uint32_t session_id, uint32_t cache_id, unsigned seed) {
    cache_client *client = nullptr;
    must(cache_connect(nullptr, &client), "cache_connect");
    cache *handle = open_spilling(client, session_id, cache_id);
    std::mt19937 random(seed);
    const int64_t first = int64_t(random() % uint64_t(kSpillIds));
    for (int64_t i = 0; i < kSpillIds; i++) {
        const int64_t id = (first + i * 7) % kSpillIds, other = int64_t(random() % uint64_t(kSpillIds));
        if (const int result = rows::put(handle, id, kSpillLargest); result < 0) must(result, "a put that may spill");
        if (i == kSpillIds / 2)
            if (const int result = put_large(handle); result < 0) must(result, "the put of the large row");
        cache_view view;
        if (i % 8 != 0 || cache_get(handle, other, &view) != 0) continue;
        if (const std::string wrong = rows::Row(other, kSpillLargest).difference(view); !wrong.empty())
            test_die("writer %d: %s", getpid(), wrong.c_str());
        cache_view_release(&view);
    }
    must(cache_flush(handle), "cache_flush");
    cache_close(handle);
    cache_disconnect(client);
    return 0;
}

// Every row that is there is right, and they are as many as are counted. `all`: none is missing.
inline void judge_spilled_rows(cache *handle, bool all, const std::string &what) {
    cache_stats stats{};
    stats.size = sizeof stats;
    must(cache_stat(handle, &stats), "cache_stat");
    int64_t there = 0;
    for (int64_t id = 0; id < kSpillIds; id++) {
        cache_view view;
        if (const int code = cache_get(handle, id, &view)) {
            if (all || code != CACHE_ENOTFOUND) test_die("%s: row %ld: %s", what.c_str(), long(id), cache_last_error());
            continue;
        }
        there++;
        const std::string wrong = rows::Row(id, kSpillLargest).difference(view);
        if (!wrong.empty()) test_die("%s: %s", what.c_str(), wrong.c_str());
        cache_view_release(&view);
    }
    cache_view view;
    if (cache_get(handle, kLargeId, &view) == 0) {
        there++;
        cache_column column{};
        must(cache_view_column(&view, 0, &column), "the large row");
        if (rows::first_wrong(column.data, kLargeBytes, kLargeId, 0) >= 0) test_die("%s: the large row", what.c_str());
        cache_view_release(&view);
    }
    if (stats.rows_in_memory + stats.rows_spilled != there)
        test_die("%s: %ld rows in memory and %ld spilled are counted, %ld are there", what.c_str(),
                 long(stats.rows_in_memory), long(stats.rows_spilled), long(there));
}

// Until nothing is lent to writers that have ended.
inline void wait_for_writers(cache *handle, const std::string &what) {
    cache_stats stats{};
    stats.size = sizeof stats;
    until(
        [&] {
            must(cache_stat(handle, &stats), "cache_stat");
            return stats.writers == 0 && stats.granted_bytes == 0 && dead_slots(handle) == 0;
        },
        (what + ": the memory of dead writers comes back").c_str());
}

// All writers have ended: nothing stays lent, the words are right, every row that is there is right, and every row that
// is not can be put by somebody else.
inline void judge_spilled(Arena &arena, uint32_t cache_id, const std::string &what) {
    cache *handle = open_spilling(arena.client, arena.session_id, cache_id);
    wait_for_writers(handle, what);
    test_server_check(arena.server);
    judge_spilled_rows(handle, false, what);
    const int status = wait_for(spawn([&] { return spill_all(arena.session_id, cache_id, 1); }));
    if (status != 0) test_die("%s: who puts the lost rows ended with wait status %d", what.c_str(), status);
    judge_spilled_rows(handle, true, what);
    test_server_check(arena.server);
    cache_close(handle);
}

} // namespace crash
