// SPDX-License-Identifier: Apache-2.0
// Control messages as the broker gets them: any bytes, any descriptors, in any order, on several connections. After
// each input an honest client is served, and nothing of the input is left.
#include "core/server/broker.h"
#include "capi/libcache.h"
#include "core/control/wire.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/server.h"
#include "tests/support/server.h"

#include <cstring>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <set>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace {

using namespace libcache;
using fuzz::Input;
using wire::Type;

constexpr int kConnections = 3;
constexpr int64_t kTimeoutNs = 20'000'000'000;
constexpr int kAnswerMs = 100; // an answer takes some 50 us; longer, and it is not waited for

// What replies have told: requests that name real things go further.
struct Known {
    uint64_t generation = 1, region_id = 1, epoch = 0, term = 0;
    uint32_t session_id = 0, slot = 0;
};

class Talk {
  public:
    Talk(const std::string &path, Input &input) : path_(path), input_(input) {}

    void step() {
        const int op = input_.byte() % 10;
        Fd &socket = sockets_[input_.byte() % kConnections];
        if (op == 0 || !socket) return connect(socket);
        if (op <= 5) return request(socket);
        if (op == 6) return raw(socket);
        if (op == 7) return descriptors(socket);
        if (op == 8) return socket.reset();
        read_replies(socket);
    }

  private:
    const std::string &path_;
    Input &input_;
    Fd sockets_[kConnections], honest_;
    Known known_;

    void send(Fd &socket, const void *data, size_t bytes) {
        if (::send(socket.get(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) socket.reset();
    }

    wire::Message greeting() const {
        wire::Message m{};
        m.header.magic = wire::kMagic;
        m.header.version_major = CACHE_VERSION_MAJOR;
        m.header.type = static_cast<uint32_t>(Type::Hello);
        return m;
    }
    wire::Message message(Type type) {
        wire::Message m = greeting();
        m.header.type = static_cast<uint32_t>(type);
        m.header.number = input_.byte() % 4;
        m.header.generation = known_.generation;
        return m;
    }

    // Half of the connections greet as they should.
    void connect(Fd &socket) {
        socket = connect_unix(path_, kTimeoutNs);
        if (!socket || input_.byte() % 4 == 0) return; // it may have been told to stop
        const wire::Message hello = message(Type::Hello);
        send(socket, &hello, sizeof hello);
        read_replies(socket);
    }

    void fill_body(wire::Message &m) {
        wire::Message::Body &u = m.u;
        switch (static_cast<Type>(m.header.type)) {
        case Type::SessionOpen: strcpy(u.session.name, "a"); break;
        case Type::SessionDestroy: u.session.session_id = known_.session_id; break;
        case Type::Open:
            u.open.session_id = known_.session_id;
            u.open.cache_id = input_.byte() % 3;
            u.open.limit_bytes = uint64_t{1 + input_.byte() % 4u} << 20;
            u.open.flags = input_.byte() % 2 ? CACHE_BUILD : 0;
            break;
        case Type::Stock:
            u.want = {known_.region_id, known_.epoch, input_.number<uint64_t>() & 0x300ff0000ffff,
                      input_.byte(),    known_.slot,  0};
            break;
        case Type::BuildBegin:
        case Type::BuildDone:
        case Type::BuildLeave: u.build = {known_.region_id, known_.term, known_.session_id, 1, 0, 0}; break;
        case Type::List: break;
        default: u.region = {known_.region_id, known_.session_id, input_.byte() % 3u}; break;
        }
    }

    void request(Fd &socket) {
        const uint8_t how = input_.byte();
        wire::Message m = message(static_cast<Type>(4 + how % 17));
        m.header.repeated = how / 17 % 2;
        fill_body(m);
        if (how > 200) input_.patch(&m, sizeof m, 1 + how % 4);
        send(socket, &m, sizeof m);
        if (socket && how % 3 != 0) read_replies(socket);
    }

    void raw(Fd &socket) {
        size_t bytes = 0;
        const uint8_t *const junk = input_.bytes(input_.number<uint16_t>() % 4096, &bytes);
        send(socket, junk, bytes);
    }

    void descriptors(Fd &socket) {
        const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        const std::vector<int> fds(static_cast<size_t>(input_.byte() % 80), null);
        wire::Message m = message(static_cast<Type>(1 + input_.byte() % 18));
        (void)send_packet(socket.get(), &m, sizeof m, fds.data(), static_cast<int>(std::min<size_t>(fds.size(), 64)),
                          input_.byte() % 2, false);
        close(null);
    }

    // What has come once a question of an honest connection, put later, is answered: the broker takes them in order.
    // Descriptors are closed.
    void read_replies(Fd &socket) {
        pollfd entry{socket.get(), POLLIN, 0};
        if (poll(&entry, 1, 0) == 0) honest_question();
        while (poll(&entry, 1, 0) == 1) {
            wire::Message m;
            Fd fd[2];
            int n_fds = 2;
            if (receive_packet(socket.get(), &m, sizeof m, fd, &n_fds) != Io::Done) return socket.reset();
            learn(m);
        }
    }

    // A greeting, which may be said again. Not answered by a server that was told to stop.
    void honest_question() {
        if (!honest_) honest_ = connect_unix(path_, kTimeoutNs);
        const wire::Message hello = greeting();
        if (!honest_ || ::send(honest_.get(), &hello, sizeof hello, MSG_NOSIGNAL) < 0) return honest_.reset();
        pollfd entry{honest_.get(), POLLIN, 0};
        wire::Message m;
        Fd fd[2];
        int n_fds = 2;
        if (poll(&entry, 1, kAnswerMs) != 1 || receive_packet(honest_.get(), &m, sizeof m, fd, &n_fds) != Io::Done)
            honest_.reset();
    }

    void learn(const wire::Message &m) {
        known_.generation = m.header.generation;
        if (m.header.status != 0) return;
        switch (static_cast<Type>(m.header.type)) {
        case Type::SessionCreate:
        case Type::SessionOpen: known_.session_id = m.u.session.session_id; break;
        case Type::Open: known_.region_id = m.u.opened.region_id; break;
        case Type::Attach: known_.slot = m.u.attached.slot, known_.epoch = m.u.attached.epoch; break;
        case Type::BuildBegin: known_.term = m.u.build.term; break;
        default: break;
        }
    }
};

int note_session(const cache_list_entry *entry, void *ids) {
    static_cast<std::set<uint32_t> *>(ids)->insert(entry->session_id); // one entry for each of its caches
    return 0;
}

// An honest client's turn. False: the server has ended, which the input may have told it as anybody may; one that only
// hangs up on us does not come to its end, and the fuzzer's timeout tells.
bool still_serves() {
    cache_client *client = nullptr;
    std::set<uint32_t> sessions;
    uint32_t mine = 0;
    int rc = cache_connect(nullptr, &client);
    if (rc == 0) rc = cache_session_create(client, &mine);
    if (rc == 0) rc = cache_list(client, note_session, &sessions);
    for (uint32_t id : sessions)
        if (rc >= 0) rc = cache_session_destroy(client, id);
    if (rc < 0 && rc != CACHE_ESERVER) test_die("the broker does not serve any more: %s", cache_last_error());
    if (client != nullptr) cache_disconnect(client);
    return rc >= 0;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static std::unique_ptr<fuzz::Server> server;
    if (!server) {
        server = std::make_unique<fuzz::Server>();
        server->start();
    }
    Input input(data, size);
    {
        Talk talk(server->socket(), input);
        for (int steps = 0; steps < 40 && input.more(); steps++)
            talk.step();
    }
    if (!still_serves()) {
        server->join();
        server = nullptr;
    }
    return 0;
}
