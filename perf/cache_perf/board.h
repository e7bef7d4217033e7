// SPDX-License-Identifier: Apache-2.0
// The memory that cache_perf and its pipelines share: a word that ends the epoch early, what each worker has counted,
// and the time of each of its calls. Made before the pipelines are forked; each worker writes its own part, cache_perf
// reads it when the worker has said that it is done.
#pragma once

#include "perf/cache_perf/options.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace perf {

// Nanoseconds of one call; the highest bit: it was a cold one (see CallTimer).
using Sample = uint64_t;
inline constexpr Sample kCold = Sample{1} << 63;

struct Tally { // of one worker in one epoch
    uint64_t calls = 0, rows = 0, bytes = 0;
    uint64_t missing = 0; // reading: not in the cache
    uint64_t refused = 0; // writing: the cache was full
    uint64_t present = 0; // writing: there before
    uint64_t wrong = 0;   // reading: not the bytes that were written
    int64_t start_ns = 0, end_ns = 0;
    int error = 0; // CACHE_E*, and then `message`
    char message[256] = {};
};

struct alignas(64) WorkerPart {
    std::atomic<uint64_t> done{0}; // rows so far; relaxed: shown to people
    Tally tally;                   // the socket that says "done" orders it
};

class Board {
  public:
    explicit Board(const Options &options); // throws std::runtime_error
    ~Board();
    Board(const Board &) = delete;
    Board &operator=(const Board &) = delete;

    struct Range {
        uint64_t first, last; // rows [first, last)
        uint64_t rows() const { return last - first; }
    };
    Range pipeline_range(unsigned pipeline) const;
    Range worker_range(unsigned pipeline, unsigned worker) const;

    WorkerPart &part(unsigned pipeline, unsigned worker) const { return parts_[pipeline * workers_ + worker]; }
    Sample *samples(unsigned pipeline, unsigned worker) const;
    // Makes a worker's pages before anything is timed.
    void provide_samples(unsigned pipeline, unsigned worker) const;

    // relaxed: a worker that sees it a call later does one call more
    void stop() const { stop_->store(true, std::memory_order_relaxed); }
    bool stopped() const { return stop_->load(std::memory_order_relaxed); }

  private:
    const uint64_t rows_;
    const unsigned pipelines_, workers_;
    char *base_ = nullptr;
    size_t bytes_ = 0;
    std::atomic<bool> *stop_ = nullptr;
    WorkerPart *parts_ = nullptr;
    char *samples_ = nullptr;
};

} // namespace perf
