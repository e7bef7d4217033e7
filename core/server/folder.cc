// SPDX-License-Identifier: Apache-2.0
#include "core/server/folder.h"

#include "core/common/error.h"
#include "core/common/log.h"
#include "core/control/paths.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace libcache {
namespace {

int bind_and_listen(const std::string &path, ServerSocket *made) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.c_str(), path.size() + 1);
    Fd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!listener) return fail(CACHE_EIO, "cannot make a socket: %s", strerror(errno));
    if (bind(listener.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) != 0 ||
        listen(listener.get(), SOMAXCONN) != 0)
        return fail(CACHE_EIO, "cannot listen on %s: %s", path.c_str(), strerror(errno));
    struct stat status;
    if (lstat(path.c_str(), &status) != 0)
        return fail(CACHE_EIO, "the socket %s has gone as soon as it was made: %s", path.c_str(), strerror(errno));
    *made = {std::move(listener), status.st_dev, status.st_ino};
    return 0;
}

} // namespace

int listen_in_folder(const std::string &folder, unsigned port, ServerSocket *made) {
    const std::string path = socket_path(folder, port);
    if (path.size() >= sizeof sockaddr_un{}.sun_path)
        return fail(CACHE_EINVAL,
                    "the socket's path %s has %zu bytes, at most %zu are possible: set LIBCACHE_DIR to a "
                    "shorter folder",
                    path.c_str(), path.size(), sizeof sockaddr_un{}.sun_path - 1);
    if (int rc = make_server_folder(folder); rc != 0) return rc;
    const Fd lock(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!lock || flock(lock.get(), LOCK_EX) != 0)
        return fail(CACHE_EIO, "cannot lock the folder %s: %s", folder.c_str(), strerror(errno));
    if (connect_unix(path, 1'000'000'000))
        return fail(CACHE_ECONFLICT,
                    "%s on port %u (socket %s). Stop it with cache_admin --stop -p %u, or start "
                    "another one with -p",
                    kAlreadyUp, port, path.c_str(), port);
    if (errno == EAGAIN) // it listens, with a full backlog
        return fail(CACHE_ECONFLICT, "%s on port %u, but is too busy to answer", kAlreadyUp, port);
    if (unlink(path.c_str()) != 0 && errno != ENOENT)
        return fail(CACHE_EIO, "cannot remove what a dead server left at %s: %s", path.c_str(), strerror(errno));
    return bind_and_listen(path, made);
}

int admit_group(const std::string &folder, unsigned port, gid_t group) {
    constexpr uid_t kSameOwner = static_cast<uid_t>(-1);
    const std::string path = socket_path(folder, port);
    if (chown(folder.c_str(), kSameOwner, group) == 0 && chmod(folder.c_str(), 0750) == 0 &&
        chown(path.c_str(), kSameOwner, group) == 0 && chmod(path.c_str(), 0660) == 0)
        return 0;
    return fail(CACHE_EPERM, "cannot give %s and the socket in it to group %u: %s; the server's user must be a member",
                folder.c_str(), group, strerror(errno));
}

bool find_socket(const std::string &folder, unsigned port, dev_t *device, ino_t *inode) {
    struct stat status;
    if (lstat(socket_path(folder, port).c_str(), &status) != 0) return false;
    *device = status.st_dev;
    *inode = status.st_ino;
    return true;
}

int listen_on_tcp(unsigned port, bool given, Fd *listener) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Fd fresh(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1; // past connections in TIME_WAIT are nobody
    if (fresh && setsockopt(fresh.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
        bind(fresh.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) == 0 && listen(fresh.get(), 8) == 0) {
        *listener = std::move(fresh);
        return 0;
    }
    const int error = errno;
    if (given)
        return fail(CACHE_ECONFLICT, "cannot bind TCP port %u on 127.0.0.1: %s%s. Choose another port with -p", port,
                    strerror(error), error == EADDRINUSE ? " by another program" : "");
    log_line(LogLevel::Warning, "no TCP: port %u on 127.0.0.1: %s; the Unix socket serves", port, strerror(error));
    return 0;
}

} // namespace libcache
