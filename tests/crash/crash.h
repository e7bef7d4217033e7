// SPDX-License-Identifier: Apache-2.0
// What the crash programs share: a server, caches, writers to kill, and the judgement afterwards. The parent only
// reads: what must be written again is written by a process of its own, somebody else than the dead.
#pragma once

#include "capi/libcache.h"
#include "core/client/internal.h"
#include "tests/support/rows.h"
#include "tests/support/server.h"

#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace crash {

constexpr uint64_t kLargest = 3000; // bytes of a row's big column

inline void must(int result, const char *what) {
    if (result != 0) test_die("process %d: %s: %d: %s", getpid(), what, result, cache_last_error());
}

inline cache *open_cache(cache_client *client, uint32_t session_id, uint32_t cache_id,
                         uint64_t limit_bytes = 64 << 20) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.memory_limit_bytes = limit_bytes;
    cache *handle = nullptr;
    must(cache_open(client, session_id, cache_id, &options, &handle), "cache_open");
    return handle;
}

struct Arena {
    test_server *server;
    cache_client *client = nullptr;
    uint32_t session_id = 0;

    explicit Arena(const char *const *server_arguments = nullptr) : server(test_server_start(server_arguments)) {
        must(cache_connect(nullptr, &client), "cache_connect");
        must(cache_session_create(client, &session_id), "cache_session_create");
    }
    Arena(const Arena &) = delete;
    Arena &operator=(const Arena &) = delete;
    ~Arena() {
        cache_disconnect(client);
        test_server_stop(server);
    }
};

// Forks a process that runs `body` and ends with its result.
inline pid_t spawn(const std::function<int()> &body) {
    fflush(nullptr);
    const pid_t pid = fork();
    if (pid != 0) return pid;
    alarm(120);
    _exit(body());
}

inline int wait_for(pid_t pid) {
    int status = 0;
    if (waitpid(pid, &status, 0) != pid) test_die("waitpid");
    return status;
}

// Polls until it is so.
inline void until(const std::function<bool()> &so, const char *what) {
    for (const time_t deadline = time(nullptr) + 60; !so(); usleep(1000))
        if (time(nullptr) > deadline) test_die("in 60 s it did not come about: %s", what);
}

// The broker as the kernel knows it, serving or not yet; 0 while there is none. Asking the server would wait for it.
inline pid_t broker_of(const test_server *server) {
    const std::string keeper = std::to_string(test_server_pid(server));
    pid_t broker = 0;
    std::ifstream("/proc/" + keeper + "/task/" + keeper + "/children") >> broker;
    return broker;
}

inline int descriptors_of(pid_t pid) {
    std::error_code error;
    const std::filesystem::directory_iterator folder("/proc/" + std::to_string(pid) + "/fd", error);
    return int(std::distance(begin(folder), std::filesystem::directory_iterator{}));
}

inline cache_server_stats server_info(cache_client *client) {
    cache_server_stats stats{};
    stats.size = sizeof stats;
    must(cache_server_info(client, &stats), "cache_server_info");
    return stats;
}

inline int64_t id_of(int64_t n) {
    return n % 2 ? n : int64_t(rows::mix(uint64_t(n)) >> 1);
}

// Puts one row, by cache_put, by reserve and commit, or begins it and gives it up. Returns a code below 0 on failure.
inline int write_somehow(cache *handle, int64_t id, std::mt19937 &random) {
    if (random() % 3) return rows::put(handle, id, kLargest);
    const rows::Row row(id, kLargest);
    std::vector<cache_column> columns(row.columns(), row.columns() + row.n());
    cache_reservation *reservation = nullptr;
    if (const int result = cache_reserve(handle, id, columns.data(), row.n(), &reservation)) return result;
    for (uint32_t i = 0; i < row.n(); i++)
        rows::fill(columns[i].data, columns[i].bytes, id, i);
    return random() % 4 ? cache_commit(reservation) : cache_abort(reservation);
}

// A writer process: two threads put ids in random order and read back what they find, until all are there. Ends with
// 0, or with 1 and a word on stderr.
inline int write_all(uint32_t session_id, uint32_t cache_id, int64_t n_ids, unsigned seed) {
    cache_client *client = nullptr;
    must(cache_connect(nullptr, &client), "cache_connect");
    cache *handle = open_cache(client, session_id, cache_id);
    std::atomic<int> failed{0};
    const auto work = [&](unsigned thread) {
        std::mt19937 random(seed * 2 + thread);
        for (int64_t done = 0; done < n_ids * 3 && !failed.load(); done++) {
            const int64_t id = id_of(int64_t(random() % uint64_t(n_ids)));
            if (write_somehow(handle, id, random) < 0) {
                fprintf(stderr, "writer %d: row %ld: %s\n", getpid(), id, cache_last_error());
                failed.store(1);
            }
            const int64_t other = id_of(int64_t(random() % uint64_t(n_ids)));
            cache_view view;
            if (cache_get(handle, other, &view) != 0) continue;
            if (const std::string wrong = rows::Row(other, kLargest).difference(view); !wrong.empty()) {
                fprintf(stderr, "writer %d: %s\n", getpid(), wrong.c_str());
                failed.store(1);
            }
        }
    };
    std::thread second(work, 1);
    work(0);
    second.join();
    cache_close(handle);
    cache_disconnect(client);
    return failed.load();
}

// A slot whose owner is dead and not vacated is lost: cache_stat counts living writers only.
inline int dead_slots(cache *handle) {
    const libcache::RegionMap &map = libcache::region_of(handle);
    int dead = 0;
    for (uint32_t i = 0; i < map.header()->slots_top.load(std::memory_order_acquire); i++) {
        const uint64_t owner = map.slot(i)->owner.load(std::memory_order_acquire);
        dead += libcache::SlotWord::unpack(owner).state == libcache::SlotState::Dead;
    }
    return dead;
}

// All writers have ended: nothing stays lent, the words are right, every row that is there is right, and every row that
// is not can be put.
inline void judge(Arena &arena, uint32_t cache_id, int64_t n_ids, const std::string &what) {
    cache *handle = open_cache(arena.client, arena.session_id, cache_id);
    cache_stats stats{};
    stats.size = sizeof stats;
    for (const time_t deadline = time(nullptr) + 60;; usleep(1000)) {
        must(cache_stat(handle, &stats), "cache_stat");
        if (stats.writers == 0 && stats.granted_bytes == 0 && dead_slots(handle) == 0) break;
        if (time(nullptr) > deadline)
            test_die("%s: %ld bytes stay lent to %ld writers that have ended, %d slots are dead", what.c_str(),
                     long(stats.granted_bytes), long(stats.writers), dead_slots(handle));
    }
    test_server_check(arena.server);
    int64_t before = 0;
    for (int64_t n = 0; n < n_ids; n++) {
        cache_view view;
        if (cache_get(handle, id_of(n), &view) != 0) continue;
        before++;
        const std::string wrong = rows::Row(id_of(n), kLargest).difference(view);
        if (!wrong.empty()) test_die("%s: %s", what.c_str(), wrong.c_str());
    }
    if (stats.rows_in_memory != before)
        test_die("%s: %ld rows counted, %ld found", what.c_str(), long(stats.rows_in_memory), long(before));
    const int status = wait_for(spawn([&] {
        cache_client *client = nullptr;
        must(cache_connect(nullptr, &client), "cache_connect");
        cache *other = open_cache(client, arena.session_id, cache_id);
        for (int64_t n = 0; n < n_ids; n++)
            if (rows::put(other, id_of(n), kLargest) < 0) must(CACHE_EIO, "putting a lost row");
        cache_close(other);
        cache_disconnect(client);
        return 0;
    }));
    if (status != 0) test_die("%s: who puts the lost rows ended with wait status %d", what.c_str(), status);
    for (int64_t n = 0; n < n_ids; n++)
        if (const std::string wrong = rows::check(handle, id_of(n), kLargest); !wrong.empty())
            test_die("%s: %s", what.c_str(), wrong.c_str());
    must(cache_stat(handle, &stats), "cache_stat");
    if (stats.rows_in_memory != n_ids)
        test_die("%s: %ld rows instead of %ld", what.c_str(), long(stats.rows_in_memory), long(n_ids));
    test_server_check(arena.server);
    cache_close(handle);
}

} // namespace crash
