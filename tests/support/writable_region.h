// SPDX-License-Identifier: Apache-2.0
// The region of a cache as its writers map it, for tests that write there what no writer writes.
#pragma once

#include "core/shm/layout.h"
#include "tests/support/server.h"

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

// This process's own mapping for writing of the only cache it has put rows into.
inline char *writable_region() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        uint64_t from = 0, to = 0, file_offset = 0;
        char rights[5];
        if (sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64, &from, &to, rights, &file_offset) != 4)
            continue;
        if (std::string(rights) != "rw-s" || file_offset != 0 || to - from < sizeof(libcache::RegionHeader)) continue;
        auto *const base = reinterpret_cast<char *>(from); // NOLINT(performance-no-int-to-ptr)
        const auto &header = *reinterpret_cast<const libcache::RegionHeader *>(base);
        if (header.magic.load(std::memory_order_acquire) == libcache::kRegionMagic) return base;
    }
    test_die("no region is mapped for writing");
}
