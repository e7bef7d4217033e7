// SPDX-License-Identifier: Apache-2.0
// The signals that --run passes on, and SIGCHLD, taken in order from a descriptor instead of by handlers.
#pragma once

#include <csignal>
#include <optional>
#include <sys/signalfd.h>

namespace admin {

class Signals {
  public:
    Signals(); // from now on the signals are held back; those that the caller had ignored stay ignored
    ~Signals();
    Signals(const Signals &) = delete;
    Signals &operator=(const Signals &) = delete;

    // The next signal, waited for at most this long; < 0: for ever.
    std::optional<signalfd_siginfo> next(int timeout_ms) const;
    void restore_in_child() const; // a program begins with the signal mask that we began with

  private:
    sigset_t before_;
    int fd_;
};

// From a process, not from the terminal, whose Ctrl-C has reached the program already.
bool sent_by_process(const signalfd_siginfo &signal);

} // namespace admin
