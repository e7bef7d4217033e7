// SPDX-License-Identifier: Apache-2.0
// A server that answers as its maker says, on a thread of its own: the other end of the client library. It knows one
// cache, whose region is a file of the maker's.
#pragma once

#include "core/control/socket.h"
#include "core/control/wire.h"
#include "tests/fuzz/image.h"

#include <functional>
#include <string>
#include <thread>

namespace fuzz {

class Peer {
  public:
    // What to send for a request: called on the peer's thread with the honest answer and descriptor (-1: none), both of
    // which it may change, or send something by itself. False: hang up.
    using Answer = std::function<bool(int socket, const libcache::wire::Message &request,
                                      libcache::wire::Message &answer, int &fd)>;

    Peer(int region_file, const Mapping &region);
    ~Peer();
    Peer(const Peer &) = delete;
    Peer &operator=(const Peer &) = delete;

    void answer_with(Answer answer) { answer_ = std::move(answer); } // before a client connects
    const std::string &path() const { return path_; }

  private:
    const int file_;
    const Mapping &region_;
    Answer answer_;
    std::string folder_, path_;
    libcache::Fd listener_;
    std::thread thread_;

    void serve(int socket);
    void refuse(const libcache::wire::Want &want);
};

} // namespace fuzz
