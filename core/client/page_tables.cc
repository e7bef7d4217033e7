// SPDX-License-Identifier: Apache-2.0
#include "core/client/page_tables.h"

#include "core/common/page.h"

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>

namespace libcache {
namespace {

// A table is a page of 8-byte entries, one for each page, or for each table of the level below.
uint64_t tables(uint64_t table, uint64_t resident, uint64_t huge) {
    const uint64_t span = table * (table / 8), middle_span = span * (table / 8);
    const uint64_t small = resident - (huge < resident ? huge : resident);
    return ((small + span - 1) / span + (resident + middle_span - 1) / middle_span) * table;
}

int64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

} // namespace

int64_t page_table_bytes_in(std::istream &smaps, uint64_t address, uint64_t page) {
    std::map<std::string, uint64_t> of_file; // device and inode -> bytes of tables
    std::string line, file, ours;
    uint64_t resident = 0;
    while (std::getline(smaps, line)) {
        uint64_t first, end, kib;
        char device[16], inode[24];
        if (sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %*s %15s %23s", &first, &end, device, inode) == 4) {
            file = std::string(device) + " " + inode;
            if (first <= address && address < end) ours = file;
        } else if (sscanf(line.c_str(), "Rss: %" SCNu64 " kB", &kib) == 1) {
            resident = kib * 1024;
        } else if (sscanf(line.c_str(), "ShmemPmdMapped: %" SCNu64 " kB", &kib) == 1) { // comes after Rss
            of_file[file] += tables(page, resident, kib * 1024);
        }
    }
    const auto found = of_file.find(ours);
    return ours.empty() || found == of_file.end() ? -1 : static_cast<int64_t>(found->second);
}

int64_t PageTableBytes::of(const void *address) {
    const Process *const here = &this_process();
    const int64_t start = now_ns();
    if (asked_by_.load(std::memory_order_relaxed) == here && start < until_ns_.load(std::memory_order_relaxed))
        return bytes_.load(std::memory_order_relaxed);
    std::ifstream smaps("/proc/self/smaps");
    const int64_t bytes = page_table_bytes_in(smaps, reinterpret_cast<uintptr_t>(address), page_bytes());
    const int64_t end = now_ns();
    bytes_.store(bytes, std::memory_order_relaxed);
    until_ns_.store(end + 100 * (end - start), std::memory_order_relaxed);
    asked_by_.store(here, std::memory_order_relaxed);
    return bytes;
}

} // namespace libcache
