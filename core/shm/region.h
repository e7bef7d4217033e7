// SPDX-License-Identifier: Apache-2.0
// A cache region in this process: its geometry, checked once, and a mapping of it. Used by client and server.
// A RegionMap may be read by any thread; making and destroying it is its owner's business.
#pragma once

#include "core/shm/layout.h"

#include <boost/interprocess/mapped_region.hpp>
#include <cstdint>

namespace libcache {

// Where the parts of a region lie. Computed when a region is made, read back and checked when it is opened; from then
// on this private copy is used, never the numbers in shared memory.
struct Geometry {
    uint64_t region_bytes, slots_offset, slots, table_offset, chunks, data_offset, huge_chunks;
    uint64_t spill_offset = 0, spill_segments = 0; // 0: the cache does not spill

    // For a cache of `limit_bytes` (>= kMinLimitBytes). The span of the data area is twice the limit: room is counted
    // in pages, and a large row must not fail for want of adjacent chunks. `huge`: the part of the limit that fills
    // whole 2 MiB units comes first and is mapped MADV_HUGEPAGE, the rest (`huge_chunks` and beyond) MADV_NOHUGEPAGE.
    // `spill_segments`: how far the spill file may grow.
    static Geometry for_limit(uint64_t limit_bytes, bool huge, uint64_t spill_segments = 0);
    bool operator==(const Geometry &) const = default;
};

enum class RegionAccess {
    Read,   // PROT_READ, inherited by fork
    Write,  // read and write, MADV_DONTFORK
    Control // read and write, only [0, data_offset): the broker
};

class RegionMap {
  public:
    RegionMap() = default;

    // Maps the region behind `fd` (which may be closed afterwards) and checks it. Every mapping is MADV_DONTDUMP.
    // Returns 0 or a CACHE_E* code with a sentence: too short, not ready, another version, another stamp, impossible
    // geometry are told apart (CACHE_ECORRUPT, CACHE_ETIMEOUT for not ready, CACHE_EVERSION).
    [[nodiscard]] int open(int fd, RegionAccess access);

    // Maps a file of `geometry.region_bytes` without a look at its header: a fresh one for its maker, or one whose
    // header was checked before and may have been changed since.
    [[nodiscard]] int map_as(int fd, const Geometry &geometry, RegionAccess access);

    explicit operator bool() const { return base_ != nullptr; }
    const Geometry &geometry() const { return geometry_; }
    char *base() const { return base_; }
    uint64_t mapped_bytes() const { return mapped_bytes_; }

    RegionHeader *header() const { return reinterpret_cast<RegionHeader *>(base_); }
    Slot *slot(uint32_t i) const { return reinterpret_cast<Slot *>(base_ + geometry_.slots_offset) + i; }
    Extent *extent(uint64_t chunk) const { return reinterpret_cast<Extent *>(base_ + geometry_.table_offset) + chunk; }
    SpillSegment *segment(uint64_t i) const {
        return reinterpret_cast<SpillSegment *>(base_ + geometry_.spill_offset) + i;
    }
    uint64_t chunk_offset(uint64_t chunk) const { return geometry_.data_offset + chunk * kChunkBytes; }
    char *chunk_address(uint64_t chunk) const { return base_ + chunk_offset(chunk); }

  private:
    boost::interprocess::mapped_region map_;
    char *base_ = nullptr;
    uint64_t mapped_bytes_ = 0;
    Geometry geometry_{};
    [[nodiscard]] int map(int fd, RegionAccess access);
};

// A run of chunks of the data area, mapped read-write for a moment: to populate, zero or read it. Uses huge pages where
// the region does.
class WindowMap {
  public:
    WindowMap() = default;
    [[nodiscard]] int map(int fd, const Geometry &geometry, uint64_t first_chunk, uint64_t chunks);
    char *address() const { return static_cast<char *>(map_.get_address()); }
    uint64_t bytes() const { return map_.get_size(); }

  private:
    boost::interprocess::mapped_region map_;
};

// Makes the pages of [address, address + bytes) present and writable in this mapping. 0, or CACHE_EFULL when the kernel
// has no memory, CACHE_EIO else. Before Linux 5.14 every page is touched instead.
[[nodiscard]] int populate(void *address, uint64_t bytes);

} // namespace libcache
