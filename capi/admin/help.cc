// SPDX-License-Identifier: Apache-2.0
// The text of --help. -m and -r work but are left out on purpose, as in the system this one re-creates.
#include "capi/admin/arguments.h"

namespace admin {

const char *const kHelp =
    R"(cache_admin: starts, stops and shows a libcache server. Each call takes exactly one command:

    cache_admin --start   [-h, --hostname <hostname>]     (default 127.0.0.1, the only one)
                          [-p, --port <port>]             (default 50052; 1025..65535)
                          [-w, --workers <threads>]       (default: half of the CPUs)
                          [-s, --spilldir <folder>]       (default: no spilling)
                          [-l, --loglevel <level>]        (default 1; 0 debug, 1 info, 2 warning, 3 error, 4 exception)
                          [--backing <auto|huge|memfd>]   (default auto: huge pages where the kernel gives them)
                          [--group <name>]                (a group whose members may read too)
                          [--group_write]                 (the members of the group may also put rows, and make
                                                          sessions and caches)
                          [--headroom <MB>]               (memory to leave to others; default: 10 % of what all caches
                                                          may use, at least 2048, or a quarter of it if that is less)
                          [--spill_limit <MB>]            (that all spill files together may take; default: what the
                                                          spill folder's disk has)
                          [--idle_ttl <seconds>]          (drop caches that nobody has open; default 0: never)
    cache_admin --stop    [-h, --hostname <hostname>] [-p, --port <port>]

    cache_admin --generate_session, -g [--name <name>] [--keep] [-p, --port <port>]
        Makes a session and prints its id. With a name: the session of that name, made by who asks first.
        With --keep its caches are not dropped when memory is short or nobody has had them open for long.
    cache_admin --destroy_session, -d <session id>... [-p, --port <port>]
    cache_admin --destroy_cache <session id> <cache id> [-p, --port <port>]
    cache_admin --list_sessions [-p, --port <port>]
    cache_admin --server_info [-p, --port <port>]
    cache_admin --check [<session id> [<cache id>]] [--rows] [-p, --port <port>]
        Verifies what must hold in every cache, while it is used: index, rows, counters, owners of memory. With --rows
        also each row, those on disk against their checksum. Exit status 1 if there is a fault.

    cache_admin --run [-p, --port <port>] [--name <name>] [options of --start] -- <program> [<argument>...]
        Starts a server on a free port, makes a session, runs the program with LIBCACHE_PORT, LIBCACHE_SESSION and
        SESSION_ID set, stops the server. The exit status is the program's, or 128 + the signal that ended it.

    cache_admin --version
    cache_admin --help

    --json with any of these prints one JSON object in place of the text. Its keys:
        --start          port, pid, tcp_port, socket_path, log_path, warnings
        --stop           port, stopped
        -g               port, session_id, name, kept
        -d               port, destroyed (list of session ids)
        --destroy_cache  port, session_id, cache_id, destroyed
        --list_sessions  port, sessions (list of session_id, name, kept, caches: what cache_stat gives, and pids),
                         destroyed (list of session_id, cache_id, label, tag, charged_bytes, pids: still mapped)
        --server_info    what cache_server_info gives, and session_ids
        --check          port, right, caches (list of session_id, cache_id, faults)
        --version        version, library_version
        after a failure  error (code, name, message), besides the message on stderr

Environment:
    LIBCACHE_PORT, MS_CACHE_PORT   default port, in this order
    MS_CACHE_HOST                  read and without effect: the host is always 127.0.0.1
    GLOG_v                         default log level
    LIBCACHE_DIR                   folder of the socket and the log, in place of /tmp/libcache-<uid>
    LIBCACHE_SERVER                the server program, where none lies beside cache_admin

Exit status: 0, or 1 after any failure (message on stderr).
)";

} // namespace admin
