// SPDX-License-Identifier: Apache-2.0
#include "capi/admin/connection.h"

#include "capi/admin/failure.h"

namespace admin {
namespace {

// Called by the library, from C: nothing may be thrown through it.
int collect(const cache_list_entry *entry, void *argument) noexcept {
    auto &[sessions, destroyed] = *static_cast<Listing *>(argument);
    if (entry->stats && entry->stats->state == 2) {
        destroyed.push_back({*entry->stats, {entry->pids, entry->pids + entry->n_pids}});
        return 0;
    }
    if (sessions.empty() || sessions.back().id != entry->session_id)
        sessions.push_back(
            {entry->session_id, entry->session_name, (entry->session_flags & CACHE_SESSION_KEEP) != 0, {}, {}});
    if (!entry->stats) return 0;
    sessions.back().caches.push_back(*entry->stats);
    sessions.back().pids.emplace_back(entry->pids, entry->pids + entry->n_pids);
    return 0;
}

void note_fault(const char *fault, void *faults) noexcept {
    static_cast<std::vector<std::string> *>(faults)->emplace_back(fault);
}

} // namespace

Connection::Connection(unsigned port) : port_(port) {
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.port = port;
    check(cache_connect(&options, &client_));
}

uint32_t Connection::make_session(const std::string &name, bool keep) {
    cache_session_options options = CACHE_SESSION_OPTIONS_INIT;
    options.flags = keep ? CACHE_SESSION_KEEP : 0;
    if (!name.empty()) options.name = name.c_str();
    uint32_t session_id = 0;
    check(cache_session_create_with(client_, &options, &session_id));
    return session_id;
}

void Connection::destroy_session(uint32_t session_id) {
    check(cache_session_destroy(client_, session_id));
}

void Connection::destroy_cache(uint32_t session_id, uint32_t cache_id) {
    check(cache_destroy(client_, session_id, cache_id));
}

Listing Connection::list() {
    Listing listing;
    check(cache_list(client_, collect, &listing));
    return listing;
}

cache_server_stats Connection::server_info() {
    cache_server_stats stats{};
    stats.size = sizeof stats;
    check(cache_server_info(client_, &stats));
    return stats;
}

std::optional<std::vector<std::string>> Connection::faults(uint32_t session_id, uint32_t cache_id, bool rows) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.flags = CACHE_READ_ONLY | CACHE_NO_CREATE;
    cache *handle = nullptr;
    std::vector<std::string> faults;
    const int opened = cache_open(client_, session_id, cache_id, &options, &handle);
    if (opened == CACHE_ENOTFOUND || opened == CACHE_ENOSESSION || opened == CACHE_EGONE) return std::nullopt;
    check(opened);
    const int64_t count = cache_check(handle, rows ? CACHE_CHECK_ROWS : 0, note_fault, &faults);
    const std::string why = cache_last_error();
    cache_close(handle);
    if (count == CACHE_EGONE) return std::nullopt;
    if (count < 0) throw Failure(why, static_cast<int>(count));
    return faults;
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
