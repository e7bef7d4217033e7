// SPDX-License-Identifier: Apache-2.0
// What a writer is lent, with one wrong word each: a token of its ring, the word or the fill mark of an extent, a run
// of the spill file. Nothing is taken that is not lent to it as it stands there, and no row lies outside of it.
#include "core/common/error.h"
#include "core/spill/spiller.h"
#include "tests/support/fake_broker.h"

#include <criterion/criterion.h>
#include <fcntl.h>

using namespace libcache;

namespace {

constexpr uint64_t kChunkUnits = kChunkBytes / kUnitBytes;
constexpr int64_t kNotLong = 1'000'000; // ns: what is not taken by then is not taken

// A writer of slot 0 whose ring is filled by hand, with rows that carry their table.
class Lent {
  public:
    explicit Lent(uint64_t limit_bytes = 8 << 20) : broker_(limit_bytes, 1) {}

    RegionMap &map() { return broker_.region().map(); }
    Writer &writer() { return broker_.writer_of(0); }
    Extent &at(uint64_t chunk) { return *map().extent(chunk); }
    ExtentWord word(uint64_t chunk) { return ExtentWord::unpack(at(chunk).own.load()); }
    // As the server grants it, but for the token.
    uint64_t grant(uint64_t chunks) {
        uint64_t making = 0;
        const uint64_t made = broker_.extents().begin_making(chunks, &making);
        if (made == Extents::kNone) test_die("no room for %lu chunks", chunks);
        broker_.extents().made(made);
        const uint64_t chunk = broker_.extents().find_free(chunks);
        broker_.extents().grant(chunk, chunks, 0);
        return chunk;
    }
    void offer(uint64_t chunk) { offer({chunk, word(chunk).seq}); }
    void offer(Token token) {
        if (!ring_.push(token)) test_die("the ring is full");
    }
    int place(uint64_t bytes, Writer::Place *place) {
        const auto shape = int64_t(bytes);
        const cache_column column{nullptr, bytes, &shape, CACHE_UINT8, 1, {}};
        const auto layout = Layout::of(&column, 1);
        return writer().place({layout.get(), kInlineLayout, 1, kNotLong}, place);
    }
    // The same by the short way.
    bool place_usual(uint64_t bytes, Writer::Place *place) {
        const auto shape = int64_t(bytes);
        const cache_column column{nullptr, bytes, &shape, CACHE_UINT8, 1, {}};
        return writer().place_usual(*Layout::of(&column, 1), 0, 1, place);
    }
    void must_not_be_taken(const char *what) {
        Writer::Place place;
        cr_assert_eq(this->place(100, &place), CACHE_ETIMEOUT, "%s is taken", what);
    }

  private:
    FakeBroker broker_;
    RingProducer ring_{&map().slot(0)->grant};
};

// An extent of two chunks whose word, as it is granted, is changed; it must stay as it is then.
void not_taken(const char *what, const std::function<void(ExtentWord &, Bump &)> &change) {
    Lent lent;
    const uint64_t chunk = lent.grant(2);
    lent.offer(chunk);
    ExtentWord word = lent.word(chunk);
    Bump bump = Bump::unpack(lent.at(chunk).bump.load());
    change(word, bump);
    lent.at(chunk).own.store(word.pack());
    lent.at(chunk).bump.store(bump.pack());
    lent.must_not_be_taken(what);
    cr_assert_eq(lent.at(chunk).own.load(), word.pack(), "%s", what);
}

// Rows are placed until there is no more room: each lies in the two chunks.
void fills_no_more_than(Lent &lent, uint64_t chunk, bool usual) {
    const uint64_t start = lent.map().chunk_offset(chunk), end = start + 2 * kChunkBytes;
    uint64_t rows = 0;
    for (Writer::Place place; usual ? lent.place_usual(100, &place) : lent.place(100, &place) == 0; rows++) {
        const uint64_t row_end = place.offset + uint64_t{place.units} * kUnitBytes;
        cr_assert(place.offset >= start && row_end <= end, "row %lu at %lu of %lu", rows, place.offset - start,
                  end - start);
    }
    cr_assert_gt(rows, 100);
}

} // namespace

Test(taken_words, an_extent_is_taken_as_it_was_lent_alone) {
    Lent right;
    const uint64_t chunk = right.grant(2);
    right.offer(chunk);
    Writer::Place place;
    cr_assert_eq(right.place(100, &place), 0, "%s", last_error());
    cr_assert_eq(right.word(chunk).state, ExtentState::Held);
    for (const ExtentState state : {ExtentState::Empty, ExtentState::Busy, ExtentState::Free, ExtentState::Held,
                                    ExtentState::Sealed, ExtentState::Index, ExtentState(7)})
        not_taken("an extent in another state", [&](ExtentWord &w, Bump &) { w.state = state; });
    not_taken("another slot's", [](ExtentWord &w, Bump &) { w.slot = 1; });
    not_taken("one of a later grant", [](ExtentWord &w, Bump &) { w.seq++; });
    not_taken("one without chunks", [](ExtentWord &w, Bump &) { w.len = 0; });
    not_taken("one longer than the region", [](ExtentWord &w, Bump &) { w.len = kMaxExtentChunks; });
    not_taken("one used beyond its limit", [](ExtentWord &, Bump &b) { b = {b.limit + 1, b.limit}; });
    not_taken("one used beyond its end", [](ExtentWord &, Bump &b) { b = {3 * kChunkUnits, UINT32_MAX}; });
    not_taken("one used up", [](ExtentWord &, Bump &b) { b.used = b.limit - 2; });
}

Test(taken_words, an_extent_that_ends_with_the_region_is_no_longer) {
    Lent lent;
    const uint64_t last = lent.map().geometry().chunks - 1;
    lent.at(last).own.store(FakeRegion::word(ExtentState::Granted, 0, 2, 5));
    lent.at(last).bump.store(Bump{0, 2 * kChunkUnits}.pack());
    lent.offer({last, 5});
    lent.must_not_be_taken("a chunk behind the last one");
}

// Behind the table there is what looks like the words of extents.
Test(taken_words, a_token_names_a_chunk_of_the_region) {
    const Geometry g = Geometry::for_limit(8 << 20, false);
    for (const uint64_t chunk : {g.chunks, g.chunks + 1, g.chunks + 8, uint64_t{1} << 20, (uint64_t{1} << 37) - 2}) {
        Lent lent;
        const bool mapped = g.table_offset + (chunk + 1) * sizeof(Extent) <= g.region_bytes;
        if (mapped) lent.at(chunk).own.store(FakeRegion::word(ExtentState::Granted, 0, 1, 5));
        if (mapped) lent.at(chunk).bump.store(Bump{0, kChunkUnits}.pack());
        lent.offer({chunk, 5});
        lent.must_not_be_taken("what lies behind the table");
        if (mapped) cr_assert_eq(lent.word(chunk).state, ExtentState::Granted, "chunk %lu", chunk);
    }
}

// Its units do not fit the fill mark: they would be counted anew from 0.
Test(taken_words, no_extent_is_longer_than_its_fill_mark_can_tell) {
    Lent lent(uint64_t{40} << 30);
    const uint64_t chunk = lent.grant(2);
    const ExtentWord word{ExtentState::Granted, 0, kMaxExtentChunks + 2, lent.word(chunk).seq};
    cr_assert_lt(word.len, lent.map().geometry().chunks - chunk);
    lent.at(chunk).own.store(word.pack());
    lent.at(chunk).bump.store(Bump{0, UINT32_MAX}.pack());
    lent.offer(chunk);
    lent.must_not_be_taken("an extent of 64 GiB and more");
    cr_assert_eq(lent.at(chunk).own.load(), word.pack());
}

Test(taken_words, no_row_lies_behind_its_extent_whatever_its_limit_says) {
    for (const bool usual : {false, true})
        for (const bool before : {false, true}) {
            Lent lent;
            const uint64_t chunk = lent.grant(2);
            lent.offer(chunk);
            Writer::Place place;
            if (before) lent.at(chunk).bump.store(Bump{0, UINT32_MAX}.pack());
            cr_assert_eq(lent.place(kChunkBytes, &place), 0, "%s", last_error()); // and its pages
            lent.at(chunk).bump.store(Bump{place.units, UINT32_MAX}.pack());
            fills_no_more_than(lent, chunk, usual);
        }
}

Test(taken_words, no_row_is_placed_above_a_limit_that_was_lowered_below_what_is_used) {
    Lent lent;
    const uint64_t chunk = lent.grant(2);
    lent.offer(chunk);
    Writer::Place first, place;
    cr_assert_eq(lent.place(100, &first), 0, "%s", last_error());
    for (const uint32_t limit : {0u, first.units - 1, first.units}) {
        lent.at(chunk).bump.store(Bump{first.units, limit}.pack());
        cr_assert_not(lent.place_usual(100, &place), "limit %u", limit);
    }
    const uint64_t other = lent.grant(2);
    lent.at(chunk).bump.store(Bump{first.units, 0}.pack());
    lent.offer(other);
    cr_assert_eq(lent.place(100, &place), 0, "%s", last_error());
    cr_assert_eq(place.offset, lent.map().chunk_offset(other));
}

Test(taken_words, a_fill_mark_that_another_has_moved_is_not_believed) {
    for (const uint32_t by : {1u, uint32_t(kChunkUnits), 0u - 1u}) {
        Lent lent;
        const uint64_t chunk = lent.grant(2);
        lent.offer(chunk);
        Writer::Place place;
        cr_assert_eq(lent.place(100, &place), 0, "%s", last_error());
        lent.at(chunk).bump.store(Bump{place.units + by, 2 * kChunkUnits}.pack());
        cr_assert_not(lent.place_usual(100, &place));
        cr_assert_eq(lent.place(100, &place), CACHE_ECORRUPT);
        cr_assert(strstr(last_error(), "fill mark") != nullptr, "%s", last_error());
    }
}

// The server may have taken this process for dead, and have lent the extent to another.
Test(taken_words, only_what_this_slot_holds_is_sealed) {
    const auto stays = [](const char *what, const std::function<void(ExtentWord &)> &change) {
        Lent lent;
        const uint64_t chunk = lent.grant(2);
        lent.offer(chunk);
        Writer::Place place;
        cr_assert_eq(lent.place(100, &place), 0, "%s", last_error());
        lent.writer().give_back(place);
        ExtentWord word = lent.word(chunk);
        change(word);
        lent.at(chunk).own.store(word.pack());
        lent.writer().seal_all();
        cr_assert_eq(lent.at(chunk).own.load(), word.pack(), "%s is sealed", what);
    };
    stays("a FREE one", [](ExtentWord &w) { w.state = ExtentState::Free; });
    stays("a GRANTED one", [](ExtentWord &w) { w.state = ExtentState::Granted; });
    stays("another slot's", [](ExtentWord &w) { w.slot = 1; });
    stays("one of a later grant", [](ExtentWord &w) { w.seq++; });
}

namespace {

// A spiller of slot 0 that is told of one run, over and over.
class SpillLent : public SpillLink {
  public:
    static constexpr uint64_t kSegments = 8;

    SpillLent() {
        uint64_t making = 0;
        const uint64_t made = broker_.extents().begin_making(1, &making); // for stubs
        broker_.extents().made(made);
        if (broker_.lend_fresh(0, 1) == Extents::kNone) test_die("no room for stubs");
        map().header()->spill_top.store(kSegments);
    }
    ~SpillLent() override { close(file_); }
    SpillLent(const SpillLent &) = delete;
    SpillLent &operator=(const SpillLent &) = delete;

    RegionMap &map() { return broker_.region().map(); }
    SpillSegment &at(uint64_t segment) { return *map().segment(segment); }
    void tell(uint64_t segment) { told_ = {segment, 1, 1}; }
    // A row of so many bytes finds room in the run that was told, and takes it.
    bool takes(uint64_t bytes = 1000) {
        const auto shape = int64_t(bytes);
        std::vector<char> data(bytes);
        const cache_column column{data.data(), bytes, &shape, CACHE_UINT8, 1, {}};
        const auto layout = Layout::of(&column, 1);
        return spiller_.put(1, {layout.get(), kInlineLayout, &column, kNotLong}) == 0;
    }

  private:
    FakeBroker broker_{8 << 20, 1, kSegments};
    const int file_ = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    Run told_{};
    Spiller spiller_{map(), 0, file_, broker_.writer_of(0), *this};

    int grant(uint64_t, int, int64_t, Run *run) override { return *run = told_, 0; }
};

void run_not_taken(const char *what, uint64_t segment, const std::function<void(ExtentWord &, uint64_t &)> &change,
                   uint64_t bytes = 1000) {
    SpillLent lent;
    ExtentWord word{ExtentState::Granted, 0, 1, 1};
    uint64_t used = 0;
    change(word, used);
    lent.at(segment).own.store(word.pack());
    lent.at(segment).used.store(used);
    lent.tell(segment);
    cr_assert_not(lent.takes(bytes), "%s is taken", what);
    cr_assert_eq(lent.at(segment).own.load(), word.pack(), "%s", what);
}

} // namespace

Test(taken_words, a_run_of_the_file_is_taken_as_it_was_lent_alone) {
    {
        SpillLent right;
        right.at(3).own.store(FakeRegion::word(ExtentState::Granted, 0, 1, 1));
        right.tell(3);
        cr_assert(right.takes(), "%s", last_error());
        cr_assert_eq(ExtentWord::unpack(right.at(3).own.load()).state, ExtentState::Held);
    }
    for (const ExtentState state : {ExtentState::Empty, ExtentState::Busy, ExtentState::Free, ExtentState::Held,
                                    ExtentState::Sealed, ExtentState::Index, ExtentState(7)})
        run_not_taken("a run in another state", 3, [&](ExtentWord &w, uint64_t &) { w.state = state; });
    run_not_taken("another slot's", 3, [](ExtentWord &w, uint64_t &) { w.slot = 1; });
    run_not_taken("one of a later grant", 3, [](ExtentWord &w, uint64_t &) { w.seq++; });
    run_not_taken("one without segments", 3, [](ExtentWord &w, uint64_t &) { w.len = 0; });
    run_not_taken("one longer than the file", 3, [](ExtentWord &w, uint64_t &) { w.len = 6; });
    run_not_taken("one used beyond its end", 3, [](ExtentWord &, uint64_t &used) { used = kSegmentBytes + 16; });
    run_not_taken("one used to no unit", 3, [](ExtentWord &, uint64_t &used) { used = 8; });
    run_not_taken("one used up", 3, [](ExtentWord &, uint64_t &used) { used = kSegmentBytes - 1008; });
}

Test(taken_words, a_run_of_the_file_stands_in_its_table) {
    run_not_taken("one behind the table", SpillLent::kSegments + 1, [](ExtentWord &, uint64_t &) {});
    SpillLent lent;
    lent.at(3).own.store(FakeRegion::word(ExtentState::Granted, 0, 1, 1));
    lent.tell(3);
    lent.map().header()->spill_top.store(3);
    cr_assert_not(lent.takes(), "one that was not told of yet is taken");
    lent.at(SpillLent::kSegments + 1).own.store(FakeRegion::word(ExtentState::Granted, 0, 1, 1));
    lent.tell(SpillLent::kSegments + 1);
    lent.map().header()->spill_top.store(UINT64_MAX);
    cr_assert_not(lent.takes(), "one behind the table is taken");
}
