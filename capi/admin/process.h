// SPDX-License-Identifier: Apache-2.0
// Child processes of cache_admin: the server program and what --run runs.
#pragma once

#include "capi/admin/failure.h"

#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace admin {

struct CannotRun : Failure {
    CannotRun(const std::string &program, int error);
    int error; // errno of exec
};

// Starts words[0] (looked for in PATH if it holds no '/') with the arguments words[1..]. `prepare` runs in the child
// before the program does. Returns its pid; throws CannotRun.
pid_t start_process(const std::vector<std::string> &words, const std::function<void()> &prepare = {});

// In a child that becomes a server: it outlives its caller and must not keep the caller's pipes and locks open.
void leave_descriptors_behind();

int wait_process(pid_t pid); // the status as waitpid gives it

// The status in a shell's numbers: what the program returned, or 128 + the signal that ended it.
int shell_status(int wait_status);

// A file without a name that takes a child's output.
class Capture {
  public:
    Capture();
    ~Capture();
    Capture(const Capture &) = delete;
    Capture &operator=(const Capture &) = delete;
    void redirect(int fd) const; // in the child: what goes to fd goes into the file
    std::string text() const;    // without line ends at its end
    void end() const;            // what comes from now on is dropped

  private:
    int fd_;
};

// The server program: beside this one, else $LIBCACHE_SERVER, else to be looked for in PATH.
std::string server_program();

} // namespace admin
