// SPDX-License-Identifier: Apache-2.0
// A cache_server of our own, started and stopped as a person would: with cache_admin, which lies beside this program.
#pragma once

#include <string>

namespace demo {

class Server {
  public:
    Server();  // starts one on a free port; throws std::runtime_error with what cache_admin said
    ~Server(); // stops it if stop() was not called
    Server(const Server &) = delete;
    Server &operator=(const Server &) = delete;
    unsigned port() const { return port_; }
    std::string list_sessions() const; // what `cache_admin --list_sessions` prints
    void stop();                       // returns when it has ended

  private:
    std::string admin_; // path of cache_admin
    unsigned port_ = 0;
    bool running_ = false;
};

} // namespace demo
