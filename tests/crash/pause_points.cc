// SPDX-License-Identifier: Apache-2.0
// pause_points [seed]: a writer dies at each pause point of the client (core/common/pause.h), at the first and at later
// passages; then judgement. The list of points is made from the sources by the Makefile.
#include "tests/crash/crash.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

namespace {

constexpr int64_t kIds = 1500;
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
            died += die_at(arena, cache_id, at, seed + cache_id, tries % 2 == 0);
            crash::judge(arena, cache_id, kIds, at);
            crash::must(cache_destroy(arena.client, arena.session_id, cache_id), "cache_destroy");
        }
        printf("%-20s died %d of %d times\n", point.c_str(), died, tries);
        all_reached = all_reached && died > 0;
    }
    if (!all_reached) test_die("no writer came to some of the points: the test does not test them");
    return 0;
}
