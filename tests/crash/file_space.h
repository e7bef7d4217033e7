// SPDX-License-Identifier: Apache-2.0
// The file space of a cache that spills, by the words of its runs and by its published stubs.
#pragma once

#include "core/store/index.h"
#include "tests/crash/crash.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace crash {

struct FileRun {
    uint64_t segment;
    libcache::ExtentWord word;
    uint64_t used; // bytes; of a SEALED run what lies above is lent again

    uint64_t start() const { return segment * libcache::kSegmentBytes; }
};

inline std::vector<FileRun> file_runs(cache *handle) {
    const libcache::RegionMap &map = libcache::region_of(handle);
    const uint64_t top = map.header()->spill_top.load(std::memory_order_acquire);
    std::vector<FileRun> runs;
    for (uint64_t segment = 0; segment < top;) {
        const libcache::SpillSegment &entry = *map.segment(segment);
        const libcache::ExtentWord word = libcache::ExtentWord::unpack(entry.own.load(std::memory_order_acquire));
        if (word.len == 0) test_die("spill segment %ld has no length", long(segment));
        runs.push_back({segment, word, entry.used.load(std::memory_order_acquire)});
        segment += word.len;
    }
    return runs;
}

// Runs whose space is being made or given back.
inline int busy_runs(cache *handle) {
    int busy = 0;
    for (const FileRun &run : file_runs(handle))
        busy += run.word.state == libcache::ExtentState::Busy;
    return busy;
}

// SEALED ones with whole segments above their rows: such become FREE, else they never go back to the disk.
inline int untrimmed_runs(cache *handle) {
    int untrimmed = 0;
    for (const FileRun &run : file_runs(handle))
        untrimmed +=
            run.word.state == libcache::ExtentState::Sealed && run.used <= (run.word.len - 1) * libcache::kSegmentBytes;
    return untrimmed;
}

// Place -> end of the rows [0, ids) that are spilled and published.
inline std::map<uint64_t, uint64_t> spilled_places(cache *handle, int64_t ids) {
    const libcache::RegionMap &map = libcache::region_of(handle);
    libcache::Index index;
    index.attach(map.base(), map.base(), map.geometry().data_offset, map.geometry().region_bytes);
    std::map<uint64_t, uint64_t> places;
    for (int64_t id = 0; id < ids; id++) {
        const uint64_t offset = index.find(id);
        if (offset == 0) continue;
        libcache::RowHeader row{};
        memcpy(&row, map.base() + offset, sizeof row);
        if (!libcache::SpillStub::is(row.layout)) continue;
        const auto stub = libcache::SpillStub::unpack(row.layout, row.bytes, row.n_columns);
        places[stub.offset] = stub.offset + stub.bytes;
    }
    return places;
}

// What of the run its rows need, if there are no others than those in `places`.
inline uint64_t needed_bytes(const std::map<uint64_t, uint64_t> &places, const FileRun &run) {
    const auto next = places.lower_bound(run.start() + run.word.len * libcache::kSegmentBytes);
    return next == places.begin() ? 0 : std::max(std::prev(next)->second, run.start()) - run.start();
}

inline int64_t file_space(cache *handle) {
    uint64_t segments = 0;
    for (const FileRun &run : file_runs(handle))
        segments += run.word.state != libcache::ExtentState::Empty ? run.word.len : 0;
    return int64_t(segments * libcache::kSegmentBytes);
}

// Nobody writes, and nobody ever wrote a row that was there: then each byte behind a run's last row is to be had again,
// and the server, which has no other cache, is charged no more than the runs.
inline void judge_file_space(const Arena &arena, cache *handle, int64_t ids, const std::string &what) {
    using libcache::ExtentState;
    until([&] { return busy_runs(handle) == 0 && untrimmed_runs(handle) == 0; },
          (what + ": no run is being made or given back, and none has segments that it does not need").c_str());
    const std::map<uint64_t, uint64_t> places = spilled_places(handle, ids);
    for (const FileRun &run : file_runs(handle)) {
        const ExtentState state = run.word.state;
        if (state == ExtentState::Granted || state == ExtentState::Held)
            test_die("%s: the run at spill segment %ld stays in state %u", what.c_str(), long(run.segment),
                     unsigned(state));
        // Others hold no row, and may be on their way to the disk.
        const uint64_t kept = state == ExtentState::Sealed ? run.used : 0, needed = needed_bytes(places, run);
        if (kept != needed)
            test_die("%s: of the run at spill segment %ld %ld bytes are kept, its rows need %ld", what.c_str(),
                     long(run.segment), long(kept), long(needed));
    }
    // Caches that were destroyed stay charged until nobody maps them.
    until([&] { return server_info(arena.client).spill_used_bytes == file_space(handle); },
          (what + ": the server is charged for the runs and no more").c_str());
}

} // namespace crash
