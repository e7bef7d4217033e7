// SPDX-License-Identifier: Apache-2.0
// kill_spillers [kills [seed]]: writers of a cache that spills die at each pause point of core/spill, then at random
// moments. Every row that is there must be right, every one that is not can be put again, file space that no row needs
// is lent again, and the folder stays empty.
#include "tests/crash/file_space.h"
#include "tests/crash/spilling.h"

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

namespace {

const char *const kPoints[] = {
#include "spill_points.inc"
};

// How many of two writers, one after the other, died at the point. The second is lent what the first left: both leave
// file space, and none to a row that was there already.
int die_at(crash::Arena &arena, uint32_t cache_id, const std::string &at) {
    cache *handle = crash::open_spilling(arena.client, arena.session_id, cache_id);
    int died = 0;
    for (const char *which : {"the first writer", "the second writer"}) {
        const int status = crash::wait_for(crash::spawn([&] {
            setenv("LIBCACHE_PAUSE_AT", at.c_str(), 1);
            return crash::spill_all(arena.session_id, cache_id, cache_id);
        }));
        const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        const std::string what = at + ", " + which;
        if (!killed && status != 0) test_die("%s ended with wait status %d", what.c_str(), status);
        died += killed;
        crash::wait_for_writers(handle, what);
        crash::judge_file_space(arena, handle, crash::kLargeId + 1, what);
    }
    cache_close(handle);
    crash::judge_spilled(arena, cache_id, at);
    crash::must(cache_destroy(arena.client, arena.session_id, cache_id), "cache_destroy");
    return died;
}

int kill_two(crash::Arena &arena, uint32_t cache_id, std::mt19937 &random) {
    int killed = 0;
    pid_t writers[2];
    for (int round = 0; round < 5; round++) {
        for (pid_t &writer : writers) {
            const unsigned seed = random();
            writer = crash::spawn([&] { return crash::spill_all(arena.session_id, cache_id, seed); });
        }
        usleep(random() % 60'000); // any moment is a good one
        for (pid_t writer : writers) {
            kill(writer, SIGKILL);
            const int status = crash::wait_for(writer);
            killed += WIFSIGNALED(status);
            if (!WIFSIGNALED(status) && status != 0) test_die("a writer ended with wait status %d", status);
        }
    }
    crash::judge_spilled(arena, cache_id, "cache " + std::to_string(cache_id));
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
    int killed = 0;
    {
        const crash::SpillFolder folder;
        crash::Arena arena(folder.arguments);
        std::mt19937 random(seed);
        uint32_t cache_id = 0;
        for (const std::string &point : std::set<std::string>(std::begin(kPoints), std::end(kPoints))) {
            int died = 0;
            for (int count : {1, 2, 5})
                died += die_at(arena, ++cache_id, point + ":" + std::to_string(count));
            printf("%-20s died %d of 6 times\n", point.c_str(), died);
            fflush(stdout);
            if (died == 0) test_die("no writer came to %s: the test does not test it", point.c_str());
            killed += died;
        }
        while (killed < kills)
            killed += kill_two(arena, ++cache_id, random);
    }
    printf("%d writers killed\n", killed);
    return 0;
}
