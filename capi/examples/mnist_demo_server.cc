// SPDX-License-Identifier: Apache-2.0
#include "capi/examples/mnist_demo_server.h"

#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <netinet/in.h>
#include <spawn.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern char **environ;

namespace demo {
namespace {

struct Outcome {
    bool success;
    std::string text; // stdout and stderr
};

std::string read_whole(int fd) {
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = pread(fd, buffer, sizeof buffer, static_cast<off_t>(text.size()))) > 0;)
        text.append(buffer, static_cast<size_t>(got));
    return text;
}

// In a process group of its own, because Ctrl-C goes to our whole group and must not end a half-done start or stop.
// Its output goes to memory and not to a pipe, which would stay open as long as whatever it starts.
int spawn(std::vector<std::string> &words, int output, pid_t *child) {
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, output, STDERR_FILENO);

    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    sigset_t set;
    sigemptyset(&set);
    posix_spawnattr_setsigmask(&attributes, &set); // Signals blocks some in this process
    sigaddset(&set, SIGPIPE);                      // main() ignores it
    posix_spawnattr_setsigdefault(&attributes, &set);

    std::vector<char *> arguments;
    for (std::string &word : words)
        arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const int error = posix_spawn(child, arguments[0], &files, &attributes, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    return error;
}

Outcome run(std::vector<std::string> words) {
    const int output = memfd_create("cache_admin output", MFD_CLOEXEC);
    if (output < 0) return {false, std::string("memfd_create: ") + std::strerror(errno)};
    Outcome outcome{};
    pid_t child = 0;
    if (const int error = spawn(words, output, &child)) {
        outcome.text = "cannot run " + words[0] + ": " + std::strerror(error);
    } else {
        int status = 0;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
        }
        outcome = {WIFEXITED(status) && WEXITSTATUS(status) == 0, read_whole(output)};
        if (WIFSIGNALED(status)) outcome.text += words[0] + " was killed by signal " + std::to_string(WTERMSIG(status));
    }
    close(output);
    return outcome;
}

// A port that no program listens on. Another one may take it until our server does, so the caller tries again.
unsigned free_port() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    auto *generic = reinterpret_cast<sockaddr *>(&address);
    const bool found = fd >= 0 && bind(fd, generic, length) == 0 && getsockname(fd, generic, &length) == 0;
    const int error = errno;
    if (fd >= 0) close(fd);
    if (!found) throw std::runtime_error(std::string("no free port on 127.0.0.1: ") + std::strerror(error));
    return ntohs(address.sin_port);
}

} // namespace

Server::Server() {
    const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    admin_ = (folder / "cache_admin").string();
    Outcome outcome{};
    for (int attempt = 0; attempt < 3 && !running_; ++attempt) {
        port_ = free_port();
        outcome = run({admin_, "--start", "-p", std::to_string(port_)});
        running_ = outcome.success;
    }
    if (!running_) throw std::runtime_error("no cache server could be started. " + outcome.text);
}

Server::~Server() {
    try {
        if (running_) stop();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "mnist_demo: %s\n", error.what());
    }
}

std::string Server::list_sessions() const {
    Outcome outcome = run({admin_, "--list_sessions", "-p", std::to_string(port_)});
    if (!outcome.success) throw std::runtime_error("the sessions cannot be listed. " + outcome.text);
    return outcome.text;
}

void Server::stop() {
    running_ = false; // one attempt: a second one would say the same
    const Outcome outcome = run({admin_, "--stop", "-p", std::to_string(port_)});
    if (!outcome.success)
        throw std::runtime_error("the cache server on port " + std::to_string(port_) +
                                 " could not be stopped and may still run. " + outcome.text);
}

} // namespace demo
