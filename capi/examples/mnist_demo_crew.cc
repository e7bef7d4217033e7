// SPDX-License-Identifier: Apache-2.0
#include "capi/examples/mnist_demo_crew.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <poll.h>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace demo {
namespace {

enum class Kind : int32_t { Progress, Done, Failed };

// A packet from a worker to the parent.
struct Report {
    Kind kind;
    Totals totals;
    char text[480]; // of Failed
};

void tell(int socket, Kind kind, const Totals &totals, const char *text = "") {
    Report report{kind, totals, {}};
    std::snprintf(report.text, sizeof report.text, "%s", text);
    if (send(socket, &report, sizeof report, MSG_NOSIGNAL) != sizeof report) _exit(1); // the parent is gone
}

// False: the worker has left. A worker that left with an order unread makes the first call fail by ECONNRESET, but what
// it told before is still there.
bool hear(int socket, Report &report) {
    ssize_t got;
    while ((got = recv(socket, &report, sizeof report, 0)) < 0 && (errno == ECONNRESET || errno == EINTR)) {
    }
    return got == sizeof report;
}

// The life of a worker. It ends with _exit, as what the parent had begun (buffers, destructors) is not its own.
[[noreturn]] void work(int socket, int rank, const Crew::Make &make) {
    try {
        std::unique_ptr<Worker> worker = make(rank);
        for (Order order; recv(socket, &order, sizeof order, 0) == sizeof order;)
            tell(socket, Kind::Done,
                 worker->run(order, [socket](const Totals &so_far) { tell(socket, Kind::Progress, so_far); }));
    } catch (const std::exception &error) {
        tell(socket, Kind::Failed, {}, error.what());
    }
    _exit(0);
}

} // namespace

Crew::Crew(std::string name, int size, const Make &make, const Signals &signals)
    : name_(std::move(name)), signals_(signals) {
    std::fflush(stdout); // or each child would have a copy of what is not yet written
    try {
        for (int rank = 0; rank < size; ++rank)
            fork_member(rank, make);
    } catch (...) {
        end_all();
        throw;
    }
}

Crew::~Crew() {
    end_all();
}

void Crew::fork_member(int rank, const Make &make) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        throw std::runtime_error("socketpair for " + name_ + " " + std::to_string(rank) + ": " + std::strerror(errno));
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // also when the parent has no time left to end it
        if (getppid() != parent) _exit(1);
        close(ends[0]);
        work(ends[1], rank, make);
    }
    // Only the worker keeps its end, so its death, however it comes, is an end of file here.
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        throw std::runtime_error("fork of " + name_ + " " + std::to_string(rank) + ": " + std::strerror(errno));
    }
    members_.push_back({child, ends[0]});
}

void Crew::end_all() {
    for (const Member &member : members_)
        if (member.pid > 0) kill(member.pid, SIGKILL);
    for (size_t rank = 0; rank < members_.size(); ++rank)
        reap(rank);
}

std::vector<size_t> Crew::wait_for(const std::vector<bool> &done) const {
    std::vector<pollfd> inputs;
    for (size_t rank = 0; rank < members_.size(); ++rank)
        inputs.push_back({done[rank] ? -1 : members_[rank].socket, POLLIN, 0});
    inputs.push_back({signals_.fd(), POLLIN, 0});
    if (poll(inputs.data(), inputs.size(), -1) < 0 && errno != EINTR)
        throw std::runtime_error(std::string("poll for ") + name_ + ": " + std::strerror(errno));
    signals_.check();
    std::vector<size_t> ready;
    for (size_t rank = 0; rank < members_.size(); ++rank)
        if (inputs[rank].revents) ready.push_back(rank);
    return ready;
}

std::vector<Totals> Crew::run(const Order &order, ProgressLine &progress) {
    for (const Member &member : members_)
        send(member.socket, &order, sizeof order, MSG_NOSIGNAL); // one that is gone shows below
    std::vector<Totals> totals(members_.size());
    std::vector<bool> done(members_.size());
    while (std::find(done.begin(), done.end(), false) != done.end()) {
        for (size_t rank : wait_for(done)) {
            Report report;
            if (!hear(members_[rank].socket, report)) {
                const std::string how = reap(rank);
                fail(rank, how.empty() ? "left before its work was done" : how);
            }
            if (report.kind == Kind::Failed) fail(rank, report.text);
            totals[rank] = report.totals;
            done[rank] = report.kind == Kind::Done;
        }
        int64_t rows = 0;
        for (const Totals &each : totals)
            rows += each.rows;
        progress.show(rows);
    }
    return totals;
}

void Crew::finish() {
    for (const Member &member : members_)
        shutdown(member.socket, SHUT_WR); // no more orders
    std::vector<bool> done(members_.size());
    while (std::find(done.begin(), done.end(), false) != done.end()) {
        for (size_t rank : wait_for(done)) {
            Report report;
            if (hear(members_[rank].socket, report)) fail(rank, report.text);
            if (const std::string how = reap(rank); !how.empty()) fail(rank, how);
            done[rank] = true;
        }
    }
}

void Crew::fail(size_t rank, const std::string &what) const {
    throw std::runtime_error(name_ + " " + std::to_string(rank + 1) + ": " + what);
}

std::string Crew::reap(size_t rank) {
    Member &member = members_[rank];
    if (member.pid <= 0) return "";
    int status = 0;
    while (waitpid(member.pid, &status, 0) < 0 && errno == EINTR) {
    }
    close(member.socket);
    const std::string process = "its process " + std::to_string(member.pid);
    member = {0, -1};
    if (WIFSIGNALED(status))
        return process + " was killed by signal " + std::to_string(WTERMSIG(status)) + " (" +
               strsignal(WTERMSIG(status)) + ")";
    return WEXITSTATUS(status) ? process + " ended with status " + std::to_string(WEXITSTATUS(status)) : "";
}

} // namespace demo
