// SPDX-License-Identifier: Apache-2.0
// Connections of the broker: accepting, the handshake that binds a connection to a process, hang-ups and deaths.
// A client is dead when its pidfd says so; a socket that hangs up alone only stops new grants.
#include "core/common/error.h"
#include "core/common/log.h"
#include "core/common/pause.h"
#include "core/server/broker.h"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>
#include <vector>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace libcache {
namespace {

constexpr int kMessagesATurn = 64;                     // then the others
constexpr int64_t kHandshakePatience = 10'000'000'000; // ns

bool ended(const char *text, size_t room) {
    return memchr(text, 0, room) != nullptr;
}

Fd pidfd_of(int pid) {
    return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

} // namespace

void Broker::accept_all() {
    for (int i = 0; i < kMessagesATurn; ++i) {
        Fd socket(accept4(socket_.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (socket) {
            accept_one(std::move(socket));
            continue;
        }
        if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) return;
        log_line(LogLevel::Error, "accepting a connection failed: %s; it is tried again in a few seconds",
                 strerror(errno));
        stop_listening(); // the socket stays readable: to look at once again would fail as well, for ever
        return;
    }
}

// A connection is two descriptors. Of what ulimit -n allows, a tenth stays for caches.
bool Broker::crowded(size_t connections) const {
    return 2 * connections + caches_->all().size() + 32 > max_fds_ / 10 * 9;
}

// Connections that say nothing must not keep those out that would.
void Broker::drop_oldest_silent() {
    for (const auto &[id, connection] : connections_) {
        if (connection.stage != Stage::Hello && connection.stage != Stage::Prove) continue;
        if (!std::exchange(crowd_told_, true))
            log_line(LogLevel::Warning,
                     "the server has %zu connections, and ulimit -n allows it %llu descriptors: connections that never "
                     "greeted are closed, oldest first (said once)",
                     connections_.size(), static_cast<unsigned long long>(max_fds_));
        return drop(id);
    }
}

void Broker::accept_one(Fd socket) {
    if (crowded(connections_.size() + 1)) drop_oldest_silent();
    const int yes = 1; // before its first message: that one may have to prove who sent it
    setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes);
    // Raised before it is used: no id is ever used twice.
    const uint64_t id = server_->header.next_conn_id.fetch_add(1, std::memory_order_relaxed);
    Connection &connection = connections_[id];
    connection.id = id;
    connection.socket = std::move(socket);
    connection.since_ns = now_ns();
    watch_socket(connection);
}

void Broker::read_connection(uint64_t conn_id) {
    for (int i = 0; i < kMessagesATurn && !ending_; ++i) {
        const auto at = connections_.find(conn_id);
        if (at == connections_.end() || !at->second.socket) return;
        wire::Message message{};
        int peer_pid = 0;
        const Io io =
            receive_packet(at->second.socket.get(), &message, sizeof message, nullptr, nullptr, &peer_pid, false);
        if (io == Io::WouldBlock) return;
        bool keep = false;
        if (io == Io::Done)
            keep = handle_packet(at->second, message, peer_pid);
        else if (io == Io::Bad && at->second.stage == Stage::Hello && message.header.magic == wire::kMagic)
            check_hello(at->second, message); // another version may have messages of another size
        else if (io == Io::Bad)
            log_line(LogLevel::Warning, "connection %llu (process %d) sent what is no message and is closed",
                     static_cast<unsigned long long>(conn_id), at->second.pid);
        if (!keep) return hang_up(conn_id);
    }
}

// False: hang up.
bool Broker::handle_packet(Connection &connection, const wire::Message &message, int peer_pid) {
    const wire::Header &header = message.header;
    if (header.magic != wire::kMagic) return false;
    const auto type = wire::Type(header.type);
    if (connection.stage == Stage::Hello) return type == wire::Type::Hello && hello(connection, message);
    if (connection.stage == Stage::Prove) return type == wire::Type::Prove && prove(connection, message, peer_pid);
    if (header.version_major != CACHE_VERSION_MAJOR) return false;
    if (type == wire::Type::Hello) return welcome(connection); // said again: it stands
    if (type == wire::Type::Prove) return true;
    if (header.generation != generation_) {
        // A hint is nobody's answer, so it does not come again, and it says whose slot it means: right in any
        // generation. The word it follows may have been stored after this broker looked at it.
        if (type == wire::Type::Stock) stock(connection, message);
        // Anything else was sent to a broker that has ended: it comes again, or has been done and repeated since.
        return connection.resume_owed ? resume(connection) : true;
    }
    return handle_request(connection, message);
}

// ---- handshake

// Answers with the reason if this peer may not speak.
bool Broker::check_hello(Connection &connection, const wire::Message &message) {
    const ServerConfig &config = server_.config();
    int rc = 0;
    ucred peer{};
    socklen_t size = sizeof peer;
    if (message.header.version_major != CACHE_VERSION_MAJOR) {
        const bool named = ended(message.u.hello.program, sizeof message.u.hello.program);
        rc = fail(CACHE_EVERSION,
                  "version %u.%u of libcache (%.100s) does not go with version %d.%d of the server (%.100s): update "
                  "one of them",
                  message.header.version_major, message.header.version_minor,
                  named && message.u.hello.program[0] ? message.u.hello.program : "program not named",
                  CACHE_VERSION_MAJOR, CACHE_VERSION_MINOR, config.program);
    } else if (getsockopt(connection.socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        rc = fail(CACHE_EPERM, "the server cannot tell who is asking: %s", strerror(errno));
    } else if (!admits(connection, peer)) {
        rc = fail(CACHE_EPERM, "this server belongs to user %u and does not serve user %u: start one of your own%s",
                  geteuid(), peer.uid, config.group_access == kGroupNone ? "" : ", or join its group");
    } else if (!ended(message.u.hello.program, sizeof message.u.hello.program) ||
               !ended(message.u.hello.version, sizeof message.u.hello.version)) {
        rc = fail(CACHE_EINVAL, "a greeting whose names have no end");
    } else if (crowded(connections_.size())) {
        rc = fail(CACHE_ELIMIT, "the server has %zu connections, and ulimit -n allows it %llu descriptors: raise it",
                  connections_.size(), static_cast<unsigned long long>(max_fds_));
    }
    if (rc == 0) return true;
    log_line(LogLevel::Warning, "connection refused: %s", last_error());
    wire::Message answer{};
    answer.header.type = uint32_t(wire::Type::Welcome);
    reply(connection, message, &answer, rc);
    return false;
}

bool Broker::hello(Connection &connection, const wire::Message &message) {
    if (!check_hello(connection, message)) return false;
    connection.hello_number = message.header.number;
    ucred peer{};
    socklen_t size = sizeof peer;
    getsockopt(connection.socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size); // worked a moment ago
    connection.pid = peer.pid;
    if (find_process(connection)) return welcome(connection);
    wire::Message answer{};
    // The pidfd was made from a number, which may have been reused by now. A message sent from here on with
    // credentials of that number proves that it is the sender's.
    connection.stage = Stage::Prove;
    answer.header.type = uint32_t(wire::Type::Prove);
    answer.header.number = message.header.number;
    return connection.pidfd ? send(connection, &answer) : send_witness(connection, &answer);
}

// True if the pidfd is certainly that of the process which connected. Else it is to be proved, or missing.
bool Broker::find_process(Connection &connection) {
    int fd = -1;
    socklen_t size = sizeof fd;
    if (!server_.config().distrust_peerpidfd &&
        getsockopt(connection.socket.get(), SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) {
        connection.pidfd = Fd(fd);
        return true;
    }
    if (!server_.config().no_pidfd) connection.pidfd = pidfd_of(connection.pid);
    return false;
}

bool Broker::prove(Connection &connection, const wire::Message &message, int peer_pid) {
    if (connection.witness && message.u.prove.witnessed != 1) {
        wire::Message answer{};
        answer.header.type = uint32_t(wire::Type::Welcome);
        reply(connection, message, &answer,
              fail(CACHE_ENOTSUP,
                   "the server cannot watch process %d: that needs Linux 5.3, before 6.5 the same pid namespace, or a "
                   "libcache as new as the server's",
                   connection.pid));
        return false;
    }
    if (peer_pid == connection.pid) return welcome(connection);
    log_line(LogLevel::Warning, "connection %llu: process %d spoke in place of process %d and is refused",
             static_cast<unsigned long long>(connection.id), peer_pid, connection.pid);
    return false;
}

void Broker::fill_welcome(const Connection &connection, wire::Message *message) const {
    const ServerConfig &config = server_.config();
    wire::Welcome &welcome = message->u.welcome;
    welcome.conn_id = connection.id;
    welcome.server_id = config.server_id;
    welcome.port = config.port;
    snprintf(welcome.version, sizeof welcome.version, "%d.%d.%d", CACHE_VERSION_MAJOR, CACHE_VERSION_MINOR,
             CACHE_VERSION_PATCH);
    snprintf(welcome.program, sizeof welcome.program, "%.*s", static_cast<int>(sizeof welcome.program) - 1,
             config.program);
}

// The connection stands: the keeper has it and its pidfd before the client hears so.
bool Broker::welcome(Connection &connection) {
    if (connection.stage != Stage::Up) {
        connection.start_time = process_start_time(connection.pid);
        LIBCACHE_PAUSE("broker.hello.1");
        keeper_.deposit(HeldKind::Connection, connection.id, connection.socket.get(),
                        (connection.pidfd ? connection.pidfd : connection.witness).get());
        LIBCACHE_PAUSE("broker.hello.2");
        connection.stage = Stage::Up;
        watch_process(connection);
    }
    ++messages_;
    wire::Message answer{};
    answer.header.type = uint32_t(wire::Type::Welcome);
    answer.header.number = connection.hello_number;
    fill_welcome(connection, &answer);
    return send(connection, &answer);
}

// ---- ends

bool Broker::has_slots(uint64_t conn_id) const {
    for (const CacheRegion *region : caches_->all())
        if (region->state() != CacheRegion::State::Dying && region->owns(conn_id)) return true;
    return false;
}

void Broker::close_socket(Connection &connection) {
    if (!connection.socket) return;
    unwatch(connection.socket.get());
    shutdown(connection.socket.get(), SHUT_RDWR); // the keeper has a copy: closing ours would not end it
    connection.socket.reset();
}

// The process may live and be copying still: its extents stay until its pidfd says otherwise.
void Broker::hang_up(uint64_t conn_id) {
    Connection &connection = connections_.at(conn_id);
    close_socket(connection);
    connection.stage = Stage::HungUp;
    for (CacheRegion *region : caches_->all())
        if (region->state() != CacheRegion::State::Dying) region->hung_up(conn_id);
    caches_->note_closed(conn_id, 0);
    if ((!connection.pidfd && !connection.witness) || !has_slots(conn_id)) drop(conn_id);
}

// Who could not be told of what another's request, or a job, brought about: after it, since that may be on its way for
// the very connection, or going through the caches whose connections these are.
void Broker::hang_up_on_the_deaf() {
    for (uint64_t id : std::exchange(deaf_, {}))
        if (const auto at = connections_.find(id); at != connections_.end() && at->second.socket) hang_up(id);
}

void Broker::process_died(uint64_t conn_id) {
    if (connections_.count(conn_id) == 0) return;
    for (CacheRegion *region : caches_->all())
        region->died(conn_id);
    drop(conn_id);
}

void Broker::drop(uint64_t conn_id) {
    Connection &connection = connections_.at(conn_id);
    close_socket(connection);
    if (connection.pidfd) unwatch(connection.pidfd.get());
    caches_->note_gone(conn_id); // while the keeper has it: else a new broker would not look for it
    if (connection.pidfd || connection.witness) keeper_.forget(HeldKind::Connection, conn_id);
    connections_.erase(conn_id);
    std::erase_if(waiting_opens_, [&](const Waiting &w) { return w.conn_id == conn_id; });
    std::erase_if(waiting_spills_, [&](const Waiting &w) { return w.conn_id == conn_id; });
}

// Connections that never greeted, and such as hung up while their process still held something.
void Broker::drop_idle() {
    std::vector<uint64_t> gone;
    const int64_t too_long = now_ns() - kHandshakePatience;
    for (const auto &[id, connection] : connections_) {
        const bool greeting = connection.stage == Stage::Hello || connection.stage == Stage::Prove;
        if ((greeting && connection.since_ns < too_long) || (connection.stage == Stage::HungUp && !has_slots(id)))
            gone.push_back(id);
    }
    for (uint64_t id : gone)
        drop(id);
}

// ---- a new broker

// R4: slots whose connection the keeper does not have. Their process is found by its number and start time.
void Broker::find_lost_writers() {
    for (CacheRegion *region : caches_->all())
        for (const CacheRegion::Person &person : region->found_writers()) {
            if (const auto at = connections_.find(person.conn_id); at != connections_.end()) {
                at->second.pid = person.pid;
                at->second.start_time = person.start_time;
                continue;
            }
            Fd pidfd = pidfd_of(person.pid);
            // Looked at after the pidfd was open: a number that is reused later is not taken for this process.
            if (!pidfd || process_start_time(person.pid) != person.start_time || person.start_time == 0) {
                region->died(person.conn_id);
                continue;
            }
            Connection &connection = connections_[person.conn_id];
            connection.id = person.conn_id;
            connection.pid = person.pid;
            connection.start_time = person.start_time;
            connection.pidfd = std::move(pidfd);
            connection.stage = Stage::HungUp;
            region->hung_up(person.conn_id);
        }
}

// R6: no connection is read before RESUME went out on it.
void Broker::resume_all() {
    std::vector<uint64_t> ids;
    for (const auto &[id, connection] : connections_)
        ids.push_back(id);
    for (uint64_t id : ids) {
        Connection &connection = connections_.at(id);
        watch_process(connection);
        if (!connection.socket) continue;
        if (connection.pid == 0) {
            ucred peer{};
            socklen_t size = sizeof peer;
            getsockopt(connection.socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size); // best effort: for messages
            connection.pid = peer.pid;
            connection.start_time = process_start_time(peer.pid);
        }
        if (resume(connection))
            watch_socket(connection);
        else
            hang_up(id);
    }
}

// A client that asks for nothing reads nothing either, and its socket fills up when broker after broker says RESUME:
// what it reads first then is old, and its request of an old generation is answered with this one's RESUME.
bool Broker::resume(Connection &connection) {
    wire::Message message{};
    message.header.type = uint32_t(wire::Type::Resume);
    fill_welcome(connection, &message);
    const Io io = transmit(connection, &message);
    connection.resume_owed = io == Io::WouldBlock;
    return io == Io::Done || io == Io::WouldBlock;
}

// ---- sending

Io Broker::transmit(const Connection &connection, wire::Message *message, int fd, int second_fd) {
    wire::Header &header = message->header;
    header.magic = wire::kMagic;
    header.version_major = CACHE_VERSION_MAJOR;
    header.version_minor = CACHE_VERSION_MINOR;
    header.generation = generation_;
    const int fds[2] = {fd, second_fd};
    const int n_fds = fd < 0 ? 0 : second_fd < 0 ? 1 : 2;
    return send_packet(connection.socket.get(), message, sizeof *message, fds, n_fds, false, false);
}

bool Broker::send(Connection &connection, wire::Message *message, int fd, int second_fd) {
    // Never waits: a client that asks and does not read is its own loss.
    const Io io = transmit(connection, message, fd, second_fd);
    if (io == Io::WouldBlock)
        log_line(LogLevel::Warning, "process %d does not read its messages and is disconnected", connection.pid);
    return io == Io::Done;
}

bool Broker::reply(Connection &connection, const wire::Message &request, wire::Message *answer, int status, int fd,
                   int second_fd) {
    if (answer->header.type == 0) answer->header.type = request.header.type;
    answer->header.number = request.header.number;
    answer->header.status = status;
    if (status != 0) snprintf(answer->text, sizeof answer->text, "%s", last_error());
    if (status == CACHE_EFULL) answer->header.full_cause = full_cause();
    ++messages_;
    return send(connection, answer, fd, second_fd);
}

} // namespace libcache
