// SPDX-License-Identifier: Apache-2.0
// Hints that fetch a cache line ahead. They never fault, whatever the address. Not __builtin_prefetch: gcc takes a
// function that does nothing else for one without effect and drops its calls, and for x86-64 in general it turns "to
// write" into "to read", after which the first store waits for the line once more.
#pragma once

namespace libcache {

inline void prefetch_to_read(const void *address) {
#if defined(__x86_64__)
    asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char *>(address)));
#elif defined(__aarch64__)
    asm volatile("prfm pldl1keep, %a0" : : "p"(address));
#else
    __builtin_prefetch(address);
#endif
}

// Where the page is not to be written, this may cost more than it saves.
inline void prefetch_to_write(const void *address) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char *>(address)));
#elif defined(__aarch64__)
    asm volatile("prfm pstl1keep, %a0" : : "p"(address));
#else
    __builtin_prefetch(address, 1);
#endif
}

} // namespace libcache
