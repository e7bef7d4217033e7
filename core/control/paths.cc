// SPDX-License-Identifier: Apache-2.0
#include "core/control/paths.h"

#include "core/common/error.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sys/stat.h>
#include <sys/un.h>
#include <system_error>
#include <unistd.h>

namespace libcache {

std::string server_folder(uid_t uid) {
    const char *given = getenv("LIBCACHE_DIR");
    return given && *given ? given : "/tmp/libcache-" + std::to_string(uid);
}

std::string socket_path(const std::string &folder, unsigned port) {
    return folder + "/cache_server." + std::to_string(port);
}

std::string absolute_socket_path(const std::string &path) {
    std::error_code none; // such as a current folder that was removed
    const std::string absolute = std::filesystem::absolute(path, none).string();
    return none || absolute.size() >= sizeof(sockaddr_un::sun_path) ? path : absolute;
}

std::string missing_above(const std::string &folder) {
    const char *given = getenv("LIBCACHE_DIR");
    if (!given || folder != given) return "";
    const size_t name = folder.find_last_not_of('/'); // "/a/b/" lies in "/a/", too
    const size_t slash = name == std::string::npos ? name : folder.rfind('/', name);
    struct stat status;
    if (slash == std::string::npos || stat(folder.substr(0, slash + 1).c_str(), &status) == 0 || errno != ENOENT)
        return "";
    return "the folder " + folder +
           " (LIBCACHE_DIR) does not exist, nor does the one above it: make it with mkdir -p " + folder +
           ", or correct LIBCACHE_DIR";
}

int make_server_folder(const std::string &folder) {
    const char *path = folder.c_str();
    if (const std::string missing = missing_above(folder); !missing.empty())
        return fail(CACHE_EIO, "%s", missing.c_str());
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return fail(CACHE_EIO,
                    "cannot make the folder %s for the server's socket: %s; set LIBCACHE_DIR to a folder of your own",
                    path, strerror(errno));
    struct stat status;
    if (lstat(path, &status) != 0) return fail(CACHE_EIO, "cannot look at the folder %s: %s", path, strerror(errno));
    if (!S_ISDIR(status.st_mode))
        return fail(CACHE_EPERM, "%s is not a folder: remove it, or set LIBCACHE_DIR to another place", path);
    if (status.st_uid != geteuid())
        return fail(CACHE_EPERM, "the folder %s belongs to user %u, not to user %u: set LIBCACHE_DIR to another place",
                    path, status.st_uid, geteuid());
    if ((status.st_mode & 0022) != 0 && chmod(path, 0700) != 0) // others could put a socket of theirs there
        return fail(CACHE_EPERM, "the folder %s may be written by others and chmod 0700 failed: %s", path,
                    strerror(errno));
    return 0;
}

} // namespace libcache
