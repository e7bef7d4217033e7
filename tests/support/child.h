// SPDX-License-Identifier: Apache-2.0
// Forked children of a test. In them a test must not use Criterion's assertions: a body says what went wrong, "" if
// nothing did.
#pragma once

#include "tests/support/session.h"

#include <csignal>
#include <functional>
#include <string>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

inline pid_t in_child(pid_t forked, const std::function<std::string()> &body) {
    if (forked != 0) return forked;
    alarm(100); // a child that hangs must not outlive the test
    const std::string wrong = body();
    if (!wrong.empty()) fprintf(stderr, "child: %s\n", wrong.c_str());
    _exit(wrong.empty() ? 0 : 1);
}

inline pid_t spawn(const std::function<std::string()> &body) {
    return in_child(fork(), body);
}

// Past the handlers of fork(), as a runtime does that clones by itself.
inline pid_t spawn_raw(const std::function<std::string()> &body) {
    return in_child(static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)), body);
}

// "" if the child ended well.
inline std::string outcome(pid_t pid) {
    int status = 0;
    if (waitpid(pid, &status, 0) != pid) return "waitpid failed";
    return status == 0 ? "" : "a child ended with wait status " + std::to_string(status);
}

inline void join(pid_t pid) {
    RIGHT(outcome(pid));
}
