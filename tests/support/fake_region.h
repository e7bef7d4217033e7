// SPDX-License-Identifier: Apache-2.0
// A cache region without a server, for tests of what works inside one: made in a memfd, its words set by hand. Stands
// for the broker where a test needs one: hands out chunks, adds levels. One thread calls it unless said otherwise.
// (fake_broker.h goes further: it lends extents by the server's own rules.)
#pragma once

#include "core/shm/layout.h"
#include "core/shm/region.h"
#include "tests/support/server.h"

#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace libcache {

class FakeRegion {
  public:
    explicit FakeRegion(uint64_t limit_bytes = 64 << 20, bool huge = false, uint64_t spill_segments = 0) {
        geometry_ = Geometry::for_limit(limit_bytes, huge, spill_segments);
        fd_ = memfd_create("fake", MFD_CLOEXEC);
        if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(geometry_.region_bytes)) != 0) test_die("memfd for a region");
        if (map_.map_as(fd_, geometry_, RegionAccess::Write) != 0) test_die("mapping a fake region");
        RegionHeader *h = map_.header();
        h->version = kFormatVersion;
        h->flags =
            (geometry_.huge_chunks != 0 ? kRegionHuge : 0u) | (geometry_.spill_segments != 0 ? kRegionSpill : 0u);
        h->stamp = kLayoutStamp;
        h->region_bytes = geometry_.region_bytes;
        h->slots_offset = geometry_.slots_offset;
        h->slots = geometry_.slots;
        h->table_offset = geometry_.table_offset;
        h->chunks = geometry_.chunks;
        h->data_offset = geometry_.data_offset;
        h->huge_chunks = geometry_.huge_chunks;
        h->spill_offset = geometry_.spill_offset;
        h->spill_segments = geometry_.spill_segments;
        h->limit_bytes = limit_bytes;
        h->region_id = 1;
        h->session_id = 7;
        h->cache_id = 9;
        h->state.store(uint64_t(CacheState::Live), std::memory_order_relaxed);
        h->top_bytes.store(geometry_.data_offset, std::memory_order_relaxed);
        h->magic.store(kRegionMagic, std::memory_order_release); // [ready]
    }
    FakeRegion(const FakeRegion &) = delete;
    FakeRegion &operator=(const FakeRegion &) = delete;
    ~FakeRegion() { close(fd_); }

    int fd() const { return fd_; }
    const Geometry &geometry() const { return geometry_; }
    RegionMap &map() { return map_; }
    RegionHeader *header() { return map_.header(); }
    char *at(uint64_t offset) { return map_.base() + offset; }

    static uint64_t word(ExtentState state, uint32_t slot, uint64_t len, uint32_t seq) {
        return ExtentWord{state, slot, uint32_t(len), seq}.pack();
    }

    // The next `chunks` chunks as one extent with this word's state; returns its first chunk.
    uint64_t take(uint64_t chunks, ExtentState state, uint32_t slot = kNoSlot, uint32_t seq = 0) {
        const uint64_t chunk = next_;
        map_.header()->slots_top.store(1, std::memory_order_relaxed);
        next_ += chunks;
        if (next_ >= geometry_.chunks) test_die("the fake region has only %lu chunks", geometry_.chunks);
        map_.extent(next_)->own.store(word(ExtentState::Empty, kNoSlot, geometry_.chunks - next_, 0),
                                      std::memory_order_relaxed);
        map_.header()->table_top.store(next_ + 1, std::memory_order_relaxed);
        map_.header()->top_bytes.store(map_.chunk_offset(next_), std::memory_order_release);
        map_.extent(chunk)->bump.store(Bump{0, uint32_t(chunks * (kChunkBytes / kUnitBytes))}.pack(),
                                       std::memory_order_relaxed);
        map_.extent(chunk)->own.store(word(state, slot, chunks, seq), std::memory_order_release);
        return chunk;
    }

    // One more level of the index, as the broker adds it. Other threads may look rows up and insert meanwhile.
    void add_level(LevelKind kind, uint64_t first, uint64_t slots) {
        RegionHeader *h = map_.header();
        const uint64_t k = h->levels.load(std::memory_order_relaxed);
        const uint64_t chunk = take(round_up(slots * 8, kChunkBytes) / kChunkBytes, ExtentState::Index, uint32_t(k));
        h->level[k].kind.store(uint64_t(kind), std::memory_order_relaxed);
        h->level[k].first.store(first, std::memory_order_relaxed);
        h->level[k].slots.store(slots, std::memory_order_relaxed);
        h->level[k].offset.store(map_.chunk_offset(chunk), std::memory_order_relaxed);
        h->levels.store(k + 1, std::memory_order_release); // [level]
    }

    // A bare row header at `offset`, enough for the index.
    void write_header(uint64_t offset, int64_t id, uint32_t stride = 2) {
        auto *row = reinterpret_cast<RowHeader *>(at(offset));
        *row = {stride, 0, id, sizeof(RowHeader), 1, row_check(0, id, sizeof(RowHeader), 1)};
    }

  private:
    int fd_ = -1;
    Geometry geometry_{};
    RegionMap map_;
    uint64_t next_ = 0;
};

} // namespace libcache
