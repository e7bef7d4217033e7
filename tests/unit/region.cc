// SPDX-License-Identifier: Apache-2.0
// Geometry of regions, and what RegionMap::open() says of files that are no region, not yet one, or another's.
#include "core/shm/region.h"

#include "core/common/error.h"
#include "tests/support/fake_region.h"
#include "tests/support/skip.h"

#include <criterion/criterion.h>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <string>
#include <sys/wait.h>

using namespace libcache;

namespace {

constexpr uint64_t MiB = 1 << 20, GiB = 1 << 30, TiB = uint64_t{1} << 40;

void check_geometry(uint64_t limit, bool huge) {
    const Geometry g = Geometry::for_limit(limit, huge);
    const auto say = [&] { return "limit " + std::to_string(limit) + (huge ? ", huge" : ", small"); };
    cr_assert_geq(g.slots_offset, sizeof(RegionHeader), "%s", say().c_str());
    cr_assert(g.slots >= 1 && g.slots <= kMaxSlots, "%s", say().c_str());
    cr_assert_geq(g.table_offset, g.slots_offset + g.slots * sizeof(Slot), "%s", say().c_str());
    cr_assert_geq(g.data_offset, g.table_offset + g.chunks * sizeof(Extent), "%s", say().c_str());
    cr_assert_eq(g.data_offset % kHugeBytes, 0, "%s", say().c_str());
    cr_assert_eq(g.region_bytes, g.data_offset + g.chunks * kChunkBytes, "%s", say().c_str());
    cr_assert_geq(g.chunks * kChunkBytes, 2 * limit, "%s: the span is twice the limit", say().c_str());
    cr_assert_lt(g.chunks * kChunkBytes, 2 * limit + 8 * kHugeBytes, "%s: and not much more", say().c_str());
    cr_assert_leq(g.huge_chunks, g.chunks, "%s", say().c_str());
    cr_assert_eq(g.huge_chunks * kChunkBytes % kHugeBytes, 0, "%s", say().c_str());
    cr_assert_eq(huge && limit >= kHugeBytes, g.huge_chunks != 0, "%s", say().c_str());
    cr_assert_lt(g.chunks, uint64_t{1} << 36, "%s: a token has 37 bits for a chunk", say().c_str());
    cr_assert_lt(g.region_bytes, uint64_t{1} << 52, "%s: an index entry has 48 bits for a unit", say().c_str());
}

// The sentence of opening the fake region after `damage`; checks the code.
std::string open_after(const std::function<void(FakeRegion &)> &damage, int code) {
    FakeRegion region(4 * MiB);
    damage(region);
    RegionMap map;
    const int got = map.open(region.fd(), RegionAccess::Read);
    cr_assert_eq(got, code, "%s (%s) instead of %s", code_text(got), last_error(), code_text(code));
    cr_assert_not(bool(map), "nothing may stay mapped");
    return last_error();
}

int64_t address_space_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (long long kib = 0; sscanf(line.c_str(), "VmSize: %lld", &kib) == 1) return kib;
    return -1;
}

bool mentions(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

} // namespace

Test(geometry, holds_for_limits_from_1_MiB_to_1_TiB_on_both_backings) {
    for (bool huge : {false, true})
        for (uint64_t limit = MiB; limit <= TiB; limit *= 2)
            for (int64_t delta : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{65536}, int64_t{2097151}})
                if (limit + uint64_t(delta) >= MiB) check_geometry(limit + uint64_t(delta), huge);
}

Test(geometry, is_the_same_each_time) {
    cr_assert(Geometry::for_limit(GiB, true) == Geometry::for_limit(GiB, true));
    cr_assert(Geometry::for_limit(GiB, true) != Geometry::for_limit(GiB, false));
}

Test(region_open, a_good_region_opens_with_its_geometry) {
    FakeRegion region(4 * MiB);
    for (RegionAccess access : {RegionAccess::Read, RegionAccess::Write, RegionAccess::Control}) {
        RegionMap map;
        cr_assert_eq(map.open(region.fd(), access), 0, "%s", last_error());
        cr_assert(map.geometry() == region.geometry());
        cr_assert_eq(map.header()->session_id, 7);
        cr_assert_eq(map.mapped_bytes(),
                     access == RegionAccess::Control ? region.geometry().data_offset : region.geometry().region_bytes);
    }
}

Test(region_open, not_ready_is_told_apart) {
    const std::string text =
        open_after([](FakeRegion &r) { r.header()->magic.store(0, std::memory_order_relaxed); }, CACHE_ETIMEOUT);
    cr_assert(mentions(text, "not ready"), "%s", text.c_str());
}

Test(region_open, another_version_is_named_beside_ours) {
    const std::string text = open_after([](FakeRegion &r) { r.header()->version = 4711; }, CACHE_EVERSION);
    cr_assert(mentions(text, "4711") && mentions(text, std::to_string(kFormatVersion)), "%s", text.c_str());
}

Test(region_open, another_stamp_is_another_sentence_than_another_version) {
    const std::string stamp = open_after([](FakeRegion &r) { r.header()->stamp ^= 1; }, CACHE_EVERSION);
    cr_assert(mentions(stamp, "stamp"), "%s", stamp.c_str());
}

Test(region_open, foreign_bytes_are_no_region) {
    open_after([](FakeRegion &r) { r.header()->magic.store(0x4141414141414141, std::memory_order_relaxed); },
               CACHE_ECORRUPT);
}

Test(region_open, a_file_without_room_for_the_header_is_too_short) {
    const std::string text =
        open_after([](FakeRegion &r) { cr_assert_eq(ftruncate(r.fd(), kHeaderBytes - 1), 0); }, CACHE_ECORRUPT);
    cr_assert(mentions(text, "short"), "%s", text.c_str());
    open_after([](FakeRegion &r) { cr_assert_eq(ftruncate(r.fd(), 0), 0); }, CACHE_ECORRUPT);
}

Test(region_open, a_file_shorter_than_its_header_says_is_refused) {
    open_after([](FakeRegion &r) { cr_assert_eq(ftruncate(r.fd(), off_t(r.geometry().region_bytes - 4096)), 0); },
               CACHE_ECORRUPT);
}

Test(region_open, impossible_places_are_refused) {
    using Damage = std::function<void(FakeRegion &)>;
    const Damage damages[] = {
        [](FakeRegion &r) { r.header()->slots_offset = 0; },
        [](FakeRegion &r) { r.header()->slots_offset = UINT64_MAX; },
        [](FakeRegion &r) { r.header()->slots = 0; },
        [](FakeRegion &r) { r.header()->slots = kMaxSlots + 1; },
        [](FakeRegion &r) { r.header()->slots = UINT64_MAX / sizeof(Slot) + 2; },
        [](FakeRegion &r) { r.header()->table_offset = r.header()->slots_offset; },
        [](FakeRegion &r) { r.header()->table_offset = UINT64_MAX - 4095; },
        [](FakeRegion &r) { r.header()->table_offset += 8; },
        [](FakeRegion &r) { r.header()->chunks = 0; },
        [](FakeRegion &r) { r.header()->chunks++; },
        [](FakeRegion &r) { r.header()->chunks = UINT64_MAX / 64; },
        [](FakeRegion &r) { r.header()->chunks = UINT64_MAX; },
        [](FakeRegion &r) { r.header()->data_offset += kChunkBytes; },
        [](FakeRegion &r) { r.header()->data_offset = 0; },
        [](FakeRegion &r) { r.header()->data_offset = UINT64_MAX / kHugeBytes * kHugeBytes; },
        [](FakeRegion &r) { r.header()->region_bytes = UINT64_MAX; },
        [](FakeRegion &r) { r.header()->region_bytes = 0; },
        [](FakeRegion &r) { r.header()->huge_chunks = r.header()->chunks + kHugeBytes / kChunkBytes; },
        [](FakeRegion &r) { r.header()->huge_chunks = 1; },
    };
    for (const Damage &damage : damages)
        open_after(damage, CACHE_ECORRUPT);
}

Test(region_open, a_descriptor_that_is_no_file_is_an_error) {
    RegionMap map;
    cr_assert_lt(map.open(-1, RegionAccess::Read), 0);
    int pipes[2];
    cr_assert_eq(pipe(pipes), 0);
    cr_assert_lt(map.open(pipes[0], RegionAccess::Read), 0);
}

Test(region_map, a_reading_mapping_cannot_be_written, .signal = SIGSEGV) {
    FakeRegion region(4 * MiB);
    RegionMap map;
    if (map.open(region.fd(), RegionAccess::Read) != 0) return; // no signal: the test fails
    *const_cast<volatile uint64_t *>(&map.header()->expected_rows) = 1;
}

Test(region_map, a_writing_mapping_does_not_reach_a_forked_child) {
    NEEDS_MADVISE("MADV_DONTFORK");
    FakeRegion region(4 * MiB);
    RegionMap reading;
    cr_assert_eq(reading.open(region.fd(), RegionAccess::Read), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        unsigned char resident;
        const long page = sysconf(_SC_PAGESIZE);
        if (mincore(reading.base(), size_t(page), &resident) != 0) _exit(1);      // inherited
        if (mincore(region.map().base(), size_t(page), &resident) == 0) _exit(2); // ENOMEM: not mapped here
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "wait status %d", status);
}

// On pages larger than the header, too: `make test-large-pages`.
Test(region_map, what_was_opened_and_closed_leaves_no_address_space_behind) {
    if (in_qemu()) SKIP("the address space is the emulator's too");
    FakeRegion region(4 * MiB);
    const auto open_all = [&] {
        for (RegionAccess access : {RegionAccess::Read, RegionAccess::Write, RegionAccess::Control}) {
            RegionMap map;
            cr_assert_eq(map.open(region.fd(), access), 0, "%s", last_error());
        }
    };
    open_all(); // what is made once
    const int64_t before = address_space_kib();
    cr_assert_gt(before, 0);
    for (int i = 0; i < 20; i++)
        open_all();
    const int64_t grown = address_space_kib() - before;
    cr_assert_lt(grown * 1024, int64_t{kHugeBytes}, "%lld KiB stayed mapped", static_cast<long long>(grown));
}

Test(region_map, no_mapping_is_dumped_into_a_core) {
    NEEDS_MADVISE("MADV_DONTDUMP");
    FakeRegion region(4 * MiB);
    RegionMap reading, control;
    WindowMap window;
    cr_assert_eq(reading.open(region.fd(), RegionAccess::Read), 0);
    cr_assert_eq(control.open(region.fd(), RegionAccess::Control), 0);
    cr_assert_eq(window.map(region.fd(), region.geometry(), 1, 4), 0);
    std::ifstream maps("/proc/self/smaps");
    int seen = 0;
    bool ours = false;
    for (std::string line; std::getline(maps, line);) {
        if (mentions(line, "rw-s ") || mentions(line, "r--s "))
            ours = mentions(line, "memfd:fake");
        else if (mentions(line, "-p "))
            ours = false;
        if (ours && line.starts_with("VmFlags:")) {
            seen++;
            cr_assert(mentions(line, " dd"), "%s", line.c_str());
        }
    }
    cr_assert_geq(seen, 4, "%d mappings of the region", seen);
}

Test(window, shows_the_same_bytes_as_the_region) {
    FakeRegion region(4 * MiB);
    const uint64_t chunk = region.take(2, ExtentState::Free);
    WindowMap window;
    cr_assert_eq(window.map(region.fd(), region.geometry(), chunk + 1, 1), 0, "%s", last_error());
    cr_assert_eq(window.bytes(), kChunkBytes);
    strcpy(window.address() + 100, "hello");
    cr_assert_str_eq(region.map().chunk_address(chunk + 1) + 100, "hello");
}

Test(populate, makes_pages_present_without_changing_them) {
    NEEDS_MADVISE("MADV_POPULATE_WRITE");
    FakeRegion region(4 * MiB);
    char *const data = region.map().chunk_address(0);
    data[4096] = 42;
    cr_assert_eq(populate(data, 4 * kChunkBytes), 0, "%s", last_error());
    std::vector<unsigned char> resident(4 * kChunkBytes / 4096);
    cr_assert_eq(mincore(data, 4 * kChunkBytes, resident.data()), 0);
    for (unsigned char page : resident)
        cr_assert(page & 1);
    cr_assert_eq(data[4096], 42);
}

Test(populate, a_file_without_room_is_full_and_no_signal) {
    NEEDS_MADVISE("MADV_POPULATE_WRITE");
    FakeRegion region(4 * MiB);
    cr_assert_eq(ftruncate(region.fd(), off_t(region.geometry().data_offset + kChunkBytes)), 0);
    cr_assert_eq(populate(region.map().chunk_address(0), kChunkBytes), 0);
    cr_assert_eq(populate(region.map().chunk_address(1), kChunkBytes), CACHE_EFULL);
}
