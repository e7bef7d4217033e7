// SPDX-License-Identifier: Apache-2.0
// A broker inside the fuzzer's own process, so that the fuzzer sees which code its input reaches. A thread plays the
// keeper: it holds descriptors and hands them over; another runs the Broker. One thread uses this.
#pragma once

#include "core/server/link.h"
#include "core/server/server_region.h"

#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fuzz {

class Server {
  public:
    Server(); // folder, socket and server region; LIBCACHE_DIR and LIBCACHE_PORT name it from now on
    ~Server();
    Server(const Server &) = delete;
    Server &operator=(const Server &) = delete;

    libcache::ServerRegion &tables() { return region_; }
    const std::string &socket() const { return socket_path_; }
    void hold(libcache::HeldKind kind, uint64_t id, int fd); // a copy; before start()
    int held(libcache::HeldKind kind) const;                 // any of this kind, or -1; not while it serves

    void start(); // a client that connects waits until the broker serves
    void join();  // the broker has been told to stop
    void stop();  // tells it, and waits

  private:
    using Key = std::pair<libcache::HeldKind, uint64_t>;
    std::string folder_, socket_path_;
    libcache::ServerRegion region_;
    std::map<Key, std::vector<libcache::Fd>> held_; // of the keeper's thread while there is one
    std::thread keeper_, broker_;

    void keep(libcache::Fd link);
    void hand_over(const libcache::Fd &link, uint64_t position);
};

} // namespace fuzz
