// SPDX-License-Identifier: Apache-2.0
// What crosses the border between processes, and what does not: exec, forks of a busy process, namespaces.
#include "tests/support/child.h"
#include "tests/support/rows.h"
#include "tests/support/spilled_rows.h"

#include <atomic>
#include <fcntl.h>
#include <fstream>
#include <sched.h>
#include <set>
#include <thread>

namespace {

bool eventually(const std::function<bool()> &so) {
    for (const time_t deadline = time(nullptr) + 60; time(nullptr) <= deadline; usleep(2000))
        if (so()) return true;
    return so();
}

// What a program that is executed finds open, but for its standard streams and its view of /proc.
std::multiset<std::string> inherited() {
    FILE *pipe = popen("for n in /proc/self/fd/*; do [ ${n##*/} -gt 2 ] && readlink $n; done", "r");
    std::multiset<std::string> found;
    char line[300];
    while (fgets(line, sizeof line, pipe))
        found.insert(line);
    pclose(pipe);
    return found;
}

bool write_file(const char *path, const std::string &text) {
    const int fd = open(path, O_WRONLY);
    const bool ok = fd >= 0 && write(fd, text.data(), text.size()) == ssize_t(text.size());
    if (fd >= 0) close(fd);
    return ok;
}

// Enters mount, pid, net and user namespaces of its own. False where the machine does not let it.
bool isolate() {
    const std::string map = "0 " + std::to_string(geteuid()) + " 1";
    return unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET) == 0 &&
           write_file("/proc/self/setgroups", "deny") && write_file("/proc/self/uid_map", map);
}

pid_t inner_of(pid_t outer) {
    pid_t inner = 0;
    const std::string pid = std::to_string(outer);
    std::ifstream("/proc/" + pid + "/task/" + pid + "/children") >> inner;
    return inner;
}

// In there, with nothing but the socket's folder to be seen.
int live_in_a_container(const char *folder, const std::string &socket, uint32_t session, int said) {
    if (chroot(folder) != 0 || chdir("/") != 0) return 3;
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.socket_path = socket.c_str();
    cache_client *client = nullptr;
    cache *handle = nullptr;
    if (cache_connect(&options, &client) != 0 || cache_open(client, session, 1, nullptr, &handle) != 0) {
        fprintf(stderr, "in the container: %s\n", cache_last_error());
        return 4;
    }
    for (int64_t id = 0; id < 500; id++)
        if (const std::string wrong = rows::check(handle, id); !wrong.empty())
            return fprintf(stderr, "in the container: %s\n", wrong.c_str()), 5;
    for (int64_t id = 500; id < 1000; id++)
        if (rows::put(handle, id) != 0) return fprintf(stderr, "in the container: %s\n", cache_last_error()), 6;
    (void)!write(said, "", 1);
    pause(); // until it is killed, with an extent in its hands
    return 7;
}

} // namespace

Test(isolation, an_executed_program_inherits_nothing) {
    const std::multiset<std::string> before = inherited();
    SpillSession s;
    const std::vector<int64_t> spilled = spill_rows(s, 100);
    RIGHT(read_batch(s.rows, spilled)); // by a ring
    cache_options options = spilling(4 << 20);
    options.flags = CACHE_BUILD;
    cache *const stream = s.open(2, options);
    int64_t resume_at = -1, id = -1;
    Bytes reserved(nullptr, 1000), appended("a row", 5);
    cache_reservation *reservation = nullptr;
    OK(cache_build_begin(stream, &resume_at));
    OK(cache_append(stream, &appended.column, 1, &id));
    OK(cache_reserve(s.rows, 1, &reserved.column, 1, &reservation));
    cr_assert(inherited() == before, "an executed program has %zu descriptors, %zu before the library was used",
              inherited().size(), before.size());
    OK(cache_abort(reservation));
    OK(cache_close(stream));
}

// A process number is not what tells a child from its parent: in nested namespaces both are 1.
Test(isolation, a_child_with_its_parents_process_number_reads_spilled_rows_by_itself) {
    SpillSession s;
    const std::vector<int64_t> spilled = spill_rows(s, 100);
    const pid_t outer = fork();
    if (outer == 0) {
        alarm(100);
        if (!isolate()) _exit(77);
        const auto reads = [&] { return getpid() == 1 ? read_batch(s.rows, spilled) : "its number is not 1"; };
        const pid_t parent = spawn([&] {
            std::string wrong = reads();
            if (wrong.empty() && unshare(CLONE_NEWPID) != 0) wrong = "no namespace in a namespace";
            return wrong.empty() ? outcome(spawn(reads)) : wrong;
        });
        _exit(outcome(parent).empty() ? 0 : 1);
    }
    int status = 0;
    waitpid(outer, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) SKIP("user and pid namespaces are not allowed here");
    cr_assert_eq(status, 0, "the processes in namespaces ended with wait status %d", status);
}

Test(isolation, eight_children_of_a_busy_process_write_and_read_again_and_again) {
    if (kSanitized)
        SKIP("a fork beside a thread that allocates: the sanitizer's own allocator lock stays held in the child");
    Session s(256 << 20);
    std::atomic<bool> stop{false};
    std::atomic<int> failed{0};
    std::vector<std::thread> busy;
    for (int64_t thread = 0; thread < 3; thread++)
        busy.emplace_back([&, thread] {
            for (int64_t n = 0; !stop.load(); n++)
                if (rows::put(s.rows, (thread << 40) + n % 20000, 300) < 0) failed = 1;
        });
    for (int64_t round = 0; round < 10; round++) {
        std::vector<pid_t> children;
        for (int64_t child = 0; child < 8; child++) {
            const pid_t pid = fork();
            if (pid == 0) {
                alarm(100);
                const int64_t first = (4 + child) << 40 | round << 20;
                for (int64_t id = first; id < first + 100; id++)
                    if (rows::put(s.rows, id, 300) != 0 || !rows::check(s.rows, id, 300).empty()) _exit(1);
                _exit(0);
            }
            children.push_back(pid);
        }
        for (pid_t pid : children) {
            int status = -1;
            waitpid(pid, &status, 0);
            cr_assert_eq(status, 0, "round %ld: a child ended with wait status %d", long(round), status);
        }
    }
    stop = true;
    for (std::thread &thread : busy)
        thread.join();
    cr_assert_eq(failed.load(), 0, "a put of the parent failed");
    for (int64_t round = 0; round < 10; round++)
        for (int64_t child = 0; child < 8; child++)
            for (int64_t id = 0; id < 100; id++)
                RIGHT(rows::check(s.rows, ((4 + child) << 40 | round << 20) + id, 300));
    cr_assert(eventually([&] { return s.stat().writers == 1; }), "children that ended hold slots");
}

Test(isolation, a_client_in_namespaces_of_its_own_is_served_and_reclaimed) {
    Session s;
    for (int64_t id = 0; id < 500; id++)
        OK(rows::put(s.rows, id));
    const std::string socket = std::string(test_server_socket(s.server)).substr(strlen(test_server_dir(s.server)));
    int said[2];
    cr_assert_eq(pipe(said), 0);
    const pid_t outer = fork();
    if (outer == 0) {
        alarm(100);
        close(said[0]);
        if (!isolate()) _exit(77);
        const pid_t inner = fork(); // the first process of the pid namespace
        if (inner == 0) _exit(live_in_a_container(test_server_dir(s.server), socket, s.id, said[1]));
        close(said[1]);
        int status = 0;
        waitpid(inner, &status, 0);
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 8);
    }
    close(said[1]);
    char byte;
    const bool lives = read(said[0], &byte, 1) == 1;
    int status = 0;
    if (lives) {
        cr_assert_eq(s.stat().writers, 2);
        cr_assert_gt(s.stat().granted_bytes, 0);
        kill(inner_of(outer), SIGKILL);
    }
    waitpid(outer, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        SKIP("user, pid, mount and net namespaces are not allowed here");
    cr_assert(lives && WIFEXITED(status) && WEXITSTATUS(status) == 8, "the client ended with wait status %d", status);
    cr_assert(eventually([&] { return s.stat().writers == 1; }), "the dead client's slot stays");
    for (int64_t id = 0; id < 1000; id++)
        RIGHT(rows::check(s.rows, id));
}
