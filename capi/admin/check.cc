// SPDX-License-Identifier: Apache-2.0
// --check: what must hold in every cache of the server, of a session, or in one cache.
#include "capi/admin/commands.h"
#include "capi/admin/connection.h"

namespace admin {
namespace {

// The caches that the command names, by session. An id that is unknown is a failure.
std::vector<Session> chosen(Connection &connection, const Arguments &arguments) {
    std::vector<Session> sessions = connection.list().sessions;
    if (arguments.ids.empty()) return sessions;
    const uint32_t session_id = arguments.ids[0];
    std::erase_if(sessions, [&](const Session &session) { return session.id != session_id; });
    const std::string session = "session " + std::to_string(session_id);
    if (sessions.empty()) throw Failure("There is no " + session + ": see --list_sessions.", CACHE_ENOSESSION);
    if (arguments.ids.size() < 2) return sessions;
    const uint32_t cache_id = arguments.ids[1];
    std::erase_if(sessions[0].caches, [&](const cache_stats &stats) { return stats.cache_id != cache_id; });
    if (sessions[0].caches.empty())
        throw Failure("There is no cache " + std::to_string(cache_id) + " in " + session + ": see --list_sessions.",
                      CACHE_ENOTFOUND);
    return sessions;
}

} // namespace

int check(const Arguments &arguments, Output &output) {
    output.object() = {{"port", arguments.port}, {"right", true}, {"caches", nlohmann::ordered_json::array()}};
    Connection connection(arguments.port);
    size_t n_caches = 0, n_faults = 0;
    for (const Session &session : chosen(connection, arguments))
        for (const cache_stats &stats : session.caches) {
            const auto faults = connection.faults(session.id, stats.cache_id, arguments.rows);
            if (!faults) continue; // destroyed meanwhile
            n_caches++;
            n_faults += faults->size();
            output.object()["caches"].push_back(
                {{"session_id", session.id}, {"cache_id", stats.cache_id}, {"faults", *faults}});
            for (const std::string &fault : *faults)
                output.line("Session " + std::to_string(session.id) + ", cache " + std::to_string(stats.cache_id) +
                            ": " + fault);
        }
    output.object()["right"] = n_faults == 0;
    output.line("Caches checked for server on port " + std::to_string(arguments.port) + ": " +
                std::to_string(n_caches) + ", faults: " + std::to_string(n_faults));
    return n_faults == 0 ? 0 : 1;
}

} // namespace admin
