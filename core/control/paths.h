// SPDX-License-Identifier: Apache-2.0
// Where a server's socket and log lie: $LIBCACHE_DIR, else /tmp/libcache-<uid>. Used by client and server.
#pragma once

#include <string>
#include <sys/types.h>

namespace libcache {

std::string server_folder(uid_t uid);                              // no check
std::string socket_path(const std::string &folder, unsigned port); // <folder>/cache_server.<port>
// The same place after a chdir(). A path that would be too long for an address then stays as it is.
std::string absolute_socket_path(const std::string &path);
// Why no server can be made to run in the folder: it is where LIBCACHE_DIR says, and so is nothing above it. Empty:
// other folders.
std::string missing_above(const std::string &folder);
// Makes the folder (0700) if it is missing; refuses one that is not a directory of this user. 0 or CACHE_E*.
int make_server_folder(const std::string &folder);

} // namespace libcache
