// SPDX-License-Identifier: Apache-2.0
// One peer with one workload: what is written, looked up, copied and kept, in 1, 2 and 8 processes. Run by a process
// with one thread. Failures are std::runtime_error.
#pragma once

#include "perf/peers/store.h"

#include <nlohmann/json.hpp>

namespace peers {

using Json = nlohmann::ordered_json;

struct Effort {
    unsigned repetitions = 5;
    double seconds = 0.1; // that one repetition of reads should take
};

// Objects with "peer", "workload", "what" and, of times, "order", "processes" and "ns", a list of repetitions.
//
// Written rows are shared out among the processes, into a fresh store each time; connecting is not timed. Of reads each
// process does as many, in an order of its own, after a pass over all rows that is not timed. ns is the time from the
// first one's start to the last one's end, for a row of all of theirs.
Json measure(const Peer &peer, const Workload &w, const Effort &effort);

} // namespace peers
