// SPDX-License-Identifier: Apache-2.0
// The keeper: a process that does nothing but hold copies of every descriptor and start a new broker when one dies.
// Single-threaded and small, so that it lives as long as the server.
#pragma once

#include "core/control/socket.h"
#include "core/server/link.h"

#include <functional>
#include <map>
#include <string>
#include <sys/types.h>
#include <utility>

namespace libcache {

// Exit statuses of a broker: anything else, or a signal, means that it died and is replaced.
inline constexpr int kBrokerEnded = 0;

class Keeper {
  public:
    // What a broker process runs with its end of the link; its result is its exit status.
    using RunBroker = std::function<int(Fd link)>;
    // Called once, when the first broker serves ("") or has failed to (why).
    using Report = std::function<void(const std::string &failure)>;

    Keeper(std::string socket_path, RunBroker run_broker, Report report);

    void hold(HeldKind kind, uint64_t id, Fd fd);

    // Until the server ends. SIGTERM, SIGINT, SIGHUP and SIGCHLD must be blocked. Returns the exit status.
    int run();

  private:
    struct Held {
        Fd fd[2];
        int count() const { return fd[1] ? 2 : 1; }
    };
    using Key = std::pair<HeldKind, uint64_t>;

    const std::string socket_path_;
    const RunBroker run_broker_;
    Report report_; // empty once called
    std::map<Key, Held> held_;
    Fd signals_, link_;
    pid_t broker_ = -1;
    int64_t started_ns_ = 0;
    int64_t start_at_ns_ = 0; // when broker_ < 0: the time to start the next
    int64_t kill_at_ns_ = 0;  // not 0: a broker that was asked to end gets this long
    int64_t pause_ns_ = 0;    // back-off between starts
    bool ending_ = false, ended_well_ = false;

    bool start_broker();
    void broker_has_died(int status);
    void plan_restart(int status);
    void read_signals();
    bool read_link(bool wait_for_end);
    void handle(LinkMessage &message, Fd *fds, int n_fds);
    void deposit(const LinkMessage &message, Fd *fds, int n_fds);
    void forget(const LinkEntry &entry);
    void hand_over(uint64_t position);
    void answer(LinkType type);
    void report(const std::string &failure);
    int timeout_ms() const;
};

} // namespace libcache
