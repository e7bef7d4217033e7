// SPDX-License-Identifier: Apache-2.0
// region_check() is what all other tests lean on: it must find each kind of damage.
#include "core/store/check.h"

#include "core/common/error.h"
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
