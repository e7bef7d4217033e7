// SPDX-License-Identifier: Apache-2.0
// The places where clients find a server: the Unix socket in the server's folder, and the TCP port. Used while starting
// and by the broker, which makes the socket anew when somebody has deleted it.
#pragma once

#include "core/control/socket.h"

#include <string>
#include <sys/types.h>

namespace libcache {

// The text scripts look for when a server is started twice.
inline constexpr char kAlreadyUp[] = "Cache server is already up and running";

struct ServerSocket {
    Fd listener;
    dev_t device = 0; // of the name in the folder: tells ours from another's
    ino_t inode = 0;
};

// Makes the folder if needed, refuses if a server listens there, removes a dead one's socket, and listens. Two servers
// that start at once exclude each other by a lock on the folder. 0 or CACHE_E*.
[[nodiscard]] int listen_in_folder(const std::string &folder, unsigned port, ServerSocket *made);

// Lets the members of a group go through the folder and connect. 0 or CACHE_E*.
[[nodiscard]] int admit_group(const std::string &folder, unsigned port, gid_t group);

// Device and inode of the socket's name now. False if it is missing.
bool find_socket(const std::string &folder, unsigned port, dev_t *device, ino_t *inode);

// Binds the port on 127.0.0.1 and listens; nobody is served yet. A port that was asked for and is held is an error;
// the default one is not: two users of one machine both start with defaults. Then *listener stays empty.
[[nodiscard]] int listen_on_tcp(unsigned port, bool given, Fd *listener);

} // namespace libcache
