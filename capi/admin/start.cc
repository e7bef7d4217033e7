// SPDX-License-Identifier: Apache-2.0
// --start: runs cache_server, which returns when its daemon serves, or with the reason why it does not.
#include "capi/admin/commands.h"

#include "capi/admin/connection.h"
#include "capi/admin/process.h"

#include <cstring>
#include <iostream>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

namespace admin {
namespace {

// The default port is left out: only then may the server do without its TCP port where another user has that.
std::vector<std::string> server_words(const Arguments &arguments) {
    std::vector<std::string> words = {server_program()};
    if (arguments.port_given) words.insert(words.end(), {"--port", std::to_string(arguments.port)});
    words.insert(words.end(), arguments.server_options.begin(), arguments.server_options.end());
    return words;
}

int status_of(int wait_status) {
    if (!WIFSIGNALED(wait_status)) return WEXITSTATUS(wait_status);
    throw Failure("The server program was ended by signal " + std::to_string(WTERMSIG(wait_status)) + " (" +
                  strsignal(WTERMSIG(wait_status)) + ") before it served.");
}

nlohmann::ordered_json warnings_in(const std::string &text) {
    static const std::string kMark = "WARNING: ";
    auto warnings = nlohmann::ordered_json::array();
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
        if (line.starts_with(kMark)) warnings.push_back(line.substr(kMark.size()));
    return warnings;
}

int start_for_json(const Arguments &arguments, Output &output) {
    output.object()["port"] = arguments.port;
    const Capture out, err;
    const pid_t pid = start_process(server_words(arguments), [&] {
        out.redirect(STDOUT_FILENO);
        err.redirect(STDERR_FILENO);
        leave_descriptors_behind();
    });
    const int status = status_of(wait_process(pid));
    if (status != 0) throw Failure(err.text());
    if (const std::string text = err.text(); !text.empty()) std::cerr << text << '\n';
    const cache_server_stats server = Connection(arguments.port).server_info();
    auto &object = output.object();
    object["pid"] = server.keeper_pid;
    object["tcp_port"] = server.tcp_port ? nlohmann::ordered_json(server.tcp_port) : nlohmann::ordered_json();
    object["socket_path"] = server.socket_path;
    object["log_path"] = server.log_path;
    object["warnings"] = warnings_in(out.text());
    return 0;
}

} // namespace

int start(const Arguments &arguments, Output &output) {
    if (output.json()) return start_for_json(arguments, output);
    return status_of(wait_process(start_process(server_words(arguments), leave_descriptors_behind)));
}

} // namespace admin
