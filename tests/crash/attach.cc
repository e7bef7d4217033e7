// SPDX-License-Identifier: Apache-2.0
// attach [killed [at once [seed]]]: processes attach one after the other and are killed at any moment of it, then many
// attach at once. Everybody who lives is served, and nothing is left of anybody.
#include "tests/crash/crash.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

namespace {

constexpr int64_t kRows = 100;

// Connects, opens, reads; every eighth also writes, since a writer takes a slot and memory.
int attach(uint32_t session, int number) {
    cache_client *client = nullptr;
    crash::must(cache_connect(nullptr, &client), "cache_connect");
    cache *handle = crash::open_cache(client, session, 1);
    if (const std::string wrong = rows::check(handle, number % kRows); !wrong.empty()) test_die("%s", wrong.c_str());
    if (number % 8 == 0 && rows::put(handle, kRows + number) < 0) crash::must(CACHE_EIO, "a put");
    return 0;
}

void kill_while_attaching(crash::Arena &arena, int killed, std::mt19937 &random) {
    for (int i = 0; i < killed; i++) {
        const pid_t pid = crash::spawn([&] { return attach(arena.session_id, i), pause(); });
        usleep(random() % 4000); // any moment is a good one
        kill(pid, SIGKILL);
        const int status = crash::wait_for(pid);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
            test_die("process %d ended with wait status %d", i, status);
    }
}

// All wait for the start, attach, say so, and stay until all have.
void attach_at_once(crash::Arena &arena, int many) {
    struct Meeting {
        std::atomic<int> go{0}, attached{0};
    };
    void *page = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) test_die("mmap failed");
    auto &meeting = *new (page) Meeting;
    std::vector<pid_t> processes;
    for (int i = 0; i < many; i++)
        processes.push_back(crash::spawn([&] {
            while (meeting.go.load() == 0)
                usleep(1000);
            attach(arena.session_id, i);
            meeting.attached++;
            return pause();
        }));
    timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    meeting.go = 1;
    crash::until([&] { return meeting.attached.load() == many; }, "all processes are attached");
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%d processes attached at once in %.2f s\n", many,
           double(end.tv_sec - begin.tv_sec) + double(end.tv_nsec - begin.tv_nsec) / 1e9);
    if (const int64_t clients = crash::server_info(arena.client).clients; clients != many + 1)
        test_die("the server counts %ld clients", long(clients));
    for (pid_t pid : processes)
        kill(pid, SIGKILL);
    for (pid_t pid : processes)
        crash::wait_for(pid);
}

} // namespace

int main(int argc, char **argv) {
    const int killed = argc > 1 ? atoi(argv[1]) : 300, many = argc > 2 ? atoi(argv[2]) : 512;
    const unsigned seed = argc > 3 ? unsigned(atoll(argv[3])) : unsigned(time(nullptr));
    printf("attach %d %d %u\n", killed, many, seed);
    fflush(stdout);
    test_watchdog(unsigned(killed) / 50 + 200);
    std::mt19937 random(seed);
    crash::Arena arena;
    const int64_t memory = crash::server_info(arena.client).memory_used_bytes;
    cache *handle = crash::open_cache(arena.client, arena.session_id, 1);
    for (int64_t id = 0; id < kRows; id++)
        if (rows::put(handle, id) != 0) crash::must(CACHE_EIO, "a put");
    kill_while_attaching(arena, killed, random);
    attach_at_once(arena, many);
    crash::until([&] { return crash::server_info(arena.client).clients == 1; }, "dead processes are no clients");
    cache_close(handle);
    test_server_check(arena.server);
    crash::must(cache_destroy(arena.client, arena.session_id, 1), "cache_destroy");
    crash::until([&] { return crash::server_info(arena.client).memory_used_bytes == memory; }, "all memory is free");
    return 0;
}
