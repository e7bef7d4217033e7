// SPDX-License-Identifier: Apache-2.0
// cache_admin: the command line of libcache. A client of libcache.h like any other: it includes nothing else of this
// project. stdout carries results only, stderr messages only; the exit status is 0 or 1 (with --run: the program's).
#include "capi/admin/arguments.h"
#include "capi/admin/commands.h"
#include "capi/admin/failure.h"
#include "capi/admin/output.h"

#include <exception>
#include <fcntl.h>
#include <iostream>
#include <unistd.h>

namespace admin {
namespace {

int dispatch(const Arguments &arguments, Output &output) {
    switch (arguments.command) {
    case Command::Start: return start(arguments, output);
    case Command::Stop: return stop(arguments, output);
    case Command::GenerateSession: return generate_session(arguments, output);
    case Command::DestroySession: return destroy_sessions(arguments, output);
    case Command::DestroyCache: return destroy_cache(arguments, output);
    case Command::ListSessions: return list_sessions(arguments, output);
    case Command::ServerInfo: return server_info(arguments, output);
    case Command::Check: return check(arguments, output);
    case Command::Version: return version(output);
    case Command::Run: return run(arguments);
    case Command::Help: std::cout << kHelp; return 0;
    case Command::None: break; // parse_arguments refuses it
    }
    return 1;
}

int perform(const Arguments &arguments) {
    Output output(arguments.json && arguments.command != Command::Help);
    int status = 1;
    try {
        status = dispatch(arguments, output);
    } catch (const Failure &failure) {
        std::cout.flush(); // on a terminal what was done stands above what was not
        std::cerr << failure.what() << '\n';
        output.add_failure(failure);
    }
    output.finish();
    return status;
}

// A closed standard stream would make the next file that is opened take its number. Writing to what stands there now
// fails as it did before.
void fill_closed_streams() {
    int fd;
    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

int main_program(const std::vector<std::string> &words) {
    if (words.empty()) {
        std::cerr << kHelp;
        return 1;
    }
    return perform(parse_arguments(words));
}

} // namespace
} // namespace admin

int main(int argc, char **argv) {
    admin::fill_closed_streams();
    try {
        return admin::main_program({argv + (argc > 0), argv + argc});
    } catch (const std::exception &error) { // ArgumentError, a full stdout, no memory
        std::cerr << error.what() << '\n';
        return 1;
    }
}
