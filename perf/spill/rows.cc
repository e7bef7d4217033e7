// SPDX-License-Identifier: Apache-2.0
// Rows through the library (S1, S2, S3). S1 puts rows into a cache whose memory is used up, till cache_flush has
// returned; its floor writes the same bytes in the spiller's blocks. S2 and S3 gather 64 spilled rows; the floor of S2
// reads rows of that size 64 at a time, that of S3 one by one.
#include "perf/bench/cache_store.h"
#include "perf/bench/plain_store.h"
#include "perf/bench/register.h"
#include "perf/spill/bench.h"

#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <memory>
#include <random>
#include <stdexcept>
#include <unistd.h>

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSpilled = 256 << 20; // bytes of rows, about, of one cache
constexpr size_t kGather = 64;
constexpr size_t kWriteBlock = 512 << 10; // the spiller's buffers
constexpr unsigned kWriteDepth = 8;

size_t rows_of(const Workload &w) {
    return kSpilled / w.row_bytes / kGather * kGather;
}
// Of a row in the file: a header, then the column on 64 bytes.
size_t image_bytes(const Workload &w) {
    return (64 + w.row_bytes + 15) / 16 * 16;
}
double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// A spilling cache whose memory is used up, but for the stubs of a workload's rows.
class FullCache {
  public:
    explicit FullCache(const Workload &w) : id_(next_id()) {
        cache_options options = CACHE_OPTIONS_INIT;
        options.spill = 1;
        // A sixteenth is kept for stubs and index levels.
        options.memory_limit_bytes = (rows_of(w) * 48 + (1 << 20)) * 16;
        options.expected_rows = rows_of(w);
        must(cache_open(client(), session(), id_, &options, &handle_), "cache_open");
        for (size_t bytes = 1 << 20; bytes > w.row_bytes; bytes /= 4)
            fill(bytes);
        fill(w.row_bytes);
        before_ = spilled();
    }
    ~FullCache() {
        cache_close(handle_);
        cache_destroy(client(), session(), id_);
    }
    FullCache(const FullCache &) = delete;
    FullCache &operator=(const FullCache &) = delete;

    // Rows 0, 1, ... of the workload, on disk when this returns.
    void put_all(const Workload &w, Source &source) {
        Column column(w);
        for (size_t i = 0; i < rows_of(w); ++i)
            must(cache_put(handle_, static_cast<int64_t>(i), column.of(source.next()), 1), "cache_put");
        must(cache_flush(handle_), "cache_flush");
    }
    void check(const Workload &w) const {
        if (spilled() - before_ < static_cast<int64_t>(rows_of(w) / 20 * 19))
            throw std::runtime_error("of " + std::to_string(rows_of(w)) + " rows only " +
                                     std::to_string(spilled() - before_) + " were spilled");
    }
    cache *handle() const { return handle_; }

  private:
    const uint32_t id_;
    cache *handle_ = nullptr;
    int64_t before_ = 0, filler_ = int64_t{1} << 40; // ids of what fills the memory

    static uint32_t next_id() {
        static uint32_t last = 1'000'000;
        return ++last;
    }
    int64_t spilled() const {
        cache_stats stats{};
        stats.size = sizeof stats;
        must(cache_stat(handle_, &stats), "cache_stat");
        return stats.rows_spilled;
    }
    // Until rows of this size find no room.
    void fill(size_t bytes) {
        const Workload w{"", 0, bytes};
        const std::vector<char> row(bytes, 'x');
        Column column(w);
        for (const int64_t start = spilled(); spilled() == start;) {
            for (int i = 0; i < 16; ++i)
                must(cache_put(handle_, filler_++, column.of(row.data()), 1), "cache_put");
            must(cache_flush(handle_), "cache_flush");
        }
    }
};

void put(benchmark::State &state, const Workload &w) {
    Source source(w);
    for (auto _ : state) {
        FullCache cache(w);
        const auto start = Clock::now();
        cache.put_all(w, source);
        state.SetIterationTime(seconds_since(start));
        cache.check(w);
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(rows_of(w)));
}

void floor_put(benchmark::State &state, const Workload &w) {
    const size_t blocks = rows_of(w) * w.row_bytes / kWriteBlock;
    std::vector<char> memory(kWriteDepth * kWriteBlock, 'x');
    PlainRing ring(kWriteDepth);
    for (auto _ : state) {
        const SpillFile file(blocks * kWriteBlock);
        const auto start = Clock::now();
        ring.run(true, file.fd(), memory.data(), blocks, kWriteBlock, [](size_t i) { return i * kWriteBlock; });
        state.SetIterationTime(seconds_since(start));
    }
    // Rows that many bytes are
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(blocks * kWriteBlock / w.row_bytes));
}

void gather(benchmark::State &state, const Workload &w) {
    FullCache cache(w);
    Source source(w);
    cache.put_all(w, source);
    cache.check(w);
    const std::vector<uint32_t> order = shuffled(rows_of(w));
    const std::vector<int64_t> ids(order.begin(), order.end());
    std::vector<char> to(kGather * w.row_bytes);
    uint8_t found[kGather];
    size_t at = 0;
    for (auto _ : state) {
        before_reading();
        const auto start = Clock::now();
        if (cache_gather(cache.handle(), &ids[at], kGather, 0, to.data(), w.row_bytes, found) != kGather)
            throw std::runtime_error(std::string("cache_gather: ") + cache_last_error());
        state.SetIterationTime(seconds_since(start));
        at = (at + kGather) % ids.size();
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kGather));
}

// A file of images that are in the page cache, and their places in shuffled order.
struct Images {
    explicit Images(const Workload &w)
        : bytes(image_bytes(w)), order(shuffled(rows_of(w))), file(order.size() * bytes) {
        const std::vector<char> block(kWriteBlock, 'x');
        for (size_t at = 0; at < order.size() * bytes; at += kWriteBlock)
            if (pwrite(file.fd(), block.data(), std::min(kWriteBlock, order.size() * bytes - at),
                       static_cast<off_t>(at)) < 0)
                throw std::runtime_error("writing the file of the floor failed");
    }
    size_t next() {
        const size_t offset = order[next_] * bytes;
        next_ = (next_ + 1) % order.size();
        return offset;
    }
    const size_t bytes;
    const std::vector<uint32_t> order;
    const SpillFile file;

  private:
    size_t next_ = 0;
};

void floor_gather(benchmark::State &state, const Workload &w) {
    Images images(w);
    std::vector<char> memory(kGather * images.bytes);
    PlainRing ring(kGather);
    for (auto _ : state) {
        before_reading();
        const auto start = Clock::now();
        ring.run(false, images.file.fd(), memory.data(), kGather, images.bytes, [&](size_t) { return images.next(); });
        state.SetIterationTime(seconds_since(start));
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kGather));
}

void floor_preads(benchmark::State &state, const Workload &w) {
    Images images(w);
    std::vector<char> memory(kGather * images.bytes);
    for (auto _ : state) {
        before_reading();
        const auto start = Clock::now();
        for (size_t i = 0; i < kGather; ++i)
            if (pread(images.file.fd(), &memory[i * images.bytes], images.bytes, static_cast<off_t>(images.next())) < 0)
                throw std::runtime_error("reading the file of the floor failed");
        state.SetIterationTime(seconds_since(start));
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kGather));
}

} // namespace

void register_rows() {
    for (const Workload &w : training_sets()) {
        const bool small = w.name == "M";
        add("S1/put", w, put)->UseManualTime();
        add("S1/floor", w, floor_put)->UseManualTime();
        add(small ? "S3/gather" : "S2/gather", w, gather)->UseManualTime();
        add(small ? "S3/floor" : "S2/floor", w, small ? floor_preads : floor_gather)->UseManualTime();
    }
}

} // namespace bench
