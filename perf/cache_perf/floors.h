// SPDX-License-Identifier: Apache-2.0
// What this machine needs for the same rows without any cache: to copy them into memory that is there, to copy them out
// of it in the order of the reads, and to make the pages they take. By one thread, each row timed as a call is.
#pragma once

#include "perf/cache_perf/figures.h"
#include "perf/cache_perf/row_plan.h"
#include "perf/support/memory.h"

namespace perf {

struct Floors {
    uint64_t rows = 0, bytes = 0;    // a sample of the rows: as many as fit into some memory
    Spread copy_in, copy_out, clock; // clock: a call that does nothing
    double copy_in_seconds = 0, copy_out_seconds = 0;
    double populate_seconds = 0;
    Pages pages = Pages::Huge;
};

// `pages`: of the kind that the server uses.
Floors measure_floors(const Options &options, const RowPlan &plan, Pages pages);

} // namespace perf
