// SPDX-License-Identifier: Apache-2.0
// The control socket spoken to by hand: for tests of what the library never sends.
#pragma once

#include "core/control/wire.h"
#include "tests/support/session.h"

#include <cerrno>
#include <memory>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace wire = libcache::wire;

inline sockaddr_un address_of(const std::string &path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.c_str(), path.size());
    return address;
}

inline int raw_connect(const test_server *server) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const sockaddr_un address = address_of(test_server_socket(server));
    cr_assert_eq(connect(fd, reinterpret_cast<const sockaddr *>(&address), sizeof address), 0, "%s", strerror(errno));
    return fd;
}

inline std::unique_ptr<wire::Message> message(wire::Type type, uint64_t number = 1) {
    auto m = std::make_unique<wire::Message>();
    memset(m.get(), 0, sizeof *m);
    m->header.magic = wire::kMagic;
    m->header.version_major = CACHE_VERSION_MAJOR;
    m->header.version_minor = CACHE_VERSION_MINOR;
    m->header.type = uint32_t(type);
    m->header.number = number;
    return m;
}

inline bool send_all(int fd, const void *data, size_t bytes) {
    return send(fd, data, bytes, MSG_NOSIGNAL) == ssize_t(bytes);
}

// The next packet, or its absence: null when the peer hangs up. A deadline ends the test.
inline std::unique_ptr<wire::Message> reply(int fd) {
    pollfd entry{fd, POLLIN, 0};
    cr_assert_eq(poll(&entry, 1, 60000), 1, "no answer and no hang-up");
    auto m = std::make_unique<wire::Message>();
    return recv(fd, m.get(), sizeof *m, 0) == ssize_t(sizeof *m) ? std::move(m) : nullptr;
}

// A connection that has said Hello and proved who it is, as far as the server asks.
inline int welcomed(const test_server *server, uint64_t *generation = nullptr) {
    const int fd = raw_connect(server);
    const auto hello = message(wire::Type::Hello);
    cr_assert(send_all(fd, hello.get(), sizeof *hello));
    auto answer = reply(fd);
    cr_assert_not_null(answer.get());
    if (answer->header.type == uint32_t(wire::Type::Prove)) {
        auto prove = message(wire::Type::Prove);
        char control[CMSG_SPACE(sizeof(ucred))] = {};
        iovec part{prove.get(), sizeof *prove};
        msghdr packet{};
        packet.msg_iov = &part;
        packet.msg_iovlen = 1;
        packet.msg_control = control;
        packet.msg_controllen = sizeof control;
        cmsghdr *c = CMSG_FIRSTHDR(&packet);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_CREDENTIALS;
        c->cmsg_len = CMSG_LEN(sizeof(ucred));
        const ucred own{getpid(), geteuid(), getegid()};
        memcpy(CMSG_DATA(c), &own, sizeof own);
        cr_assert_eq(sendmsg(fd, &packet, MSG_NOSIGNAL), ssize_t(sizeof *prove));
        answer = reply(fd);
        cr_assert_not_null(answer.get());
    }
    cr_assert_eq(answer->header.type, uint32_t(wire::Type::Welcome));
    cr_assert_eq(answer->header.status, 0, "%s", answer->text);
    if (generation) *generation = answer->header.generation;
    return fd;
}

inline int welcomed(const Session &s, uint64_t *generation = nullptr) {
    return welcomed(s.server, generation);
}

// A client that was welcomed and asks one thing after the other, with numbers of its own.
class RawClient {
  public:
    explicit RawClient(const test_server *server) : fd_(welcomed(server, &generation_)) {}
    RawClient(const RawClient &) = delete;
    RawClient &operator=(const RawClient &) = delete;
    ~RawClient() { close(fd_); }

    int fd() const { return fd_; }
    uint64_t generation() const { return generation_; }
    std::unique_ptr<wire::Message> request(wire::Type type) {
        auto m = message(type, ++number_);
        m->header.generation = generation_;
        return m;
    }
    void say(const wire::Message &m) const { cr_assert(send_all(fd_, &m, sizeof m), "%s", strerror(errno)); }
    // Its answer, which must be the next message. Descriptors that come along are not taken.
    std::unique_ptr<wire::Message> ask(const wire::Message &m) const {
        say(m);
        auto answer = reply(fd_);
        cr_assert_not_null(answer.get(), "the server hangs up at request %u", m.header.type);
        cr_assert(answer->header.number == m.header.number && answer->header.type == m.header.type,
                  "request %u is answered by %u", m.header.type, answer->header.type);
        return answer;
    }
    // What was said before has been heard when this is answered.
    void has_been_heard() {
        const auto info = request(wire::Type::ServerInfo);
        cr_assert_eq(ask(*info)->header.status, 0);
    }

  private:
    uint64_t generation_ = 0, number_ = 1;
    const int fd_;
};
