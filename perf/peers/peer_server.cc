// SPDX-License-Identifier: Apache-2.0
#include "perf/peers/peer_server.h"

#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace peers {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLookEvery = std::chrono::milliseconds(5);
constexpr auto kPatience = std::chrono::seconds(60); // a busy machine is no failure

} // namespace

PeerServer::PeerServer(std::vector<std::string> words, const std::function<bool(const std::string &)> &answers)
    : owner_(getpid()) {
    for (std::string &word : words) {
        if (word == "SOCKET") word = socket_;
        if (word == "FOLDER") word = folder_.path();
    }
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error(std::string("fork: ") + strerror(errno));
    if (pid_ == 0) become(words, owner_);
    for (const auto deadline = Clock::now() + kPatience; !answers(socket_); std::this_thread::sleep_for(kLookEvery)) {
        const bool ended = waitpid(pid_, nullptr, WNOHANG) == pid_;
        if (!ended && Clock::now() < deadline) continue;
        if (ended) pid_ = -1;
        end();
        throw std::runtime_error(words[0] + (ended ? " ended" : " does not answer") + "; it said:\n" + said());
    }
}

PeerServer::~PeerServer() {
    if (getpid() == owner_) end();
}

void PeerServer::become(const std::vector<std::string> &words, pid_t parent) const {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    const int output = open(output_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    std::vector<char *> argv;
    for (const std::string &word : words)
        argv.push_back(const_cast<char *>(word.c_str()));
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(126);
}

std::string PeerServer::said() const {
    std::ifstream file(output_);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Nothing it keeps is worth an orderly end.
void PeerServer::end() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

uint64_t PeerServer::resident_bytes() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6)) * 1024;
    throw std::runtime_error("the server has ended; it said:\n" + said());
}

} // namespace peers
