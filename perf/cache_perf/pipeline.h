// SPDX-License-Identifier: Apache-2.0
// A pipeline: a process of its own that works through epochs with its threads, told by cache_perf over a socket.
#pragma once

#include "perf/cache_perf/board.h"
#include "perf/cache_perf/row_plan.h"

namespace perf {

struct Command {    // cache_perf to a pipeline; the end of the socket means: end
    uint32_t epoch; // 0: open the cache
    uint32_t writing;
    uint32_t session_id, cache_id; // of epoch 0
};

struct Answer {    // when it is done
    int32_t error; // of epoch 0: CACHE_E*, and then why. Of the others: see the tallies
    char message[252];
};

// Never returns. `socket`: to cache_perf, blocking.
[[noreturn]] void be_pipeline(const Options &options, const RowPlan &plan, const Board &board, unsigned number,
                              int socket);

} // namespace perf
