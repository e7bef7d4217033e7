// SPDX-License-Identifier: Apache-2.0
// The server of one --run: a child in the foreground, on a port of its own, that ends with us whatever happens.
#pragma once

#include "capi/admin/arguments.h"
#include "capi/admin/signals.h"

#include <memory>
#include <optional>
#include <string>

namespace admin {

class Capture;

class OwnServer {
  public:
    // Returns when it serves, or when a signal other than SIGCHLD came: see interrupted(). Throws Failure.
    OwnServer(const Arguments &arguments, const Signals &signals);
    ~OwnServer();
    OwnServer(const OwnServer &) = delete;
    OwnServer &operator=(const OwnServer &) = delete;

    unsigned port() const { return port_; }
    std::optional<int> interrupted() const { return interrupted_; } // the signal that came before it served
    bool has_ended();                                               // looks, without waiting

  private:
    explicit OwnServer(const Signals &signals) : signals_(signals) {}
    bool start(const Arguments &arguments);
    bool serves() const;
    void stop();
    void await_end(int timeout_ms);

    const Signals &signals_;
    std::unique_ptr<Capture> output_; // what it said on stdout and stderr
    std::string log_path_;            // "": it has not served
    bool ended_well_ = false;
    unsigned port_ = 0;
    pid_t pid_ = 0; // 0: it has ended
    std::optional<int> interrupted_;
};

} // namespace admin
