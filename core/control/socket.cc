// SPDX-License-Identifier: Apache-2.0
#include "core/control/socket.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace libcache {
namespace {

constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int) * kMaxFds) + CMSG_SPACE(sizeof(ucred));

Io io_of_errno() {
    switch (errno) {
    case EAGAIN: return Io::WouldBlock;
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN: return Io::Closed;
    default: return Io::Failed;
    }
}

template <class T> void append_control(msghdr *message, int type, const T *data, size_t count) {
    cmsghdr *control = reinterpret_cast<cmsghdr *>(static_cast<char *>(message->msg_control) + message->msg_controllen);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = type;
    control->cmsg_len = CMSG_LEN(sizeof(T) * count);
    memcpy(CMSG_DATA(control), data, sizeof(T) * count);
    message->msg_controllen += CMSG_SPACE(sizeof(T) * count);
}

// Puts received descriptors into fds; those beyond `room` are closed. False if there were such.
bool keep_descriptors(const cmsghdr *control, Fd *fds, int room, int *kept) {
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    bool all = true;
    for (size_t i = 0; i < count; ++i) {
        int number;
        memcpy(&number, CMSG_DATA(control) + i * sizeof(int), sizeof number);
        Fd fd(number);
        if (*kept < room)
            fds[(*kept)++] = std::move(fd);
        else
            all = false;
    }
    return all;
}

} // namespace

void Fd::reset(int fd) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
}

Io send_packet(int socket, const void *data, uint32_t bytes, const int *fds, int n_fds, bool credentials, bool wait) {
    alignas(cmsghdr) char control[kControlBytes] = {};
    iovec part{const_cast<void *>(data), bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    if (n_fds > kMaxFds) return errno = EINVAL, Io::Failed;
    if (n_fds > 0 && fds != nullptr) append_control(&message, SCM_RIGHTS, fds, static_cast<size_t>(n_fds));
    if (credentials) {
        const ucred own{getpid(), geteuid(), getegid()};
        append_control(&message, SCM_CREDENTIALS, &own, 1);
    }
    if (message.msg_controllen == 0) message.msg_control = nullptr;
    ssize_t sent;
    do
        sent = sendmsg(socket, &message, MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT));
    while (sent < 0 && errno == EINTR);
    if (sent < 0) return io_of_errno();
    return static_cast<uint32_t>(sent) == bytes ? Io::Done : Io::Bad;
}

Io receive_packet(int socket, void *data, uint32_t bytes, Fd *fds, int *n_fds, int *peer_pid, bool wait) {
    alignas(cmsghdr) char control[kControlBytes];
    iovec part{data, bytes};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const int room = fds && n_fds ? *n_fds : 0;
    int kept = 0;
    if (n_fds) *n_fds = 0;
    if (peer_pid) *peer_pid = 0;
    ssize_t got;
    // A peer that ended with something unread is told of first (ECONNRESET, once); what it had sent comes after that.
    do
        got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
    while (got < 0 && (errno == EINTR || errno == ECONNRESET));
    if (got < 0) return io_of_errno();

    bool whole = (message.msg_flags & MSG_TRUNC) == 0;
    for (cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET) continue;
        if (c->cmsg_type == SCM_RIGHTS) whole &= keep_descriptors(c, fds, room, &kept);
        if (c->cmsg_type == SCM_CREDENTIALS && peer_pid) {
            ucred peer;
            memcpy(&peer, CMSG_DATA(c), sizeof peer);
            *peer_pid = peer.pid;
        }
    }
    // The kernel drops descriptors that this process has no number left for. The message itself is whole.
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
        while (kept > 0)
            fds[--kept].reset();
        whole = whole && room > 0;
    }
    if (n_fds) *n_fds = kept;
    if (got == 0) return Io::Closed; // an empty packet is no message either
    return whole && static_cast<uint32_t>(got) == bytes ? Io::Done : Io::Bad;
}

int wait_readable(int socket, int64_t deadline_ns) {
    for (;;) {
        const int64_t left_ns = deadline_ns - now_ns();
        const int64_t left_ms = left_ns <= 0 ? 0 : (left_ns + 999'999) / 1'000'000;
        pollfd entry{socket, POLLIN, 0};
        const int n = poll(&entry, 1, static_cast<int>(left_ms < 60'000 ? left_ms : 60'000));
        if (n > 0) return 1;
        if (n < 0 && errno != EINTR) return -1;
        if (n == 0 && now_ns() >= deadline_ns) return 0;
    }
}

int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

Fd connect_unix(const std::string &path, int64_t timeout_ns) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return errno = ENAMETOOLONG, Fd();
    memcpy(address.sun_path, path.c_str(), path.size() + 1);
    Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!socket) return socket;
    const timeval timeout{static_cast<time_t>(timeout_ns / 1'000'000'000),
                          static_cast<suseconds_t>(timeout_ns % 1'000'000'000 / 1000)};
    setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    if (connect(socket.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) == 0) return socket;
    const int error = errno;
    socket.reset();
    errno = error; // close() may have changed it
    return socket;
}

} // namespace libcache
