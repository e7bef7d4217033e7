// SPDX-License-Identifier: Apache-2.0
// Named points between two shared stores, where a test can kill or stop the process. Nothing is left of them unless
// compiled with -DLIBCACHE_PAUSE_POINTS. Then the environment says what happens:
//   LIBCACHE_PAUSE_AT=name[:count]   the count-th passage of this point (default: the first) raises SIGKILL,
//   LIBCACHE_PAUSE_MODE=stop         or SIGSTOP.
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
#include <new>
#include <string>
#include <sys/mman.h>

namespace libcache {

class PausePoint {
  public:
    static void pass(const char *name) {
        static PausePoint point;
        if (point.name_ != name) return;
        // rlx: a count, nothing is read by it
        if (point.passages_->fetch_add(1, std::memory_order_relaxed) + 1 == point.count_) raise(point.signal_);
    }

  private:
    std::string name_;
    uint64_t count_ = 1;
    int signal_ = SIGKILL;
    std::atomic<uint64_t> *passages_ = nullptr;

    PausePoint() {
        const char *at = std::getenv("LIBCACHE_PAUSE_AT");
        if (!at) return;
        void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) return;
        passages_ = new (page) std::atomic<uint64_t>(0);
        name_ = at;
        if (const size_t colon = name_.find(':'); colon != std::string::npos) {
            count_ = std::strtoull(name_.c_str() + colon + 1, nullptr, 10);
            name_.resize(colon);
        }
        const char *mode = std::getenv("LIBCACHE_PAUSE_MODE");
        if (mode && !std::strcmp(mode, "stop")) signal_ = SIGSTOP;
    }
};

} // namespace libcache

#define LIBCACHE_PAUSE(name) ::libcache::PausePoint::pass(name)

#endif
