// SPDX-License-Identifier: Apache-2.0
#include "capi/examples/mnist_demo_signals.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <sys/signalfd.h>
#include <unistd.h>

namespace demo {

Signals::Signals() {
    sigset_t caught;
    sigemptyset(&caught);
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT})
        sigaddset(&caught, signal);
    sigprocmask(SIG_BLOCK, &caught, &mask_before_);
    fd_ = signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd_ < 0) throw std::runtime_error(std::string("signalfd: ") + std::strerror(errno));
}

Signals::~Signals() {
    close(fd_);
    sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

void Signals::check() const {
    signalfd_siginfo info;
    if (read(fd_, &info, sizeof info) == sizeof info) throw Interrupted{static_cast<int>(info.ssi_signo)};
}

} // namespace demo
