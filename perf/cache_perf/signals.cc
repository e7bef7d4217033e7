// SPDX-License-Identifier: Apache-2.0
#include "perf/cache_perf/signals.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <sys/signalfd.h>
#include <unistd.h>

namespace perf {

Signals::Signals() {
    sigset_t caught;
    sigemptyset(&caught);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT})
        sigaddset(&caught, signal);
    sigprocmask(SIG_BLOCK, &caught, &mask_before_);
    fd_ = signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd_ < 0) throw std::runtime_error(std::string("signalfd: ") + strerror(errno));
}

// Those that came are taken out first: what they asked for has been done.
Signals::~Signals() {
    seen();
    close(fd_);
    sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

int Signals::seen() {
    for (signalfd_siginfo info; read(fd_, &info, sizeof info) == sizeof info;)
        if (first_ == 0) first_ = static_cast<int>(info.ssi_signo);
    return first_;
}

} // namespace perf
