// SPDX-License-Identifier: Apache-2.0
// Clients for which the server has no pidfd, as before Linux 5.3 and across pid namespaces before 6.5: they are served,
// and reclaimed when they are dead, not when they only lose their socket.
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

bool eventually(const std::function<bool()> &so) {
    for (const time_t deadline = time(nullptr) + 60; time(nullptr) <= deadline; usleep(2000))
        if (so()) return true;
    return so();
}

struct WithoutPidfd {
    WithoutPidfd() {
        setenv("LIBCACHE_NO_PEERPIDFD", "1", 1);
        setenv("LIBCACHE_NO_PIDFD", "1", 1);
    }
};
struct UnwatchedSession : WithoutPidfd, Session {};

// The sockets of this process that are connected to a server's.
std::vector<int> sockets() {
    std::vector<int> found;
    for (int fd = 3; fd < 1024; fd++) {
        int type = 0;
        socklen_t size = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET) found.push_back(fd);
    }
    return found;
}

// A process that has put row 1 and goes on with `then`; it says so through a pipe and waits to be killed.
class Writer {
  public:
    Writer(const Session &s, const std::function<void(cache *)> &then) {
        int said[2];
        cr_assert_eq(pipe2(said, O_CLOEXEC), 0);
        pid_ = fork();
        if (pid_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(100);
            cache_client *client = nullptr;
            cache *handle = nullptr;
            if (cache_connect(nullptr, &client) != 0 || cache_open(client, s.id, 1, nullptr, &handle) != 0 ||
                rows::put(handle, 1) != 0) {
                fprintf(stderr, "the writer: %s\n", cache_last_error());
                _exit(1);
            }
            then(handle);
            (void)!write(said[1], "", 1);
            for (;;)
                pause();
        }
        close(said[1]);
        char byte;
        cr_assert_eq(read(said[0], &byte, 1), 1, "the writer ended");
        close(said[0]);
        cr_assert_geq(s.stat().writers, 1); // `then` may have begun another
    }
    Writer(const Writer &) = delete;
    Writer &operator=(const Writer &) = delete;
    ~Writer() { end(); }
    void end() {
        if (pid_ == 0) return;
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }

  private:
    pid_t pid_;
};

void comes_back(const Session &s) {
    cr_assert(eventually([&] { return s.stat().writers == 0; }), "the dead client's slot stays");
    RIGHT(rows::check(s.rows, 1));
    OK(rows::put(s.rows, 2));
    RIGHT(rows::check(s.rows, 2));
}

void kill_broker(const Session &s) {
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    cr_assert_eq(kill(info.broker_pid, SIGKILL), 0);
    const int64_t before = info.generation;
    OK(cache_server_info(s.client, &info)); // answered by the next one
    cr_assert_gt(info.generation, before);
}

// The housekeeping of the server, which looks at such clients, has come by twice: it makes a deleted socket anew.
void housekeeping_comes_by_twice(const Session &s) {
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(unlink(test_server_socket(s.server)), 0);
        cr_assert(eventually([&] { return access(test_server_socket(s.server), F_OK) == 0; }));
    }
}

} // namespace

Test(unwatched, a_client_that_dies_is_reclaimed, .timeout = 100) {
    UnwatchedSession s;
    Writer writer(s, [](cache *) {});
    cr_assert_gt(s.stat().granted_bytes, 0);
    writer.end();
    comes_back(s);
}

Test(unwatched, a_client_that_lives_keeps_its_extents_also_without_a_socket, .timeout = 100) {
    UnwatchedSession s;
    auto *const step = static_cast<std::atomic<int> *>(
        mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_t child = 0;
    {
        Writer writer(s, [&](cache *handle) {
            // Commits row 3 when it is told to, long after its socket has gone.
            child = fork();
            if (child != 0) return;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            Bytes column(nullptr, 1000);
            cache_reservation *reservation = nullptr;
            if (cache_reserve(handle, 3, &column.column, 1, &reservation) != 0) _exit(2);
            for (int fd : sockets())
                shutdown(fd, SHUT_RDWR);
            for (step->store(1); step->load() != 2;)
                usleep(1000);
            memset(column.column.data, 7, 1000);
            step->store(cache_commit(reservation) == 0 ? 3 : 4);
            for (;;)
                pause();
        });
        cr_assert(eventually([&] { return step->load() == 1; }));
        housekeeping_comes_by_twice(s);
        cr_assert_eq(s.stat().writers, 2, "a live client was taken for dead");
        step->store(2);
        cr_assert(eventually([&] { return step->load() > 2; }));
        cr_assert_eq(step->load(), 3, "its row could not be committed");
        cache_view view{};
        OK(cache_get(s.rows, 3, &view));
        OK(cache_view_release(&view));
    } // the child ends with its parent
    comes_back(s);
    munmap(step, sizeof(std::atomic<int>));
}

Test(unwatched, a_client_that_dies_is_reclaimed_by_a_later_broker, .timeout = 100) {
    UnwatchedSession s;
    Writer writer(s, [](cache *) {});
    kill_broker(s);
    housekeeping_comes_by_twice(s);
    cr_assert_eq(s.stat().writers, 1, "a live client was taken for dead");
    kill_broker(s);
    writer.end();
    comes_back(s);
}

Test(unwatched, a_socket_that_lives_on_in_a_child_does_not_keep_a_dead_client, .timeout = 100) {
    NEEDS_MADVISE("MADV_DONTFORK of the page that shows a client's life");
    UnwatchedSession s;
    int held[2];
    cr_assert_eq(pipe(held), 0);
    Writer writer(s, [&](cache *) {
        if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) != 0) return; // past the handlers of fork(): the socket stays open
        close(held[1]);
        char byte;
        (void)!read(held[0], &byte, 1); // until the test ends
        _exit(0);
    });
    writer.end();
    comes_back(s);
    close(held[1]);
    close(held[0]);
}
