// SPDX-License-Identifier: Apache-2.0
#include "core/server/keeper.h"

#include "core/common/error.h"
#include "core/common/log.h"
#include "core/common/pause.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace libcache {
namespace {

constexpr int64_t kMs = 1'000'000;
// kStableAfter: a broker that lived so long starts the back-off anew.
#ifndef LIBCACHE_PAUSE_POINTS
constexpr int64_t kFirstPause = 50 * kMs, kLongestPause = 5'000 * kMs, kStableAfter = 10'000 * kMs;
#else // the crash programs kill one broker after the other
constexpr int64_t kFirstPause = 5 * kMs, kLongestPause = 10 * kMs, kStableAfter = 500 * kMs;
#endif
constexpr int64_t kEndPatience = 10'000 * kMs;

std::string describe(int status) {
    if (WIFSIGNALED(status))
        return "was killed by signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
    return "ended with status " + std::to_string(WEXITSTATUS(status));
}

} // namespace

Keeper::Keeper(std::string socket_path, RunBroker run_broker, Report report)
    : socket_path_(std::move(socket_path)), run_broker_(std::move(run_broker)), report_(std::move(report)) {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD})
        sigaddset(&set, signal);
    signals_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

void Keeper::hold(HeldKind kind, uint64_t id, Fd fd) {
    held_[{kind, id}].fd[0] = std::move(fd);
}

bool Keeper::start_broker() {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        log_line(LogLevel::Error, "keeper: socketpair failed: %s", strerror(errno));
        return false;
    }
    Fd ours(pair[0]), theirs(pair[1]);
    const pid_t child = fork();
    if (child < 0) {
        log_line(LogLevel::Error, "keeper: fork failed: %s", strerror(errno));
        return false;
    }
    if (child == 0) {
        // The broker gets what it needs over the link, the first one as any later one: one way to take over.
        held_.clear();
        signals_.reset();
        ours.reset();
        report_ = nullptr; // closes its end of the report
        prctl(PR_SET_NAME, "cache_broker");
        _exit(run_broker_(std::move(theirs)));
    }
    LIBCACHE_PAUSE("keeper.start.1");
    broker_ = child;
    started_ns_ = now_ns();
    link_ = std::move(ours);
    log_line(LogLevel::Info, "keeper: broker started as process %d", child);
    return true;
}

// Only after waitpid() returned it, and after all it had sent was read: no deposit of the dead may come later.
void Keeper::broker_has_died(int status) {
    while (link_ && read_link(true)) {
    }
    LIBCACHE_PAUSE("keeper.died.1");
    link_.reset();
    broker_ = -1;
    ended_well_ = WIFEXITED(status) && WEXITSTATUS(status) == kBrokerEnded;
    if (report_) // it never served: nobody is waiting for another try but the one who started us
        report("the server's broker " + describe(status) + " before it served");
    else if (!ended_well_ && kill_at_ns_ == 0)
        return plan_restart(status);
    ending_ = true;
}

void Keeper::plan_restart(int status) {
    if (now_ns() - started_ns_ > kStableAfter) pause_ns_ = 0;
    log_line(LogLevel::Error, "keeper: broker %s; the next starts in %lld ms", describe(status).c_str(),
             static_cast<long long>(pause_ns_ / kMs));
    start_at_ns_ = now_ns() + pause_ns_; // from that line on, so that the log shows no earlier start
    pause_ns_ = std::min(std::max(2 * pause_ns_, kFirstPause), kLongestPause);
}

void Keeper::read_signals() {
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
        if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT) {
            log_line(LogLevel::Info, "keeper: signal %u: ending", info.ssi_signo);
            if (broker_ < 0) {
                ending_ = true;
            } else if (kill_at_ns_ == 0) {
                kill(broker_, SIGTERM);
                kill_at_ns_ = now_ns() + kEndPatience;
            }
        }
    }
    int status;
    if (broker_ > 0 && waitpid(broker_, &status, WNOHANG) == broker_) broker_has_died(status);
}

// One message. False when there is no more just now, or for good.
bool Keeper::read_link(bool wait_for_end) {
    LinkMessage message;
    Fd fds[2];
    int n_fds = 2;
    const Io io = receive_packet(link_.get(), &message, sizeof message, fds, &n_fds, nullptr, false);
    if (io == Io::WouldBlock) return false;
    if (io == Io::Done && message.magic == kLinkMagic) {
        handle(message, fds, n_fds);
        return true;
    }
    link_.reset();
    // A living broker without a link cannot be served: it must be gone before another may start.
    if (!wait_for_end && broker_ > 0) kill(broker_, SIGKILL);
    return false;
}

void Keeper::handle(LinkMessage &message, Fd *fds, int n_fds) {
    switch (message.type) {
    case LinkType::Deposit: return deposit(message, fds, n_fds);
    case LinkType::Forget: return forget(message.entry[0]);
    case LinkType::Next: return hand_over(message.entry[0].id);
    case LinkType::Serving: return report("");
    default: log_line(LogLevel::Error, "keeper: message of unknown type %u", static_cast<unsigned>(message.type));
    }
}

void Keeper::deposit(const LinkMessage &message, Fd *fds, int n_fds) {
    if (n_fds < 1) {
        log_line(LogLevel::Error, "keeper: a deposit without a descriptor");
        return; // no Ack: nobody learns of it
    }
    Held &held = held_[{message.entry[0].kind, message.entry[0].id}];
    for (int i = 0; i < n_fds; ++i)
        held.fd[i] = std::move(fds[i]);
    LIBCACHE_PAUSE("keeper.deposit.1");
    answer(LinkType::Ack);
}

void Keeper::forget(const LinkEntry &entry) {
    held_.erase({entry.kind, entry.id});
    LIBCACHE_PAUSE("keeper.forget.1");
    answer(LinkType::Ack);
}

void Keeper::hand_over(uint64_t position) {
    LIBCACHE_PAUSE("keeper.batch.1");
    LinkMessage message;
    message.type = LinkType::Batch;
    int fds[kMaxFds], n_fds = 0;
    auto at = held_.begin();
    std::advance(at, static_cast<long>(std::min<uint64_t>(position, held_.size())));
    for (; at != held_.end() && message.count < kLinkEntries; ++at) {
        const Held &held = at->second;
        message.entry[message.count++] = {at->first.first, static_cast<uint32_t>(held.count()), at->first.second};
        for (int i = 0; i < held.count(); ++i)
            fds[n_fds++] = held.fd[i].get();
    }
    if (send_packet(link_.get(), &message, sizeof message, fds, n_fds, false, false) != Io::Done)
        log_line(LogLevel::Error, "keeper: handing over %d descriptors failed: %s", n_fds, strerror(errno));
}

void Keeper::answer(LinkType type) {
    LinkMessage message;
    message.type = type;
    // The link holds far more than one answer, and the broker waits for each: this cannot block.
    if (send_packet(link_.get(), &message, sizeof message, nullptr, 0, false, false) != Io::Done)
        log_line(LogLevel::Error, "keeper: answering the broker failed: %s", strerror(errno));
}

void Keeper::report(const std::string &failure) {
    if (!report_) return;
    const Report once = std::move(report_);
    report_ = nullptr;
    once(failure);
}

int Keeper::timeout_ms() const {
    const int64_t at = broker_ < 0 ? start_at_ns_ : kill_at_ns_;
    if (at == 0) return -1;
    return static_cast<int>(std::clamp<int64_t>((at - now_ns()) / kMs + 1, 0, 60'000));
}

int Keeper::run() {
    start_at_ns_ = now_ns();
    while (!ending_) {
        if (broker_ < 0 && now_ns() >= start_at_ns_ && !start_broker()) {
            if (report_) return report("no process could be started: see the log"), 1;
            start_at_ns_ = now_ns() + kLongestPause;
        }
        if (broker_ > 0 && kill_at_ns_ != 0 && now_ns() >= kill_at_ns_) {
            log_line(LogLevel::Error, "keeper: broker %d did not end in time and is killed", broker_);
            kill(broker_, SIGKILL);
            while (waitpid(broker_, nullptr, 0) < 0 && errno == EINTR) {
            }
            ending_ = true;
            continue;
        }
        pollfd entries[2] = {{signals_.get(), POLLIN, 0}, {link_ ? link_.get() : -1, POLLIN, 0}};
        if (poll(entries, 2, timeout_ms()) < 0 && errno != EINTR)
            log_line(LogLevel::Error, "keeper: poll failed: %s", strerror(errno));
        log_reopen(); // rarely here, so that what follows is read by somebody
        if (entries[1].revents != 0) read_link(false);
        read_signals();
    }
    // A broker that ended well has removed it, and another server may have made its own by now.
    if (!ended_well_) unlink(socket_path_.c_str());
    log_line(LogLevel::Info, "keeper: ended");
    return ended_well_ ? 0 : 1;
}

} // namespace libcache
