// SPDX-License-Identifier: Apache-2.0
// Words by which a broker finds what it has lent, one wrong at a time: heads of extents and of runs of the spill file,
// index levels that a new broker takes over, and what a dead writer left. Nothing is believed that leads outside.
#include "core/common/error.h"
#include "core/server/cache_region.h"
#include "tests/support/fake_region.h"

#include <criterion/criterion.h>
#include <fcntl.h>

using namespace libcache;

namespace {

constexpr uint64_t kLimit = 8 << 20;
constexpr uint32_t kChunkUnits = kChunkBytes / kUnitBytes;

struct Lending {
    FakeRegion region{kLimit};
    Ledger ledger{UINT64_MAX};
    Extents extents{region.map(), kLimit, ledger};

    Lending() { cr_assert_eq(extents.start(), 0, "%s", last_error()); }
    AtomicU64 &own(uint64_t chunk) { return region.map().extent(chunk)->own; }
    void bump(uint64_t chunk, Bump bump) { region.map().extent(chunk)->bump.store(bump.pack()); }
    uint64_t chunks() const { return region.geometry().chunks; }
    uint64_t grant(uint64_t chunks) {
        uint64_t making = 0;
        extents.made(extents.begin_making(chunks, &making));
        const uint64_t chunk = extents.find_free(chunks);
        extents.grant(chunk, chunks, 0);
        return chunk;
    }
    void must_be_none(uint64_t chunk, const char *what) {
        const ExtentWord word = extents.word(chunk);
        cr_assert(word.len == 0 && word.state == ExtentState::Empty, "%s is a head of %u chunks", what, word.len);
    }
    // The transition refuses this word, and changes nothing.
    template <typename Transition> void refused(uint64_t chunk, const char *what, const Transition &transition) {
        const uint64_t before = own(chunk).load(), free = extents.free_chunks();
        const std::vector<uint64_t> words = all_words();
        cr_assert_eq(transition(), 0, "%s", what);
        cr_assert_eq(own(chunk).load(), before, "%s: the word is changed", what);
        cr_assert_eq(extents.free_chunks(), free, "%s: %lu chunks are free", what, extents.free_chunks());
        cr_assert(all_words() == words, "%s: another word is changed", what);
    }

  private:
    std::vector<uint64_t> all_words() {
        std::vector<uint64_t> words(2 * chunks());
        for (uint64_t chunk = 0; chunk < words.size(); chunk++) // behind the table too
            words[chunk] = own(chunk).load();
        return words;
    }
};

} // namespace

Test(broker_words, which_slots_have_pages_is_not_asked_of_the_header, .timeout = 60) {
    Lending l;
    const auto next = uint32_t(l.region.header()->slots_top.load());
    const uint64_t charged = l.extents.charged();
    l.region.header()->slots_top.store(UINT64_MAX); // by a client
    cr_assert_eq(l.extents.provide_slot(next), 0, "%s", last_error());
    cr_assert_gt(l.extents.charged(), charged, "pages of slots that nobody is charged for");
}

Test(broker_words, a_head_lies_in_the_table_and_leads_to_no_place_behind_the_region, .timeout = 60) {
    Lending l;
    const uint64_t chunk = l.grant(2), top = l.region.header()->table_top.load();
    cr_assert_eq(l.extents.word(chunk).len, 2);
    cr_assert_lt(top, l.chunks());
    l.own(top).store(FakeRegion::word(ExtentState::Sealed, kNoSlot, 1, 1));
    l.must_be_none(top, "what has no page yet");
    for (const uint64_t said : {top + 1, l.chunks() + 10, UINT64_MAX}) { // by somebody else
        l.region.header()->table_top.store(said);
        l.own(l.chunks() + 1).store(FakeRegion::word(ExtentState::Sealed, kNoSlot, 1, 1));
        l.must_be_none(l.chunks() + 1, "what lies behind the table");
        l.must_be_none(top, "what still has no page");
    }
    l.region.header()->table_top.store(top);
    for (const uint64_t len : {l.chunks() - chunk + 1, kMaxExtentChunks, kMaxRunChunks}) {
        l.own(chunk).store(FakeRegion::word(ExtentState::Held, 0, len, 1));
        l.must_be_none(chunk, "what is longer than the region");
    }
    l.own(chunk).store(FakeRegion::word(ExtentState(7), 0, 2, 1));
    l.must_be_none(chunk, "what is in no state");
    l.own(chunk).store(FakeRegion::word(ExtentState::Sealed, 0, 0, 1));
    l.must_be_none(chunk, "what has no chunks");
    cr_assert(l.extents.heads().empty(), "what stands behind it cannot be found");
}

Test(broker_words, an_extent_is_cut_and_trimmed_inside_of_it) {
    Lending l;
    const uint64_t chunk = l.grant(4);
    const auto held = [&](uint64_t len) { l.own(chunk).store(FakeRegion::word(ExtentState::Held, 0, len, 1)); };
    const auto cut = [&] { return l.extents.cut_held(chunk); };
    held(4);
    l.bump(chunk, {0, 0});
    l.refused(chunk, "a limit of 0", cut);
    l.bump(chunk, {5 * kChunkUnits, 8 * kChunkUnits});
    l.refused(chunk, "a mark behind the end", cut);
    l.bump(chunk, {UINT32_MAX, UINT32_MAX});
    l.refused(chunk, "a mark far behind the end", cut);
    l.bump(chunk, {0, 4 * kChunkUnits});
    for (const uint64_t len : {l.chunks() - chunk + 1, kMaxRunChunks}) {
        held(len);
        l.refused(chunk, "a length behind the region", cut);
    }
    const uint64_t free = l.extents.free_chunks();
    for (const ExtentState state : {ExtentState::Granted, ExtentState::Free, ExtentState::Index}) {
        const uint64_t word = FakeRegion::word(state, 0, 4, 1);
        l.bump(chunk, {0, 4 * kChunkUnits});
        l.own(chunk).store(word);
        cr_assert_eq(cut(), 0, "state %u", unsigned(state));
        cr_assert(l.own(chunk).load() == word && l.extents.free_chunks() == free, "state %u", unsigned(state));
    }
    l.own(chunk).store(FakeRegion::word(ExtentState::Sealed, kNoSlot, 4, 1));
    for (const uint32_t used : {4 * kChunkUnits + 1, 5 * kChunkUnits, UINT32_MAX}) {
        l.bump(chunk, {used, 4 * kChunkUnits});
        l.refused(chunk, "a mark behind the end", [&] { return l.extents.trim(chunk); });
    }
    held(4);
    l.bump(chunk, {1, 4 * kChunkUnits});
    l.refused(chunk, "what is still held", [&] { return l.extents.trim(chunk); });
}

// The broker walks the heads, and takes back one after the other: in between a word may become another.
Test(broker_words, only_what_is_granted_is_taken_back_and_as_much_as_there_can_be) {
    Lending l;
    const uint64_t chunk = l.grant(4);
    const auto revoke = [&] { return l.extents.revoke_granted(chunk); };
    l.bump(chunk, {0, 4 * kChunkUnits});
    for (const ExtentState state : {ExtentState::Held, ExtentState::Sealed, ExtentState::Free, ExtentState::Index}) {
        l.own(chunk).store(FakeRegion::word(state, 0, 4, 1));
        l.refused(chunk, "what is not granted", revoke);
    }
    for (const uint64_t len : {uint64_t{0}, l.chunks() - chunk + 1, kMaxExtentChunks, kMaxRunChunks}) {
        l.own(chunk).store(FakeRegion::word(ExtentState::Granted, 0, len, 1));
        l.refused(chunk, "a length that cannot be", revoke);
    }
    cr_assert_lt(l.extents.free_run(l.extents.largest_free()), l.chunks());
}

Test(broker_words, a_new_broker_loads_no_table_that_cannot_be) {
    Lending l;
    (void)l.grant(4);
    RegionHeader &h = *l.region.header();
    const auto load = [&] {
        Extents heir(l.region.map(), kLimit, l.ledger);
        const int rc = heir.load();
        cr_assert(rc != 0 || heir.charged() == l.extents.charged(), "%lu bytes are charged", heir.charged());
        return rc;
    };
    const auto with = [&](AtomicU64 &word, uint64_t value, int wanted, const char *what) {
        const uint64_t before = word.exchange(value);
        cr_assert_eq(load(), wanted, "%s", what);
        word.store(before);
    };
    cr_assert_eq(load(), 0);
    for (const uint64_t more : {l.region.geometry().slots + 1, UINT64_MAX})
        with(h.slots_top, more, CACHE_ECORRUPT, "more slots than there can be");
    for (const uint64_t more : {l.chunks() + 1, UINT64_MAX})
        with(h.table_top, more, CACHE_ECORRUPT, "a table longer than it can be");
    with(h.table_top, 0, CACHE_ECORRUPT, "no table");
    with(l.own(0), 0, CACHE_ECORRUPT, "a head without chunks");
    with(h.spill_top, 1 << 20, CACHE_ECORRUPT, "a spill table in a cache that does not spill");
}

namespace {

constexpr uint64_t kSegments = 8;

struct Segments {
    FakeRegion region{kLimit, false, kSegments};
    Ledger memory{UINT64_MAX};
    SpillLedger ledger;
    Extents extents{region.map(), kLimit, memory};
    SpillSegments segments{region.map(), extents, ledger};

    Segments() { extents.show_spill_pages(kSegments); }
    AtomicU64 &own(uint64_t segment) { return region.map().segment(segment)->own; }
    std::vector<SpillSegments::Head> heads() {
        std::vector<SpillSegments::Head> found;
        SpillSegments::Head head;
        for (uint64_t at = 0; segments.next(&at, &head);)
            found.push_back(head);
        return found;
    }
};

} // namespace

Test(broker_words, a_run_of_the_file_ends_where_its_table_ends) {
    Segments s;
    s.own(0).store(FakeRegion::word(ExtentState::Sealed, kNoSlot, 3, 1));
    s.own(3).store(FakeRegion::word(ExtentState::Free, kNoSlot, 5, 1));
    cr_assert_eq(s.heads().size(), 2);
    cr_assert_eq(s.segments.load(), 0, "%s", last_error());
    for (const uint64_t said : {uint64_t{3}, kSegments + 1, UINT64_MAX}) { // by somebody else
        s.region.header()->spill_top.store(said);
        cr_assert_eq(s.heads().size(), 2, "the header's word for what has pages is believed");
    }
    for (const ExtentWord &bad :
         {ExtentWord{ExtentState::Sealed, kNoSlot, 0, 1}, ExtentWord{ExtentState::Sealed, kNoSlot, 6, 1},
          ExtentWord{ExtentState::Sealed, kNoSlot, kMaxRunChunks, 1}, ExtentWord{ExtentState::Index, 0, 5, 1},
          ExtentWord{ExtentState(7), 0, 5, 1}}) {
        s.own(3).store(bad.pack());
        cr_assert_eq(s.heads().size(), 1, "state %u, length %u", unsigned(bad.state), bad.len);
        cr_assert_eq(s.segments.load(), CACHE_ECORRUPT, "state %u, length %u", unsigned(bad.state), bad.len);
    }
    s.own(3).store(FakeRegion::word(ExtentState::Free, kNoSlot, 5, 1));
    s.region.header()->spill_top.store(kSegments + 1);
    Extents heir(s.region.map(), kLimit, s.memory);
    cr_assert_eq(heir.load(), CACHE_ECORRUPT);
}

Test(broker_words, runs_of_the_file_are_merged_with_their_like) {
    Segments s;
    const ExtentState states[] = {ExtentState::Free,  ExtentState::Free,  ExtentState::Empty, ExtentState::Sealed,
                                  ExtentState::Empty, ExtentState::Empty, ExtentState::Free,  ExtentState::Empty};
    for (uint64_t segment = 0; segment < kSegments; segment++)
        s.own(segment).store(FakeRegion::word(states[segment], kNoSlot, 1, 1));
    const std::vector<SpillSegments::Head> heads = s.heads();
    const uint32_t lengths[] = {2, 1, 1, 2, 1, 1};
    cr_assert_eq(heads.size(), std::size(lengths));
    for (size_t i = 0; i < heads.size(); i++)
        cr_assert_eq(heads[i].word.len, lengths[i], "head %zu has %u segments", i, heads[i].word.len);
}

Test(broker_words, no_more_of_a_run_is_used_than_it_has) {
    Segments s;
    s.own(0).store(FakeRegion::word(ExtentState::Sealed, kNoSlot, 3, 1));
    s.own(3).store(FakeRegion::word(ExtentState::Empty, kNoSlot, 5, 1));
    for (const uint64_t used : {3 * kSegmentBytes + 16, UINT64_MAX}) {
        s.region.map().segment(0)->used.store(used);
        const SpillSegments::Head head = s.heads().at(0);
        cr_assert_eq(head.used, 3 * kSegmentBytes);
        cr_assert_eq(head.room(), 0);
        s.segments.trim(head);
        cr_assert_eq(s.heads().at(0).word.len, 3);
    }
}

// ---- a new broker

namespace {

// A region as a dead broker left it: two index levels, an extent and a run that slot 0 holds, who is dead.
class Left {
  public:
    static constexpr uint64_t kSlots = kChunkBytes / sizeof(uint64_t);
    static constexpr uint64_t kRun = 2; // the run's first segment, and its length
    FakeRegion region{kLimit, false, kSegments};
    uint64_t extent;

    Left() {
        region.add_level(LevelKind::Dense, 0, kSlots);
        region.add_level(LevelKind::Hash, 0, 2 * kSlots);
        extent = region.take(2, ExtentState::Held, 0, 1);
        region.map().slot(0)->owner.store(SlotWord{SlotState::Dead, 1}.pack());
        const ExtentState states[] = {ExtentState::Sealed, ExtentState::Held, ExtentState::Sealed, ExtentState::Free};
        for (uint64_t i = 0; i < 4; i++)
            run(2 * i).own.store(FakeRegion::word(states[i], 0, 2, 1));
        region.header()->spill_top.store(kSegments);
    }
    Level &level(uint64_t k) { return region.header()->level[k]; }
    SpillSegment &run(uint64_t segment = kRun) { return *region.map().segment(segment); }
    Extent &held() { return *region.map().extent(extent); }
    AtomicU64 &entry(uint64_t id) { return reinterpret_cast<AtomicU64 *>(region.at(level(0).offset.load()))[id]; }
    // Row `id`, the id'th header of the extent.
    void stub(uint64_t id, uint64_t offset, uint64_t bytes) {
        const SpillStub stub{offset, bytes, 0};
        const uint64_t at = region.map().chunk_offset(extent) + id * sizeof(RowHeader);
        *reinterpret_cast<RowHeader *>(region.at(at)) = {2, stub.layout_word(), int64_t(id), stub.bytes_word(), 0, 0};
        entry(id).store(IndexEntry::pack(index_hash(int64_t(id), 0), at));
        held().bump.store(Bump{uint32_t(2 * id + 2), 2 * kChunkUnits}.pack());
    }
    // What a new broker says that takes it over, and recovers the dead writer.
    int restore() {
        CacheRegion taken(shop_, {1, 7, 9}, kLimit, Fd(dup(region.fd())),
                          Fd(open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)));
        return taken.restore();
    }

  private:
    Ledger ledger_{UINT64_MAX};
    SpillLedger spill_;
    Populator memory_{"memory"}, disk_{"disk"};
    Shop shop_{ledger_, spill_, memory_, disk_, 1, [](uint64_t, uint64_t) { return false; }};
};

void refused(const char *what, const std::function<void(Left &)> &damage) {
    Left left;
    damage(left);
    cr_assert_eq(left.restore(), CACHE_ECORRUPT, "%s is taken over", what);
}

} // namespace

Test(broker_words, a_new_broker_takes_over_no_level_that_cannot_be) {
    cr_assert_eq(Left().restore(), 0, "%s", last_error());
    refused("a level of no kind", [](Left &l) { l.level(1).kind.store(3); });
    refused("a level before the data", [](Left &l) { l.level(1).offset.store(0); });
    refused("a level behind the region", [](Left &l) { l.level(1).offset.store(l.region.geometry().region_bytes); });
    refused("a level that does not begin with its extent",
            [](Left &l) { l.level(1).offset.store(l.level(1).offset.load() + 128); });
    refused("a level of a part of a chunk", [](Left &l) { l.level(1).slots.store(Left::kSlots + 16); });
    refused("a level longer than its extent", [](Left &l) { l.level(1).slots.store(3 * Left::kSlots); });
    refused("a level in an extent of rows",
            [](Left &l) { l.level(1).offset.store(l.region.map().chunk_offset(l.extent)); });
}

Test(broker_words, a_new_broker_takes_over_no_more_levels_than_there_can_be) {
    Left l;
    for (uint64_t k = 2; k < kMaxLevels; k++)
        l.region.add_level(LevelKind::Hash, 0, Left::kSlots);
    l.region.header()->layout[0].store(77); // where the kind of one more would stand
    l.region.header()->levels.store(UINT64_MAX);
    cr_assert_eq(l.restore(), 0, "%s", last_error());
}

Test(broker_words, what_is_unclear_of_a_dead_writers_extent_is_kept_and_no_more) {
    Left l;
    l.held().rows.store(5);
    l.held().bytes.store(50);
    l.held().bump.store(Bump{UINT32_MAX, UINT32_MAX}.pack());
    cr_assert_eq(l.restore(), 0, "%s", last_error());
    cr_assert_eq(ExtentWord::unpack(l.held().own.load()).state, ExtentState::Sealed);
    cr_assert_eq(Bump::unpack(l.held().bump.load()).used, 2 * kChunkUnits);
    cr_assert_eq(l.held().rows.load(), 5, "as its writer counted them");
    cr_assert_eq(l.held().bytes.load(), 50);
}

Test(broker_words, a_dead_writers_run_has_the_stubs_that_point_into_it) {
    Left l;
    const uint64_t first = Left::kRun * kSegmentBytes, end = first + 2 * kSegmentBytes;
    l.stub(0, 0, 4096); // of other runs: before it, and behind it
    l.stub(1, end, 4096);
    l.stub(2, end + 3 * kSegmentBytes, 4096);
    l.stub(3, (uint64_t{1} << 60) - 16, 4096); // of none
    l.stub(4, first, 1032);
    l.stub(5, first + 8192, 16);                                             // fewer bytes than a header
    l.entry(6).store(IndexEntry::pack(index_hash(6, 0), uint64_t{1} << 51)); // no row of the region
    l.entry(7).store(IndexEntry::pack(index_hash(7, 0), 64));
    cr_assert_eq(l.restore(), 0, "%s", last_error());
    cr_assert_eq(ExtentWord::unpack(l.run().own.load()).state, ExtentState::Sealed);
    cr_assert_eq(l.run().rows.load(), 2, "%lu rows", l.run().rows.load());
    cr_assert_eq(l.run().used.load(), 8192 + 16);
    cr_assert_eq(l.run().bytes.load(), 1024 - sizeof(RowHeader)); // of 1024, which 1032 are in whole units
}

Test(broker_words, a_stub_that_leads_out_of_its_run_keeps_all_of_it) {
    Left l;
    l.stub(0, (Left::kRun + 2) * kSegmentBytes - 16, 4096);
    cr_assert_eq(l.restore(), 0, "%s", last_error());
    cr_assert_eq(l.run().rows.load(), 1);
    cr_assert_eq(l.run().used.load(), 2 * kSegmentBytes);
}
