// SPDX-License-Identifier: Apache-2.0
// Who has a cache open or, once it is destroyed, still maps it: for the listing. Used by the broker's control thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace libcache {

// Processes that map the file, by number, at most `most`; the calling one left out. Walks /proc, which is asked for by
// a person and not often. A process of another user, or in a pid namespace that is not ours, is not seen.
std::vector<int32_t> processes_mapping(int file, size_t most);

} // namespace libcache
