// SPDX-License-Identifier: Apache-2.0
// What an epoch's samples say. Values; exact, since every call was timed.
#pragma once

#include "perf/cache_perf/board.h"

#include <string>
#include <vector>

namespace perf {

struct Spread { // of the calls' times, in ns; all 0 where count is 0
    uint64_t count = 0;
    double min = 0, max = 0, mean = 0;
    double p50 = 0, p90 = 0, p99 = 0, p999 = 0;
};
Spread spread_of(std::vector<Sample> times); // without kCold

struct WorkerFigures {
    unsigned pipeline, worker;
    Spread calls;
    double seconds;
};

struct EpochFigures {
    unsigned number = 0; // from 1
    bool writing = false;
    bool interrupted = false;
    double seconds = 0; // from the first worker's start to the last one's end
    uint64_t calls = 0, rows = 0, bytes = 0;
    uint64_t missing = 0, refused = 0, present = 0, wrong = 0;
    Spread all, warm, cold;
    std::vector<WorkerFigures> workers; // by pipeline and worker
    std::string failure;                // of the first worker that had one: an error, or a wrong row
    bool failed = false;                // an error

    double rows_per_second() const { return seconds > 0 ? static_cast<double>(rows) / seconds : 0; }
    double bytes_per_second() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
};

// From the board, after an epoch.
EpochFigures figures_of(const Options &options, const Board &board, unsigned number, bool writing);

} // namespace perf
