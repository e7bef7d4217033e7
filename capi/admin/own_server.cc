// SPDX-License-Identifier: Apache-2.0
#include "capi/admin/own_server.h"

#include "capi/admin/connection.h"
#include "capi/admin/failure.h"
#include "capi/admin/process.h"

#include <arpa/inet.h>
#include <chrono>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace admin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kLowestPort = 1025;
constexpr int kPortsToTry = 8;
constexpr int kLookEveryMs = 5;
constexpr auto kStartDeadline = std::chrono::seconds(60);
constexpr int kStopDeadlineMs = 30'000;

// A TCP port on 127.0.0.1 bound for a moment. 0: it is taken.
unsigned try_port(unsigned wanted) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(wanted));
    socklen_t bytes = sizeof address;
    auto *generic = reinterpret_cast<sockaddr *>(&address);
    const bool bound = bind(fd, generic, bytes) == 0 && getsockname(fd, generic, &bytes) == 0;
    close(fd);
    return bound ? ntohs(address.sin_port) : 0;
}

unsigned free_port() {
    for (int i = 0; i < kPortsToTry; ++i)
        if (const unsigned port = try_port(0); port >= kLowestPort) return port;
    throw Failure("No free TCP port was found on 127.0.0.1: give one with --port.");
}

// In the child. A session of its own keeps the terminal's Ctrl-C from it: the program may still want its rows then.
// When we are killed outright the kernel tells it, and it ends as with any SIGTERM.
void prepare_server(const Signals &signals, const Capture &output, pid_t parent) {
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1); // killed before the line above
    signals.restore_in_child();
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(nothing, STDIN_FILENO);
    output.redirect(STDOUT_FILENO);
    output.redirect(STDERR_FILENO);
    leave_descriptors_behind();
}

} // namespace

// A port that was free a moment ago can be somebody's now: then another one is tried. (Delegating to the other
// constructor makes the destructor run, and stop the server, when this one throws.)
OwnServer::OwnServer(const Arguments &arguments, const Signals &signals) : OwnServer(signals) {
    for (int i = 1;; ++i) {
        port_ = arguments.port ? arguments.port : free_port();
        if (start(arguments)) return;
        const bool lost_the_port = !arguments.port && try_port(port_) == 0;
        if (!lost_the_port || i == kPortsToTry) break;
    }
    throw Failure("The server for --run did not start:\n" + output_->text());
}

// Nothing of it is left: its log is for whoever wants to know why it did not end well. A log on a port that was asked
// for may tell of other servers too.
OwnServer::~OwnServer() {
    stop();
    if (ended_well_ && !log_path_.empty()) unlink(log_path_.c_str());
}

void OwnServer::stop() {
    if (has_ended()) return;
    kill(pid_, SIGTERM);
    await_end(kStopDeadlineMs);
    if (pid_ == 0) return;
    kill(-pid_, SIGKILL); // its session: all that it started
    waitpid(pid_, nullptr, 0);
}

// False: it ended before it served.
bool OwnServer::start(const Arguments &arguments) {
    output_ = std::make_unique<Capture>();
    // What we hear of is the end of the keeper: a broker that went on alone would be nobody's.
    std::vector<std::string> words = {server_program(), "--foreground", "--end_with_keeper", "--port",
                                      std::to_string(port_)};
    words.insert(words.end(), arguments.server_options.begin(), arguments.server_options.end());
    const pid_t self = getpid();
    pid_ = start_process(words, [&] { prepare_server(signals_, *output_, self); });
    const auto deadline = Clock::now() + kStartDeadline;
    while (!serves()) {
        const auto signal = signals_.next(kLookEveryMs);
        if (has_ended()) return false;
        if (signal && signal->ssi_signo != SIGCHLD) {
            interrupted_ = static_cast<int>(signal->ssi_signo);
            break;
        }
        if (Clock::now() > deadline)
            throw Failure("The server for --run on port " + std::to_string(port_) + " runs but does not answer:\n" +
                          output_->text());
    }
    output_->end(); // the rest is in its log file
    if (!arguments.port_given && !interrupted_) log_path_ = Connection(port_).server_info().log_path;
    return true;
}

bool OwnServer::serves() const {
    try {
        Connection connection(port_);
        return true;
    } catch (const Failure &) {
        return false;
    }
}

bool OwnServer::has_ended() {
    int status = 0;
    if (pid_ != 0 && waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = 0;
        ended_well_ = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return pid_ == 0;
}

void OwnServer::await_end(int timeout_ms) {
    const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
    while (!has_ended() && Clock::now() < deadline)
        signals_.next(100); // SIGCHLD ends the wait early; other signals ask for what is being done
}

} // namespace admin
