// SPDX-License-Identifier: Apache-2.0
// All pipelines, as cache_perf sees them: forked at the beginning, told one epoch after the other, ended with this
// object whatever happens. Used by the main thread.
#pragma once

#include "perf/cache_perf/pipeline.h"
#include "perf/cache_perf/signals.h"

#include <functional>
#include <sys/types.h>
#include <vector>

namespace perf {

class Pipelines {
  public:
    Pipelines(const Options &options, const RowPlan &plan, const Board &board, Signals &signals);
    ~Pipelines();
    Pipelines(const Pipelines &) = delete;
    Pipelines &operator=(const Pipelines &) = delete;

    pid_t pid(unsigned pipeline) const { return members_[pipeline].pid; }

    // Opens the cache in all of them. Throws std::runtime_error with the library's sentence.
    void open(uint32_t session_id, uint32_t cache_id);

    // One epoch. `tick` is called five times a second. Ends early, and still in good order, when a signal came or at
    // `deadline_ns` (0: none). Throws std::runtime_error when a pipeline has died.
    void run(uint32_t epoch, bool writing, int64_t deadline_ns, const std::function<void()> &tick);

  private:
    struct Member {
        pid_t pid;
        int socket; // -1: ended
        bool busy;
    };
    const Board &board_;
    Signals &signals_;
    std::vector<Member> members_;

    void command(const Command &command);
    void await(int64_t deadline_ns, const std::function<void()> &tick);
    void take_answer(unsigned pipeline);
};

} // namespace perf
