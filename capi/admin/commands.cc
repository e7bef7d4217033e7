// SPDX-License-Identifier: Apache-2.0
#include "capi/admin/commands.h"

#include "capi/admin/connection.h"
#include "capi/admin/report.h"

namespace admin {
namespace {

#define ADMIN_TEXT(number)                 #number
#define ADMIN_VERSION(major, minor, patch) ADMIN_TEXT(major) "." ADMIN_TEXT(minor) "." ADMIN_TEXT(patch)
const char *const kVersion = ADMIN_VERSION(CACHE_VERSION_MAJOR, CACHE_VERSION_MINOR, CACHE_VERSION_PATCH);

std::string on_port(const Arguments &arguments) {
    return "server on port " + std::to_string(arguments.port);
}

} // namespace

int stop(const Arguments &arguments, Output &output) {
    output.object() = {{"port", arguments.port}, {"stopped", false}};
    Connection(arguments.port).stop_server();
    output.object()["stopped"] = true;
    output.line("Cache " + on_port(arguments) + " has been stopped successfully.");
    return 0;
}

int generate_session(const Arguments &arguments, Output &output) {
    const uint32_t session_id = Connection(arguments.port).make_session(arguments.session_name, arguments.keep);
    output.object() = {{"port", arguments.port},
                       {"session_id", session_id},
                       {"name", arguments.session_name},
                       {"kept", arguments.keep}};
    output.line("Session created for " + on_port(arguments) + ": " + std::to_string(session_id));
    return 0;
}

// Stops at the first id that is unknown; those before it stay dropped, and have been reported.
int destroy_sessions(const Arguments &arguments, Output &output) {
    output.object()["port"] = arguments.port;
    auto &destroyed = output.object()["destroyed"] = nlohmann::ordered_json::array();
    Connection connection(arguments.port);
    for (const uint32_t session_id : arguments.ids) {
        connection.destroy_session(session_id);
        destroyed.push_back(session_id);
        output.line("Drop session " + std::to_string(session_id) + " successfully for " + on_port(arguments));
    }
    return 0;
}

int destroy_cache(const Arguments &arguments, Output &output) {
    const uint32_t session_id = arguments.ids.at(0);
    const uint32_t cache_id = arguments.ids.at(1);
    output.object() = {
        {"port", arguments.port}, {"session_id", session_id}, {"cache_id", cache_id}, {"destroyed", false}};
    Connection(arguments.port).destroy_cache(session_id, cache_id);
    output.object()["destroyed"] = true;
    output.line("Drop cache " + std::to_string(cache_id) + " of session " + std::to_string(session_id) +
                " successfully for " + on_port(arguments));
    return 0;
}

int list_sessions(const Arguments &arguments, Output &output) {
    output.object()["port"] = arguments.port;
    // Printed before the server is asked, so also when there is none.
    output.line("Listing sessions for " + on_port(arguments));
    output.line("");
    report_sessions(Connection(arguments.port).list(), output);
    return 0;
}

int server_info(const Arguments &arguments, Output &output) {
    Connection connection(arguments.port);
    report_server(connection.server_info(), connection.list().sessions, output);
    return 0;
}

int version(Output &output) {
    output.object() = {{"version", kVersion}, {"library_version", cache_version()}};
    output.line(std::string("cache_admin ").append(kVersion).append(", libcache.so ").append(cache_version()));
    return 0;
}

} // namespace admin
