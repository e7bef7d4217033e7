// SPDX-License-Identifier: Apache-2.0
// What a mapping costs this process in page tables. Used by cache_stat alone.
#pragma once

#include "core/client/process.h"

#include <atomic>
#include <cstdint>
#include <istream>

namespace libcache {

// Bytes of page tables behind all mappings of the file that is mapped at `address`, reckoned from what the kernel says
// is resident: a table of a page for each 2 MiB on small pages, one for each GiB on top (with pages of 4 KiB). Exact
// where what is mapped is dense, as extents are; less than the truth for a reader that touched single pages far apart.
// -1: the kernel does not say. For /proc/self/smaps the kernel walks the page tables of the whole process, so an answer
// is kept for 100 times as long as it took: asking costs 1 % of the time at most. Any thread may call, also in a forked
// child, which asks anew.
class PageTableBytes {
  public:
    int64_t of(const void *address);

  private:
    // Relaxed all of them: two threads may both ask, and one may get the other's answer, which is as good as its own.
    std::atomic<const Process *> asked_by_{nullptr};
    std::atomic<int64_t> bytes_{-1}, until_ns_{0};
};

// The same from the text of smaps of a kernel with this page size, for tests.
int64_t page_table_bytes_in(std::istream &smaps, uint64_t address, uint64_t page);

} // namespace libcache
