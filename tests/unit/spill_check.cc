// SPDX-License-Identifier: Apache-2.0
// region_check() on stubs and spill segments: it must find each kind of damage; and the figures that come from them.
#include "core/common/page.h"
#include "core/store/check.h"
#include "core/store/stats.h"
#include "tests/support/fake_region.h"

#include <criterion/criterion.h>
#include <functional>
#include <string>

using namespace libcache;

namespace {

constexpr uint32_t kStubs = 10, kImage = 4096;

// Ten stubs in a SEALED extent, of images in a SEALED run of two segments; behind it a FREE one.
struct Spilled {
    FakeRegion region{16 << 20, false, 4};
    uint64_t extent = 0;

    Spilled() {
        region.add_level(LevelKind::Dense, 0, 64);
        extent = region.take(1, ExtentState::Sealed);
        for (uint32_t id = 0; id < kStubs; id++)
            put(id, {uint64_t{id} * kImage, kImage, id});
        region.map().extent(extent)->bump.store(Bump{2 * kStubs, 4096}.pack());
        region.map().extent(extent)->rows.store(kStubs);
        run(0).own.store(FakeRegion::word(ExtentState::Sealed, kNoSlot, 2, 1));
        run(0).used.store(uint64_t{kStubs} * kImage);
        run(0).rows.store(kStubs);
        run(0).bytes.store(uint64_t{kStubs} * 4000);
        run(2).own.store(FakeRegion::word(ExtentState::Free, kNoSlot, 1, 0));
        run(3).own.store(FakeRegion::word(ExtentState::Empty, kNoSlot, 1, 0));
        region.header()->spill_top.store(4);
        charge();
    }
    SpillSegment &run(uint64_t segment) { return *region.map().segment(segment); }
    RowHeader &stub(int64_t id) { return reinterpret_cast<RowHeader *>(region.map().chunk_address(extent))[id]; }
    void put(uint32_t id, const SpillStub &where) {
        const uint32_t layout = where.layout_word();
        stub(id) = {2, layout, id, where.bytes_word(), where.crc, row_check(layout, id, where.bytes_word(), where.crc)};
        auto *const entries =
            reinterpret_cast<AtomicU64 *>(region.at(region.header()->level[0].offset.load(std::memory_order_relaxed)));
        entries[id].store(
            IndexEntry::pack(index_hash(id, 0), region.map().chunk_offset(extent) + id * sizeof(RowHeader)));
    }
    // What the words make.
    void charge() {
        const uint64_t slots = round_up(region.geometry().slots_offset + sizeof(Slot), page_bytes());
        const uint64_t table = round_up(region.header()->table_top.load() * sizeof(Extent), page_bytes());
        region.header()->charged_bytes.store(slots + table + page_bytes() + 2 * kChunkBytes);
    }
};

std::string finds(const char *what, const std::function<void(Spilled &)> &damage) {
    Spilled s;
    std::string report;
    cr_assert(region_check(s.region.map(), &report), "%s", report.c_str());
    damage(s);
    cr_assert_not(region_check(s.region.map(), &report), "not found: %s", what);
    cr_assert(report.find(what) != std::string::npos, "'%s' is not in:\n%s", what, report.c_str());
    return report;
}

} // namespace

Test(spill_check, a_region_with_stubs_is_right) {
    Spilled s;
    std::string report;
    cr_assert(region_check(s.region.map(), &report), "%s", report.c_str());
}

Test(spill_check, it_finds_each_damage) {
    finds("spilled to the same place", [](Spilled &s) { s.put(3, {2 * kImage, kImage, 1}); });
    finds("over another", [](Spilled &s) { s.put(3, {2 * kImage + 64, kImage, 1}); });
    finds("row 2 lies over another", [](Spilled &s) { s.put(0, {0, 3 * kImage, 1}); }); // as row 1 does, before it
    finds("names no place", [](Spilled &s) { s.put(9, {100 * kSegmentBytes, kImage, 1}); });
    finds("is free", [](Spilled &s) { s.put(9, {2 * kSegmentBytes, kImage, 1}); });
    finds("beyond what is used", [](Spilled &s) { s.run(0).used.store(kImage); });
    finds("bytes used of", [](Spilled &s) { s.run(0).used.store(2 * kSegmentBytes + 16); });
    finds("bytes used of", [](Spilled &s) { s.run(0).used.fetch_add(8); });
    finds("rows stated", [](Spilled &s) { s.run(0).rows.store(kStubs - 1); });
    finds("not active", [](Spilled &s) { s.run(0).own.store(FakeRegion::word(ExtentState::Held, 0, 2, 1)); });
    finds("not active", [](Spilled &s) { s.run(0).own.store(FakeRegion::word(ExtentState::Granted, 99, 2, 1)); });
    finds("length 0", [](Spilled &s) { s.run(0).own.store(FakeRegion::word(ExtentState::Sealed, kNoSlot, 0, 1)); });
    finds("length 5", [](Spilled &s) { s.run(0).own.store(FakeRegion::word(ExtentState::Sealed, kNoSlot, 5, 1)); });
    finds("state 6", [](Spilled &s) { s.run(2).own.store(FakeRegion::word(ExtentState::Index, kNoSlot, 1, 1)); });
    const std::string report = finds("spill_top", [](Spilled &s) { s.region.header()->spill_top.store(5); });
    cr_assert(report.find("spill segment 4") == std::string::npos, "there is none:\n%s", report.c_str());
    finds("bytes stated, its rows take", [](Spilled &s) { s.run(0).bytes.store(uint64_t{kStubs} * kImage + 1); });
    finds("header is damaged", [](Spilled &s) { s.stub(4).n_columns++; });
}

// Whoever holds a run counts a row after it is published.
Test(spill_check, counts_of_a_run_that_is_held_may_be_behind) {
    Spilled s;
    s.region.map().slot(0)->owner.store(SlotWord{SlotState::Active, 1}.pack());
    s.run(0).own.store(FakeRegion::word(ExtentState::Held, 0, 2, 1));
    s.run(0).rows.store(kStubs - 1);
    s.run(0).bytes.store(uint64_t{kStubs + 1} * kImage);
    std::string report;
    cr_assert(region_check(s.region.map(), &report), "%s", report.c_str());
}

// The rows of a stream are those below its next id, with no hole; one more may be on its way.
Test(spill_check, a_stream_and_its_next_id) {
    const auto stream = [](Spilled &s, uint64_t next, uint64_t builder = 0) {
        s.region.header()->flags |= kRegionBuild;
        s.region.header()->next.store(next);
        s.region.header()->builder.store(builder);
    };
    for (const uint64_t next : {kStubs - 1, kStubs}) {
        Spilled s;
        std::string report;
        s.region.map().slot(0)->owner.store(SlotWord{SlotState::Active, 1}.pack());
        stream(s, next, Builder{0, 7}.pack());
        cr_assert(region_check(s.region.map(), &report), "next is %lu:\n%s", next, report.c_str());
    }
    finds("stream: 11 rows appended, the index has 10 of them", [&](Spilled &s) { stream(s, kStubs + 1); });
    finds("stream: row 9 stands beyond the next id 8", [&](Spilled &s) { stream(s, kStubs - 2); });
    finds("rows appended", [&](Spilled &s) { stream(s, UINT64_MAX); });
    finds("stream: its builder is slot 0, which is not active", [&](Spilled &s) {
        stream(s, kStubs, Builder{0, 7}.pack());
    });
    finds("stream: its builder is slot 8000", [&](Spilled &s) { stream(s, kStubs, Builder{8000, 7}.pack()); });
    finds("stream: built 2", [&](Spilled &s) {
        stream(s, kStubs);
        s.region.header()->built.store(2);
    });
}

Test(spill_check, stubs_count_as_spilled_rows_alone) {
    Spilled s;
    cache_stats stats{};
    stats.size = sizeof stats;
    region_statistics(s.region.map(), &stats);
    cr_assert_eq(stats.rows_in_memory, 0);
    cr_assert_eq(stats.rows_spilled, kStubs);
    cr_assert_eq(stats.spilled_bytes, kStubs * 4000);
    cr_assert_eq(stats.row_bytes, 0);
    cr_assert_eq(stats.spill_file_bytes, 3 * kSegmentBytes);
}

Test(spill_check, a_stub_is_packed_and_unpacked) {
    for (const SpillStub &stub :
         {SpillStub{0, 32, 0}, SpillStub{(uint64_t{1} << 60) - 16, (uint64_t{1} << 36) - 16, ~0u},
          SpillStub{uint64_t{5} << 36, 4112, 77}}) {
        cr_assert(SpillStub::is(stub.layout_word()));
        const SpillStub back = SpillStub::unpack(stub.layout_word(), stub.bytes_word(), stub.crc);
        cr_assert(back.offset == stub.offset && back.bytes == stub.bytes && back.crc == stub.crc);
    }
    cr_assert(!SpillStub::is(kInlineLayout) && !SpillStub::is(kLayoutRow) && !SpillStub::is(255));
}
