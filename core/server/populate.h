// SPDX-License-Identifier: Apache-2.0
// A worker thread: makes pages, gives them back and zeroes them, in slices, beside the broker's control thread, which
// alone changes words. A second one makes and gives back the space of spill files: a disk may be slow. Handed over by
// two single-producer queues with an eventfd each. Jobs take turns slice by slice, so that a row of many GiB does not
// keep small ones waiting.
#pragma once

#include "core/control/socket.h"
#include "core/server/memory.h"
#include "core/shm/region.h"

#include <atomic>
#include <boost/lockfree/spsc_queue.hpp>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

namespace libcache {

enum class Work { Populate, Punch, Zero, Allocate, Release }; // the last two: of a spill file, by the disk's thread
constexpr bool works_on_disk(Work work) {
    return work == Work::Allocate || work == Work::Release;
}

struct Job {
    Work work{};
    // of the region, which lives until all its jobs have come back
    uint64_t region_id = 0;
    int fd = -1;
    Geometry geometry{};
    std::shared_ptr<std::atomic<bool>> cancelled; // true: come back soon
    uint64_t head = 0, chunks = 0;                // the extent; of a spill file, in segments
    // for the control thread when it comes back
    uint32_t slot = kNoSlot; // whom it was stocked for
    uint64_t epoch = 0;
    uint32_t wish = 0;                 // chunks to grant
    int result = 0;                    // 0, CACHE_EFULL (no memory, or cancelled), CACHE_EIO
    int error = 0;                     // errno of a refused Allocate
    uint64_t done = 0;                 // chunks
    std::vector<uint64_t> small_units; // of a populated job: first chunks of units that did not become huge pages
};

class Populator {
  public:
    explicit Populator(const char *name); // of its thread. Throws nothing; ok() says whether its eventfds were made
    ~Populator();
    Populator(const Populator &) = delete;
    Populator &operator=(const Populator &) = delete;

    bool ok() const { return wake_ && finished_signal_; }
    void submit(std::unique_ptr<Job> job);                  // control thread
    int readable() const { return finished_signal_.get(); } // readable when jobs have come back
    std::unique_ptr<Job> take_finished();                   // control thread; null: none

  private:
    static constexpr size_t kQueue = 4096;
    boost::lockfree::spsc_queue<Job *, boost::lockfree::capacity<kQueue>> jobs_, finished_;
    std::deque<std::unique_ptr<Job>> overflow_; // control thread: more jobs than the queue takes
    size_t in_flight_ = 0;                      // control thread: bounds both queues
    Fd wake_, finished_signal_;
    std::atomic<bool> stopping_{false};
    std::thread thread_;

    void hand_over();
    void run();
    static bool slice(Job &job, MemoryGauge &memory);
    const char *const name_;
};

} // namespace libcache
