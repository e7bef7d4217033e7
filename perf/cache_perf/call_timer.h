// SPDX-License-Identifier: Apache-2.0
// Times one call after the other, exactly, and tells cold calls from warm ones. Cold: during the call this thread got
// pages or gave up its processor by itself, that is, it waited for memory from the server or for another thread. Used
// by one thread. The clock is read twice a call; one reading lies inside the time.
#pragma once

#include "perf/cache_perf/board.h"

#include <ctime>
#include <sys/resource.h>

namespace perf {

inline int64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

class CallTimer {
  public:
    explicit CallTimer(Sample *samples) : samples_(samples), events_(events()) {}

    void begin() { start_ = now_ns(); }
    void end() {
        const auto took = static_cast<Sample>(now_ns() - start_);
        samples_[calls_++] = took < kNoEventIn ? took : took | coldness();
    }
    uint64_t calls() const { return calls_; }

  private:
    static constexpr Sample kNoEventIn = 500; // ns: a page fault or a wait takes longer, so nobody need be asked

    static long events() {
        rusage usage;
        getrusage(RUSAGE_THREAD, &usage);
        return usage.ru_minflt + usage.ru_majflt + usage.ru_nvcsw;
    }
    Sample coldness() {
        const long seen = events();
        const bool more = seen != events_;
        events_ = seen;
        return more ? kCold : 0;
    }

    Sample *const samples_;
    int64_t start_ = 0;
    uint64_t calls_ = 0;
    long events_;
};

} // namespace perf
