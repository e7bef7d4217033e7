// SPDX-License-Identifier: Apache-2.0
// kill_spillers [kills [seed]]: writers of a cache that spills die at each pause point of core/spill, then at random
// moments. Every row that is there must be right, every one that is not can be put again, and the folder stays empty.
#include "tests/crash/crash.h"

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

namespace {

constexpr int64_t kIds = 1200;
constexpr uint64_t kSpilledLargest = 20'000; // bytes of a row's big column
constexpr uint64_t kLimit = 3 << 20;         // a quarter of them
constexpr int64_t kLargeId = kIds;           // more than a staging buffer: written by the put itself
constexpr uint64_t kLargeBytes = 1'500'000;
const char *const kPoints[] = {
#include "spill_points.inc"
};

cache *open_spilling(cache_client *client, uint32_t session_id, uint32_t cache_id) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.memory_limit_bytes = kLimit;
    options.spill = 1;
    cache *handle = nullptr;
    crash::must(cache_open(client, session_id, cache_id, &options, &handle), "cache_open");
    return handle;
}

int put_large(cache *handle) {
    std::vector<unsigned char> bytes(kLargeBytes);
    rows::fill(bytes.data(), kLargeBytes, kLargeId, 0);
    const auto shape = int64_t(kLargeBytes);
    const cache_column column{bytes.data(), kLargeBytes, &shape, CACHE_UINT8, 1, {}};
    return cache_put(handle, kLargeId, &column, 1);
}

// A writer: puts ids in an order of its own until all are there, reading what it finds.
int spill_all(uint32_t session_id, uint32_t cache_id, unsigned seed) {
    cache_client *client = nullptr;
    crash::must(cache_connect(nullptr, &client), "cache_connect");
    cache *handle = open_spilling(client, session_id, cache_id);
    std::mt19937 random(seed);
    const int64_t first = int64_t(random() % uint64_t(kIds));
    for (int64_t i = 0; i < kIds; i++) {
        const int64_t id = (first + i * 7) % kIds, other = int64_t(random() % uint64_t(kIds));
        if (rows::put(handle, id, kSpilledLargest) < 0) crash::must(CACHE_EIO, cache_last_error());
        if (i == kIds / 2 && put_large(handle) < 0) crash::must(CACHE_EIO, cache_last_error());
        cache_view view;
        if (i % 8 != 0 || cache_get(handle, other, &view) != 0) continue;
        if (const std::string wrong = rows::Row(other, kSpilledLargest).difference(view); !wrong.empty())
            test_die("writer %d: %s", getpid(), wrong.c_str());
        cache_view_release(&view);
    }
    crash::must(cache_flush(handle), "cache_flush");
    cache_close(handle);
    cache_disconnect(client);
    return 0;
}

void judge_rows(cache *handle, bool all, const std::string &what) {
    cache_stats stats{};
    stats.size = sizeof stats;
    crash::must(cache_stat(handle, &stats), "cache_stat");
    int64_t there = 0;
    for (int64_t id = 0; id < kIds; id++) {
        cache_view view;
        if (const int code = cache_get(handle, id, &view)) {
            if (all || code != CACHE_ENOTFOUND) test_die("%s: row %ld: %s", what.c_str(), long(id), cache_last_error());
            continue;
        }
        there++;
        const std::string wrong = rows::Row(id, kSpilledLargest).difference(view);
        if (!wrong.empty()) test_die("%s: %s", what.c_str(), wrong.c_str());
        cache_view_release(&view);
    }
    cache_view view;
    if (cache_get(handle, kLargeId, &view) == 0) {
        there++;
        cache_column column{};
        crash::must(cache_view_column(&view, 0, &column), "the large row");
        if (rows::first_wrong(column.data, kLargeBytes, kLargeId, 0) >= 0) test_die("%s: the large row", what.c_str());
        cache_view_release(&view);
    }
    if (stats.rows_in_memory + stats.rows_spilled != there)
        test_die("%s: %ld rows in memory and %ld spilled are counted, %ld are there", what.c_str(),
                 long(stats.rows_in_memory), long(stats.rows_spilled), long(there));
}

void judge(crash::Arena &arena, uint32_t cache_id, const std::string &what) {
    cache *handle = open_spilling(arena.client, arena.session_id, cache_id);
    cache_stats stats{};
    stats.size = sizeof stats;
    crash::until(
        [&] {
            crash::must(cache_stat(handle, &stats), "cache_stat");
            return stats.writers == 0 && stats.granted_bytes == 0;
        },
        "the memory of dead writers comes back");
    test_server_check(arena.server);
    judge_rows(handle, false, what);
    const int status = crash::wait_for(crash::spawn([&] { return spill_all(arena.session_id, cache_id, 1); }));
    if (status != 0) test_die("%s: who puts the lost rows ended with wait status %d", what.c_str(), status);
    judge_rows(handle, true, what);
    test_server_check(arena.server);
    cache_close(handle);
}

// True if the writer died at the point.
bool die_at(crash::Arena &arena, uint32_t cache_id, const std::string &at) {
    const int status = crash::wait_for(crash::spawn([&] {
        setenv("LIBCACHE_PAUSE_AT", at.c_str(), 1);
        return spill_all(arena.session_id, cache_id, cache_id);
    }));
    const bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!died && status != 0) test_die("%s: the writer ended with wait status %d", at.c_str(), status);
    judge(arena, cache_id, at);
    crash::must(cache_destroy(arena.client, arena.session_id, cache_id), "cache_destroy");
    return died;
}

int kill_two(crash::Arena &arena, uint32_t cache_id, std::mt19937 &random) {
    int killed = 0;
    pid_t writers[2];
    for (int round = 0; round < 5; round++) {
        for (pid_t &writer : writers) {
            const unsigned seed = random();
            writer = crash::spawn([&] { return spill_all(arena.session_id, cache_id, seed); });
        }
        usleep(random() % 60'000); // any moment is a good one
        for (pid_t writer : writers) {
            kill(writer, SIGKILL);
            const int status = crash::wait_for(writer);
            killed += WIFSIGNALED(status);
            if (!WIFSIGNALED(status) && status != 0) test_die("a writer ended with wait status %d", status);
        }
    }
    judge(arena, cache_id, "cache " + std::to_string(cache_id));
    crash::must(cache_destroy(arena.client, arena.session_id, cache_id), "cache_destroy");
    return killed;
}

} // namespace

int main(int argc, char **argv) {
    const int kills = argc > 1 ? atoi(argv[1]) : 200;
    const unsigned seed = argc > 2 ? unsigned(atoi(argv[2])) : unsigned(time(nullptr));
    printf("kill_spillers %d %u\n", kills, seed);
    fflush(stdout);
    test_watchdog(290);
    char folder[] = "/var/tmp/libcache-spill-XXXXXX";
    if (mkdtemp(folder) == nullptr) test_die("mkdtemp %s", folder);
    int killed = 0;
    {
        const char *const arguments[] = {"--spilldir", folder, nullptr};
        crash::Arena arena(arguments);
        std::mt19937 random(seed);
        uint32_t cache_id = 0;
        for (const std::string &point : std::set<std::string>(std::begin(kPoints), std::end(kPoints))) {
            int died = 0;
            for (int count : {1, 2, 5})
                died += die_at(arena, ++cache_id, point + ":" + std::to_string(count));
            printf("%-20s died %d of 3 times\n", point.c_str(), died);
            fflush(stdout);
            if (died == 0) test_die("no writer came to %s: the test does not test it", point.c_str());
            killed += died;
        }
        while (killed < kills)
            killed += kill_two(arena, ++cache_id, random);
    }
    if (rmdir(folder) != 0) test_die("something is left in %s", folder);
    printf("%d writers killed\n", killed);
    return 0;
}
