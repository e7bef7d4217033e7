// SPDX-License-Identifier: Apache-2.0
#include "tests/support/server.h"

#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vector>

struct test_server {
    std::string dir, socket, output;
    uint32_t port = 0;
    pid_t pid = -1;
    uid_t uid = 0;
};

namespace {

constexpr int kDeadlineSeconds = 60; // of starting and of ending: an overloaded machine is not a failure

std::string make_folder(uid_t uid) {
    const char *base = getenv("TMPDIR");
    std::string path = std::string(base ? base : "/tmp") + "/lcs-XXXXXX";
    if (!mkdtemp(path.data())) test_die("mkdtemp %s: %s", path.c_str(), strerror(errno));
    if (uid != geteuid() && chown(path.c_str(), uid, uid) != 0)
        test_die("chown %s to %u: %s", path.c_str(), uid, strerror(errno));
    return path;
}

// A port that is free now. Somebody may take it before the server does: start() tries again then.
uint32_t free_port() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (fd < 0 || bind(fd, reinterpret_cast<sockaddr *>(&address), length) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr *>(&address), &length) != 0)
        test_die("looking for a free port: %s", strerror(errno));
    close(fd);
    return ntohs(address.sin_port);
}

bool accepts(const std::string &path) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) test_die("the socket path %s is too long", path.c_str());
    memcpy(address.sun_path, path.c_str(), path.size());
    const bool ok = connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0;
    close(fd);
    return ok;
}

std::string read_text(const std::string &path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> command_of(const test_server &server, const char *const *arguments) {
    const char *program = getenv("LIBCACHE_TEST_SERVER");
    std::vector<std::string> words = {std::string(test_build()) + "/" + (program ? program : "bin/cache_server"),
                                      "--foreground", "--port", std::to_string(server.port)};
    bool backing = false;
    for (; arguments && *arguments; arguments++) {
        words.emplace_back(*arguments);
        backing = backing || words.back().starts_with("--backing");
    }
    const char *wanted = getenv("LIBCACHE_TEST_BACKING");
    if (wanted && !backing) words.insert(words.end(), {"--backing", wanted});
    return words;
}

[[noreturn]] void exec_server(const test_server &server, std::vector<std::string> words, pid_t parent) {
    const int out = open(server.output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(out, 1);
    dup2(out, 2);
    setenv("LIBCACHE_DIR", server.dir.c_str(), 1);
    if (server.uid != geteuid() && (setgid(server.uid) != 0 || setuid(server.uid) != 0)) _exit(126);
    prctl(PR_SET_PDEATHSIG, SIGTERM); // a test that crashes takes its server along
    if (getppid() != parent) _exit(126);
    std::vector<char *> argv;
    for (std::string &word : words)
        argv.push_back(word.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    fprintf(stderr, "exec %s: %s\n", argv[0], strerror(errno));
    _exit(126);
}

// True when the server accepts connections; false when it ended first.
bool wait_ready(const test_server &server, int *status) {
    const time_t deadline = time(nullptr) + kDeadlineSeconds;
    while (time(nullptr) < deadline) {
        if (accepts(server.socket)) return true;
        if (waitpid(server.pid, status, WNOHANG) == server.pid) return false;
        usleep(2000);
    }
    kill(server.pid, SIGKILL);
    test_die("the server does not accept connections on %s; it wrote:\n%s", server.socket.c_str(),
             read_text(server.output).c_str());
}

} // namespace

void test_die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("test: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    fflush(nullptr);
    abort();
}

const char *test_build() {
    static const std::string build = [] {
        if (const char *set = getenv("LIBCACHE_BUILD")) return std::string(set);
        return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path().string();
    }();
    return build.c_str();
}

test_server *test_server_start_as(uid_t uid, const char *const *arguments) {
    auto *server = new test_server;
    server->uid = uid;
    server->dir = make_folder(uid);
    server->output = server->dir + "/output";
    for (int attempt = 1;; attempt++) {
        server->port = free_port();
        server->socket = server->dir + "/cache_server." + std::to_string(server->port);
        const pid_t self = getpid();
        server->pid = fork();
        if (server->pid == 0) exec_server(*server, command_of(*server, arguments), self);
        int status = 0;
        if (wait_ready(*server, &status)) break;
        if (attempt == 5 || (WIFEXITED(status) && WEXITSTATUS(status) == 126)) // 126: exec failed
            test_die("the server ended at once (wait status %d); it wrote:\n%s", status,
                     read_text(server->output).c_str());
    }
    setenv("LIBCACHE_DIR", server->dir.c_str(), 1);
    setenv("LIBCACHE_PORT", std::to_string(server->port).c_str(), 1);
    return server;
}

test_server *test_server_start(const char *const *arguments) {
    return test_server_start_as(geteuid(), arguments);
}

void test_server_start_again(test_server *server, const char *const *arguments) {
    const pid_t self = getpid();
    server->pid = fork();
    if (server->pid == 0) exec_server(*server, command_of(*server, arguments), self);
    int status = 0;
    if (!wait_ready(*server, &status))
        test_die("the server did not start again (wait status %d); it wrote:\n%s", status,
                 read_text(server->output).c_str());
}

uint32_t test_server_port(const test_server *server) {
    return server->port;
}
pid_t test_server_pid(const test_server *server) {
    return server->pid;
}
const char *test_server_dir(const test_server *server) {
    return server->dir.c_str();
}
const char *test_server_socket(const test_server *server) {
    return server->socket.c_str();
}

int test_run(const char *const *arguments) {
    const std::string program = std::string(test_build()) + "/" + arguments[0];
    const pid_t pid = fork();
    if (pid == 0) {
        execv(program.c_str(), const_cast<char *const *>(arguments));
        fprintf(stderr, "exec %s: %s\n", program.c_str(), strerror(errno));
        _exit(126);
    }
    int status = 0;
    if (waitpid(pid, &status, 0) != pid) test_die("waiting for %s: %s", program.c_str(), strerror(errno));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void test_server_check(const test_server *server) {
    const std::string port = std::to_string(server->port);
    const char *const arguments[] = {"tests/support/check_region", server->dir.c_str(), port.c_str(), nullptr};
    if (const int status = test_run(arguments)) test_die("check_region ended with status %d", status);
}

void test_server_stop(test_server *server) {
    if (!server) return;
    if (server->uid == geteuid()) test_server_check(server);
    kill(server->pid, SIGTERM);
    int status = 0;
    const time_t deadline = time(nullptr) + kDeadlineSeconds;
    while (waitpid(server->pid, &status, WNOHANG) == 0) {
        if (time(nullptr) > deadline) test_die("the server does not end at SIGTERM");
        usleep(2000);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        test_die("the server ended with wait status %d; it wrote:\n%s", status, read_text(server->output).c_str());
    if (access(server->socket.c_str(), F_OK) == 0) test_die("the server left its socket %s", server->socket.c_str());
    std::filesystem::remove_all(server->dir);
    delete server;
}

void test_server_kill(test_server *server, pid_t broker) {
    kill(server->pid, SIGKILL); // first: it would start a new broker
    kill(broker, SIGKILL);
    waitpid(server->pid, nullptr, 0);
    std::filesystem::remove_all(server->dir);
    delete server;
}

namespace {
void bark(int) {
    static const char text[] = "test: killed by its watchdog\n";
    (void)!write(2, text, sizeof text - 1);
    _exit(3);
}
} // namespace

void test_watchdog(unsigned seconds) {
    signal(SIGALRM, bark);
    alarm(seconds);
}

uint64_t test_memory_available() {
    std::ifstream file("/proc/meminfo");
    for (std::string line; std::getline(file, line);)
        if (unsigned long long kib; sscanf(line.c_str(), "MemAvailable: %llu", &kib) == 1) return kib << 10;
    return 0;
}
