// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and its like as an exception, so that every object on the way out cleans up after itself. While a Signals
// lives, SIGINT, SIGTERM, SIGHUP and SIGQUIT wait until somebody asks; children made meanwhile do not see them.
#pragma once

#include <csignal>

namespace demo {

struct Interrupted {
    int signal;
};

class Signals {
  public:
    Signals();
    ~Signals(); // a signal that came too late to be asked for acts now
    Signals(const Signals &) = delete;
    Signals &operator=(const Signals &) = delete;
    int fd() const { return fd_; } // readable when one came, for poll()
    void check() const;            // throws Interrupted if one came

  private:
    int fd_;
    sigset_t mask_before_;
};

} // namespace demo
