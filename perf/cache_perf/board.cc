// SPDX-License-Identifier: Apache-2.0
#include "perf/cache_perf/board.h"

#include "core/common/page.h"
#include "perf/support/memory.h"

#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <sys/mman.h>

namespace perf {
namespace {

size_t whole_pages(size_t bytes) {
    const size_t page = libcache::page_bytes();
    return (bytes + page - 1) / page * page;
}

// The i'th of n nearly equal parts of `whole`: the last one takes what is left.
Board::Range share(Board::Range whole, unsigned i, unsigned n) {
    const uint64_t each = whole.rows() / n, first = whole.first + i * each;
    return {first, i + 1 == n ? whole.last : first + each};
}

} // namespace

// A worker's samples begin on a page of their own, so its part of them begins at most one page later per worker before.
Board::Board(const Options &options) : rows_(options.rows), pipelines_(options.pipelines), workers_(options.workers) {
    const size_t parts = size_t{pipelines_} * workers_;
    const size_t head = whole_pages(sizeof(WorkerPart) * (parts + 1));
    bytes_ = head + rows_ * sizeof(Sample) + (parts + 1) * libcache::page_bytes();
    void *const map = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        throw std::runtime_error("no memory for the times of " + std::to_string(rows_) + " rows: " + strerror(errno));
    base_ = static_cast<char *>(map);
    stop_ = new (base_) std::atomic<bool>(false);
    parts_ = reinterpret_cast<WorkerPart *>(base_) + 1;
    for (size_t i = 0; i < parts; ++i)
        new (&parts_[i]) WorkerPart;
    samples_ = base_ + head;
}

Board::~Board() {
    munmap(base_, bytes_);
}

Board::Range Board::pipeline_range(unsigned pipeline) const {
    return share({0, rows_}, pipeline, pipelines_);
}

Board::Range Board::worker_range(unsigned pipeline, unsigned worker) const {
    return share(pipeline_range(pipeline), worker, workers_);
}

Sample *Board::samples(unsigned pipeline, unsigned worker) const {
    const size_t before = size_t{pipeline} * workers_ + worker;
    const size_t at =
        whole_pages(worker_range(pipeline, worker).first * sizeof(Sample)) + before * libcache::page_bytes();
    return reinterpret_cast<Sample *>(samples_ + at);
}

void Board::provide_samples(unsigned pipeline, unsigned worker) const {
    const size_t bytes = worker_range(pipeline, worker).rows() * sizeof(Sample);
    if (bytes != 0) make_present(reinterpret_cast<char *>(samples(pipeline, worker)), whole_pages(bytes));
}

} // namespace perf
