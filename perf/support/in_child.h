// SPDX-License-Identifier: Apache-2.0
// Work done by a child of the process that owns servers and folders: whatever ends the work, Ctrl-C included, its owner
// lives to end those. Used by benchmarks from their one thread, before they start anything.
#pragma once

#include <csignal>
#include <functional>

namespace perf {

// Blocks the signals that mean "end" from its making on, so that none comes between a server's start and run().
class InChild {
  public:
    InChild();
    // Returns what `work` returned, or as a shell would say it, what has ended the child. An exception in the child is
    // told on stderr: status 1.
    int run(const std::function<int()> &work);

  private:
    sigset_t signals_, before_;
};

} // namespace perf
