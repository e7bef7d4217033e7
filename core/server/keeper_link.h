// SPDX-License-Identifier: Apache-2.0
// The broker's end of the link to its keeper. Deposits wait for the keeper's word, at most some seconds; when the
// keeper is gone they succeed at once and the server goes on unsupervised. Used by the broker's control thread.
#pragma once

#include "core/control/socket.h"
#include "core/server/link.h"

#include <functional>

namespace libcache {

class KeeperLink {
  public:
    explicit KeeperLink(Fd link) : link_(std::move(link)) {}

    bool alive() const { return static_cast<bool>(link_); }
    int fd() const { return link_.get(); } // readable: the keeper has gone, see lost()
    void lost();

    // Returns when the keeper has it: only then may anybody learn of it.
    void deposit(HeldKind kind, uint64_t id, int fd, int second_fd = -1);
    void forget(HeldKind kind, uint64_t id);

    // Everything the keeper holds, entry by entry. False: the keeper does not answer.
    using Take = std::function<void(const LinkEntry &entry, Fd *fds)>;
    [[nodiscard]] bool take_all(const Take &take);

    void serving(); // tells the keeper that clients can connect

  private:
    Fd link_;
    bool exchange(LinkMessage *message, const int *fds, int n_fds, LinkType wanted, Fd *got, int *n_got);
};

} // namespace libcache
