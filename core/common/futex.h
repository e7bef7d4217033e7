// SPDX-License-Identifier: Apache-2.0
// Waiting on a word in shared memory, across processes (so never FUTEX_PRIVATE). Any thread may call.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace libcache {

// Returns when the word differs from `seen`, when woken, after `timeout_ns`, or for no reason: look again.
inline void futex_wait(const std::atomic<uint32_t> *word, uint32_t seen, int64_t timeout_ns) {
    const timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

inline void futex_wake_all(const std::atomic<uint32_t> *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

} // namespace libcache
