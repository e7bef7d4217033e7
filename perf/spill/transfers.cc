// SPDX-License-Identifier: Apache-2.0
// Transfers by themselves (SW, SR), by block size and by how many are under way: the spill writer's and readers' own
// ring, a plain io_uring as its floor, and pwrite or pread, one after the other.
#include "core/spill/ring.h"
#include "perf/bench/plain_store.h"
#include "perf/spill/bench.h"

#include <benchmark/benchmark.h>
#include <chrono>
#include <stdexcept>
#include <sys/uio.h>
#include <unistd.h>

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBytes = 64 << 20; // of one iteration

struct Shape {
    size_t block;
    unsigned depth;
    size_t blocks() const { return kBytes / block; }
    std::string name() const { return std::to_string(block >> 10) + "KiBx" + std::to_string(depth); }
};

using Way = void (*)(bool write, int fd, char *memory, const Shape &shape, const std::vector<uint32_t> &order);

void library(bool write, int fd, char *memory, const Shape &shape, const std::vector<uint32_t> &order) {
    libcache::TransferRing ring(shape.depth);
    std::vector<libcache::Transfer> transfers(shape.depth);
    std::vector<iovec> pieces(shape.depth);
    size_t started = 0;
    const auto start = [&](size_t place) {
        pieces[place] = {memory + place * shape.block, shape.block};
        libcache::Transfer &t = transfers[place];
        t.fd = fd;
        t.write = write;
        t.offset = order[started++] * shape.block;
        t.pieces = &pieces[place];
        t.n_pieces = 1;
        ring.start(t);
    };
    for (size_t place = 0; place < shape.depth && started < order.size(); ++place)
        start(place);
    while (const libcache::Transfer *const done = ring.next_done(true)) {
        if (done->error != 0) throw std::runtime_error("a transfer failed");
        if (started < order.size()) start(static_cast<size_t>(done - transfers.data()));
    }
}

void plain(bool write, int fd, char *memory, const Shape &shape, const std::vector<uint32_t> &order) {
    PlainRing ring(shape.depth);
    ring.run(write, fd, memory, order.size(), shape.block, [&](size_t i) { return order[i] * shape.block; });
}

void calls(bool write, int fd, char *memory, const Shape &shape, const std::vector<uint32_t> &order) {
    for (const uint32_t block : order) {
        const auto at = static_cast<off_t>(block * shape.block);
        const ssize_t n = write ? pwrite(fd, memory, shape.block, at) : pread(fd, memory, shape.block, at);
        if (n != static_cast<ssize_t>(shape.block)) throw std::runtime_error("a transfer was short");
    }
}

std::vector<uint32_t> ascending(size_t n) {
    std::vector<uint32_t> order(n);
    for (size_t i = 0; i < n; ++i)
        order[i] = static_cast<uint32_t>(i);
    return order;
}

// Writes go to fresh space, as a spiller's do, one behind the other.
void write_all(benchmark::State &state, Shape shape, Way way) {
    std::vector<char> memory(shape.depth * shape.block, 'x');
    for (auto _ : state) {
        const SpillFile file(kBytes);
        const auto start = Clock::now();
        way(true, file.fd(), memory.data(), shape, ascending(shape.blocks()));
        state.SetIterationTime(std::chrono::duration<double>(Clock::now() - start).count());
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(shape.blocks()));
}

// Reads of what is in the page cache, shuffled.
void read_all(benchmark::State &state, Shape shape, Way way) {
    const SpillFile file(kBytes);
    std::vector<char> memory(shape.depth * shape.block, 'x');
    calls(true, file.fd(), memory.data(), shape, ascending(shape.blocks()));
    const std::vector<uint32_t> order = shuffled(shape.blocks());
    for (auto _ : state) {
        before_reading();
        const auto start = Clock::now();
        way(false, file.fd(), memory.data(), shape, order);
        state.SetIterationTime(std::chrono::duration<double>(Clock::now() - start).count());
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(shape.blocks()));
}

void register_way(const std::string &way_name, Way way, const Shape &shape) {
    const std::string name = way_name + "/" + shape.name();
    benchmark::RegisterBenchmark(("SW/" + name).c_str(), write_all, shape, way)->UseManualTime();
    benchmark::RegisterBenchmark(("SR/" + name).c_str(), read_all, shape, way)->UseManualTime();
}

} // namespace

void register_transfers() {
    for (const size_t block : {size_t{4} << 10, size_t{64} << 10, size_t{256} << 10, size_t{1} << 20}) {
        for (const unsigned depth : {1U, 8U, 64U}) {
            register_way("ring", library, {block, depth});
            register_way("floor", plain, {block, depth});
        }
        register_way("calls", calls, {block, 1});
    }
}

} // namespace bench
