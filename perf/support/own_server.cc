// SPDX-License-Identifier: Apache-2.0
#include "perf/support/own_server.h"

#include "capi/libcache.h"

#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <netinet/in.h>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPortsToTry = 8;
constexpr auto kLookEvery = std::chrono::milliseconds(2);
constexpr auto kPatience = std::chrono::seconds(60); // of starting and of ending: a busy machine is no failure

// A port that is free now. Somebody may take it before the server does: then another one is tried.
unsigned free_port() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    auto *generic = reinterpret_cast<sockaddr *>(&address);
    const bool found = fd >= 0 && bind(fd, generic, bytes) == 0 && getsockname(fd, generic, &bytes) == 0;
    const int error = errno;
    if (fd >= 0) close(fd);
    if (!found) throw std::runtime_error(std::string("no free TCP port on 127.0.0.1: ") + strerror(error));
    return ntohs(address.sin_port);
}

// In the child. A session of its own keeps the terminal's Ctrl-C from it: the caller may want its rows once more.
[[noreturn]] void become_server(std::vector<std::string> words, const std::string &output, pid_t parent) {
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(126); // it ended before the line above
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(nothing, STDIN_FILENO);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    std::vector<char *> argv;
    for (std::string &word : words)
        argv.push_back(word.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(126);
}

bool serves() {
    cache_client *client = nullptr;
    const bool connected = cache_connect(nullptr, &client) == 0;
    cache_disconnect(client);
    return connected;
}

} // namespace

std::string program(const std::string &name) {
    const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    const auto beside = here / name;
    return std::filesystem::exists(beside) ? beside.string() : (here.parent_path() / "bin" / name).string();
}

OwnServer::OwnServer(std::vector<std::string> options) {
    const char *base = getenv("TMPDIR");
    folder_ = std::string(base ? base : "/tmp") + "/lcp-XXXXXX";
    if (!mkdtemp(folder_.data())) throw std::runtime_error("mkdtemp " + folder_ + ": " + strerror(errno));
    setenv("LIBCACHE_DIR", folder_.c_str(), 1);
    try {
        for (int i = 0; i < kPortsToTry; ++i)
            if (start(options)) return;
        throw std::runtime_error("no server could be started:\n" + said());
    } catch (...) {
        stop();
        throw;
    }
}

// False: it ended before it served.
bool OwnServer::start(const std::vector<std::string> &options) {
    port_ = free_port();
    setenv("LIBCACHE_PORT", std::to_string(port_).c_str(), 1);
    std::vector<std::string> words = {program("cache_server"), "--foreground", "--port", std::to_string(port_)};
    words.insert(words.end(), options.begin(), options.end());
    const pid_t self = getpid();
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error(std::string("fork: ") + strerror(errno));
    if (pid_ == 0) become_server(std::move(words), folder_ + "/output", self);
    for (const auto deadline = Clock::now() + kPatience; !serves(); std::this_thread::sleep_for(kLookEvery)) {
        if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
            pid_ = 0;
            return false;
        }
        if (Clock::now() > deadline)
            throw std::runtime_error("the server on port " + std::to_string(port_) + " runs but does not answer:\n" +
                                     said());
    }
    return true;
}

std::string OwnServer::said() const {
    std::ifstream file(folder_ + "/output");
    return {std::istreambuf_iterator<char>(file), {}};
}

void OwnServer::stop() {
    if (pid_ > 0) {
        kill(pid_, SIGTERM);
        const auto deadline = Clock::now() + kPatience;
        while (waitpid(pid_, nullptr, WNOHANG) == 0) {
            if (Clock::now() > deadline) {
                kill(-pid_, SIGKILL); // its session: all that it started
                waitpid(pid_, nullptr, 0);
                break;
            }
            std::this_thread::sleep_for(kLookEvery);
        }
        pid_ = 0;
    }
    std::error_code ignored; // a file that stays in the folder for temporary files
    std::filesystem::remove_all(folder_, ignored);
}

} // namespace perf
