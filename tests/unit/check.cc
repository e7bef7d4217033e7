// SPDX-License-Identifier: Apache-2.0
// region_check() is what all other tests lean on: it must find each kind of damage.
#include "core/store/check.h"

#include "core/common/page.h"
#include "core/store/audit.h"
#include "tests/support/filled_region.h"

#include <algorithm>
#include <atomic>
#include <criterion/criterion.h>
#include <functional>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <vector>

using namespace libcache;

namespace {

// After this damage the report says which invariant it is, with its numbers.
void says(const char *sentence, const std::function<void(Filled &)> &damage) {
    Filled f;
    std::string report;
    cr_assert(f.right(&report), "before any damage:\n%s", report.c_str());
    damage(f);
    cr_expect_not(f.right(&report), "not noticed: %s", sentence);
    cr_expect(report.find(sentence) != std::string::npos, "'%s' is not in:\n%s", sentence, report.c_str());
}

// What looks unusual and is right.
void allows(const char *what, const std::function<void(Filled &)> &change) {
    Filled f;
    change(f);
    std::string report;
    cr_expect(f.right(&report), "%s:\n%s", what, report.c_str());
}

// A field of a row's header changes, and its check with it.
void set_row(RowHeader &row, const std::function<void(RowHeader &)> &change) {
    change(row);
    row.check = row_check(row.layout, row.row_id, row.bytes, row.n_columns);
}

void set_own(Filled &f, uint64_t chunk, const std::function<void(ExtentWord &)> &change) {
    ExtentWord word = ExtentWord::unpack(f.map().extent(chunk)->own.load());
    change(word);
    f.map().extent(chunk)->own.store(word.pack());
}

} // namespace

Test(region_check, names_the_number_of_the_header_that_is_wrong) {
    says("top_bytes 18446744073709551615 out of range", [](Filled &f) { f.header().top_bytes.store(UINT64_MAX); });
    says("top_bytes 4096 out of range", [](Filled &f) { f.header().top_bytes.store(4096); });
    says("extent 0: reaches beyond top_bytes",
         [](Filled &f) { f.header().top_bytes.store(f.map().geometry().data_offset); });
    says("table_top out of range", [](Filled &f) { f.header().table_top.store(f.map().geometry().chunks + 1); });
    says("slots_top out of range", [](Filled &f) { f.header().slots_top.store(kMaxSlots + 1); });
    says("levels out of range", [](Filled &f) { f.header().levels.store(kMaxLevels + 1); });
    says("an index level is impossible", [](Filled &f) { f.header().level[0].kind.store(9); });
    says("stated, the words make", [](Filled &f) { f.header().charged_bytes.fetch_add(65536); });
    says("exceed the limit 1048576", [](Filled &f) { f.header().limit_bytes = 1 << 20; });
}

Test(region_check, names_the_extent_that_is_wrong) {
    const auto sealed = [](Filled &f) { return f.head(ExtentState::Sealed); };
    says("the walk ends at chunk 0 of", [](Filled &f) { set_own(f, 0, [](ExtentWord &w) { w.len = 0; }); });
    says("the walk ends at chunk 0 of",
         [](Filled &f) { set_own(f, 0, [](ExtentWord &w) { w.len = uint32_t(kMaxRunChunks); }); });
    says("extent 0: state 7", [](Filled &f) { set_own(f, 0, [](ExtentWord &w) { w.state = ExtentState(7); }); });
    says("names no row", [&](Filled &f) { set_own(f, sealed(f), [](ExtentWord &w) { w.state = ExtentState::Free; }); });
    for (const ExtentState lent : {ExtentState::Granted, ExtentState::Held}) {
        says("lent to slot 3, which is not active", [&](Filled &f) {
            set_own(f, sealed(f), [&](ExtentWord &w) { w.state = lent, w.slot = 3; });
            f.map().slot(3)->owner.store(SlotWord{SlotState::Vacant, 1}.pack());
        });
        says("lent to slot 8000, which does not exist",
             [&](Filled &f) { set_own(f, sealed(f), [&](ExtentWord &w) { w.state = lent, w.slot = 8000; }); });
        says("used 10, limit 5 of", [&](Filled &f) {
            f.map().extent(sealed(f))->bump.store(Bump{10, 5}.pack());
            set_own(f, sealed(f), [&](ExtentWord &w) { w.state = lent, w.slot = 0; });
        });
        says("used 10, limit 4294967295 of", [&](Filled &f) {
            f.map().extent(sealed(f))->bump.store(Bump{10, UINT32_MAX}.pack());
            set_own(f, sealed(f), [&](ExtentWord &w) { w.state = lent, w.slot = 0; });
        });
    }
    says("used 4294967295 of", [&](Filled &f) {
        f.map().extent(sealed(f))->bump.store(Bump{UINT32_MAX, UINT32_MAX}.pack());
    });
    says("names no row", [&](Filled &f) { f.map().extent(sealed(f))->bump.store(Bump{0, 4096}.pack()); });
}

Test(region_check, names_the_level_that_does_not_go_with_its_extent) {
    says("an index extent that 0 levels name", [](Filled &f) {
        set_own(f, f.head(ExtentState::Sealed), [](ExtentWord &w) { w.state = ExtentState::Index; });
    });
    says("an index extent that 2 levels name", [](Filled &f) {
        const uint64_t levels = f.header().levels.load();
        f.header().level[levels].kind.store(f.header().level[0].kind.load());
        f.header().level[levels].slots.store(f.header().level[0].slots.load());
        f.header().level[levels].offset.store(f.header().level[0].offset.load());
        f.header().levels.store(levels + 1);
    });
    const auto first = [](Filled &f) { return f.head(ExtentState::Index); };
    says("and says level 5", [&](Filled &f) { set_own(f, first(f), [](ExtentWord &w) { w.slot = 5; }); });
    says("does not begin an index extent",
         [&](Filled &f) { set_own(f, first(f), [](ExtentWord &w) { w.state = ExtentState::Free; }); });
    says("level 0: does not begin an index extent", [](Filled &f) { f.header().level[0].offset.fetch_add(128); });
    says("level 0: longer than its extent", [](Filled &f) {
        f.header().top_bytes.store(f.map().geometry().region_bytes); // it may be the last one
        f.header().level[0].slots.store(kChunkBytes / sizeof(uint64_t) + kWindow);
    });
}

Test(region_check, names_the_row_that_is_wrong) {
    constexpr int64_t kInline = int64_t{1} << 40;
    says("chain of headers is broken", [](Filled &f) { f.row(1).stride = 0; });
    says("chain of headers is broken", [](Filled &f) { f.row(1).stride = UINT32_MAX; });
    says("row 5 stands twice", [](Filled &f) { f.row(1).row_id = 5; });
    says("row 1 at", [](Filled &f) { f.row(1).layout ^= 1; });
    says("its header is damaged", [](Filled &f) { f.row(1).layout ^= 1; });
    says("its header is damaged", [](Filled &f) { f.row(1).check ^= 1; });
    says("its header is damaged",
         [](Filled &f) { set_row(f.row(1), [](RowHeader &row) { row.bytes = (row.stride + 1) * kUnitBytes; }); });
    says("its column table is damaged",
         [](Filled &f) { reinterpret_cast<ColumnEntry *>(&f.row(kInline) + 1)->bytes ^= 64; });
    says("its column table is damaged",
         [](Filled &f) { set_row(f.row(kInline), [](RowHeader &row) { row.bytes = 0; }); });
    // Its check word goes with it: only the layout tells.
    says("does not fit layout 200", [](Filled &f) { set_row(f.row(1), [](RowHeader &row) { row.layout = 200; }); });
    says("does not fit layout", [](Filled &f) { set_row(f.row(1), [](RowHeader &row) { row.bytes -= kUnitBytes; }); });
    says("does not fit layout", [](Filled &f) { set_row(f.row(1), [](RowHeader &row) { row.n_columns = 2; }); });
}

Test(region_check, names_the_constant_that_was_changed) {
    says("magic 0000000000000001", [](Filled &f) { f.header().magic.store(1); });
    says("version 9", [](Filled &f) { f.header().version = 9; });
    says("stamp 0000000000000007", [](Filled &f) { f.header().stamp = 7; });
    says("geometry", [](Filled &f) { f.header().region_bytes += 1; });
    says("geometry", [](Filled &f) { f.header().chunks -= 1; });
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
    const auto fill = [](Filled &f, uint64_t tokens) {
        TokenRing &ring = f.map().slot(2)->grant;
        ring.head.store(ring.tail.load() + tokens);
    };
    allows("a full ring", [&](Filled &f) { fill(f, kRingTokens); });
    says("slot 2: its ring of grants", [&](Filled &f) { fill(f, kRingTokens + 1); });
    says("slot 0: its ring of returns", [](Filled &f) { f.map().slot(0)->back.tail.fetch_add(1000); });
    says("slots 1 and 3 are both connection 8's", [](Filled &f) {
        f.map().slot(1)->conn_id.store(8);
        f.map().slot(3)->conn_id.store(8);
    });
    allows("a vacant slot's last connection, which has another one now", [](Filled &f) {
        f.map().slot(1)->conn_id.store(8);
        f.map().slot(3)->conn_id.store(8);
        f.map().slot(3)->owner.store(SlotWord{SlotState::Vacant, 6}.pack());
    });
}

Test(region_check, names_the_count_that_is_wrong) {
    const auto sealed = [](Filled &f) -> Extent & { return *f.map().extent(f.head(ExtentState::Sealed)); };
    says("bytes stated", [&](Filled &f) { sealed(f).bytes.store(1 << 30); });
    says("bytes stated", [&](Filled &f) { sealed(f).bytes.store(1); });
    says("dead units stated", [&](Filled &f) { sealed(f).dead.store(1 << 20); });
    says("rows stated", [&](Filled &f) { sealed(f).rows.fetch_add(1); });
    says("rows stated", [&](Filled &f) { sealed(f).rows.fetch_sub(1); });
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
    const auto damaged = [](const std::function<void(Filled &)> &damage) {
        says("schema: its entry names a damaged row", damage);
    };
    damaged([](Filled &f) { f.header().schema.store(f.header().layout[0].load()); });
    damaged([](Filled &f) { f.schema().check ^= 1; });
    damaged([](Filled &f) { set_row(f.schema(), [](RowHeader &row) { row.layout = kInlineLayout; }); });
    damaged([](Filled &f) { set_row(f.schema(), [](RowHeader &row) { row.row_id--; }); });
    damaged([](Filled &f) { set_row(f.schema(), [](RowHeader &row) { row.bytes += kUnitBytes; }); });
    damaged([](Filled &f) { set_row(f.schema(), [](RowHeader &row) { row.bytes = 0; }); });
    // A table that goes with it, and a column that leads out.
    damaged([](Filled &f) {
        const uint64_t more = f.map().geometry().region_bytes;
        auto *const table = reinterpret_cast<ColumnEntry *>(&f.schema() + 1);
        table->bytes += more;
        *reinterpret_cast<int64_t *>(table + 1) += int64_t(more);
        set_row(f.schema(), [&](RowHeader &row) { row.bytes += more; });
    });
}

Test(region_check, names_the_entry_that_is_wrong) {
    says("level 0: entry 1 names no row",
         [](Filled &f) { f.entry(1).store(IndexEntry::pack(index_hash(1, 0), uint64_t{1} << 50)); });
    says("level 0: entry 1 names no row", [](Filled &f) {
        const uint64_t chunk = f.head(ExtentState::Free);
        f.entry(1).store(IndexEntry::pack(index_hash(1, 0), f.map().chunk_offset(chunk)));
    });
    says("row 3 stands twice", [](Filled &f) { f.entry(1).store(f.entry(3).load()); });
    says("row 1 is not found where it stands", [](Filled &f) { // but beside it
        f.index.level(0).entries[2].store(f.entry(1).load());
        f.entry(1).store(0);
    });
    says("rows stated", [](Filled &f) { f.entry(1).store(0); }); // a lost one
    says("has another tag than row 1", [](Filled &f) { f.entry(1).fetch_xor(uint64_t{1} << 60); });
    says("after a gap", [](Filled &f) {
        for (uint32_t k = 1; k < f.index.known(); k++)
            for (uint64_t i = 0; i < f.index.level(k).slots; i += kWindow)
                if (f.index.level(k).entries[i + 1].load() != 0) return f.index.level(k).entries[i].store(0);
    });
    // What a row's bytes look like is no row of the chain.
    const auto row_in_row = [](Filled &f) {
        const uint64_t offset = f.index.find(1) + 64;
        *reinterpret_cast<RowHeader *>(f.broker.region().at(offset)) = {2, 0, 3, 32, 1, row_check(0, 3, 32, 1)};
        f.entry(3).store(IndexEntry::pack(f.entry(3).load() >> 48, offset));
        f.map().extent(f.head(ExtentState::Sealed))->rows.fetch_sub(1);
    };
    says("of its rows are live, the index names", row_in_row);
    says("rows are live, the index has", [&](Filled &f) {
        row_in_row(f);
        f.lend_again(); // not counted by itself
    });
}

Test(region_check, allows_what_is_on_its_way) {
    allows("a cache that is destroyed", [](Filled &f) { f.header().state.store(uint64_t(CacheState::Dying)); });
    allows("pages that are being made", [](Filled &f) {
        uint64_t making = 0;
        cr_assert_neq(f.broker.extents().begin_making(4, &making), Extents::kNone);
    });
    allows("rows in an extent that is lent again", [](Filled &f) { f.lend_again(); });
    allows("rows in one that is taken again",
           [](Filled &f) { set_own(f, f.lend_again(), [](ExtentWord &w) { w.state = ExtentState::Held; }); });
    FakeRegion huge(8 << 20, true);
    std::string report;
    (void)region_check(huge.map(), &report);
    cr_expect(report.find("a limit of") == std::string::npos, "%s", report.c_str());
}

// What a broker leaves for a while between two steps: a fault only when none is at work.
void half_done(const char *sentence, const std::function<void(Filled &)> &step) {
    Filled f;
    step(f);
    std::string report;
    cr_expect_not(f.right(&report), "not noticed: %s", sentence);
    cr_expect(report.find(sentence) != std::string::npos, "'%s' is not in:\n%s", sentence, report.c_str());
    const std::vector<std::string> faults = region_check_live(f.map());
    cr_expect(faults.empty(), "%s", faults.empty() ? "" : faults[0].c_str());
}

Test(region_check, allows_what_is_half_done_only_while_the_broker_works) {
    half_done("slot 3, which is not active", [](Filled &f) { // it is being recovered
        f.lend_again();
        f.map().slot(3)->owner.store(SlotWord{SlotState::Dead, 5}.pack());
    });
    half_done("an index extent that 0 levels name", // it is being zeroed
              [](Filled &f) { f.broker.extents().make_index(f.head(ExtentState::Free), 1, f.index.known()); });
    Filled f;
    f.broker.extents().make_index(f.head(ExtentState::Free), 1, f.index.known() + 1);
    cr_assert_eq(region_check_live(f.map()).size(), 1, "it is not the next level");
}

// Every look finds a fault, but never the same one.
Test(region_check, tells_only_what_stays_while_the_broker_works) {
    Filled f;
    std::atomic<bool> done{false};
    std::atomic<int> steps{0};
    std::thread changing([&] {
        for (; !done.load(); steps.fetch_add(1))
            f.header().charged_bytes.fetch_add(1);
    });
    while (steps.load() == 0)
        std::this_thread::yield();
    const std::vector<std::string> faults = region_check_live(f.map());
    done.store(true);
    changing.join();
    cr_assert(faults.empty(), "%s", faults.empty() ? "" : faults[0].c_str());
    cr_assert_not(region_check_live(f.map()).empty(), "the sum is wrong for good now");
}

// A geometry that can be, with one slot and one chunk: the last bytes of the file are the region's last.
struct Tiny {
    static constexpr uint64_t kBehind = kMaxSlots * sizeof(Slot) + kHugeBytes;
    FakeRegion fake{1 << 20};
    // The next mapping comes to lie below this one, which cannot be read.
    void *const behind = mmap(nullptr, kBehind, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RegionMap map;

    Tiny() {
        RegionHeader &h = *fake.header();
        h.slots = 1;
        h.table_offset = round_up(h.slots_offset + sizeof(Slot), page_bytes());
        h.chunks = 1;
        h.data_offset = kHugeBytes;
        h.huge_chunks = 0;
        h.region_bytes = h.data_offset + kChunkBytes;
        h.table_top.store(1);
        h.top_bytes.store(h.region_bytes);
        if (map.open(fake.fd(), RegionAccess::Read) != 0) test_die("%s", last_error());
    }
    ~Tiny() { munmap(behind, kBehind); }
    Tiny(const Tiny &) = delete;
    Tiny &operator=(const Tiny &) = delete;
    Extent &extent() { return *reinterpret_cast<Extent *>(fake.at(fake.header()->table_offset)); }
    std::string report() {
        std::string report;
        cr_assert_not(region_check(map, &report));
        return report;
    }
};

Test(region_check, looks_at_no_slot_beyond_the_last) {
    Tiny t;
    t.fake.header()->slots_top.store(kMaxSlots);
    t.fake.header()->builder.store(Builder{kMaxSlots - 1, 1}.pack());
    t.extent().own.store(ExtentWord{ExtentState::Held, kMaxSlots - 1, 1, 1}.pack());
    const std::string report = t.report();
    cr_assert(report.find("slot 8190, which does not exist") != std::string::npos, "%s", report.c_str());
    cr_assert(report.find("slot 8190, which is not active") != std::string::npos, "%s", report.c_str());
}

Test(region_check, looks_at_no_row_beyond_the_last_chunk) {
    Tiny t;
    constexpr uint32_t kUnits = kChunkBytes / kUnitBytes;
    t.extent().own.store(FakeRegion::word(ExtentState::Sealed, kNoSlot, 1, 1));
    t.extent().bump.store(Bump{2 * kUnits, kUnits}.pack());
    *reinterpret_cast<RowHeader *>(t.fake.at(kHugeBytes)) = {kUnits, 0, 1, 32, 1, 0};
    t.fake.header()->layout[0].store(uint64_t{7} << 48); // nor at one before the first
    const std::string report = t.report();
    cr_assert(report.find("used 8192 of 4096") != std::string::npos, "%s", report.c_str());
    cr_assert(report.find("layout 0: its entry names no row") != std::string::npos, "%s", report.c_str());
}

// Memory would come about by a look at it, and nobody is charged for it.
Test(region_check, touches_no_page_that_was_not_made) {
    Filled f;
    const auto pages = [&] {
        struct stat status {};
        cr_assert_eq(fstat(f.broker.region().fd(), &status), 0);
        return uint64_t(status.st_blocks);
    };
    const uint64_t chunk = f.head(ExtentState::Empty), before = pages();
    set_own(f, chunk, [](ExtentWord &w) { w.state = ExtentState::Sealed; });
    f.map().extent(chunk)->bump.store(Bump{100, 100}.pack());
    std::string report;
    cr_assert_not(f.right(&report));
    cr_assert(report.find("reaches beyond top_bytes") != std::string::npos, "%s", report.c_str());
    cr_assert_eq(pages(), before);
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
