// SPDX-License-Identifier: Apache-2.0
// One thread's share of an epoch: it writes its rows, or reads them, and times each call.
#pragma once

#include "capi/libcache.h"
#include "perf/cache_perf/board.h"
#include "perf/cache_perf/row_plan.h"

namespace perf {

struct WorkerPlace {
    const Options &options;
    const RowPlan &plan;
    const Board &board;
    cache *handle;
    unsigned pipeline, worker;
};

void write_rows(const WorkerPlace &place);
void read_rows(const WorkerPlace &place, unsigned epoch);

} // namespace perf
