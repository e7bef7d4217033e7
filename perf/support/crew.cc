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
#include <utility>
#include <vector>

namespace perf {
namespace {

struct Times { // of one member and round, in shared memory; read after it has ended
    int64_t start_ns, end_ns;
};

int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

class Pipe {
  public:
    Pipe() {
        int ends[2];
        if (pipe(ends) != 0) throw std::runtime_error(std::string("pipe: ") + strerror(errno));
        read_end_ = ends[0], write_end_ = ends[1];
    }
    Pipe(Pipe &&other) noexcept
        : read_end_(std::exchange(other.read_end_, -1)), write_end_(std::exchange(other.write_end_, -1)) {}
    ~Pipe() { close_read(), close_write(); }
    void close_read() { close_end(read_end_); }
    void close_write() { close_end(write_end_); }
    void say() const {
        const char byte = 0;
        (void)!write(write_end_, &byte, 1);
    }
    bool wait() const { // for a word, or (false) until the other end is closed
        char byte;
        return read(read_end_, &byte, 1) == 1;
    }

  private:
    static void close_end(int &end) {
        if (end >= 0) close(end);
        end = -1;
    }
    int read_end_ = -1, write_end_ = -1;
};

struct Member {
    pid_t pid;
    Pipe ready; // a word before each round; closed by its end, so that nobody waits for the dead
};

// Prepares; before each round says so and waits until the round's pipe is closed, for everybody at once.
[[noreturn]] void be_member(unsigned number, const CrewRounds &what, const Pipe &ready, std::vector<Pipe> &go,
                            Times *times, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    int status = 1;
    try {
        for (Pipe &round : go)
            round.close_write();
        what.prepare(number);
        for (unsigned round = 0; round < go.size(); ++round) {
            ready.say();
            go[round].wait();
            times[round].start_ns = now_ns();
            what.work(number, round);
            times[round].end_ns = now_ns();
        }
        status = 0;
    } catch (const std::exception &error) {
        fprintf(stderr, "process %u of a crew: %s\n", number, error.what());
    }
    _exit(status); // no destructors: server and folders are the parent's
}

// True when all have ended well. Those that wait for a failed one are killed.
bool end_of(std::vector<Member> &members, bool failed) {
    bool well = true;
    for (const Member &member : members)
        if (failed) kill(member.pid, SIGKILL);
    for (const Member &member : members) {
        int status = 0;
        while (waitpid(member.pid, &status, 0) < 0 && errno == EINTR) {
        }
        well = well && status == 0;
    }
    return well;
}

class SharedTimes { // [member][round]
  public:
    SharedTimes(unsigned members, unsigned rounds) : members_(members), rounds_(rounds) {
        void *const made = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED) throw std::runtime_error(std::string("mmap: ") + strerror(errno));
        times_ = static_cast<Times *>(made);
    }
    ~SharedTimes() { munmap(times_, bytes()); }
    SharedTimes(const SharedTimes &) = delete;
    SharedTimes &operator=(const SharedTimes &) = delete;

    Times *of(unsigned member) const { return &times_[size_t{member} * rounds_]; }
    double seconds(unsigned round) const {
        int64_t first = INT64_MAX, last = 0;
        for (unsigned i = 0; i < members_; ++i) {
            first = std::min(first, of(i)[round].start_ns);
            last = std::max(last, of(i)[round].end_ns);
        }
        return static_cast<double>(last - first) / 1e9;
    }

  private:
    size_t bytes() const { return size_t{members_} * rounds_ * sizeof(Times); }
    unsigned members_, rounds_;
    Times *times_ = nullptr;
};

} // namespace

std::vector<double> run_crew(unsigned members, unsigned rounds, const CrewRounds &what) {
    const SharedTimes times(members, rounds);
    std::vector<Pipe> go(rounds);
    std::vector<Member> crew;
    crew.reserve(members);
    const pid_t self = getpid();
    bool failed = false;
    fflush(nullptr);
    for (unsigned i = 0; i < members && !failed; ++i) {
        Pipe ready;
        const pid_t pid = fork();
        if (pid == 0) be_member(i, what, ready, go, times.of(i), self);
        failed = pid < 0;
        if (failed) break;
        ready.close_write(); // before the next one is born, so that it ends with this member
        crew.push_back({pid, std::move(ready)});
    }
    for (unsigned round = 0; round < rounds && !failed; ++round) {
        for (const Member &member : crew)
            failed = failed || !member.ready.wait();
        go[round].close_write();
    }
    if (!end_of(crew, failed) || failed)
        throw std::runtime_error("a process of a crew of " + std::to_string(members) + " failed");
    std::vector<double> seconds;
    for (unsigned round = 0; round < rounds; ++round)
        seconds.push_back(times.seconds(round));
    return seconds;
}

double run_crew(unsigned members, const CrewWork &what) {
    return run_crew(members, 1, {what.prepare, [&](unsigned member, unsigned) { what.work(member); }})[0];
}

} // namespace perf
