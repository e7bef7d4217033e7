// SPDX-License-Identifier: Apache-2.0
// bench_spill: what spilling costs, in the page cache of one folder, beside what the kernel takes for the same bytes.
// Names as in perf/bench, so that perf/compare pairs them: S1, S2 and S3 are rows of the targets, the others
// SW/WAY/BLOCKxDEPTH and SR/WAY/BLOCKxDEPTH: one write, one read.
#pragma once

#include "perf/bench/workload.h"

#include <functional>
#include <liburing.h>
#include <string>
#include <vector>

namespace bench {

// The folder of this run, which the server spills to as well.
const std::string &spill_folder();
// With --cold: before each read that is timed, nothing of the files is in the page cache.
void before_reading();

// A file without a name there, its space reserved as the server does it. Failures are std::runtime_error.
class SpillFile {
  public:
    explicit SpillFile(size_t bytes);
    ~SpillFile();
    SpillFile(const SpillFile &) = delete;
    SpillFile &operator=(const SpillFile &) = delete;
    int fd() const { return fd_; }

  private:
    int fd_;
};

// The floor: an io_uring and nothing else. Owned by one thread.
class PlainRing {
  public:
    explicit PlainRing(unsigned depth);
    ~PlainRing();
    PlainRing(const PlainRing &) = delete;
    PlainRing &operator=(const PlainRing &) = delete;

    // n transfers of `bytes` each, `depth` of them under way; the i'th is at offset_of(i) of the file, its memory is
    // that of its place in the ring. Returns when all are done; one that is short or fails is a std::runtime_error.
    void run(bool write, int fd, char *memory, size_t n, size_t bytes, const std::function<size_t(size_t)> &offset_of);

  private:
    const unsigned depth_;
    io_uring ring_;
};

void register_rows();
void register_transfers();

} // namespace bench
