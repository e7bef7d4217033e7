// SPDX-License-Identifier: Apache-2.0
#include "core/store/stats.h"

#include <algorithm>
#include <cstring>

namespace libcache {
namespace {

int64_t signed_bytes(uint64_t n) {
    return static_cast<int64_t>(n);
}

// A word that others write, as far as it can be true: what is summed up from such must not overflow.
int64_t at_most(const AtomicU64 &word, uint64_t most) {
    return signed_bytes(std::min(word.load(std::memory_order_relaxed), most));
}

constexpr uint64_t kUnitChunks = kHugeBytes / kChunkBytes;

// Of a run of chunks, what the kernel made huge pages of.
int64_t huge_bytes(const RegionMap &map, uint64_t chunk, uint64_t chunks) {
    const uint64_t told = map.header()->table_top.load(std::memory_order_acquire); // entries beyond have no pages
    const uint64_t end = std::min({chunk + chunks, map.geometry().huge_chunks, told});
    uint64_t huge = 0;
    for (uint64_t unit = round_down(chunk, kUnitChunks); unit < end; unit += kUnitChunks)
        if (map.extent(unit)->huge.load(std::memory_order_relaxed) != 0)
            huge += std::min(unit + kUnitChunks, end) - std::max(unit, chunk);
    return signed_bytes(huge * kChunkBytes);
}

void add_extent(const RegionMap &map, uint64_t chunk, ExtentWord word, cache_stats *s) {
    const Extent &e = *map.extent(chunk);
    const uint64_t room = uint64_t{word.len} * kChunkBytes;
    const int64_t bytes = signed_bytes(room);
    const int64_t used =
        std::min(bytes, signed_bytes(uint64_t{Bump::unpack(e.bump.load(std::memory_order_relaxed)).used} * kUnitBytes));
    if (word.state == ExtentState::Busy) s->populated_bytes -= bytes; // being made, or given back
    if (word.state != ExtentState::Busy && word.state != ExtentState::Empty)
        s->huge_page_bytes += huge_bytes(map, chunk, word.len);
    switch (word.state) {
    case ExtentState::Free: s->free_bytes += bytes; break;
    case ExtentState::Index: s->index_bytes += bytes; break;
    case ExtentState::Granted:
    case ExtentState::Held: s->granted_bytes += bytes - used; [[fallthrough]];
    case ExtentState::Sealed:
        s->used_bytes += used;
        s->rows_in_memory += at_most(e.rows, room / kUnitBytes);
        s->row_bytes += at_most(e.bytes, room);
        s->dead_bytes += at_most(e.dead, room / kUnitBytes) * static_cast<int64_t>(kUnitBytes);
        break;
    default: break;
    }
}

// Stubs are rows of their extents too: what is spilled is taken out of the count there.
void add_spilled(const RegionMap &map, cache_stats *s) {
    const uint64_t segments = map.geometry().spill_segments;
    const uint64_t top = std::min(map.header()->spill_top.load(std::memory_order_acquire), segments);
    for (uint64_t segment = 0; segment < top;) {
        const SpillSegment &run = *map.segment(segment);
        // acq [grant]: as for_each_extent()
        const ExtentWord word = ExtentWord::unpack(run.own.load(std::memory_order_acquire));
        if (word.len == 0 || word.len > segments - segment) break;
        segment += word.len;
        if (word.state != ExtentState::Empty) s->spill_file_bytes += signed_bytes(word.len * kSegmentBytes);
        if (word.state != ExtentState::Granted && word.state != ExtentState::Held && word.state != ExtentState::Sealed)
            continue;
        s->rows_spilled += at_most(run.rows, word.len * (kSegmentBytes / kUnitBytes));
        s->spilled_bytes += at_most(run.bytes, word.len * kSegmentBytes);
    }
    s->rows_in_memory = std::max<int64_t>(0, s->rows_in_memory - s->rows_spilled);
}

// The longest run of chunks that could become one extent: made or not, as far as the limit allows.
int64_t largest_free(const RegionMap &map, uint64_t room) {
    uint64_t run = 0, longest = 0;
    const uint64_t end = for_each_extent(map, [&](uint64_t, ExtentWord word) {
        const bool usable = word.state == ExtentState::Free || word.state == ExtentState::Empty;
        run = usable ? run + word.len : 0;
        longest = std::max(longest, run);
    });
    longest = std::max(longest, run + (map.geometry().chunks - std::min(end, map.geometry().chunks)));
    return signed_bytes(std::min({longest * kChunkBytes, room, kMaxExtentChunks * kChunkBytes}));
}

} // namespace

void region_statistics(const RegionMap &map, cache_stats *s) {
    const uint32_t size = s->size;
    *s = {};
    s->size = size;
    const RegionHeader &h = *map.header();
    s->session_id = h.session_id;
    s->cache_id = h.cache_id;
    s->huge_pages = (h.flags & kRegionHuge) != 0;
    s->limit_bytes = signed_bytes(std::min(h.limit_bytes, map.geometry().region_bytes));
    s->charged_bytes = at_most(h.charged_bytes, map.geometry().region_bytes);
    s->populated_bytes = s->charged_bytes;
    for_each_extent(map, [&](uint64_t chunk, ExtentWord word) { add_extent(map, chunk, word, s); });
    add_spilled(map, s);
    const uint64_t room =
        static_cast<uint64_t>(std::max<int64_t>(0, s->limit_bytes - s->charged_bytes + s->free_bytes));
    s->largest_free_bytes = largest_free(map, room);
    s->index_levels = signed_bytes(h.levels.load(std::memory_order_relaxed));
    for (const AtomicU64 &entry : h.layout)
        s->layouts += entry.load(std::memory_order_relaxed) != 0;
    const uint64_t slots = std::min(h.slots_top.load(std::memory_order_acquire), map.geometry().slots);
    for (uint32_t i = 0; i < slots; i++)
        s->writers += SlotWord::unpack(map.slot(i)->owner.load(std::memory_order_relaxed)).state == SlotState::Active;
    s->generation = signed_bytes(h.generation.load(std::memory_order_relaxed));
    memcpy(s->tag, h.tag, std::min(sizeof s->tag, sizeof h.tag) - 1);
    memcpy(s->label, h.label, std::min(sizeof s->label, sizeof h.label) - 1);
    s->readers = -1;
    s->page_table_bytes = -1;
    s->idle_ms = -1;
    s->state = h.state.load(std::memory_order_relaxed) == uint64_t(CacheState::Dying) ? 2 : 1;
}

} // namespace libcache
