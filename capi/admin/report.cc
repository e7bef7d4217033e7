// SPDX-License-Identifier: Apache-2.0
#include "capi/admin/report.h"

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <sstream>

namespace admin {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kNameWidth = 20;
constexpr int kValueWidth = 50;

int64_t mean_row_bytes(const cache_stats &stats) {
    if (stats.rows_in_memory == 0) return 0;
    const int64_t mean = stats.row_bytes / stats.rows_in_memory;
    return stats.row_bytes > 0 ? std::max<int64_t>(mean, 1) : mean;
}

std::string columns(const std::vector<std::string> &fields) {
    static constexpr int kWidths[] = {12, 12, 12, 12, 16, 10};
    std::ostringstream line;
    for (size_t i = 0; i < fields.size(); ++i)
        line << std::setw(kWidths[i]) << fields[i];
    return line.str();
}

std::string count(int64_t number) {
    return number == 0 ? "n/a" : std::to_string(number);
}

std::string cache_line(uint32_t session_id, const cache_stats &stats) {
    // Which NUMA node a row lies on is not known: the column stays for those who cut the line into columns.
    return columns({std::to_string(session_id), std::to_string(stats.cache_id), count(stats.rows_in_memory),
                    count(stats.rows_spilled), count(mean_row_bytes(stats)), "n/a"});
}

Json cache_json(const cache_stats &stats, const std::vector<int32_t> &pids) {
    return {{"cache_id", stats.cache_id},
            {"label", stats.label},
            {"tag", stats.tag},
            {"rows_in_memory", stats.rows_in_memory},
            {"rows_spilled", stats.rows_spilled},
            {"row_bytes", stats.row_bytes},
            {"mean_row_bytes", mean_row_bytes(stats)},
            {"limit_bytes", stats.limit_bytes},
            {"charged_bytes", stats.charged_bytes},
            {"granted_bytes", stats.granted_bytes},
            {"used_bytes", stats.used_bytes},
            {"dead_bytes", stats.dead_bytes},
            {"index_bytes", stats.index_bytes},
            {"free_bytes", stats.free_bytes},
            {"largest_free_bytes", stats.largest_free_bytes},
            {"index_levels", stats.index_levels},
            {"layouts", stats.layouts},
            {"writers", stats.writers},
            {"readers", stats.readers},
            {"generation", stats.generation},
            {"huge_pages", stats.huge_pages != 0},
            {"populated_bytes", stats.populated_bytes},
            {"huge_page_bytes", stats.huge_page_bytes},
            {"spilled_bytes", stats.spilled_bytes},
            {"spill_file_bytes", stats.spill_file_bytes},
            {"idle_ms", stats.idle_ms},
            {"state", stats.state == 2 ? "destroyed" : "live"},
            {"kept", stats.kept != 0},
            {"pids", pids}};
}

std::string rule() {
    return std::string(kNameWidth + kValueWidth, '-');
}

std::string setting(const std::string &name, const std::string &value) {
    std::ostringstream line;
    line << std::left << std::setw(kNameWidth) << name << std::setw(kValueWidth) << value;
    return line.str();
}

std::string mebibytes(int64_t bytes) {
    char text[32];
    snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
    return text;
}

void server_settings(const cache_server_stats &server, Output &output) {
    output.line("Cache Server Configuration: ");
    output.line(rule());
    output.line(setting("config name", "value"));
    output.line(rule());
    output.line(setting("hostname", server.hostname));
    output.line(setting("port", std::to_string(server.port)));
    output.line(setting("number of workers", std::to_string(server.workers)));
    output.line(setting("log level", std::to_string(server.log_level)));
    output.line(setting("spill dir", *server.spill_dir ? server.spill_dir : "None"));
    // Beyond the original's lines, which end here.
    output.line(
        setting("tcp port", server.tcp_port ? std::to_string(server.tcp_port) : "None: another user's server has it"));
    output.line(
        setting("memory", mebibytes(server.memory_used_bytes) + " used of " + mebibytes(server.memory_limit_bytes)));
    output.line(setting("headroom",
                        mebibytes(server.headroom_bytes) + " of " + mebibytes(server.available_bytes) + " available"));
    if (*server.spill_dir)
        output.line(
            setting("spilled", mebibytes(server.spill_used_bytes) +
                                   (server.spill_limit_bytes ? " of " + mebibytes(server.spill_limit_bytes) : "")));
    output.line(setting("backing", server.huge_pages ? "huge pages" : "memfd"));
    output.line(setting("backing reason", server.backing_reason));
    output.line(setting("process id", std::to_string(server.keeper_pid)));
    output.line(
        setting("supervised", server.supervised ? "yes" : "no: the keeper has ended, nobody restarts the server"));
    output.line(setting("log file", server.log_path));
    output.line(rule());
}

Json server_json(const cache_server_stats &server) {
    std::ostringstream version;
    version << server.version_major << '.' << server.version_minor << '.' << server.version_patch;
    return {{"hostname", server.hostname},
            {"port", server.port},
            {"tcp_port", server.tcp_port ? Json(server.tcp_port) : Json()},
            {"workers", server.workers},
            {"log_level", server.log_level},
            {"spill_dir", *server.spill_dir ? Json(server.spill_dir) : Json()},
            {"backing", server.huge_pages ? "huge" : "memfd"},
            {"backing_reason", server.backing_reason},
            {"memory_limit_bytes", server.memory_limit_bytes},
            {"memory_used_bytes", server.memory_used_bytes},
            {"headroom_bytes", server.headroom_bytes},
            {"available_bytes", server.available_bytes},
            {"spill_limit_bytes", server.spill_limit_bytes},
            {"spill_used_bytes", server.spill_used_bytes},
            {"sessions", server.sessions},
            {"caches", server.caches},
            {"clients", server.clients},
            {"messages", server.messages},
            {"generation", server.generation},
            {"supervised", server.supervised != 0},
            {"keeper_pid", server.keeper_pid},
            {"broker_pid", server.broker_pid},
            {"version", version.str()},
            {"server_path", server.server_path},
            {"socket_path", server.socket_path},
            {"log_path", server.log_path}};
}

// What is destroyed stands apart: scripts take the lines of the table for what is there.
void report_destroyed(const std::vector<Destroyed> &destroyed, Output &output) {
    Json &list = output.object()["destroyed"] = Json::array();
    for (const Destroyed &cache : destroyed) {
        std::string line = "Destroyed, but still mapped: cache " + std::to_string(cache.stats.cache_id) +
                           " of session " + std::to_string(cache.stats.session_id) + ", " +
                           mebibytes(cache.stats.charged_bytes) + ", by process";
        for (const int32_t pid : cache.pids)
            line += " " + std::to_string(pid);
        output.line(line);
        list.push_back({{"session_id", cache.stats.session_id},
                        {"cache_id", cache.stats.cache_id},
                        {"label", cache.stats.label},
                        {"tag", cache.stats.tag},
                        {"charged_bytes", cache.stats.charged_bytes},
                        {"pids", cache.pids}});
    }
}

} // namespace

void report_sessions(const Listing &listing, Output &output) {
    const std::vector<Session> &sessions = listing.sessions;
    if (sessions.empty())
        output.line("No active sessions.");
    else
        output.line(columns({"Session", "Cache Id", "Mem cached", "Disk cached", "Avg cache size", "Numa hit"}));
    Json &list = output.object()["sessions"] = Json::array();
    for (const Session &session : sessions) {
        Json caches = Json::array();
        for (const cache_stats &stats : session.caches) {
            output.line(cache_line(session.id, stats));
            caches.push_back(cache_json(stats, session.pids.at(caches.size())));
        }
        if (session.caches.empty())
            output.line(columns({std::to_string(session.id), "n/a", "n/a", "n/a", "n/a", "n/a"}));
        list.push_back(
            {{"session_id", session.id}, {"name", session.name}, {"kept", session.kept}, {"caches", caches}});
    }
    report_destroyed(listing.destroyed, output);
}

void report_server(const cache_server_stats &server, const std::vector<Session> &sessions, Output &output) {
    server_settings(server, output);
    output.object() = server_json(server);
    Json &ids = output.object()["session_ids"] = Json::array();
    std::string line;
    for (const Session &session : sessions) {
        line += std::to_string(session.id) + "  ";
        ids.push_back(session.id);
    }
    output.line("Active sessions: ");
    if (sessions.empty()) {
        output.line("No active sessions.");
        return;
    }
    output.line(line);
    output.line("(cache_admin --list_sessions shows what they hold.)");
}

} // namespace admin
