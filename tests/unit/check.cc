// SPDX-License-Identifier: Apache-2.0
// region_check() is what all other tests lean on: it must find each kind of damage.
#include "core/store/check.h"

#include "core/common/error.h"
#include "core/common/page.h"
#include "core/store/audit.h"
#include "tests/support/fake_broker.h"

#include <algorithm>
#include <atomic>
#include <criterion/criterion.h>
#include <functional>
#include <memory>
#include <string>
#include <thread>

using namespace libcache;

namespace {

// A region with rows of two layouts, an inline one, hashed and dense ids, sealed and free extents.
struct Filled {
    FakeBroker broker{16 << 20, 7};
    Index index;

    Filled() {
        broker.attach(index);
        std::atomic<bool> done{false};
        std::thread stepping([&] {
            while (!done.load())
                broker.step();
        });
        for (int64_t id = 0; id < 300; id++)
            put(id % 2 ? id : (int64_t{1} << 40) + id, 100 + id % 2 * 500, id % 10 == 0);
        broker.writer_of(0).seal_all();
        done.store(true);
        stepping.join();
        broker.settle();
        index.refresh();
    }
    RegionHeader &header() { return *broker.region().header(); }
    RegionMap &map() { return broker.region().map(); }
    bool right(std::string *report = nullptr) { return region_check(map(), report); }
    uint64_t head(ExtentState state) {
        for (const Extents::Head &h : broker.extents().heads())
            if (h.word.state == state) return h.chunk;
        test_die("no extent of this state in the region");
    }
    RowHeader &row(int64_t id) { return *reinterpret_cast<RowHeader *>(broker.region().at(index.find(id))); }
    // The index entry of a row.
    AtomicU64 &entry(int64_t id) {
        for (uint32_t k = 0; k < index.known(); k++)
            for (uint64_t i = 0; i < index.level(k).slots; i++)
                if (IndexEntry::offset(index.level(k).entries[i]) == index.find(id)) return index.level(k).entries[i];
        test_die("no entry");
    }

  private:
    void put(int64_t id, int64_t bytes, bool in_line) {
        cache_column column{this, uint64_t(bytes), &bytes, CACHE_UINT8, 1, {}};
        const auto layout = Layout::of(&column, 1);
        uint32_t number = kInlineLayout;
        Writer &writer = broker.writer_of(0);
        if (!in_line) {
            const int known = broker.layouts().find(&column, 1);
            if (known >= 0)
                number = uint32_t(known);
            else
                cr_assert_eq(writer.store_layout(*layout, FakeBroker::kTimeoutNs, &number), 0, "%s", last_error());
        }
        Writer::Place place;
        cr_assert_eq(writer.place({layout.get(), number, id, FakeBroker::kTimeoutNs}, &place), 0, "%s", last_error());
        if (in_line) memcpy(place.address + sizeof(RowHeader), layout->table(), layout->table_bytes());
        cr_assert_eq(writer.publish(place), 0, "%s", last_error());
    }
};

void finds(const char *what, const std::function<void(Filled &)> &damage) {
    Filled f;
    std::string report;
    cr_assert(f.right(&report), "before any damage:\n%s", report.c_str());
    damage(f);
    cr_expect_not(f.right(&report), "%s is not noticed", what);
    cr_expect_gt(report.size(), 10, "%s is noticed without a word", what);
}

// The same, and the report says which invariant it is, with its numbers.
void says(const char *sentence, const std::function<void(Filled &)> &damage) {
    Filled f;
    std::string report;
    cr_assert(f.right(&report), "before any damage:\n%s", report.c_str());
    damage(f);
    cr_expect_not(f.right(&report), "not noticed: %s", sentence);
    cr_expect(report.find(sentence) != std::string::npos, "'%s' is not in:\n%s", sentence, report.c_str());
}

void set_own(Filled &f, uint64_t chunk, const std::function<void(ExtentWord &)> &change) {
    ExtentWord word = ExtentWord::unpack(f.map().extent(chunk)->own.load());
    change(word);
    f.map().extent(chunk)->own.store(word.pack());
}

} // namespace

Test(region_check, finds_damage_to_the_header) {
    finds("another size", [](Filled &f) { f.header().region_bytes += 1; });
    finds("another number of chunks", [](Filled &f) { f.header().chunks -= 1; });
    finds("top_bytes beyond the end", [](Filled &f) { f.header().top_bytes.store(UINT64_MAX); });
    finds("top_bytes below the rows", [](Filled &f) { f.header().top_bytes.store(f.map().geometry().data_offset); });
    finds("too many levels", [](Filled &f) { f.header().levels.store(kMaxLevels + 1); });
    finds("an impossible level", [](Filled &f) { f.header().level[0].kind.store(9); });
    finds("another sum of charged bytes", [](Filled &f) { f.header().charged_bytes.fetch_add(65536); });
    finds("more charged than the limit", [](Filled &f) { f.header().limit_bytes = 1 << 20; });
    finds("a slot table beyond its end", [](Filled &f) { f.header().slots_top.store(kMaxSlots + 1); });
}

Test(region_check, finds_damage_to_extents) {
    finds("a length of 0", [](Filled &f) { set_own(f, 0, [](ExtentWord &w) { w.len = 0; }); });
    finds("a length that is too long",
          [](Filled &f) { set_own(f, 0, [](ExtentWord &w) { w.len = uint32_t(kMaxRunChunks); }); });
    finds("a state that does not exist",
          [](Filled &f) { set_own(f, 0, [](ExtentWord &w) { w.state = ExtentState(7); }); });
    finds("a lost extent of rows", [](Filled &f) {
        set_own(f, f.head(ExtentState::Sealed), [](ExtentWord &w) { w.state = ExtentState::Free; });
    });
    finds("an extent held by nobody", [](Filled &f) {
        set_own(f, f.head(ExtentState::Sealed), [](ExtentWord &w) { w.state = ExtentState::Held, w.slot = 3; });
        f.map().slot(3)->owner.store(SlotWord{SlotState::Vacant, 1}.pack());
    });
    finds("an index extent without a level", [](Filled &f) {
        set_own(f, f.head(ExtentState::Sealed), [](ExtentWord &w) { w.state = ExtentState::Index; });
    });
    finds("a level without its extent", [](Filled &f) {
        set_own(f, f.head(ExtentState::Index), [](ExtentWord &w) { w.state = ExtentState::Free; });
    });
    finds("used beyond the extent", [](Filled &f) {
        f.map().extent(f.head(ExtentState::Sealed))->bump.store(Bump{UINT32_MAX, UINT32_MAX}.pack());
    });
    finds("used below the rows", [](Filled &f) {
        f.map().extent(f.head(ExtentState::Sealed))->bump.store(Bump{0, 4096}.pack());
    });
    finds("another number of rows", [](Filled &f) { f.map().extent(f.head(ExtentState::Sealed))->rows.fetch_add(1); });
}

Test(region_check, finds_damage_to_rows) {
    finds("a stride of 0", [](Filled &f) { f.row(1).stride = 0; });
    finds("a stride out of the extent", [](Filled &f) { f.row(1).stride = UINT32_MAX; });
    finds("another id", [](Filled &f) { f.row(1).row_id = 5; });
    finds("another layout", [](Filled &f) { f.row(1).layout ^= 1; });
    finds("a wrong check", [](Filled &f) { f.row(1).check ^= 1; });
    finds("a damaged inline table",
          [](Filled &f) { reinterpret_cast<ColumnEntry *>(&f.row(int64_t{1} << 40) + 1)->bytes ^= 64; });
}

Test(region_check, finds_damage_to_the_index) {
    finds("an entry that leads out",
          [](Filled &f) { f.entry(1).store(IndexEntry::pack(index_hash(1, 0), uint64_t{1} << 50)); });
    finds("an entry into free memory", [](Filled &f) {
        const uint64_t chunk = f.head(ExtentState::Free);
        f.entry(1).store(IndexEntry::pack(index_hash(1, 0), f.map().chunk_offset(chunk)));
    });
    finds("an entry of another row", [](Filled &f) { f.entry(1).store(f.entry(3).load()); });
    finds("a lost entry", [](Filled &f) { f.entry(1).store(0); });
}

Test(region_check, names_the_constant_that_was_changed) {
    says("magic 0000000000000001", [](Filled &f) { f.header().magic.store(1); });
    says("version 9", [](Filled &f) { f.header().version = 9; });
    says("stamp 0000000000000007", [](Filled &f) { f.header().stamp = 7; });
    says("geometry", [](Filled &f) { f.header().slots_offset += 64; });
    says("geometry", [](Filled &f) { f.header().slots -= 1; });
    says("geometry", [](Filled &f) { f.header().table_offset += 4096; });
    says("geometry", [](Filled &f) { f.header().data_offset += kHugeBytes; });
    says("geometry", [](Filled &f) { f.header().huge_chunks = 32; });
    says("geometry", [](Filled &f) { f.header().spill_offset = 4096; });
    says("geometry", [](Filled &f) { f.header().spill_segments = 1; });
    says("a limit of 33554432 bytes", [](Filled &f) { f.header().limit_bytes = 32 << 20; });
    says("flags 0x1", [](Filled &f) { f.header().flags = kRegionHuge; });
    says("flags 0x4", [](Filled &f) { f.header().flags = kRegionSpill; });
    says("flags 0x80", [](Filled &f) { f.header().flags = 0x80; });
    says("state 9", [](Filled &f) { f.header().state.store(9); });
}

Test(region_check, names_what_of_a_stream_stands_in_a_cache_whose_rows_are_put) {
    says("built 1, builder 0, next id 0", [](Filled &f) { f.header().built.store(1); });
    says("next id 5", [](Filled &f) { f.header().next.store(5); });
    says("builder 3", [](Filled &f) { f.header().builder.store(Builder{0, 3}.pack()); });
}

Test(region_check, names_the_slot_that_is_wrong) {
    says("slot 1: state 3", [](Filled &f) { f.map().slot(1)->owner.store(~uint64_t{0}); });
    says("slot 2: its ring of grants", [](Filled &f) { f.map().slot(2)->grant.head.fetch_add(kRingTokens + 1); });
    says("slot 0: its ring of returns", [](Filled &f) { f.map().slot(0)->back.tail.fetch_add(1000); });
    says("slots 1 and 3 are both connection 8's", [](Filled &f) {
        f.map().slot(1)->conn_id.store(8);
        f.map().slot(3)->conn_id.store(8);
    });
}

Test(region_check, names_the_count_that_is_wrong) {
    const auto sealed = [](Filled &f) -> Extent & { return *f.map().extent(f.head(ExtentState::Sealed)); };
    says("bytes stated", [&](Filled &f) { sealed(f).bytes.store(1 << 30); });
    says("bytes stated", [&](Filled &f) { sealed(f).bytes.store(1); });
    says("dead units stated", [&](Filled &f) { sealed(f).dead.store(1 << 20); });
    says("and says level 5",
         [](Filled &f) { set_own(f, f.head(ExtentState::Index), [](ExtentWord &w) { w.slot = 5; }); });
}

Test(region_check, names_the_table_that_is_wrong) {
    const auto in_free = [](Filled &f) { return f.map().chunk_offset(f.head(ExtentState::Free)); };
    says("layout 0: its entry names no row",
         [&](Filled &f) { f.header().layout[0].store(IndexEntry::pack(0, in_free(f))); });
    says("layout 1: its column table is damaged",
         [](Filled &f) { f.header().layout[1].store(f.header().layout[0].load()); });
    says("layout 0: its column table is damaged", [](Filled &f) {
        f.broker.region().at(IndexEntry::offset(f.header().layout[0].load()))[sizeof(RowHeader) + 8] = 99;
    });
    says("layout 200: is stored after a gap",
         [](Filled &f) { f.header().layout[200].store(f.header().layout[0].load()); });
    says("layout 3: its entry names no row", [](Filled &f) { f.header().layout[3].store(uint64_t{1} << 50); });
    says("schema: its entry names no row",
         [&](Filled &f) { f.header().schema.store(IndexEntry::pack(0, in_free(f))); });
    says("schema: its entry names a damaged row",
         [](Filled &f) { f.header().schema.store(f.header().layout[0].load()); });
}

Test(region_check, names_the_entry_that_is_wrong) {
    says("has another tag than row 1", [](Filled &f) { f.entry(1).fetch_xor(uint64_t{1} << 60); });
    // What a row's bytes look like is no row of the chain.
    says("of its rows are live, the index names", [](Filled &f) {
        const uint64_t offset = f.index.find(1) + 64;
        *reinterpret_cast<RowHeader *>(f.broker.region().at(offset)) = {2, 0, 3, 32, 1, row_check(0, 3, 32, 1)};
        f.entry(3).store(IndexEntry::pack(f.entry(3).load() >> 48, offset));
        f.map().extent(f.head(ExtentState::Sealed))->rows.fetch_sub(1);
    });
    // Its check word goes with it: only the layout tells.
    says("does not fit layout", [](Filled &f) {
        RowHeader &row = f.row(1);
        row.n_columns = 2;
        row.check = row_check(row.layout, 1, row.bytes, 2);
    });
}

// A geometry that can be, with one slot, and words that name others: the last bytes of the file are the region's last.
Test(region_check, looks_at_no_slot_beyond_the_last) {
    FakeRegion fake(1 << 20);
    RegionHeader &h = *fake.header();
    h.slots = 1;
    h.table_offset = round_up(h.slots_offset + sizeof(Slot), page_bytes());
    h.chunks = 1;
    h.data_offset = kHugeBytes;
    h.huge_chunks = 0;
    h.region_bytes = h.data_offset + kChunkBytes;
    h.slots_top.store(kMaxSlots);
    h.table_top.store(1);
    h.top_bytes.store(h.region_bytes);
    reinterpret_cast<Extent *>(fake.at(h.table_offset))
        ->own.store(ExtentWord{ExtentState::Held, kMaxSlots - 1, 1, 1}.pack());
    RegionMap map;
    cr_assert_eq(map.open(fake.fd(), RegionAccess::Read), 0, "%s", last_error());
    std::string report;
    cr_assert_not(region_check(map, &report));
    cr_assert(report.find("slot 8190, which does not exist") != std::string::npos, "%s", report.c_str());
}

Test(region_check, works_without_a_report) {
    Filled f;
    cr_assert(f.right(nullptr));
    f.row(1).stride = 0;
    cr_assert_not(f.right(nullptr));
}

// What recovery of a dead writer goes by: its own count may be too high or too low.
Test(audit, a_row_that_the_index_does_not_hold_is_dead) {
    Filled f;
    const uint64_t chunk = f.head(ExtentState::Sealed);
    const uint32_t used = f.broker.extents().bump(chunk).used;
    const auto audit = [&] {
        return audit_extent(f.index, f.header(), f.map().chunk_address(chunk), f.map().chunk_offset(chunk), used);
    };
    const auto row_at = [&](uint32_t at) -> RowHeader & {
        return *reinterpret_cast<RowHeader *>(f.map().chunk_address(chunk) + uint64_t{at} * kUnitBytes);
    };
    uint32_t first = used, last = 0; // live rows
    for (uint32_t at = 0; at < used; at += row_at(at).stride) {
        const bool table = row_at(at).layout == kLayoutRow; // its id is a number of another kind
        if (table || f.index.find(row_at(at).row_id) != f.map().chunk_offset(chunk) + uint64_t{at} * kUnitBytes)
            continue;
        first = std::min(first, at);
        last = at;
    }
    const ExtentAudit before = audit();
    cr_assert(before.clear && before.rows > 2 && before.used == used);

    f.entry(row_at(first).row_id).fetch_add(1); // elsewhere: a 0 would hide others of its window
    const ExtentAudit without_first = audit();
    cr_assert(without_first.clear && without_first.used == used);
    cr_assert_eq(without_first.rows, before.rows - 1);
    cr_assert_eq(without_first.dead_units, before.dead_units + row_at(first).stride);
    cr_assert_lt(without_first.bytes, before.bytes);

    f.entry(row_at(last).row_id).fetch_add(1);
    const ExtentAudit without_both = audit();
    cr_assert_leq(without_both.used, last, "what is dead at the end is free");
    cr_assert_eq(without_both.rows, before.rows - 2);
}
