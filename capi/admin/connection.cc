// SPDX-License-Identifier: Apache-2.0
#include "capi/admin/connection.h"

#include "capi/admin/failure.h"

namespace admin {
namespace {

// Called by the library, from C: nothing may be thrown through it.
int collect(const cache_list_entry *entry, void *argument) noexcept {
    auto &sessions = *static_cast<std::vector<Session> *>(argument);
    if (sessions.empty() || sessions.back().id != entry->session_id)
        sessions.push_back({entry->session_id, entry->session_name, {}});
    if (entry->stats) sessions.back().caches.push_back(*entry->stats);
    return 0;
}

} // namespace

Connection::Connection(unsigned port) : port_(port) {
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.port = port;
    check(cache_connect(&options, &client_));
}

uint32_t Connection::make_session(const std::string &name) {
    uint32_t session_id = 0;
    check(name.empty() ? cache_session_create(client_, &session_id)
                       : cache_session_open(client_, name.c_str(), &session_id));
    return session_id;
}

void Connection::destroy_session(uint32_t session_id) {
    check(cache_session_destroy(client_, session_id));
}

void Connection::destroy_cache(uint32_t session_id, uint32_t cache_id) {
    check(cache_destroy(client_, session_id, cache_id));
}

std::vector<Session> Connection::sessions() {
    std::vector<Session> sessions;
    check(cache_list(client_, collect, &sessions));
    return sessions;
}

cache_server_stats Connection::server_info() {
    cache_server_stats stats{};
    stats.size = sizeof stats;
    check(cache_server_info(client_, &stats));
    return stats;
}

void Connection::stop_server() {
    check(cache_server_stop(client_));
}

// Scripts match on the first words. The library's sentence goes on with the reason.
void Connection::check(int result) const {
    if (result >= 0) return;
    const std::string sentence = cache_last_error();
    const std::string no_server =
        "Server on port " + std::to_string(port_) + " is not reachable or has been shutdown already";
    const bool says_so = result != CACHE_ESERVER || sentence.starts_with(no_server);
    throw Failure(says_so ? sentence : no_server + ": " + sentence, result);
}

} // namespace admin
