// SPDX-License-Identifier: Apache-2.0
// Somebody else's server for the duration of a measurement: a child with a socket in a folder of its own, ended by its
// pid with this object and by the kernel with this process. Used by the process that made it.
#pragma once

#include "perf/peers/folder.h"

#include <cstdint>
#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace peers {

class PeerServer {
  public:
    // `words`: program and arguments; "SOCKET" and "FOLDER" in them are replaced. Returns when answers() is true of the
    // socket's path. Throws std::runtime_error with what the server said.
    PeerServer(std::vector<std::string> words, const std::function<bool(const std::string &socket)> &answers);
    ~PeerServer();
    PeerServer(const PeerServer &) = delete;
    PeerServer &operator=(const PeerServer &) = delete;

    const std::string &socket() const { return socket_; }
    uint64_t resident_bytes() const;

  private:
    [[noreturn]] void become(const std::vector<std::string> &words, pid_t parent) const;
    std::string said() const;
    void end();

    Folder folder_{folders().for_sockets};
    std::string socket_ = folder_.path() + "/socket", output_ = folder_.path() + "/output";
    pid_t pid_ = -1;
    const pid_t owner_; // a forked member's copy ends nothing
};

} // namespace peers
