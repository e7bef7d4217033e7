// SPDX-License-Identifier: Apache-2.0
// broker_spill_points [point]: the broker dies at each of its pause points of spilling while writers use up file space,
// die with it, are lent what others left, and while unused space goes back to the disk. No writer may see an error,
// every flushed row must be right, and afterwards no file space, memory or descriptor is held. The list of points is
// made from the sources by the Makefile.
#include "tests/crash/doomed.h"
#include "tests/crash/file_space.h"
#include "tests/crash/spilling.h"

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

namespace {

const char *const kPoints[] = {
#include "broker_points.inc"
};
constexpr uint32_t kCache = 1;
constexpr uint64_t kLargest = 100'000;
constexpr int64_t kRows = 900; // 20 MB
constexpr uint64_t kSegment = 8 << 20;

// Puts rows [from, to) and flushes them. Left open: its last run stays HELD.
void put_rows(uint32_t session, int64_t from, int64_t to) {
    cache_client *client = nullptr;
    crash::must(cache_connect(nullptr, &client), "cache_connect");
    cache *handle = crash::open_spilling(client, session, kCache);
    for (int64_t id = from; id < to; id++)
        if (const int result = rows::put(handle, id, kLargest); result < 0) crash::must(result, "a put that may spill");
    crash::must(cache_flush(handle), "cache_flush");
}

void put_bytes(cache *handle, int64_t id, uint64_t bytes) {
    std::vector<unsigned char> data(bytes);
    rows::fill(data.data(), bytes, id, 0);
    const auto shape = int64_t(bytes);
    const cache_column column{data.data(), bytes, &shape, CACHE_UINT8, 1, {}};
    if (const int result = cache_put(handle, id, &column, 1); result < 0) crash::must(result, "a large put");
}

// Uses up a segment by one row and needs another at once: it is lent two, and leaves the second one unused.
void leave_a_long_run(uint32_t session) {
    const int status = crash::wait_for(crash::spawn([&] {
        cache_client *client = nullptr;
        crash::must(cache_connect(nullptr, &client), "cache_connect");
        cache *handle = crash::open_spilling(client, session, kCache);
        put_bytes(handle, 4000, kSegment - 200'000);
        put_bytes(handle, 4001, 1'000'000);
        cache_close(handle);
        cache_disconnect(client);
        return 0;
    }));
    if (status != 0) test_die("who leaves a long run ended with wait status %d", status);
}

// Dies between the grant of a run and its take: the run stays GRANTED to a dead process.
void leave_a_grant(uint32_t session) {
    const int status = crash::wait_for(crash::spawn([&] {
        setenv("LIBCACHE_PAUSE_AT", "spill.take.1", 1);
        put_rows(session, 5000, 5400);
        return 0;
    }));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        test_die("who was to die before its first take ended with wait status %d", status);
}

void judge_rows(cache *handle, int64_t from, int64_t to) {
    for (int64_t id = from; id < to; id++)
        if (const std::string wrong = rows::check(handle, id, kLargest); !wrong.empty()) test_die("%s", wrong.c_str());
}

void wait_until_unused_space_is_given_back(cache *handle) {
    crash::until(
        [&] {
            cache_stats stats{};
            stats.size = sizeof stats;
            crash::must(cache_stat(handle, &stats), "cache_stat");
            // Each run may end in a segment that is used in part, and there are a handful of runs.
            return stats.spill_file_bytes - stats.spilled_bytes < int64_t(6 * kSegment);
        },
        "file space that nobody uses goes back to the disk");
}

// The parent puts nothing: its pause points would be passed, and its children could not be told to die at theirs.
void round_of_work(crash::Doomed &doomed, const std::string &point, bool first) {
    cache_client *client = doomed.arena->client;
    uint32_t session = 0;
    crash::must(cache_session_create(client, &session), "cache_session_create");
    crash::Helper holder([&] { put_rows(session, 0, kRows); }, [] {});
    holder.wait_ready();
    if (point.starts_with("restart.")) doomed.kill_broker();
    leave_a_long_run(session);
    leave_a_grant(session);
    if (const int status = holder.end(true); !WIFSIGNALED(status))
        test_die("the holder ended with wait status %d", status);
    cache *handle = crash::open_spilling(client, session, kCache);
    crash::until(
        [&] {
            cache_stats stats{};
            stats.size = sizeof stats;
            crash::must(cache_stat(handle, &stats), "cache_stat");
            return stats.writers == 0;
        },
        "the slots of dead writers are vacant");
    judge_rows(handle, 0, kRows);
    const int status = crash::wait_for(crash::spawn([&] { // in what the dead one left
        put_rows(session, kRows, kRows + 60);
        return 0;
    }));
    if (status != 0) test_die("the writer after the dead one ended with wait status %d", status);
    if (point.starts_with("broker.spill.punch.")) {
        if (first) crash::until([&] { return doomed.died(); }, "the broker begins to give back unused file space");
        wait_until_unused_space_is_given_back(handle);
    }
    judge_rows(handle, 0, kRows + 60);
    crash::until([&] { return crash::busy_runs(handle) == 0; }, "no run of file space stays as a dead broker left it");
    test_server_check(doomed.arena->server);
    cache_close(handle);
    crash::must(cache_session_destroy(client, session), "cache_session_destroy");
    doomed.wait_until_as_before();
}

} // namespace

int main(int argc, char **argv) {
    test_watchdog(290);
    std::set<std::string> points(std::begin(kPoints), std::end(kPoints));
    std::erase_if(points, [](const std::string &point) { return point.find("spill") == std::string::npos; });
    if (argc > 1) points = {argv[1]};
    const crash::SpillFolder folder;
    crash::Doomed doomed(folder.arguments);
    for (const std::string &point : points) {
        const time_t began = time(nullptr);
        int deaths = 0;
        for (uint64_t passage : {1, 2, 1, 1, 1}) {     // at later ones it is in other circumstances
            if (passage == 1 && deaths != 0) continue; // a busy machine may have needed other runs
            doomed.orders.give(point, passage);
            round_of_work(doomed, point, passage == 1);
            deaths += doomed.died();
            doomed.orders.take_back();
            if (!folder.empty()) test_die("%s: the spill folder has a name in it", point.c_str());
        }
        printf("%-24s %d deaths, %ld s\n", point.c_str(), deaths, long(time(nullptr) - began));
        fflush(stdout);
        if (deaths == 0) test_die("no broker came to %s: the test does not test it", point.c_str());
    }
    printf("the broker died at each of its %zu points of spilling\n", points.size());
    return 0;
}
