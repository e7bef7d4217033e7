// SPDX-License-Identifier: Apache-2.0
// What a region says of its own index, stored layouts and dead rows, one wrong word at a time: places outside of what
// may be touched name nothing, though whatever is looked for stands there, forged.
#include "capi/libcache.h"
#include "core/store/audit.h"
#include "core/store/index.h"
#include "core/store/layouts.h"
#include "tests/support/fake_region.h"

#include <criterion/criterion.h>
#include <memory>

using namespace libcache;
using Insert = Index::Insert;

namespace {

constexpr uint64_t kSlots = 4096; // half of the chunk that they stand in
constexpr uint64_t kInHeader = round_up(offsetof(RegionHeader, label), kUnitBytes); // 240 bytes that anybody may write

struct Words {
    FakeRegion region;
    Index index;
    uint64_t rows;

    explicit Words(LevelKind kind = LevelKind::Dense)
        : rows((region.add_level(kind, 0, kSlots), region.map().chunk_offset(region.take(4, ExtentState::Sealed)))) {
        attach(index, region.geometry().region_bytes);
    }
    void attach(Index &to, uint64_t region_bytes) {
        to.attach(region.at(0), region.at(0), region.geometry().data_offset, region_bytes);
    }
    uint64_t top() { return region.header()->top_bytes.load(); }
    // Where the id's entry is looked for first.
    AtomicU64 &entry(int64_t id) {
        const Level &level = region.header()->level[0];
        auto *const entries = reinterpret_cast<AtomicU64 *>(region.at(level.offset.load()));
        const bool dense = level.kind.load() == uint64_t(LevelKind::Dense);
        return entries[dense ? uint64_t(id) : index_window(index_hash(id, 0), kSlots)];
    }
    // A row with this id at `offset`, and an entry that leads there.
    void forge(int64_t id, uint64_t offset) {
        region.write_header(offset, id);
        entry(id).store(IndexEntry::pack(index_hash(id, 0), offset));
    }
};

// Places that no row may have, though a header can be written to each of them.
std::vector<uint64_t> wrong_places(Words &w) {
    return {kInHeader, w.region.geometry().data_offset - sizeof(RowHeader), w.top() - kUnitBytes, w.top(),
            w.top() + kChunkBytes};
}

} // namespace

Test(index_words, a_row_where_none_may_be_is_not_found) {
    for (const LevelKind kind : {LevelKind::Dense, LevelKind::Hash}) {
        Words w(kind);
        const int64_t id = 1; // what stands at the region's first byte would pass for its header
        w.forge(id, w.rows);
        cr_assert_eq(w.index.find(id), w.rows); // and the top is known from here on
        for (const uint64_t place : wrong_places(w)) {
            w.forge(id, place);
            Index fresh; // that does not know the top
            w.attach(fresh, w.region.geometry().region_bytes);
            for (Index *index : {&w.index, &fresh}) {
                cr_assert_eq(index->find(id), 0, "kind %u, place %lu", unsigned(kind), place);
                cr_assert_not(index->has_id(place, id), "place %lu", place);
                cr_assert_eq(index->row_offset(w.entry(id).load()), 0, "place %lu", place);
                uint32_t levels = 0;
                cr_assert(index->insert(id, w.rows, &levels) != Insert::Present, "place %lu", place);
                (&w.entry(id))[1].store(0); // the window's next one, where it went
            }
            cr_assert_lt(w.index.room_at(place), sizeof(RowHeader), "place %lu", place);
        }
        cr_assert_eq(w.index.room_at(w.top()), 0);
        cr_assert_eq(w.index.room_at(w.top() - sizeof(RowHeader)), sizeof(RowHeader));
    }
}

Test(index_words, a_row_of_another_id_is_not_found) {
    for (const LevelKind kind : {LevelKind::Dense, LevelKind::Hash}) {
        Words w(kind);
        w.forge(7, w.rows);
        w.region.write_header(w.rows, 8);
        cr_assert_eq(w.index.find(7), 0);
        cr_assert_not(w.index.has_id(w.rows, 7));
        uint32_t levels = 0;
        w.region.write_header(w.rows + 64, 7);
        cr_assert(w.index.insert(7, w.rows + 64, &levels) != Insert::Present);
    }
}

// Whatever the region says of its end, it ends where it was mapped.
Test(index_words, nothing_lies_behind_the_region) {
    Words w;
    w.region.header()->top_bytes.store(UINT64_MAX);
    const uint64_t end = w.rows + kChunkBytes; // as if no more was mapped
    Index index;
    w.attach(index, end);
    cr_assert_eq(index.top(), end);
    for (const uint64_t place : {end - kUnitBytes, end, end + kUnitBytes, uint64_t{1} << 51}) {
        cr_assert_eq(index.row_offset(IndexEntry::pack(0, place)), 0, "place %lu", place);
        cr_assert_not(index.reaches(place, sizeof(RowHeader)), "place %lu", place);
    }
    cr_assert(index.reaches(end - sizeof(RowHeader), sizeof(RowHeader)));
    cr_assert_not(index.reaches(end - sizeof(RowHeader), UINT64_MAX));
}

Test(index_words, an_entry_behind_the_end_of_a_dense_level_is_none) {
    Words w;
    const auto id = int64_t(kSlots);
    w.forge(id, w.rows);
    cr_assert_eq(w.index.find(id), 0);
    cr_assert_eq(w.index.candidate(id), 0);
    cr_assert_not(w.index.holds(id, w.rows));
    uint32_t levels = 0;
    cr_assert(w.index.insert(id, w.rows, &levels) == Insert::NoRoom);
    w.entry(id).store(0);
    cr_assert(w.index.insert(id, w.rows, &levels) == Insert::NoRoom);
    cr_assert_eq(w.entry(id).load(), 0);
}

Test(index_words, levels_are_no_more_than_there_can_be) {
    FakeRegion region;
    for (uint64_t k = 0; k < kMaxLevels; k++)
        region.add_level(LevelKind::Dense, 64 * k, 64);
    // The words behind the last level make one more.
    RegionHeader &h = *region.header();
    h.layout[0].store(uint64_t(LevelKind::Dense));
    h.layout[1].store(64 * kMaxLevels);
    h.layout[2].store(64);
    h.layout[3].store(h.level[0].offset.load());
    h.levels.store(kMaxLevels + 1);
    const auto index = std::make_unique<Index>();
    index->attach(region.at(0), region.at(0), region.geometry().data_offset, region.geometry().region_bytes);
    cr_assert_eq(index->refresh(), 0);
    cr_assert_eq(index->known(), kMaxLevels);
}

Test(index_words, a_level_that_lies_elsewhere_is_impossible) {
    struct Bad {
        const char *what;
        LevelKind kind;
        uint64_t slots, offset;
    };
    const Words right;
    const uint64_t top = Words().top(), data = right.region.geometry().data_offset;
    for (const Bad &bad :
         {Bad{"in the header", LevelKind::Dense, 64, 128}, Bad{"before the data", LevelKind::Hash, 16, data - 128},
          Bad{"at the end", LevelKind::Dense, 16, top}, Bad{"behind the end", LevelKind::Dense, 16, top + kChunkBytes},
          Bad{"one entry too long", LevelKind::Dense, kChunkBytes / 8 + 1, top - kChunkBytes},
          Bad{"one window too long", LevelKind::Hash, kChunkBytes / 8 + 16, top - kChunkBytes},
          Bad{"without entries", LevelKind::Dense, 0, data}, Bad{"without a window", LevelKind::Hash, 0, data}}) {
        Words w;
        Level &level = w.region.header()->level[1];
        level.kind.store(uint64_t(bad.kind));
        level.slots.store(bad.slots);
        level.offset.store(bad.offset);
        w.region.header()->levels.store(2);
        cr_assert_eq(w.index.refresh(), CACHE_ECORRUPT, "%s", bad.what);
        cr_assert_eq(w.index.known(), 1, "%s", bad.what);
    }
}

namespace {

struct Stored {
    FakeRegion region;
    const cache_column scalar{nullptr, 8, nullptr, CACHE_INT64, 0, {}};
    const std::unique_ptr<const Layout> layout = Layout::of(&scalar, 1);
    const uint64_t bytes = sizeof(RowHeader) + layout->table_bytes();
    const uint64_t place = region.map().chunk_offset(region.take(2, ExtentState::Sealed) + 1);

    RowHeader header(uint64_t number = 0) const {
        return {uint32_t(bytes / kUnitBytes),
                kLayoutRow,
                int64_t(number),
                bytes,
                1,
                row_check(kLayoutRow, int64_t(number), bytes, 1)};
    }
    // Layout 0 is found in this row.
    bool found(const RowHeader &header, uint64_t offset, uint64_t region_bytes) {
        memcpy(region.at(offset), &header, sizeof header);
        memcpy(region.at(offset) + sizeof header, layout->table(), layout->table_bytes());
        region.header()->layout[0].store(IndexEntry::pack(1, offset));
        const auto layouts = std::make_unique<Layouts>(); // one that has not read it yet
        layouts->attach(region.at(0), region.geometry().data_offset, region_bytes);
        return layouts->get(0) != nullptr;
    }
    bool found(const RowHeader &header, uint64_t offset) {
        return found(header, offset, region.geometry().region_bytes);
    }
};

} // namespace

Test(index_words, a_layout_where_none_may_be_is_none) {
    Stored s;
    cr_assert(s.found(s.header(), s.place));
    const uint64_t top = s.region.header()->top_bytes.load();
    for (const uint64_t place : {kInHeader, s.region.geometry().data_offset - s.bytes, top, top + kChunkBytes,
                                 top - sizeof(RowHeader), top - kUnitBytes})
        cr_assert_not(s.found(s.header(), place), "place %lu", place);
    s.region.header()->top_bytes.store(UINT64_MAX);
    for (uint64_t mapped = s.place; mapped < s.place + s.bytes; mapped += kUnitBytes)
        cr_assert_not(s.found(s.header(), s.place, mapped), "only %lu bytes are mapped", mapped);
    cr_assert(s.found(s.header(), s.place, s.place + s.bytes));
}

Test(index_words, a_row_that_is_no_layout_is_none) {
    Stored s;
    RowHeader header = s.header(1);
    cr_assert_not(s.found(header, s.place), "another number's");
    header = s.header();
    header.check++;
    cr_assert_not(s.found(header, s.place), "with another check word");
    header = s.header();
    header.layout = 5;
    header.check = row_check(5, 0, s.bytes, 1);
    cr_assert_not(s.found(header, s.place), "a row");
}

Test(index_words, a_layout_has_one_of_the_numbers_that_there_are) {
    Stored s;
    const auto layouts = std::make_unique<Layouts>(); // so that ASan knows where it ends
    layouts->attach(s.region.at(0), s.region.geometry().data_offset, s.region.geometry().region_bytes);
    for (const uint32_t number : {kMaxLayouts, kMaxLayouts + 44, kMaxLayouts + 4000, kLayoutRow, kInlineLayout}) {
        cr_assert_null(layouts->get(number));
        cr_assert_null(layouts->known(number));
    }
}

// ---- rows that a dead process left

Test(index_words, a_column_table_is_live_in_the_tables_of_the_header_alone) {
    Words w;
    RegionHeader &h = *w.region.header();
    const auto live = [&](int64_t number, uint64_t offset) {
        return row_is_live(w.index, h, {4, kLayoutRow, number, 64, 1, 0}, offset);
    };
    const uint64_t entry = IndexEntry::pack(0, w.rows);
    h.layout[3].store(entry);
    h.schema.store(entry);
    cr_assert(live(3, w.rows));
    cr_assert(live(kMaxLayouts, w.rows));
    cr_assert_not(live(4, w.rows));
    cr_assert_not(live(4, 0), "a free entry names nothing");
    h.level[kMaxLevels - 1].offset.store(entry); // the word before the table
    cr_assert_not(live(-1, w.rows));
    memcpy(h.tag + sizeof entry, &entry, sizeof entry); // a word behind it
    cr_assert_not(live(kMaxLayouts + 1, w.rows));
    cr_assert_not(live(INT64_MIN, w.rows));
    cr_assert_not(live(INT64_MAX, w.rows));
}

Test(index_words, a_row_of_no_id_is_dead_whatever_the_index_holds) {
    Words w(LevelKind::Hash);
    w.forge(-5, w.rows);
    cr_assert(w.index.holds(-5, w.rows));
    cr_assert_not(row_is_live(w.index, *w.region.header(), {2, 0, -5, 32, 1, 0}, w.rows));
}

Test(index_words, a_chain_of_headers_is_not_walked_by_less_than_a_header_nor_beyond_its_end, .timeout = 60) {
    Words w;
    auto *const rows = reinterpret_cast<RowHeader *>(w.region.at(w.rows));
    for (const uint32_t stride : {0u, 1u, 6u, UINT32_MAX}) {
        rows[0] = {stride, 0, -1, 4, 0, 0}; // its second half would be a header with a stride of 4
        const ExtentAudit audit = audit_extent(w.index, *w.region.header(), w.region.at(w.rows), w.rows, 5);
        cr_assert_not(audit.clear, "stride %u", stride);
        cr_assert_eq(audit.used, 5);
    }
}

Test(index_words, what_a_live_row_says_of_its_length_is_counted_only_if_it_can_be) {
    Words w;
    w.forge(7, w.rows);
    auto &row = *reinterpret_cast<RowHeader *>(w.region.at(w.rows));
    const auto counted = [&] {
        const ExtentAudit audit = audit_extent(w.index, *w.region.header(), w.region.at(w.rows), w.rows, 2);
        cr_assert(audit.clear && audit.rows == 1);
        return audit.bytes;
    };
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{31}, uint64_t{32}}) {
        row.bytes = bytes;
        cr_assert_eq(counted(), 0, "%lu bytes", bytes);
    }
    row.bytes = 40;
    cr_assert_eq(counted(), 8);
    row.layout = SpillStub{16, 4096, 0}.layout_word();
    row.bytes = SpillStub{16, 4096, 0}.bytes_word();
    cr_assert_eq(counted(), 0, "a stub");
}
