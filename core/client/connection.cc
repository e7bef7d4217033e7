// SPDX-License-Identifier: Apache-2.0
#include "core/client/connection.h"

#include "core/common/error.h"
#include "core/common/in_child.h"
#include "core/control/paths.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace libcache {
namespace {

void fill_header(wire::Message &message, wire::Type type, uint64_t number, uint64_t generation) {
    message.header = {};
    message.header.magic = wire::kMagic;
    message.header.version_major = CACHE_VERSION_MAJOR;
    message.header.version_minor = CACHE_VERSION_MINOR;
    message.header.type = static_cast<uint32_t>(type);
    message.header.number = number;
    message.header.generation = generation;
}

// The server's refusal in its own sentence, or in ours where it sent none that can be meant.
int refused(const wire::Message &reply) {
    const int code = reply.header.status;
    if (code > CACHE_EINVAL || code < CACHE_EINVAL - 998) // not of libcache's range
        return fail(CACHE_EVERSION, "the server answered with status %d, which is none of libcache's", code);
    if (reply.text[0] == 0) return fail(code, "the server gave no reason: %s", code_text(code));
    return full_of(reply.header.full_cause, fail(code, "%s", reply.text));
}

void fill_hello(wire::Hello &hello) {
    snprintf(hello.version, sizeof hello.version, "%d.%d.%d", CACHE_VERSION_MAJOR, CACHE_VERSION_MINOR,
             CACHE_VERSION_PATCH);
    const ssize_t n = readlink("/proc/self/exe", hello.program, sizeof hello.program - 1);
    hello.program[n > 0 ? n : 0] = 0;
}

size_t page_bytes() {
    return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

bool is(const wire::Message &message, wire::Type type) {
    return message.header.type == static_cast<uint32_t>(type);
}

} // namespace

int Connection::to(const ClientConfig &config, std::shared_ptr<Connection> *connection) {
    auto &known = this_process().connections[config.socket_path];
    *connection = known.lock();
    if (*connection && (*connection)->alive()) return 0;
    std::shared_ptr<Connection> fresh(new Connection(config));
    if (int rc = fresh->connect(); rc != 0) return rc;
    known = *connection = std::move(fresh);
    return 0;
}

Connection::~Connection() {
    // In a forked child the number may mean another file by now: closing the parent's socket there was process.cc's
    // job.
    if (!of_this_process()) {
        (void)socket_.release();
        return;
    }
    if (socket_) forget_in_child(socket_.get());
    forget_witness();
}

int Connection::no_server(int error) const {
    if (error == EAGAIN) return no_answer();
    if (error == EACCES || error == EPERM)
        return fail(CACHE_EPERM,
                    "not permitted to connect to %s: the server belongs to another user; start one of your own, or "
                    "unset LIBCACHE_DIR if that led here",
                    config_.socket_path.c_str());
    const std::string folder = config_.socket_path.substr(0, config_.socket_path.rfind('/'));
    if (const std::string missing = missing_above(folder); !missing.empty()) // --start would fail as well
        return fail(CACHE_ESERVER, "Server on port %u is not reachable or has been shutdown already: %s", config_.port,
                    missing.c_str());
    return fail(CACHE_ESERVER,
                "Server on port %u is not reachable or has been shutdown already: connecting to %s: %s; start one with "
                "cache_admin --start -p %u",
                config_.port, config_.socket_path.c_str(), strerror(error), config_.port);
}

// Whoever can write the folder could put a socket of his own there.
int Connection::check_folder() const {
    if (!config_.own_folder) return 0;
    const std::string folder = config_.socket_path.substr(0, config_.socket_path.rfind('/'));
    struct stat st {};
    if (lstat(folder.c_str(), &st) != 0) return no_server(errno);
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid())
        return fail(CACHE_EPERM, "%s belongs to user %u, not to user %u of this process: no server there is trusted",
                    folder.c_str(), st.st_uid, geteuid());
    return 0;
}

static bool is_my_group(gid_t group) {
    if (group == getegid()) return true;
    std::vector<gid_t> mine(static_cast<size_t>(std::max(getgroups(0, nullptr), 0)));
    const int n = getgroups(static_cast<int>(mine.size()), mine.data());
    return n > 0 && std::find(mine.begin(), mine.begin() + n, group) != mine.begin() + n;
}

// The marks that --group leaves: a socket for a group of ours, of that user, where nobody else could have put it.
static bool admits_my_group(uid_t user, const std::string &socket_path) {
    const size_t slash = socket_path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : socket_path.substr(0, slash + 1);
    struct stat in {};
    struct stat at {};
    return stat(folder.c_str(), &in) == 0 && in.st_uid == user && (in.st_mode & 0022) == 0 &&
           lstat(socket_path.c_str(), &at) == 0 && S_ISSOCK(at.st_mode) && at.st_uid == user &&
           (at.st_mode & 0060) == 0060 && is_my_group(at.st_gid);
}

// Whom this process believes: rows of a server are what its users compute with. Also where LIBCACHE_DIR or socket_path
// names the place: somebody else may have chosen those.
int Connection::check_server() const {
    ucred server{};
    socklen_t length = sizeof server;
    if (getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &server, &length) != 0)
        return fail(CACHE_EPERM, "it cannot be told whose server is at %s: %s", config_.socket_path.c_str(),
                    strerror(errno));
    if (server.uid == geteuid() || server.uid == 0 || admits_my_group(server.uid, config_.socket_path)) return 0;
    return fail(CACHE_EPERM,
                "the server at %s belongs to user %u, this process to user %u, and it was not started for a group of "
                "this user (--group): start one of your own, or unset LIBCACHE_DIR if that led here",
                config_.socket_path.c_str(), server.uid, geteuid());
}

int Connection::connect() {
    if (int rc = check_folder(); rc != 0) return rc;
    const int64_t deadline = now_ns() + config_.timeout_ns;
    for (bool hung_up = false;;) {
        socket_ = connect_unix(config_.socket_path, config_.timeout_ns);
        if (!socket_) return no_server(errno);
        if (int rc = check_server(); rc != 0) return rc;
        gone_.store(false, std::memory_order_relaxed);
        bool again = false;
        const int rc = greet(deadline, &again);
        if (rc == 0) {
            close_in_child(socket_.get());
            return 0;
        }
        // A broker that died before it said WELCOME left nothing behind: begin again.
        hung_up |= again;
        if (!again && !(hung_up && rc == CACHE_ETIMEOUT)) return rc;
        if (now_ns() >= deadline)
            return fail(CACHE_ESERVER, "the server at %s hung up before it said welcome, again and again; see its log",
                        config_.socket_path.c_str());
        poll(nullptr, 0, 20); // whoever closes at once may do so for a while
    }
}

int Connection::greet(int64_t deadline, bool *again) {
    wire::Message message{};
    fill_header(message, wire::Type::Hello, 0, 0);
    fill_hello(message.u.hello);
    if (int rc = send(message); rc != 0) return *again = rc == CACHE_ESERVER, rc;
    Fd fds[2];
    do { // a server that always has something else to say does not hold us either
        if (int rc = receive(&message, fds, deadline); rc != 0) return *again = rc == CACHE_ESERVER, rc;
        if (message.header.status != 0) return refused(message);
        generation_.store(message.header.generation, std::memory_order_relaxed);
        // RESUME takes the place of WELCOME when the broker died after the keeper had the connection.
        if (is(message, wire::Type::Welcome) || is(message, wire::Type::Resume)) return 0;
        if (!is(message, wire::Type::Prove)) continue;
        fill_header(message, wire::Type::Prove, 0, message.header.generation);
        message.u.prove = {fds[0] && keep_witness(fds[0]), 0};
        fds[0].reset();
        if (int rc = send(message, true); rc != 0) return *again = rc == CACHE_ESERVER, rc;
    } while (now_ns() < deadline);
    return no_answer();
}

// The server learns by a lease on this file when nobody maps it any more. A forked child is another client.
bool Connection::keep_witness(const Fd &file) {
    forget_witness();
    void *const page = mmap(nullptr, page_bytes(), PROT_READ, MAP_SHARED, file.get(), 0);
    if (page == MAP_FAILED) return false;
    witness_ = page;
    return madvise(page, page_bytes(), MADV_DONTFORK) == 0;
}

void Connection::forget_witness() {
    if (witness_ != nullptr) munmap(witness_, page_bytes());
    witness_ = nullptr;
}

int Connection::gone() {
    gone_.store(true, std::memory_order_relaxed);
    return fail(CACHE_ESERVER,
                "the server on port %u has ended; start one with cache_admin --start -p %u and connect anew",
                config_.port, config_.port);
}

int Connection::no_answer() const {
    return fail(CACHE_ETIMEOUT, "the server on port %u did not answer before the deadline (timeout_ms); see its log",
                config_.port);
}

// Waits for room in the socket at most as long as for an answer.
int Connection::send(const wire::Message &message, bool credentials) {
    switch (send_packet(socket_.get(), &message, sizeof message, nullptr, 0, credentials)) {
    case Io::Done: return 0;
    case Io::WouldBlock: return no_answer();
    case Io::Closed: return gone();
    default: return failed("sending to");
    }
}

// Something of this process or machine (memory, buffers): the server may well be there.
int Connection::failed(const char *what) const {
    return fail(CACHE_EIO, "%s the server on port %u failed: %s", what, config_.port, strerror(errno));
}

// One well-formed message, or an error. Descriptors that nobody wants are closed.
int Connection::receive(wire::Message *reply, Fd *fds, int64_t deadline) {
    const int ready = wait_readable(socket_.get(), deadline);
    if (ready == 0) return no_answer();
    if (ready < 0) return fail(CACHE_EIO, "waiting for the server on port %u: %s", config_.port, strerror(errno));
    Fd arrived[2];
    int n_arrived = 2;
    switch (receive_packet(socket_.get(), reply, sizeof *reply, arrived, &n_arrived)) {
    case Io::Done: break;
    case Io::Bad:
        return fail(CACHE_EVERSION, "the server on port %u sent a message of another size: it is of another version",
                    config_.port);
    case Io::Closed: return gone();
    default: return failed("receiving from");
    }
    if (reply->header.magic != wire::kMagic)
        return fail(CACHE_EVERSION, "what answers on %s is no libcache server", config_.socket_path.c_str());
    if (reply->header.version_major != CACHE_VERSION_MAJOR && reply->header.status == 0)
        return fail(CACHE_EVERSION, "the server on port %u is of version %u, this library of version %u", config_.port,
                    reply->header.version_major, CACHE_VERSION_MAJOR);
    reply->text[sizeof reply->text - 1] = 0;
    for (int i = 0; fds != nullptr && i < 2; i++)
        fds[i] = i < n_arrived ? std::move(arrived[i]) : Fd();
    return 0;
}

int Connection::request(wire::Message &message, int64_t timeout_ns, Fd *fds) {
    std::lock_guard lock(request_mutex_);
    if (gone_.load(std::memory_order_relaxed)) return gone();
    drain();
    const auto type = static_cast<wire::Type>(message.header.type);
    fill_header(message, type, next_number_++, generation_.load(std::memory_order_relaxed));
    const int64_t deadline = now_ns() + timeout_ns;
    if (int rc = send(message); rc != 0) return rc;
    return await_reply(message, fds, deadline);
}

int Connection::await_reply(wire::Message &message, Fd *fds, int64_t deadline) {
    wire::Message reply;
    do {
        if (int rc = receive(&reply, fds, deadline); rc != 0) return rc;
        if (is(reply, wire::Type::Resume)) {
            if (reply.header.generation == message.header.generation) continue;
            // A new broker: what it has not answered it may not have seen.
            generation_.store(reply.header.generation, std::memory_order_relaxed);
            message.header.generation = reply.header.generation;
            message.header.repeated = 1;
            if (int rc = send(message); rc != 0) return rc;
            continue;
        }
        // Another's reply, with its descriptors, is that of a request that was given up: the next one's replace them.
        if (reply.header.number != message.header.number || reply.header.type != message.header.type) continue;
        message = reply;
        return reply.header.status == 0 ? 0 : refused(reply);
    } while (now_ns() < deadline); // also where other messages keep coming
    return no_answer();
}

// Takes what came without being asked for: RESUME of newer brokers, late replies; no more than a socket holds, whoever
// fills it. Under request_mutex_.
void Connection::drain() {
    wire::Message message;
    for (int i = 0; i < 256; i++) {
        switch (receive_packet(socket_.get(), &message, sizeof message, nullptr, nullptr, nullptr, false)) {
        case Io::Done:
            if (message.header.magic == wire::kMagic && is(message, wire::Type::Resume))
                generation_.store(message.header.generation, std::memory_order_relaxed);
            break;
        case Io::Bad: break;
        case Io::WouldBlock:
        case Io::Failed: return;
        default: gone_.store(true, std::memory_order_relaxed); return;
        }
    }
}

bool Connection::send_want(uint64_t region_id, uint32_t slot, uint64_t epoch, Want want, int64_t row_id) {
    // Another thread's request reads the socket itself.
    if (std::unique_lock lock(request_mutex_, std::try_to_lock); lock.owns_lock()) drain();
    if (gone_.load(std::memory_order_relaxed)) return false;
    wire::Message message{};
    fill_header(message, wire::Type::Stock, 0, generation_.load(std::memory_order_relaxed));
    message.u.want = {region_id, epoch, want.pack(), row_id, slot, 0};
    const Io sent = send_packet(socket_.get(), &message, sizeof message, nullptr, 0, false, false);
    if (sent == Io::Closed) gone_.store(true, std::memory_order_relaxed);
    return !gone_.load(std::memory_order_relaxed);
}

bool Connection::alive() {
    if (gone_.load(std::memory_order_relaxed)) return false;
    pollfd entry{socket_.get(), POLLIN, 0};
    if (poll(&entry, 1, 0) == 1 && (entry.revents & (POLLHUP | POLLERR)) != 0)
        gone_.store(true, std::memory_order_relaxed);
    return !gone_.load(std::memory_order_relaxed);
}

int Connection::wait_closed(int64_t timeout_ns) {
    std::lock_guard lock(request_mutex_);
    const int64_t deadline = now_ns() + timeout_ns;
    wire::Message message;
    do {
        const int rc = receive(&message, nullptr, deadline);
        if (rc == CACHE_ESERVER) return 0;
        if (rc != 0) return rc;
    } while (now_ns() < deadline);
    return no_answer();
}

} // namespace libcache
