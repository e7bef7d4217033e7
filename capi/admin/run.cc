// SPDX-License-Identifier: Apache-2.0
// --run: a server and a session for one program: one line for a batch job.
#include "capi/admin/commands.h"

#include "capi/admin/connection.h"
#include "capi/admin/own_server.h"
#include "capi/admin/process.h"

#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <sys/wait.h>

namespace admin {
namespace {

constexpr int kSignalBase = 128;
constexpr int kNotExecutable = 126;
constexpr int kNotFound = 127;

pid_t start_program(const Arguments &arguments, const Signals &signals, unsigned port, uint32_t session_id) {
    return start_process(arguments.program, [&] {
        signals.restore_in_child();
        setenv("LIBCACHE_PORT", std::to_string(port).c_str(), 1);
        setenv("LIBCACHE_SESSION", std::to_string(session_id).c_str(), 1);
        setenv("SESSION_ID", std::to_string(session_id).c_str(), 1); // what scripts for MindSpore read
    });
}

// Passes signals on until the program has ended; returns its status as waitpid gives it.
int accompany(pid_t program, const Signals &signals, OwnServer &server) {
    bool told = false;
    for (;;) {
        const auto signal = signals.next(-1);
        if (!signal) continue;
        if (signal->ssi_signo != SIGCHLD) {
            if (sent_by_process(*signal)) kill(program, static_cast<int>(signal->ssi_signo));
            continue;
        }
        int status = 0;
        if (waitpid(program, &status, WNOHANG) == program) return status;
        if (!told && server.has_ended()) {
            std::cerr << "The server on port " << server.port()
                      << " has ended before the program: no more rows are stored, those that are open stay readable.\n";
            told = true;
        }
    }
}

} // namespace

int run(const Arguments &arguments) {
    const Signals signals;
    OwnServer server(arguments, signals);
    if (server.interrupted()) return kSignalBase + *server.interrupted();
    const uint32_t session_id = Connection(server.port()).make_session(arguments.session_name);
    while (const auto signal = signals.next(0)) // the program is not there yet: its signals are ours
        if (signal->ssi_signo != SIGCHLD) return kSignalBase + static_cast<int>(signal->ssi_signo);
    try {
        const pid_t program = start_program(arguments, signals, server.port(), session_id);
        return shell_status(accompany(program, signals, server));
    } catch (const CannotRun &error) {
        std::cerr << error.what() << '\n';
        return error.error == ENOENT ? kNotFound : kNotExecutable;
    }
}

} // namespace admin
