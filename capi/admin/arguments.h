// SPDX-License-Identifier: Apache-2.0
// The command line of cache_admin: exactly one command, with options, checked before anything is done.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace admin {

enum class Command {
    None,
    Start,
    Stop,
    GenerateSession,
    DestroySession,
    DestroyCache,
    ListSessions,
    ServerInfo,
    Check,
    Run,
    Version,
    Help
};

struct Arguments {
    Command command = Command::None;
    bool json = false;
    unsigned port = 0;                       // 0 with Command::Run: a free one
    bool port_given = false;                 // in the command line or the environment
    std::vector<uint32_t> ids;               // DestroySession: sessions; DestroyCache: a session and a cache; Check:
                                             // nothing, a session, or both
    bool rows = false;                       // Check: each row too
    std::string session_name;                // "" without --name
    bool keep = false;                       // GenerateSession: its caches make no room for others
    std::vector<std::string> server_options; // for cache_server, the port left out
    std::vector<std::string> program;        // Run: what to run, with its arguments
};

// `words` is the command line without the program's name. Complaints about the environment that an option overrides go
// to stderr. Throws ArgumentError.
Arguments parse_arguments(const std::vector<std::string> &words);

extern const char *const kHelp;

} // namespace admin
