// SPDX-License-Identifier: Apache-2.0
// What RegionHeader::refused_chunks holds: the broker's hint of what it refuses just now, so that full is said without
// a message for each row. {levels:1 | stubs:31 | rows:32}: rows and stubs are the size in chunks from which on extents
// are refused, 0 = none is; levels: no index level, however small. Stubs of spilled rows have a share of their own, so
// they may have memory when rows have none; never the other way.
#pragma once

#include <algorithm>
#include <cstdint>

namespace libcache {

struct Refused {
    uint32_t rows = 0, stubs = 0;
    bool levels = false;

    constexpr uint64_t pack() const { return uint64_t{levels} << 63 | uint64_t{stubs} << 32 | rows; }
    static constexpr Refused unpack(uint64_t w) {
        return {static_cast<uint32_t>(w), static_cast<uint32_t>(w >> 32) & 0x7fffffff, (w >> 63) != 0};
    }
    constexpr bool any() const { return rows != 0 || stubs != 0 || levels; }
    // Whether an extent of so many chunks is refused. `stub`: it may use the share that is kept for stubs.
    constexpr bool covers(uint32_t chunks, bool stub) const {
        const uint32_t known = stub ? stubs : rows;
        return known != 0 && chunks >= known;
    }
    constexpr void add(uint32_t chunks, bool stub) {
        rows = rows == 0 ? chunks : std::min(rows, chunks);
        if (stub) stubs = stubs == 0 ? chunks : std::min(stubs, chunks);
    }
};

} // namespace libcache
