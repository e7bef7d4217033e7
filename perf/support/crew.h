// SPDX-License-Identifier: Apache-2.0
// Several processes that do the same piece of work at the same time: forked, prepared, let go together, timed from the
// first one's start to the last one's end. Used by the benchmarks, from their one thread.
#pragma once

#include <functional>
#include <vector>

namespace perf {

struct CrewWork {
    std::function<void(unsigned member)> prepare; // untimed
    std::function<void(unsigned member)> work;    // timed
};

// Seconds that the crew took. Throws std::runtime_error when a member fails (by an exception or a signal). Members are
// killed when this process ends.
double run_crew(unsigned members, const CrewWork &what);

// The same, `rounds` times with one crew that prepares once: all begin each round together. Seconds of each round.
struct CrewRounds {
    std::function<void(unsigned member)> prepare;              // untimed
    std::function<void(unsigned member, unsigned round)> work; // timed
};
std::vector<double> run_crew(unsigned members, unsigned rounds, const CrewRounds &what);

} // namespace perf
