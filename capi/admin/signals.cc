// SPDX-License-Identifier: Apache-2.0
#include "capi/admin/signals.h"

#include "capi/admin/failure.h"

#include <cerrno>
#include <cstring>
#include <poll.h>
#include <unistd.h>

namespace admin {
namespace {

constexpr int kPassedOn[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

bool is_ignored(int number) {
    struct sigaction action {};
    return sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

} // namespace

Signals::Signals() {
    signal(SIGCHLD, SIG_DFL); // inherited SIG_IGN would hide how the program ended
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (const int number : kPassedOn)
        if (!is_ignored(number)) sigaddset(&set, number); // nohup ignores SIGHUP: so it stays
    sigprocmask(SIG_BLOCK, &set, &before_);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd_ < 0) throw Failure(std::string("signalfd: ") + strerror(errno));
}

Signals::~Signals() {
    close(fd_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<signalfd_siginfo> Signals::next(int timeout_ms) const {
    pollfd wait = {fd_, POLLIN, 0};
    poll(&wait, 1, timeout_ms);
    signalfd_siginfo signal;
    if (read(fd_, &signal, sizeof signal) != sizeof signal) return std::nullopt;
    return signal;
}

void Signals::restore_in_child() const {
    sigprocmask(SIG_SETMASK, &before_, nullptr);
}

bool sent_by_process(const signalfd_siginfo &signal) {
    return signal.ssi_code <= 0;
}

} // namespace admin
