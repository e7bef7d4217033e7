// SPDX-License-Identifier: Apache-2.0
// pause_points [seed]: a writer dies at each pause point of the client (core/common/pause.h), at the first and at later
// passages; then judgement. One whose rows are all alike dies in the short way of the usual put. The list of points is
// made from the sources by the Makefile.
#include "tests/crash/crash.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

namespace {

constexpr int64_t kIds = 1500, kAlike = 500;
constexpr uint64_t kAlikeBytes = 200;
const char *const kPoints[] = {
#include "pause_points.inc"
};

// True if the writer died at the point. `beside`: another writer lives on, so that its work is disturbed too.
bool die_at(crash::Arena &arena, uint32_t cache_id, const std::string &at, unsigned seed, bool beside) {
    const pid_t victim = crash::spawn([&] {
        setenv("LIBCACHE_PAUSE_AT", at.c_str(), 1);
        return crash::write_all(arena.session_id, cache_id, kIds, seed);
    });
    const pid_t other =
        beside ? crash::spawn([&] { return crash::write_all(arena.session_id, cache_id, kIds, seed + 1); }) : 0;
    const int status = crash::wait_for(victim);
    if (beside && crash::wait_for(other) != 0) test_die("%s: the writer beside failed", at.c_str());
    const bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!died && status != 0) test_die("%s: the writer ended with wait status %d", at.c_str(), status);
    return died;
}

// The point inside cache_append: a builder dies there, and the next one finds the stream whole and goes on.
bool builder_dies_at(crash::Arena &arena, uint32_t cache_id, const std::string &at) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.flags = CACHE_BUILD;
    options.memory_limit_bytes = 16 << 20;
    const auto build = [&](int64_t until) {
        cache_client *client = nullptr;
        cache *stream = nullptr;
        int64_t next = 0, id = 0;
        crash::must(cache_connect(nullptr, &client), "cache_connect");
        crash::must(cache_open(client, arena.session_id, cache_id, &options, &stream), "cache_open");
        int result = 0;
        for (const time_t deadline = time(nullptr) + 60;
             (result = cache_build_begin(stream, &next)) == CACHE_EBUILDING && time(nullptr) < deadline;)
            usleep(1000);
        crash::must(result, "cache_build_begin");
        for (; next < until; next++) {
            const rows::Row row(next, crash::kLargest);
            crash::must(cache_append(stream, row.columns(), row.n(), &id), "cache_append");
            if (id != next) test_die("%s: row %ld was appended as %ld", at.c_str(), long(next), long(id));
        }
        for (id = 0; id < until; id++)
            if (const std::string wrong = rows::check(stream, id, crash::kLargest); !wrong.empty())
                test_die("%s: %s", at.c_str(), wrong.c_str());
        return 0;
    };
    const int status = crash::wait_for(crash::spawn([&] {
        setenv("LIBCACHE_PAUSE_AT", at.c_str(), 1);
        return build(100);
    }));
    if (crash::wait_for(crash::spawn([&] { return build(200); })) != 0)
        test_die("%s: the next builder failed", at.c_str());
    test_server_check(arena.server);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

// Puts rows that are all alike: that is what the usual put's short way is for, and rows of write_all seldom take it.
// Returns how many it found there, each of them right.
int64_t put_alike(cache *handle, bool putting, const std::string &at) {
    unsigned char bytes[kAlikeBytes];
    const int64_t shape = kAlikeBytes;
    const cache_column column{bytes, kAlikeBytes, &shape, CACHE_UINT8, 1, {}};
    int64_t there = 0;
    for (int64_t id = 0; id < kAlike; id++) {
        rows::fill(bytes, kAlikeBytes, id, 0);
        if (putting)
            if (const int result = cache_put(handle, id, &column, 1); result < 0) crash::must(result, "a put");
        cache_view view;
        if (cache_get(handle, id, &view) != 0) continue;
        there++;
        cache_column got{};
        crash::must(cache_view_column(&view, 0, &got), "cache_view_column");
        if (got.bytes != kAlikeBytes || rows::first_wrong(got.data, kAlikeBytes, id, 0) >= 0)
            test_die("%s: row %ld of those that are alike is wrong", at.c_str(), long(id));
        cache_view_release(&view);
    }
    return there;
}

void usual_put_dies_at(crash::Arena &arena, uint32_t cache_id, const std::string &at) {
    const auto put_all = [&] {
        cache_client *client = nullptr;
        crash::must(cache_connect(nullptr, &client), "cache_connect");
        return put_alike(crash::open_cache(client, arena.session_id, cache_id), true, at) == kAlike ? 0 : 1;
    };
    const int status = crash::wait_for(crash::spawn([&] {
        setenv("LIBCACHE_PAUSE_AT", at.c_str(), 1);
        return put_all();
    }));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        test_die("%s: who puts rows that are alike ended with wait status %d", at.c_str(), status);
    cache *handle = crash::open_cache(arena.client, arena.session_id, cache_id);
    (void)put_alike(handle, false, at);
    if (crash::wait_for(crash::spawn(put_all)) != 0 || put_alike(handle, false, at) != kAlike)
        test_die("%s: who puts the rows of the dead failed", at.c_str());
    cache_close(handle);
    crash::must(cache_destroy(arena.client, arena.session_id, cache_id), "cache_destroy");
}

} // namespace

int main(int argc, char **argv) {
    const unsigned seed = argc > 1 ? unsigned(atoi(argv[1])) : unsigned(time(nullptr));
    printf("pause_points %u\n", seed);
    fflush(stdout);
    test_watchdog(280);
    crash::Arena arena;
    uint32_t cache_id = 0;
    bool all_reached = true;
    for (const std::string &point : std::set<std::string>(std::begin(kPoints), std::end(kPoints))) {
        int died = 0, tries = 0;
        for (int count : {1, 2, 5, 60}) {
            cache_id++;
            tries++;
            const std::string at = point + ":" + std::to_string(count);
            if (point.starts_with("writer.append")) {
                died += builder_dies_at(arena, cache_id, at);
            } else {
                died += die_at(arena, cache_id, at, seed + cache_id, tries % 2 == 0);
                crash::judge(arena, cache_id, kIds, at);
            }
            crash::must(cache_destroy(arena.client, arena.session_id, cache_id), "cache_destroy");
        }
        if (point == "put.copied" || point == "writer.publish.1") // those that the short way passes
            usual_put_dies_at(arena, ++cache_id, point + ":60");
        printf("%-20s died %d of %d times\n", point.c_str(), died, tries);
        all_reached = all_reached && died > 0;
    }
    if (!all_reached) test_die("no writer came to some of the points: the test does not test them");
    return 0;
}
