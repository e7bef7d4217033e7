// SPDX-License-Identifier: Apache-2.0
#include "perf/support/in_child.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace perf {

InChild::InChild() {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD})
        sigaddset(&signals_, signal);
    sigprocmask(SIG_BLOCK, &signals_, &before_);
}

int InChild::run(const std::function<int()> &work) {
    const pid_t parent = getpid(), child = fork();
    if (child < 0) throw std::runtime_error(std::string("fork: ") + strerror(errno));
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        sigprocmask(SIG_SETMASK, &before_, nullptr);
        int status = 1;
        try {
            status = work();
        } catch (const std::exception &error) {
            fprintf(stderr, "%s\n", error.what());
        }
        fflush(nullptr);
        _exit(status); // servers and folders are the parent's to end
    }
    for (;;) {
        int status = 0, signal = 0;
        if (waitpid(child, &status, WNOHANG) == child)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        sigwait(&signals_, &signal);
        if (signal != SIGCHLD) kill(child, SIGKILL);
    }
}

} // namespace perf
