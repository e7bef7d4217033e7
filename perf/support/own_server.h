// SPDX-License-Identifier: Apache-2.0
// A cache_server for the duration of a measurement: a child in the foreground, with a free port and a short-lived
// folder of its own. It ends with this process, whatever ends that. One thread uses it, the main one: the server is
// told to end when the thread that started it does.
#pragma once

#include <string>
#include <sys/types.h>
#include <vector>

namespace perf {

class OwnServer {
  public:
    // Returns when it serves. Sets LIBCACHE_DIR and LIBCACHE_PORT of this process, so that cache_connect() without
    // options finds it. `options` go to cache_server. Throws std::runtime_error with what the server said.
    explicit OwnServer(std::vector<std::string> options = {});
    ~OwnServer() { stop(); }
    OwnServer(const OwnServer &) = delete;
    OwnServer &operator=(const OwnServer &) = delete;

    unsigned port() const { return port_; }
    pid_t pid() const { return pid_; }
    void stop(); // returns when it has ended and its folder is gone

  private:
    bool start(const std::vector<std::string> &options);
    std::string said() const; // what it wrote

    std::string folder_;
    unsigned port_ = 0;
    pid_t pid_ = 0; // 0: none
};

// The path of a program of this build: beside this one or in ../bin.
std::string program(const std::string &name);

} // namespace perf
