// SPDX-License-Identifier: Apache-2.0
#ifndef LIBCACHE_CORE_COMMON_PAGE_H
#define LIBCACHE_CORE_COMMON_PAGE_H

#include <cstdint>
#include <unistd.h>

namespace libcache {

// The kernel's: 4 KiB, on some aarch64 kernels 16 or 64 KiB. Never more than a chunk.
inline uint64_t page_bytes() {
    static const uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

} // namespace libcache

#endif
