// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and its like as something to look for. While a Signals lives, SIGINT, SIGTERM, SIGHUP and SIGQUIT wait until
// somebody asks; processes forked meanwhile do not see them. Used by the main thread.
#pragma once

#include <csignal>

namespace perf {

class Signals {
  public:
    Signals(); // throws std::runtime_error
    ~Signals();
    Signals(const Signals &) = delete;
    Signals &operator=(const Signals &) = delete;

    int fd() const { return fd_; } // readable when one came, for poll()
    int seen();                    // the first that came so far; 0: none

  private:
    int fd_, first_ = 0;
    sigset_t mask_before_;
};

} // namespace perf
