// SPDX-License-Identifier: Apache-2.0
// same_pid [rounds]: a client dies and the next process with its number is a client at once, in a pid namespace where
// numbers can be chosen. Neither may be taken for the other: what the dead one held comes back, what the living one
// holds stays. In turns: at once; while the broker stands still, so that it learns of both together; while a child of
// the dead one keeps its socket open; with a broker killed in between; and where the server has no pidfd, so that it
// learns of the death when the next one writes already.
#include "tests/crash/crash.h"

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sched.h>
#include <string>
#include <sys/mount.h>

namespace {

constexpr pid_t kNumber = 300;
constexpr int64_t kFirst = 500, kReserved = 1000, kLater = 1500;
constexpr int kSkipped = 77;

bool write_file(const char *path, const std::string &text) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool written = fd >= 0 && write(fd, text.data(), text.size()) == ssize_t(text.size());
    if (fd >= 0) close(fd);
    return written;
}

// A process with this number; others that are started meanwhile may take it, then once again.
pid_t spawn_as(pid_t number, const std::function<int()> &body) {
    for (int tries = 0; tries < 100; tries++) {
        if (!write_file("/proc/sys/kernel/ns_last_pid", std::to_string(number - 1))) return -1;
        const pid_t pid = crash::spawn([&] { return getpid() == number ? body() : 0; });
        if (pid == number) return pid;
        crash::wait_for(pid);
    }
    test_die("nobody got the number %d", number);
}

// Lines of communication: the other end says that it is ready, or may go on.
struct Line {
    int ends[2];
    Line() {
        if (pipe2(ends, O_CLOEXEC) != 0) test_die("pipe2 failed");
    }
    Line(const Line &) = delete;
    Line &operator=(const Line &) = delete;
    ~Line() {
        close(ends[0]);
        close(ends[1]);
    }
    void say() const {
        if (write(ends[1], "", 1) != 1) test_die("nobody listens");
    }
    void hear() const {
        char byte;
        if (read(ends[0], &byte, 1) != 1) test_die("nobody speaks");
    }
};

cache *open_in_own_process(uint32_t session, uint32_t cache_id) {
    cache_client *client = nullptr;
    crash::must(cache_connect(nullptr, &client), "cache_connect");
    return crash::open_cache(client, session, cache_id);
}

void put(cache *handle, int64_t from, int64_t to) {
    for (int64_t id = from; id < to; id++)
        if (const int result = rows::put(handle, id); result != 0) crash::must(result ? result : 1, "a put");
}

// Puts rows, begins another, and waits for its death.
int first_life(uint32_t session, uint32_t cache_id, const Line &ready, bool with_child) {
    cache *handle = open_in_own_process(session, cache_id);
    put(handle, 0, kFirst);
    const rows::Row row(kReserved);
    std::vector<cache_column> columns(row.columns(), row.columns() + row.n());
    cache_reservation *reservation = nullptr;
    crash::must(cache_reserve(handle, kReserved, columns.data(), row.n(), &reservation), "cache_reserve");
    if (with_child && fork() == 0) { // has the socket too, and is no client
        alarm(100);
        ready.say();
        pause();
        _exit(0);
    }
    if (!with_child) ready.say();
    pause();
    return 1;
}

int second_life(uint32_t session, uint32_t cache_id, const Line &ready, const Line &go) {
    cache *handle = open_in_own_process(session, cache_id);
    put(handle, kFirst, kReserved + 1);
    ready.say();
    go.hear();
    put(handle, kReserved + 1, kLater); // into what it holds, whatever was taken back meanwhile
    for (int64_t id = 0; id < kLater; id++)
        if (const std::string wrong = rows::check(handle, id); !wrong.empty()) test_die("%s", wrong.c_str());
    cache_close(handle);
    return 0;
}

enum class Turn { AtOnce, BrokerStopped, ChildLives, BrokerKilled };

cache_stats stats_of(cache *handle) {
    cache_stats stats{};
    stats.size = sizeof stats;
    crash::must(cache_stat(handle, &stats), "cache_stat");
    return stats;
}

// Slots of the dead that brokers have recovered so far.
int recovered(const std::string &log_path) {
    std::ifstream log(log_path);
    int slots = 0;
    for (std::string line; std::getline(log, line);)
        slots += line.ends_with(" recovered");
    return slots;
}

void two_lives(crash::Arena &arena, uint32_t cache_id, Turn turn) {
    Line ready, again, go;
    const std::string log = crash::server_info(arena.client).log_path;
    const int before = recovered(log);
    const pid_t first =
        spawn_as(kNumber, [&] { return first_life(arena.session_id, cache_id, ready, turn == Turn::ChildLives); });
    ready.hear();
    pid_t child = 0;
    if (turn == Turn::ChildLives) {
        const std::string number = std::to_string(first);
        std::ifstream("/proc/" + number + "/task/" + number + "/children") >> child;
        if (child == 0) test_die("the first one has no child");
    }
    const pid_t broker = crash::broker_of(arena.server);
    if (turn == Turn::BrokerStopped) kill(broker, SIGSTOP);
    kill(first, SIGKILL);
    crash::wait_for(first);
    const pid_t second = spawn_as(kNumber, [&] { return second_life(arena.session_id, cache_id, again, go); });
    if (turn == Turn::BrokerStopped) kill(broker, SIGCONT);
    if (turn == Turn::BrokerKilled) kill(broker, SIGKILL);
    again.hear();
    if (turn == Turn::BrokerKilled) {
        crash::until([&] { return crash::broker_of(arena.server) != 0; }, "a broker");
        kill(crash::broker_of(arena.server), SIGKILL);
    }
    cache *handle = crash::open_cache(arena.client, arena.session_id, cache_id);
    crash::until([&] { return recovered(log) > before && stats_of(handle).writers == 1; },
                 "the dead one's slot is vacant, the living one's is not");
    go.say();
    if (const int status = crash::wait_for(second); status != 0)
        test_die("the second process ended with wait status %d", status);
    crash::until([&] { return stats_of(handle).writers == 0 && stats_of(handle).granted_bytes == 0; },
                 "nothing is lent to either");
    if (stats_of(handle).rows_in_memory != kLater)
        test_die("%ld rows are counted, %ld were put", long(stats_of(handle).rows_in_memory), long(kLater));
    test_server_check(arena.server);
    cache_close(handle);
    crash::must(cache_destroy(arena.client, arena.session_id, cache_id), "cache_destroy");
    if (child != 0) kill(child, SIGKILL);
}

// The second process of the namespace; the first one collects orphans.
int live_in_there(int rounds) {
    test_watchdog(250);
    const pid_t probe = spawn_as(kNumber, [] { return 0; });
    if (probe < 0) return printf("SKIP /proc/sys/kernel/ns_last_pid cannot be written\n"), kSkipped;
    crash::wait_for(probe);
    {
        crash::Arena arena;
        for (int round = 0; round < rounds; round++)
            two_lives(arena, uint32_t(round) + 1, Turn(round % 4));
    }
    setenv("LIBCACHE_NO_PEERPIDFD", "1", 1);
    setenv("LIBCACHE_NO_PIDFD", "1", 1);
    {
        crash::Arena arena;
        two_lives(arena, 1, Turn::AtOnce);
    }
    printf("%d processes had the number of one that had just died\n", rounds + 1);
    return 0;
}

int lead_the_namespace(int rounds) {
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("proc", "/proc", "proc", 0, nullptr) != 0)
        return printf("SKIP /proc cannot be mounted in a pid namespace: %s\n", strerror(errno)), kSkipped;
    const pid_t test = crash::spawn([&] {
        alarm(0);
        const int result = live_in_there(rounds);
        fflush(nullptr);
        return result;
    });
    alarm(0);
    for (;;) {
        int status = 0;
        if (wait(&status) == test) return WIFEXITED(status) ? WEXITSTATUS(status) : 1; // which ends all in here
    }
}

} // namespace

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 8;
    setenv("LIBCACHE_BUILD", test_build(), 1); // found by the /proc of now
    test_watchdog(280);
    const std::string map = "0 " + std::to_string(geteuid()) + " 1";
    const bool root = geteuid() == 0;
    if (unshare((root ? 0 : CLONE_NEWUSER) | CLONE_NEWPID | CLONE_NEWNS) != 0 ||
        (!root && !(write_file("/proc/self/setgroups", "deny") && write_file("/proc/self/uid_map", map)))) {
        printf("SKIP no pid namespace is to be had: %s\n", strerror(errno));
        return kSkipped;
    }
    const int status = crash::wait_for(crash::spawn([&] {
        const int result = lead_the_namespace(rounds);
        fflush(nullptr);
        return result;
    }));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
