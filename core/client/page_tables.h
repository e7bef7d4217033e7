// SPDX-License-Identifier: Apache-2.0
// What a mapping costs this process in page tables. Used by cache_stat alone.
#pragma once

#include <cstdint>
#include <istream>

namespace libcache {

// Bytes of page tables behind all mappings of the file that is mapped at `address`, reckoned from what the kernel says
// is resident: a table of a page for each 2 MiB on small pages, one for each GiB on top (with pages of 4 KiB). Exact
// where what is mapped is dense, as extents are; less than the truth for a reader that touched single pages far apart.
// -1: the kernel does not say. Reads /proc/self/smaps, some microseconds for each mapping of the process.
int64_t page_table_bytes(const void *address);

// The same from the text of smaps of a kernel with this page size, for tests.
int64_t page_table_bytes_in(std::istream &smaps, uint64_t address, uint64_t page);

} // namespace libcache
