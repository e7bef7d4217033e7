// SPDX-License-Identifier: Apache-2.0
// SOCK_SEQPACKET sockets carrying wire::Message and descriptors. The only file pair that knows sendmsg. Used by the
// client library (blocking with a deadline) and the broker (non-blocking).
#pragma once

#include "core/control/wire.h"

#include <cstdint>
#include <string>

namespace libcache {

// Owns a descriptor.
class Fd {
  public:
    Fd() = default;
    explicit Fd(int fd) : fd_(fd) {}
    Fd(Fd &&other) noexcept : fd_(other.release()) {}
    Fd &operator=(Fd &&other) noexcept { return reset(other.release()), *this; }
    Fd(const Fd &) = delete;
    Fd &operator=(const Fd &) = delete;
    ~Fd() { reset(); }
    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    int release() {
        int fd = fd_;
        fd_ = -1;
        return fd;
    }
    void reset(int fd = -1);

  private:
    int fd_ = -1;
};

inline constexpr int kMaxFds = 64; // descriptors in one packet

enum class Io { Done, WouldBlock, Closed, Bad /* wrong size, truncated descriptors */, Failed /* errno */ };

// Sends one packet with MSG_NOSIGNAL and `n_fds` descriptors. `credentials`: SCM_CREDENTIALS of this process goes
// along.
Io send_packet(int socket, const void *data, uint32_t bytes, const int *fds = nullptr, int n_fds = 0,
               bool credentials = false, bool wait = true);

// Receives one packet of exactly `bytes`. *n_fds: in the room in fds, out how many came. They arrive close-on-exec;
// those that do not fit are closed and the packet is Bad. peer_pid (may be NULL): the pid of SCM_CREDENTIALS, or 0.
Io receive_packet(int socket, void *data, uint32_t bytes, Fd *fds = nullptr, int *n_fds = nullptr,
                  int *peer_pid = nullptr, bool wait = true);

// Waits for input until the deadline (CLOCK_MONOTONIC ns; see now_ns). 1 ready, 0 deadline, -1 errno.
int wait_readable(int socket, int64_t deadline_ns);
int64_t now_ns();

// Connects to a Unix SOCK_SEQPACKET path. -1 with errno. Connecting and each later send wait at most `timeout_ns` for a
// peer that does not read: EAGAIN, Io::WouldBlock.
Fd connect_unix(const std::string &path, int64_t timeout_ns);

} // namespace libcache
