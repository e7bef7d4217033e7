// SPDX-License-Identifier: Apache-2.0
// Words of a region that its writer changes after the broker has checked them, and dies, or lives on: the broker goes
// by what it checked, and what one cache's words say costs the others nothing.
#include "core/server/cache_region.h"

#include "core/common/error.h"
#include "core/store/check.h"
#include "tests/support/fake_region.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>

using namespace libcache;

namespace {

constexpr uint64_t MiB = 1 << 20;
constexpr uint64_t kLimit = 8 * MiB, kSegments = 4;
constexpr uint64_t kConnection = 5;
constexpr uint32_t kStubs = 10, kImage = 4096;

// What a broker has beside its regions.
struct Counter {
    Ledger ledger{256 * MiB};
    SpillLedger spill;
    Populator memory{"memory"}, disk{"disk"};
    Shop shop{ledger, spill, memory, disk, 1, [](uint64_t, uint64_t) { return false; }};
};

// A spilling cache and its writer, who has published stubs of rows that are on disk and holds the extent in which they
// stand and the file space to which they point.
class Spilling {
  public:
    Spilling() {
        const CacheWish wish{kLimit, 0, false, false, kSegments, "", ""};
        if (region_.make(wish) != 0) test_die("making a region: %s", last_error());
        until([&] { return region_.ready(); });
        region_.publish();
        if (mine_.map_as(file_, region_.map().geometry(), RegionAccess::Write) != 0) test_die("%s", last_error());
        if (region_.attach({kConnection, getpid(), 1}, &slot_, &epoch_) != 0) test_die("attach: %s", last_error());
        hold_extent();
        hold_run();
        for (uint32_t id = 0; id < kStubs; id++)
            put(id, {run_.segment * kSegmentBytes + uint64_t{id} * kImage, kImage, id});
    }

    RegionHeader &header() { return *mine_.header(); }
    Extent &extent() { return *mine_.extent(chunk_); }
    SpillSegment &run() { return *mine_.segment(run_.segment); }
    SlotState owner() { return SlotWord::unpack(mine_.slot(slot_)->owner.load()).state; }
    // No page is there that is not charged: they are charged before they are made.
    void must_be_charged() {
        struct stat status {};
        cr_assert_eq(fstat(file_, &status), 0);
        const uint64_t there = uint64_t(status.st_blocks) * 512;
        cr_assert_leq(there, region_.charged(), "%lu bytes are there, %lu are charged", there, region_.charged());
    }
    void die() { region_.died(kConnection); }

    // Everything that the dead writer held is SEALED with what it had published.
    void must_be_recovered() {
        cr_assert(owner() == SlotState::Vacant, "the dead writer's slot is in state %u", unsigned(owner()));
        const ExtentWord rows = ExtentWord::unpack(extent().own.load()), file = ExtentWord::unpack(run().own.load());
        cr_assert(rows.state == ExtentState::Sealed, "the extent is in state %u", unsigned(rows.state));
        cr_assert(file.state == ExtentState::Sealed, "the run is in state %u", unsigned(file.state));
        cr_assert_eq(extent().rows.load(), kStubs);
        cr_assert_eq(run().rows.load(), kStubs);
        cr_assert_eq(run().used.load(), uint64_t{kStubs} * kImage);
        cr_assert_eq(counter_.ledger.charged(), region_.charged());
    }
    void must_be_right() {
        std::string report;
        cr_assert(region_check(mine_, &report), "%s", report.c_str());
    }

  private:
    Counter counter_;
    const int file_ = memfd_create("scribbled", MFD_CLOEXEC);
    const int spill_file_ = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    CacheRegion region_{counter_.shop, {1, 7, 9}, kLimit, sized_file(), Fd(spill_file_)};
    RegionMap mine_;
    uint32_t slot_ = 0;
    uint64_t epoch_ = 0, chunk_ = 0;
    SpillRun run_{};

    Fd sized_file() const {
        const Geometry geometry = Geometry::for_limit(kLimit, false, kSegments);
        if (file_ < 0 || spill_file_ < 0 || ftruncate(file_, off_t(geometry.region_bytes)) != 0)
            test_die("the files of a region");
        return Fd(file_);
    }
    // Takes back what the two threads have done until it is so.
    template <typename So> void until(const So &so) {
        while (!so()) {
            pollfd done[] = {{counter_.memory.readable(), POLLIN, 0}, {counter_.disk.readable(), POLLIN, 0}};
            if (poll(done, std::size(done), 60'000) <= 0) test_die("no job comes back");
            for (Populator *populator : {&counter_.memory, &counter_.disk})
                while (const std::unique_ptr<Job> job = populator->take_finished())
                    region_.job_done(*job);
        }
    }
    // As the client's CAS does.
    static void take(AtomicU64 &own) {
        ExtentWord word = ExtentWord::unpack(own.load());
        word.state = ExtentState::Held;
        own.store(word.pack());
    }
    void hold_extent() {
        const auto is_lent = [&] {
            for (chunk_ = 0; chunk_ < header().table_top.load();) {
                const ExtentWord word = ExtentWord::unpack(extent().own.load());
                if (word.state == ExtentState::Granted && word.slot == slot_) return true;
                chunk_ += word.len;
            }
            return false;
        };
        until(is_lent);
        take(extent().own);
    }
    void hold_run() {
        const auto is_lent = [&] {
            const wire::Spill wish{1, epoch_, uint64_t{kStubs} * kImage, 0, 0, slot_, 0};
            const int result = region_.lend_spill(kConnection, wish, &run_);
            if (result < 0) test_die("lend_spill: %s", last_error());
            return result == 0;
        };
        until(is_lent);
        take(run().own);
    }
    void put(uint32_t id, const SpillStub &where) {
        const uint64_t offset = mine_.chunk_offset(chunk_) + id * sizeof(RowHeader);
        const uint32_t layout = where.layout_word();
        *reinterpret_cast<RowHeader *>(mine_.base() + offset) = {
            2, layout, id, where.bytes_word(), where.crc, row_check(layout, id, where.bytes_word(), where.crc)};
        extent().bump.store(Bump{2 * (id + 1), Bump::unpack(extent().bump.load()).limit}.pack());
        run().used.store((id + 1) * uint64_t{kImage});
        auto *const entries = reinterpret_cast<AtomicU64 *>(mine_.base() + header().level[0].offset.load());
        entries[id].store(IndexEntry::pack(index_hash(id, 0), offset));
    }
};

} // namespace

Test(scribbled, a_dead_writer_is_recovered_by_the_geometry_that_was_checked) {
    Spilling s;
    RegionHeader &h = s.header();
    const uint64_t region_bytes = h.region_bytes, chunks = h.chunks;
    h.chunks = 1; // a geometry that can be: it ends before the extent
    h.region_bytes = h.data_offset + kChunkBytes;
    s.die();
    s.must_be_recovered();
    h.chunks = chunks;
    h.region_bytes = region_bytes;
    s.must_be_right();
}

Test(scribbled, a_dead_writer_is_recovered_though_its_header_is_none) {
    Spilling s;
    const uint64_t region_bytes = s.header().region_bytes;
    s.header().region_bytes = 0;
    s.header().magic.store(0);
    s.die();
    s.must_be_recovered();
    s.header().region_bytes = region_bytes;
    s.header().magic.store(kRegionMagic);
    s.must_be_right();
}

Test(scribbled, spilled_rows_are_counted_by_the_levels_that_the_broker_made) {
    Spilling s;
    RegionHeader &h = s.header();
    for (uint32_t k = 1; k < kMaxLevels; k++) {
        h.level[k].kind.store(h.level[0].kind.load());
        h.level[k].slots.store(h.level[0].slots.load());
        h.level[k].offset.store(h.level[0].offset.load());
    }
    h.levels.store(kMaxLevels);
    s.die();
    s.must_be_recovered();
    h.levels.store(1);
    s.must_be_right();
}

// Pages must not come about by looking at what nobody made: they would be charged to nobody.
Test(scribbled, a_level_is_as_long_as_the_broker_made_it) {
    Spilling s;
    RegionHeader &h = s.header();
    const uint64_t slots = h.level[0].slots.load(), top = h.top_bytes.load();
    h.top_bytes.store(h.region_bytes);
    h.level[0].slots.store((h.region_bytes - h.level[0].offset.load()) / sizeof(uint64_t));
    s.must_be_charged();
    s.die();
    s.must_be_recovered();
    s.must_be_charged();
    h.level[0].slots.store(slots);
    h.top_bytes.store(top);
    s.must_be_right();
}

Test(scribbled, a_length_of_memory_takes_nothing_from_other_caches) {
    Ledger ledger(UINT64_MAX);
    FakeRegion region(kLimit), other_region(4 * kLimit);
    Extents extents(region.map(), kLimit, ledger), other(other_region.map(), 4 * kLimit, ledger);
    cr_assert(extents.start() == 0 && other.start() == 0, "%s", last_error());
    uint64_t making = 0, chunk = 0, begun = 0;
    other.made(other.begin_making(3 * kLimit / kChunkBytes, &making));
    extents.made(extents.begin_making(4, &making));
    cr_assert(extents.begin_giving_back(4, &chunk, &begun));
    ExtentWord word = extents.word(chunk);
    word.len = uint32_t(region.geometry().chunks - chunk);
    region.map().extent(chunk)->own.store(word.pack());
    cr_assert_gt(word.len * kChunkBytes, extents.charged());
    extents.gave_back(chunk);
    cr_assert_eq(ledger.charged(), extents.charged() + other.charged());
}

Test(scribbled, a_length_of_file_space_takes_nothing_from_other_caches) {
    Ledger memory(UINT64_MAX);
    SpillLedger ledger;
    FakeRegion region(kLimit, false, kSegments), other_region(kLimit, false, kSegments);
    Extents extents(region.map(), kLimit, memory), other_extents(other_region.map(), kLimit, memory);
    SpillSegments segments(region.map(), extents, ledger), other(other_region.map(), other_extents, ledger);
    cr_assert(other.begin_making(3) == 0 && segments.begin_making(1) == 0);
    region.map().segment(0)->own.store(FakeRegion::word(ExtentState::Busy, kNoSlot, kSegments, 0));
    segments.gave_back(0);
    cr_assert_eq(segments.used_bytes(), 0);
    cr_assert_eq(ledger.used, other.used_bytes());
}

// The table of such a file fills its pages to the last byte, behind which nothing is mapped.
Test(scribbled, nothing_is_looked_for_behind_the_table_of_the_spill_file) {
    const Geometry smallest = Geometry::for_limit(kMinLimitBytes, false, 1);
    const uint64_t all = (smallest.data_offset - smallest.spill_offset) / sizeof(SpillSegment);
    Ledger memory(UINT64_MAX);
    SpillLedger ledger;
    FakeRegion region(kMinLimitBytes, false, all);
    RegionMap map;
    cr_assert_eq(map.map_as(region.fd(), region.geometry(), RegionAccess::Control), 0, "%s", last_error());
    cr_assert_eq(map.geometry().spill_offset + all * sizeof(SpillSegment), map.mapped_bytes());
    void *const behind =
        mmap(map.base() + map.mapped_bytes(), 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    cr_assert_eq(behind, map.base() + map.mapped_bytes(), "something is mapped behind the table");
    Extents extents(map, kMinLimitBytes, memory);
    SpillSegments segments(map, extents, ledger);
    map.segment(0)->own.store(FakeRegion::word(ExtentState::Free, kNoSlot, all, 0));
    extents.show_spill_pages(all);
    map.header()->spill_top.store(all + 1);
    SpillSegments::Head head;
    uint64_t heads = 0;
    for (uint64_t at = 0; segments.next(&at, &head);)
        heads++;
    cr_assert_eq(heads, 1);
    munmap(behind, 1);
}
