// SPDX-License-Identifier: Apache-2.0
// Leaving the terminal, and telling whoever started us how it went. Used by main alone.
#pragma once

#include "core/control/socket.h"

#include <functional>
#include <string>

namespace libcache {

// How the start went: once, in a few lines.
class StartReport {
  public:
    explicit StartReport(Fd pipe = Fd()) : pipe_(std::move(pipe)) {} // no pipe: straight to stdout and stderr
    void success(const std::string &text) { say('+', text); }
    void failure(const std::string &text) { say('-', text); }

  private:
    Fd pipe_;
    void say(char kind, const std::string &text);
};

// Runs `serve` in a daemon (a session of its own, no standard streams). The calling process waits for the daemon's
// report, prints it (success on stdout, failure on stderr), and returns its exit status: 0 or 1. The daemon's end
// without a report is a failure, too. In the daemon it does not return.
int run_as_daemon(const std::function<int(StartReport report)> &serve);

} // namespace libcache
