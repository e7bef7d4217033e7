// SPDX-License-Identifier: Apache-2.0
// kill_spillers [kills [seed]]: writers of a cache that spills die at each pause point of core/spill, then at random
// moments. Every row that is there must be right, every one that is not can be put again, and the folder stays empty.
#include "tests/crash/spilling.h"

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

namespace {

const char *const kPoints[] = {
#include "spill_points.inc"
};

// True if the writer died at the point.
bool die_at(crash::Arena &arena, uint32_t cache_id, const std::string &at) {
    const int status = crash::wait_for(crash::spawn([&] {
        setenv("LIBCACHE_PAUSE_AT", at.c_str(), 1);
        return crash::spill_all(arena.session_id, cache_id, cache_id);
    }));
    const bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!died && status != 0) test_die("%s: the writer ended with wait status %d", at.c_str(), status);
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
            printf("%-20s died %d of 3 times\n", point.c_str(), died);
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
