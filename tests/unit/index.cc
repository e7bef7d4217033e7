// SPDX-License-Identifier: Apache-2.0
// The index: dense and hashed levels, tags that collide, growth, no room, damaged levels, and exactly one winner per
// id.
#include "core/store/index.h"

#include "capi/libcache.h"
#include "tests/support/fake_region.h"

#include <barrier>
#include <criterion/criterion.h>
#include <map>
#include <memory>
#include <thread>
#include <vector>

using namespace libcache;
using Insert = Index::Insert;

namespace {

constexpr int64_t kFarId = int64_t{1} << 62;

// A region with room for bare headers, and an index over it.
struct Table {
    FakeRegion region;
    Index index;
    uint64_t rows;

    explicit Table(uint64_t row_chunks = 256)
        : rows(region.map().chunk_offset(region.take(row_chunks, ExtentState::Sealed))) {
        index.attach(region.at(0), region.at(0), region.geometry().data_offset, region.geometry().region_bytes);
    }
    // The n-th place for a header.
    uint64_t place(uint64_t n) const { return rows + n * sizeof(RowHeader); }
    Insert put(int64_t id, uint64_t n, uint32_t *levels = nullptr) {
        uint32_t ignored;
        region.write_header(place(n), id);
        return index.insert(id, place(n), levels ? levels : &ignored);
    }
};

// Ids whose windows and tags in level 0 agree: the header's id alone tells them apart.
std::vector<int64_t> colliding_ids(uint64_t slots) {
    std::map<std::pair<uint64_t, uint64_t>, int64_t> seen;
    for (int64_t id = kFarId;; id++) {
        const uint64_t hash = index_hash(id, 0);
        const auto [at, fresh] = seen.try_emplace({index_window(hash, slots), hash & 0xffff}, id);
        if (!fresh) return {at->second, id};
    }
}

// The first `n` ids whose window in level 0 is the first one.
std::vector<int64_t> ids_of_first_window(uint64_t slots, size_t n) {
    std::vector<int64_t> ids;
    for (int64_t id = kFarId; ids.size() < n; id++)
        if (index_window(index_hash(id, 0), slots) == 0) ids.push_back(id);
    return ids;
}

} // namespace

Test(index, without_a_level_there_is_no_row_and_no_room) {
    Table t;
    uint32_t levels = 99;
    cr_assert_eq(t.index.find(1), 0);
    cr_assert(t.put(1, 0, &levels) == Insert::NoRoom);
    cr_assert_eq(levels, 0);
}

Test(index, a_dense_level_holds_its_ids_and_no_other) {
    Table t;
    t.region.add_level(LevelKind::Dense, 100, 4096);
    cr_assert(t.put(100, 0) == Insert::Won);
    cr_assert(t.put(4195, 1) == Insert::Won);
    cr_assert(t.put(99, 2) == Insert::NoRoom);
    cr_assert(t.put(4196, 3) == Insert::NoRoom);
    cr_assert(t.put(INT64_MAX, 4) == Insert::NoRoom);
    cr_assert_eq(t.index.find(100), t.place(0));
    cr_assert_eq(t.index.find(4195), t.place(1));
    for (int64_t id : {int64_t{0}, int64_t{99}, int64_t{101}, int64_t{4196}, INT64_MAX})
        cr_assert_eq(t.index.find(id), 0);
}

Test(index, a_hash_level_takes_any_id) {
    Table t;
    t.region.add_level(LevelKind::Hash, 0, 4096);
    const int64_t ids[] = {0, 1, kFarId, INT64_MAX, 123456789012345};
    for (uint64_t n = 0; n < std::size(ids); n++)
        cr_assert(t.put(ids[n], n) == Insert::Won);
    for (uint64_t n = 0; n < std::size(ids); n++)
        cr_assert_eq(t.index.find(ids[n]), t.place(n));
    cr_assert_eq(t.index.find(2), 0);
}

Test(index, the_second_insert_of_an_id_loses_and_changes_nothing) {
    for (LevelKind kind : {LevelKind::Dense, LevelKind::Hash}) {
        Table t;
        t.region.add_level(kind, 0, 4096);
        cr_assert(t.put(5, 0) == Insert::Won);
        cr_assert(t.put(5, 1) == Insert::Present);
        cr_assert_eq(t.index.find(5), t.place(0));
        cr_assert(t.index.holds(5, t.place(0)));
        cr_assert_not(t.index.holds(5, t.place(1)));
        cr_assert_not(t.index.holds(6, t.place(0)));
    }
}

Test(index, ids_with_the_same_tag_and_window_are_told_apart_by_their_headers) {
    Table t;
    t.region.add_level(LevelKind::Hash, 0, 4096);
    const std::vector<int64_t> ids = colliding_ids(4096);
    cr_assert(t.put(ids[0], 0) == Insert::Won);
    cr_assert_eq(t.index.find(ids[1]), 0);
    cr_assert(t.put(ids[1], 1) == Insert::Won);
    cr_assert_eq(t.index.find(ids[0]), t.place(0));
    cr_assert_eq(t.index.find(ids[1]), t.place(1));
    cr_assert(t.put(ids[1], 2) == Insert::Present);
}

Test(index, a_full_window_is_no_room_until_a_level_is_added) {
    Table t;
    t.region.add_level(LevelKind::Hash, 0, 4096);
    const std::vector<int64_t> ids = ids_of_first_window(4096, kWindow + 1);
    for (uint64_t n = 0; n < kWindow; n++)
        cr_assert(t.put(ids[n], n) == Insert::Won);
    uint32_t levels = 0;
    cr_assert(t.put(ids[kWindow], kWindow, &levels) == Insert::NoRoom);
    cr_assert_eq(levels, 1);
    t.region.add_level(LevelKind::Hash, 0, 4096);
    cr_assert(t.put(ids[kWindow], kWindow, &levels) == Insert::Won);
    for (uint64_t n = 0; n <= kWindow; n++) {
        cr_assert_eq(t.index.find(ids[n]), t.place(n));
        cr_assert(t.put(ids[n], kWindow + 1) == Insert::Present);
    }
}

Test(index, an_id_of_an_old_level_stays_the_only_one_when_levels_are_added) {
    Table t;
    t.region.add_level(LevelKind::Dense, 0, 4096);
    t.put(7, 0);
    t.region.add_level(LevelKind::Hash, 0, 4096);
    t.region.add_level(LevelKind::Dense, 4096, 4096);
    cr_assert(t.put(7, 1) == Insert::Present);
    cr_assert(t.put(5000, 2) == Insert::Won); // dense is newer than hash: it goes where the oldest has room
    cr_assert(t.put(5000, 3) == Insert::Present);
    cr_assert_eq(t.index.find(5000), t.place(2));
}

Test(index, levels_grow_until_every_id_has_found_room) {
    Table t(1024);
    constexpr uint64_t kIds = 100000;
    uint64_t slots = 4096;
    t.region.add_level(LevelKind::Hash, 0, slots);
    for (uint64_t n = 0; n < kIds; n++) {
        const int64_t id = int64_t(index_hash(int64_t(n), 63) >> 1);
        uint32_t passed = 0;
        while (t.put(id, n, &passed) == Insert::NoRoom) {
            cr_assert_eq(passed, t.region.header()->levels.load());
            t.region.add_level(LevelKind::Hash, 0, slots);
            slots *= 2;
        }
    }
    for (uint64_t n = 0; n < kIds; n++)
        cr_assert_eq(t.index.find(int64_t(index_hash(int64_t(n), 63) >> 1)), t.place(n));
    cr_assert_leq(t.region.header()->levels.load(), 10, "%lu levels", t.region.header()->levels.load());
}

Test(index, a_row_in_memory_that_must_not_be_touched_is_a_miss) {
    Table t;
    t.region.add_level(LevelKind::Dense, 0, 4096);
    AtomicU64 *entries = (t.index.refresh(), t.index.level(0).entries);
    const uint64_t top = t.region.header()->top_bytes.load();
    for (uint64_t bad : {uint64_t{16}, t.region.geometry().data_offset - 16, top, top - 16,
                         t.region.geometry().region_bytes, (uint64_t{1} << 52) - 16}) {
        entries[3].store(IndexEntry::pack(index_hash(3, 0), bad));
        cr_assert_eq(t.index.find(3), 0, "offset %lu", bad);
    }
}

Test(index, impossible_levels_are_corrupt_and_do_not_count) {
    struct Bad {
        uint64_t kind, slots, offset_delta;
    };
    const Bad bads[] = {{3, 4096, 0},
                        {0, 4096, 0},
                        {2, 0, 0},
                        {2, 4097, 0},
                        {2, 4096, 8},
                        {2, uint64_t{1} << 61, 0},
                        {1, UINT64_MAX, 0},
                        {2, 4096, uint64_t{1} << 40},
                        {2, 4096, UINT64_MAX - 127}};
    for (const Bad &bad : bads) {
        Table t;
        t.region.add_level(LevelKind::Dense, 0, 4096);
        t.region.add_level(LevelKind::Hash, 0, 4096);
        Level &level = t.region.header()->level[1];
        level.kind.store(bad.kind);
        level.slots.store(bad.slots);
        level.offset.store(bad.offset_delta > uint64_t{1} << 60 ? bad.offset_delta
                                                                : level.offset.load() + bad.offset_delta);
        cr_assert_eq(t.index.refresh(), CACHE_ECORRUPT, "kind %lu, slots %lu", bad.kind, bad.slots);
        cr_assert_eq(t.index.known(), 1);
        cr_assert(t.put(1, 0) == Insert::Won, "the good level works on");
        cr_assert_eq(t.index.find(1), t.place(0));
        cr_assert_eq(t.index.find(kFarId), 0);
    }
}

Test(index, more_levels_than_there_can_be_are_not_read) {
    Table t;
    t.region.add_level(LevelKind::Dense, 0, 4096);
    t.put(1, 0);
    t.region.header()->levels.store(UINT64_MAX);
    cr_assert_eq(t.index.find(1), t.place(0));
    cr_assert_leq(t.index.known(), kMaxLevels);
}

// Threads insert the same ids at the same time, while one of them adds a level whenever there is no room.
Test(index, each_id_is_won_exactly_once_by_many_threads_while_levels_grow) {
    Table t(1024);
    constexpr uint32_t kThreads = 4;
    constexpr uint64_t kIds = 20000;
    t.region.add_level(LevelKind::Dense, 0, 64);
    AtomicU64 wanted{0};
    std::atomic<uint32_t> done{0};
    std::vector<std::atomic<uint32_t>> wins(kIds);
    std::barrier start(kThreads + 1);
    const auto id_of = [](uint64_t n) { return n % 2 ? int64_t(n) : kFarId + int64_t(n); };
    std::vector<std::thread> threads;
    for (uint32_t thread = 0; thread < kThreads; thread++)
        threads.emplace_back([&, thread] {
            start.arrive_and_wait();
            for (uint64_t n = 0; n < kIds; n++) {
                const uint64_t place = n * kThreads + thread;
                t.region.write_header(t.place(place), id_of(n));
                uint32_t passed = 0;
                Insert result;
                while ((result = t.index.insert(id_of(n), t.place(place), &passed)) == Insert::NoRoom) {
                    uint64_t seen = wanted.load();
                    while (seen < passed && !wanted.compare_exchange_weak(seen, passed)) {
                    }
                    std::this_thread::yield();
                }
                if (result == Insert::Won) wins[n].fetch_add(1);
            }
            done.fetch_add(1);
        });
    start.arrive_and_wait();
    for (uint64_t slots = 256; done.load() < kThreads;) { // the broker
        if (wanted.load() == t.region.header()->levels.load()) {
            t.region.add_level(LevelKind::Hash, 0, slots);
            slots *= 2;
        }
        std::this_thread::yield();
    }
    for (std::thread &thread : threads)
        thread.join();
    for (uint64_t n = 0; n < kIds; n++) {
        cr_assert_eq(wins[n].load(), 1, "id %ld was won %u times", id_of(n), wins[n].load());
        const uint64_t offset = t.index.find(id_of(n));
        cr_assert_neq(offset, 0);
        cr_assert_eq(reinterpret_cast<RowHeader *>(t.region.at(offset))->row_id, id_of(n));
        cr_assert(t.index.holds(id_of(n), offset));
    }
}
