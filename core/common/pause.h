// SPDX-License-Identifier: Apache-2.0
// Named points between two shared stores, where a test can kill or stop the process. Nothing is left of them unless
// compiled with -DLIBCACHE_PAUSE_POINTS. Then the environment says what happens:
//   LIBCACHE_PAUSE_AT=name[:count]   the count-th passage of this point (default: the first) raises SIGKILL,
//   LIBCACHE_PAUSE_MODE=stop         or SIGSTOP;
//   LIBCACHE_PAUSE_FILE=path         in place of PAUSE_AT: a file holding a PauseOrder, which the test may change any
//                                    time: so it kills one broker after the other of one server.
// Points stand in .cc files alone: those that have none are not compiled again for the tests.
// Passages are counted together in a process and all it forks after its first point, so that a restarted broker does
// not die of the same passage again.
#pragma once

#ifndef LIBCACHE_PAUSE_POINTS

#define LIBCACHE_PAUSE(name) static_cast<void>(0)

#else

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace libcache {

struct PauseOrder {
    std::atomic<uint64_t> left{0};    // passages until the signal; 0: nothing is ordered
    std::atomic<uint64_t> signals{0}; // sent so far
    std::atomic<uint64_t> again{0};   // what `left` becomes with the signal: 1 is for the next process at once
    char name[40]{};                  // changed only while `left` is 0
};
static_assert(sizeof(PauseOrder) == 64);

class PausePoint {
  public:
    static void pass(const char *name) {
        static PausePoint point;
        if (!point.order_) return;
        PauseOrder &order = *point.order_;
        uint64_t left = order.left.load(std::memory_order_acquire); // the name that was written before it
        if (left == 0 || std::strcmp(order.name, name) != 0) return;
        // rlx: a count; exactly one passage makes it 0
        while (left != 0 && !order.left.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) {
        }
        if (left != 1) return;
        order.signals.fetch_add(1, std::memory_order_relaxed);
        // rel: pairs with the load of `left` above, as if it had been ordered anew
        order.left.store(order.again.exchange(0, std::memory_order_relaxed), std::memory_order_release);
        raise(point.signal_);
    }

  private:
    PauseOrder *order_ = nullptr; // shared with the processes forked later
    int signal_ = SIGKILL;

    PausePoint() {
        const char *at = std::getenv("LIBCACHE_PAUSE_AT"), *path = std::getenv("LIBCACHE_PAUSE_FILE");
        const char *mode = std::getenv("LIBCACHE_PAUSE_MODE");
        if (mode && !std::strcmp(mode, "stop")) signal_ = SIGSTOP;
        if (!at && !path) return;
        const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
        if (path && fd < 0) std::abort(); // a test that orders a death must not pass without it
        void *page =
            mmap(nullptr, sizeof(PauseOrder), PROT_READ | PROT_WRITE, MAP_SHARED | (path ? 0 : MAP_ANONYMOUS), fd, 0);
        if (path) close(fd);
        if (page == MAP_FAILED) std::abort();
        order_ = static_cast<PauseOrder *>(page); // all zero, or as the test wrote it
        if (path) return;
        const char *colon = std::strchr(at, ':');
        const size_t length = colon ? static_cast<size_t>(colon - at) : std::strlen(at);
        if (length >= sizeof order_->name) std::abort();
        std::memcpy(order_->name, at, length);
        order_->left.store(colon ? std::strtoull(colon + 1, nullptr, 10) : 1, std::memory_order_release);
    }
};

} // namespace libcache

#define LIBCACHE_PAUSE(name) ::libcache::PausePoint::pass(name)

#endif
