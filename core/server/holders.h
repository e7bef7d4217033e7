// SPDX-License-Identifier: Apache-2.0
// Who has a cache open or, once it is destroyed, still maps it: for the listing. Used by the broker's control thread.
#pragma once

#include <cstdint>
#include <vector>

namespace libcache {

struct Mappers {
    std::vector<std::vector<int32_t>> of_file; // by number, the calling process left out
    bool complete;                             // all processes were looked at
};
// Processes that map these files. Walks /proc once, which is asked for by a person and not often, and gives up at the
// deadline (now_ns()): the caller has others to serve. A process of another user, or in a pid namespace that is not
// ours, is not seen.
Mappers processes_mapping(const std::vector<int> &files, int64_t deadline_ns);

} // namespace libcache
