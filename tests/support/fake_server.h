// SPDX-License-Identifier: Apache-2.0
// Servers of a test's own making: one that says what the test likes, and one that stands between the library and a real
// server and changes what that one says.
#pragma once

#include "tests/support/raw.h"

#include <functional>
#include <thread>
#include <utility>
#include <vector>

// A socket in a folder of its own, where the library of this process looks for a server. Each connection is handed to
// `body`, one after the other.
class FakeServer {
  public:
    explicit FakeServer(std::function<void(int)> body) {
        cr_assert_not_null(mkdtemp(folder_));
        setenv("LIBCACHE_DIR", folder_, 1);
        setenv("LIBCACHE_PORT", "44444", 1);
        path_ = std::string(folder_) + "/cache_server.44444";
        const sockaddr_un address = address_of(path_);
        listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        cr_assert_eq(bind(listener_, reinterpret_cast<const sockaddr *>(&address), sizeof address), 0);
        cr_assert_eq(listen(listener_, 5), 0);
        thread_ = std::thread([this, body] {
            for (int fd; (fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; close(fd))
                body(fd);
        });
    }
    FakeServer(const FakeServer &) = delete;
    FakeServer &operator=(const FakeServer &) = delete;
    ~FakeServer() {
        shutdown(listener_, SHUT_RDWR);
        thread_.join();
        close(listener_);
        unlink(path_.c_str());
        rmdir(folder_);
    }

  private:
    char folder_[20] = "/tmp/lcs-XXXXXX";
    std::string path_;
    int listener_;
    std::thread thread_;
};

// A message with its descriptors, which end with it.
struct Packet {
    wire::Message message{};
    std::vector<int> fds;

    Packet() = default;
    Packet(Packet &&other) noexcept : message(other.message), fds(std::exchange(other.fds, {})) {}
    Packet(const Packet &) = delete;
    Packet &operator=(const Packet &) = delete;
    ~Packet() { drop_fds(); }
    void drop_fds() {
        for (const int fd : fds)
            close(fd);
        fds.clear();
    }
    bool is(wire::Type type) const { return message.header.type == uint32_t(type); }
    bool receive(int socket);
    bool send(int socket) const;
};

inline bool Packet::receive(int socket) {
    drop_fds();
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int)) + CMSG_SPACE(sizeof(ucred))] = {};
    iovec part{&message, sizeof message};
    msghdr packet{};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    packet.msg_control = control;
    packet.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket, &packet, MSG_CMSG_CLOEXEC);
    for (cmsghdr *c = CMSG_FIRSTHDR(&packet); c != nullptr && got >= 0; c = CMSG_NXTHDR(&packet, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int), before = fds.size();
        fds.resize(before + n);
        memcpy(fds.data() + before, CMSG_DATA(c), n * sizeof(int));
    }
    return got == ssize_t(sizeof message);
}

inline bool Packet::send(int socket) const {
    std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
    iovec part{const_cast<wire::Message *>(&message), sizeof message};
    msghdr packet{};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    if (!fds.empty()) {
        packet.msg_control = control.data();
        packet.msg_controllen = control.size();
        cmsghdr *c = CMSG_FIRSTHDR(&packet);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
        memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
    }
    return sendmsg(socket, &packet, MSG_NOSIGNAL) == ssize_t(sizeof message);
}

// Between the library of this process and a real server, to which both belong to one process.
class Between {
  public:
    using Change = std::function<void(Packet &answer)>;

    // `change` sees each answer of the server on its way to the library, on another thread.
    Between(const test_server *server, Change change)
        : real_(test_server_socket(server)), change_(std::move(change)), fake_([this](int fd) { carry(fd); }) {}

  private:
    const std::string real_;
    const Change change_;
    FakeServer fake_;

    void carry(int client) const {
        const int server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        const sockaddr_un address = address_of(real_);
        if (connect(server, reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0)
            test_die("connecting to %s: %s", real_.c_str(), strerror(errno));
        Packet packet;
        for (pollfd ends[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}}; poll(ends, 2, -1) > 0;) {
            if (ends[0].revents != 0 && !(packet.receive(client) && packet.send(server))) break;
            if (ends[1].revents == 0) continue;
            if (!packet.receive(server)) break;
            change_(packet);
            if (!packet.send(client)) break;
        }
        close(server);
    }
};
