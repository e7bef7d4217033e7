// SPDX-License-Identifier: Apache-2.0
#include "perf/support/crew.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace perf {
namespace {

struct Times { // of one member, in shared memory; read after it has ended
    int64_t start_ns, end_ns;
};

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

struct Pipe {
    int read_end = -1, write_end = -1;
    Pipe() {
        int ends[2];
        if (pipe(ends) != 0) throw std::runtime_error(std::string("pipe: ") + strerror(errno));
        read_end = ends[0], write_end = ends[1];
    }
    ~Pipe() { close_read(), close_write(); }
    void close_read() { close_end(read_end); }
    void close_write() { close_end(write_end); }
    static void close_end(int &end) {
        if (end >= 0) close(end);
        end = -1;
    }
};

// A member: prepares, says so, waits until everybody's pipe is closed at once, works.
[[noreturn]] void be_member(unsigned member, const CrewWork &what, Pipe &ready, Pipe &go, Times &times, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    int status = 1;
    try {
        go.close_write();
        what.prepare(member);
        char byte = 0;
        (void)!write(ready.write_end, &byte, 1);
        (void)!read(go.read_end, &byte, 1);
        times.start_ns = now_ns();
        what.work(member);
        times.end_ns = now_ns();
        status = 0;
    } catch (const std::exception &error) {
        fprintf(stderr, "process %u of a crew: %s\n", member, error.what());
    }
    _exit(status); // no destructors: server and folders are the parent's
}

} // namespace

double run_crew(unsigned members, const CrewWork &what) {
    void *const shared =
        mmap(nullptr, members * sizeof(Times), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) throw std::runtime_error(std::string("mmap: ") + strerror(errno));
    Times *const times = static_cast<Times *>(shared);
    Pipe ready, go;
    std::vector<pid_t> pids;
    const pid_t self = getpid();
    fflush(nullptr);
    for (unsigned i = 0; i < members; ++i) {
        const pid_t pid = fork();
        if (pid == 0) be_member(i, what, ready, go, times[i], self);
        if (pid > 0) pids.push_back(pid);
    }
    ready.close_write();
    char byte;
    for (unsigned i = 0; i < members && read(ready.read_end, &byte, 1) == 1; ++i) {
    } // ends early when those that are not ready have ended
    go.close_write();
    bool well = pids.size() == members;
    for (const pid_t pid : pids) {
        int status = 0;
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
        well = well && status == 0;
    }
    int64_t first = INT64_MAX, last = 0;
    for (unsigned i = 0; i < members; ++i) {
        first = std::min(first, times[i].start_ns);
        last = std::max(last, times[i].end_ns);
    }
    munmap(shared, members * sizeof(Times));
    if (!well) throw std::runtime_error("a process of a crew of " + std::to_string(members) + " failed");
    return static_cast<double>(last - first) / 1e9;
}

} // namespace perf
