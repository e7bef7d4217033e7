// SPDX-License-Identifier: Apache-2.0
// Clients that want too much of a server's sockets: more connections than it has descriptors, answers that nobody
// reads, messages cut short, messages with descriptors. The others are served, and the log says what happened.
#include "tests/support/raw.h"
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

namespace {

constexpr rlim_t kServerDescriptors = 256;
constexpr int kFlood = 400;

bool log_says(const Session &s, const char *words) {
    std::ifstream output(std::string(test_server_dir(s.server)) + "/output");
    const std::string text{std::istreambuf_iterator<char>(output), {}};
    return text.find(words) != std::string::npos;
}

size_t log_lines(const Session &s) {
    std::ifstream output(std::string(test_server_dir(s.server)) + "/output");
    return size_t(std::count(std::istreambuf_iterator<char>(output), {}, '\n'));
}

void eventually(const std::function<bool()> &so, const char *what) {
    for (int tries = 0; !so(); tries++) {
        cr_assert_lt(tries, 6000, "it did not come about: %s", what);
        usleep(10000);
    }
}

// An honest client, from connecting to its end, in a process of its own.
void serves_a_newcomer(const Session &s, int64_t id) {
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        cache_client *client = nullptr;
        cache *handle = nullptr;
        if (cache_connect(nullptr, &client) != 0 || cache_open(client, s.id, 1, nullptr, &handle) != 0 ||
            rows::put(handle, id) != 0 || !rows::check(handle, id).empty() || cache_disconnect(client) != 0) {
            fprintf(stderr, "an honest client: %s\n", cache_last_error());
            _exit(1);
        }
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    cr_assert_eq(status, 0, "an honest client ended with wait status %d", status);
}

// By a process of its own: one has but one connection.
bool is_refused_for_the_limit() {
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        cache_client *client = nullptr;
        const int code = cache_connect(nullptr, &client);
        _exit(code == CACHE_ELIMIT && strstr(cache_last_error(), "ulimit -n allows it 256") ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return status == 0;
}

// A process that floods when it is told to, and ends when it is told to. Made before the server: what limits that one
// would limit it.
class Flooder {
  public:
    explicit Flooder(bool greets) {
        cr_assert(pipe(go_) == 0 && pipe(done_) == 0);
        pid_ = fork();
        if (pid_ != 0) return;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        flood(greets);
    }
    Flooder(const Flooder &) = delete;
    Flooder &operator=(const Flooder &) = delete;
    ~Flooder() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    // How many of its connections stand: have been accepted by the kernel, or welcomed by the server.
    int begin(const Session &s) {
        const std::string path = test_server_socket(s.server);
        cr_assert_eq(write(go_[1], path.c_str(), path.size() + 1), ssize_t(path.size() + 1));
        int n = -1;
        cr_assert_eq(read(done_[0], &n, sizeof n), ssize_t(sizeof n), "the flooder ended");
        return n;
    }

  private:
    int go_[2], done_[2];
    pid_t pid_;

    [[noreturn]] void flood(bool greets) const {
        alarm(100);
        char path[108] = {};
        if (read(go_[0], path, sizeof path - 1) <= 0) _exit(1);
        const sockaddr_un address = address_of(path);
        const auto hello = message(wire::Type::Hello);
        int n = 0;
        for (int i = 0; i < kFlood; i++) {
            const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
            if (connect(fd, reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0) continue;
            n += greets ? welcomes(fd, *hello) : 1;
        }
        (void)!write(done_[1], &n, sizeof n);
        pause();
        _exit(0);
    }
    // Whatever the server asks for beyond a Hello is not given: such a connection is counted as silent.
    static bool welcomes(int fd, const wire::Message &hello) {
        wire::Message answer{};
        pollfd entry{fd, POLLIN, 0};
        return send_all(fd, &hello, sizeof hello) && poll(&entry, 1, 60000) == 1 &&
               recv(fd, &answer, sizeof answer, 0) == ssize_t(sizeof answer) &&
               answer.header.type == uint32_t(wire::Type::Welcome) && answer.header.status == 0;
    }
};

// The server inherits it; this process, which has few open, can live with it.
void limit_descriptors() {
    const rlimit limit{kServerDescriptors, kServerDescriptors};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0, "%s", strerror(errno));
}

pid_t broker_of(const Session &s) {
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    return info.broker_pid;
}

size_t descriptors_of(pid_t pid) {
    const std::filesystem::directory_iterator folder("/proc/" + std::to_string(pid) + "/fd");
    return size_t(std::distance(begin(folder), {}));
}

// Sends a message with so many copies of a descriptor.
bool send_with(int socket, wire::Message &m, size_t bytes, int n_fds) {
    static const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    std::vector<char> control(CMSG_SPACE(sizeof(int) * size_t(n_fds)));
    iovec part{&m, bytes};
    msghdr packet{};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    packet.msg_control = control.data();
    packet.msg_controllen = control.size();
    cmsghdr *c = CMSG_FIRSTHDR(&packet);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * size_t(n_fds));
    const std::vector<int> fds(size_t(n_fds), null);
    memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * size_t(n_fds));
    return sendmsg(socket, &packet, MSG_NOSIGNAL) == ssize_t(bytes);
}

bool hung_up(int fd) {
    pollfd entry{fd, POLLIN, 0};
    char byte;
    for (;;) { // past what was answered before
        if (poll(&entry, 1, 60000) != 1) return false;
        if (recv(fd, &byte, 1, 0) <= 0) return true;
    }
}

} // namespace

Test(flood, silent_connections_beyond_the_limit_keep_nobody_out) {
    Flooder flooder(false);
    limit_descriptors();
    Session s;
    OK(rows::put(s.rows, 1));
    cr_assert_gt(flooder.begin(s), int(kServerDescriptors) / 2);
    serves_a_newcomer(s, 2);
    OK(rows::put(s.rows, 3));
    RIGHT(rows::check(s.rows, 2));
    eventually([&] { return log_says(s, "connections that never greeted"); }, "a sentence about silent connections");
    cr_assert_lt(log_lines(s), 60, "the log has %zu lines", log_lines(s));
}

Test(flood, greeted_connections_beyond_the_limit_are_refused_and_those_that_end_make_room) {
    auto flooder = std::make_unique<Flooder>(true);
    limit_descriptors();
    Session s;
    OK(rows::put(s.rows, 1));
    const size_t before = descriptors_of(broker_of(s));
    const int stand = flooder->begin(s);
    cr_assert(stand > 10 && stand < int(kServerDescriptors) / 2, "%d connections are welcomed", stand);
    cr_assert(is_refused_for_the_limit(), "a newcomer is not refused, or not for the limit");
    OK(rows::put(s.rows, 3)); // who was there is served
    RIGHT(rows::check(s.rows, 1));
    cr_assert(log_says(s, "ulimit -n"));
    flooder.reset();
    eventually([&] { return descriptors_of(broker_of(s)) == before; }, "the server has closed what the flood left");
    serves_a_newcomer(s, 2);
}

Test(flood, a_client_that_never_reads_is_let_go_and_the_others_are_served) {
    Session s;
    uint64_t generation = 0;
    const int fd = welcomed(s, &generation);
    const auto info = message(wire::Type::ServerInfo, 2);
    info->header.generation = generation;
    // Each is answered; when nothing fits into the socket any more the server does not wait.
    eventually([&] { return send(fd, info.get(), sizeof *info, MSG_NOSIGNAL) < 0; }, "the server hangs up");
    serves_a_newcomer(s, 1);
    eventually([&] { return log_says(s, "does not read its messages"); }, "a sentence about who does not read");
    close(fd);
}

Test(flood, messages_cut_short_end_their_connection_only) {
    Session s;
    uint64_t generation = 0;
    for (size_t bytes : {size_t{1}, sizeof(wire::Header) - 1, sizeof(wire::Header), sizeof(wire::Message) / 2,
                         sizeof(wire::Message) - 1})
        for (wire::Type type : {wire::Type::Hello, wire::Type::Open, wire::Type::Attach, wire::Type::Close}) {
            const int fd = type == wire::Type::Hello ? raw_connect(s.server) : welcomed(s, &generation);
            const auto half = message(type, 2);
            half->header.generation = generation;
            cr_assert(send_all(fd, half.get(), bytes));
            cr_assert(hung_up(fd), "%zu bytes of a message %u: the connection stands", bytes, uint32_t(type));
            close(fd);
        }
    serves_a_newcomer(s, 1);
    cr_assert(log_says(s, "sent what is no message"));
}

Test(flood, descriptors_that_nobody_asked_for_are_closed) {
    if (in_qemu()) SKIP("descriptors beyond the server's room for them: qemu-user takes twice as many, and keeps them");
    Session s;
    uint64_t generation = 0;
    const pid_t broker = broker_of(s);
    const size_t before = descriptors_of(broker);
    for (int n_fds : {1, 2, 64, 253})
        for (wire::Type type : {wire::Type::Hello, wire::Type::Prove, wire::Type::Open, wire::Type::Attach})
            for (size_t bytes : {sizeof(wire::Message), sizeof(wire::Header)}) {
                const bool first = type == wire::Type::Hello || type == wire::Type::Prove;
                const int fd = first ? raw_connect(s.server) : welcomed(s, &generation);
                const auto m = message(type, 2);
                m->header.generation = generation;
                cr_assert(send_with(fd, *m, bytes, n_fds), "%s", strerror(errno));
                cr_assert(hung_up(fd), "message %u with %d descriptors: the connection stands", uint32_t(type), n_fds);
                close(fd);
            }
    serves_a_newcomer(s, 1);
    eventually([&] { return descriptors_of(broker) == before; }, "the server has closed what it was sent");
}

Test(flood, a_server_without_a_descriptor_left_waits_and_then_serves) {
    Session s;
    OK(rows::put(s.rows, 0));
    const pid_t broker = broker_of(s);
    rlimit limit{};
    cr_assert_eq(prlimit(broker, RLIMIT_NOFILE, nullptr, &limit), 0);
    rlimit none = limit;
    none.rlim_cur = 3;
    cr_assert_eq(prlimit(broker, RLIMIT_NOFILE, &none, nullptr), 0, "%s", strerror(errno));
    const int fd = raw_connect(s.server); // the kernel lets it in
    eventually([&] { return log_says(s, "accepting a connection failed"); }, "a sentence about who is not let in");
    OK(rows::put(s.rows, 1));     // who was there is served
    for (int i = 0; i < 200; i++) // each is a turn of the server's loop, in which it could look at the newcomer again
        cr_assert_eq(broker_of(s), broker);
    cr_assert_lt(log_lines(s), 50, "the log has %zu lines", log_lines(s));
    cr_assert_eq(prlimit(broker, RLIMIT_NOFILE, &limit, nullptr), 0);
    serves_a_newcomer(s, 2);
    close(fd);
}
