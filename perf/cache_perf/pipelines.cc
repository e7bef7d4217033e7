// SPDX-License-Identifier: Apache-2.0
#include "perf/cache_perf/pipelines.h"

#include "perf/cache_perf/call_timer.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace perf {
namespace {

constexpr int64_t kTick = 200'000'000; // ns
constexpr int64_t kMillisecond = 1'000'000;

} // namespace

Pipelines::Pipelines(const Options &options, const RowPlan &plan, const Board &board, Signals &signals)
    : board_(board), signals_(signals) {
    const pid_t self = getpid();
    fflush(nullptr); // or each of them writes what stands in the buffers
    for (unsigned i = 0; i < options.pipelines; ++i) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
            throw std::runtime_error(std::string("socketpair: ") + strerror(errno));
        const pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != self) _exit(1);
            for (const Member &member : members_)
                close(member.socket); // else nobody sees their end
            close(ends[0]);
            be_pipeline(options, plan, board, i, ends[1]);
        }
        close(ends[1]);
        if (pid < 0) {
            close(ends[0]);
            throw std::runtime_error(std::string("fork: ") + strerror(errno));
        }
        members_.push_back({pid, ends[0], false});
    }
}

Pipelines::~Pipelines() {
    board_.stop();
    for (const Member &member : members_)
        if (member.socket >= 0) close(member.socket);
    for (const Member &member : members_)
        while (member.pid > 0 && waitpid(member.pid, nullptr, 0) < 0 && errno == EINTR) {
        }
}

void Pipelines::command(const Command &command) {
    for (Member &member : members_) {
        // A failure is a dead pipeline: await() tells which
        (void)!send(member.socket, &command, sizeof command, MSG_NOSIGNAL);
        member.busy = true;
    }
}

void Pipelines::open(uint32_t session_id, uint32_t cache_id) {
    command({0, 0, session_id, cache_id});
    await(0, [] {});
}

void Pipelines::run(uint32_t epoch, bool writing, int64_t deadline_ns, const std::function<void()> &tick) {
    command({epoch, writing, 0, 0});
    await(deadline_ns, tick);
}

void Pipelines::take_answer(unsigned pipeline) {
    Member &member = members_[pipeline];
    Answer answer{};
    const ssize_t got = recv(member.socket, &answer, sizeof answer, 0);
    member.busy = false;
    if (got == sizeof answer) {
        if (answer.error != 0) throw std::runtime_error(answer.message);
        return;
    }
    int status = 0;
    waitpid(member.pid, &status, 0);
    close(member.socket);
    const pid_t pid = member.pid;
    member.socket = member.pid = -1;
    throw std::runtime_error("pipeline " + std::to_string(pipeline) + " (process " + std::to_string(pid) + ") " +
                             (WIFSIGNALED(status) ? "was ended by signal " + std::to_string(WTERMSIG(status))
                                                  : "ended with status " + std::to_string(WEXITSTATUS(status))));
}

// Until none is busy any more.
void Pipelines::await(int64_t deadline_ns, const std::function<void()> &tick) {
    int64_t next_tick = now_ns() + kTick;
    while (std::any_of(members_.begin(), members_.end(), [](const Member &m) { return m.busy; })) {
        const int64_t now = now_ns();
        if (signals_.seen() != 0 || (deadline_ns != 0 && now >= deadline_ns)) board_.stop();
        if (now >= next_tick) {
            tick();
            next_tick = now + kTick;
        }
        std::vector<pollfd> watched;
        for (const Member &member : members_)
            watched.push_back({member.busy ? member.socket : -1, POLLIN, 0});
        watched.push_back({signals_.fd(), POLLIN, 0});
        int64_t until = next_tick;
        if (deadline_ns != 0 && !board_.stopped()) until = std::min(until, deadline_ns);
        poll(watched.data(), watched.size(), static_cast<int>((until - now + kMillisecond - 1) / kMillisecond));
        for (unsigned i = 0; i < members_.size(); ++i)
            if (watched[i].revents != 0) take_answer(i);
    }
}

} // namespace perf
