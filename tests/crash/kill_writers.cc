// SPDX-License-Identifier: Apache-2.0
// kill_writers [seconds [seed]]: writer processes are killed at random moments and replaced; then judgement.
#include "tests/crash/crash.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int64_t kIds = 4000;
constexpr int kWriters = 3, kKillsPerWave = 12;

int kill_wave(crash::Arena &arena, uint32_t cache_id, std::mt19937 &random) {
    pid_t writers[kWriters];
    const auto start = [&] {
        const unsigned seed = random();
        return crash::spawn([&] { return crash::write_all(arena.session_id, cache_id, kIds, seed); });
    };
    int kills = 0;
    for (pid_t &writer : writers)
        writer = start();
    for (int i = 0; i < kKillsPerWave; i++) {
        usleep(random() % 15000); // any moment is a good one
        pid_t &victim = writers[random() % kWriters];
        kill(victim, SIGKILL);
        const int status = crash::wait_for(victim);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
            kills++;
        else if (status != 0)
            test_die("a writer ended with wait status %d", status);
        victim = start();
    }
    for (pid_t writer : writers) {
        kill(writer, SIGKILL);
        const int status = crash::wait_for(writer);
        if (status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
            test_die("a writer ended with wait status %d", status);
    }
    return kills;
}

} // namespace

int main(int argc, char **argv) {
    const int seconds = argc > 1 ? atoi(argv[1]) : 8;
    const unsigned seed = argc > 2 ? unsigned(atoi(argv[2])) : unsigned(time(nullptr));
    printf("kill_writers %d %u\n", seconds, seed);
    fflush(stdout);
    test_watchdog(unsigned(seconds) + 200);
    std::mt19937 random(seed);
    crash::Arena arena;
    const time_t end = time(nullptr) + seconds;
    uint32_t waves = 0;
    int kills = 0;
    do {
        waves++;
        kills += kill_wave(arena, waves, random);
        crash::judge(arena, waves, kIds, "wave " + std::to_string(waves));
        crash::must(cache_destroy(arena.client, arena.session_id, waves), "cache_destroy");
    } while (time(nullptr) < end);
    printf("%u waves, %d writers killed in their work\n", waves, kills);
    return kills > 0 ? 0 : 1;
}
