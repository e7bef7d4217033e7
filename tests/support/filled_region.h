// SPDX-License-Identifier: Apache-2.0
// A region with everything in it that region_check() looks at, for tests that damage it.
#pragma once

#include "core/common/error.h"
#include "core/store/check.h"
#include "core/store/stats.h"
#include "tests/support/fake_broker.h"

#include <atomic>
#include <criterion/criterion.h>
#include <string>
#include <thread>

namespace libcache {

// A region with a schema, rows of two layouts, an inline one, hashed and dense ids, sealed and free extents, and a row
// that was given up in the middle of being written.
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
        store_schema();
        for (int64_t id = 0; id < 300; id++)
            put(id % 2 ? id : (int64_t{1} << 40) + id, 100 + id % 2 * 500, id % 10 == 0);
        leave_dead_row();
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
        uint64_t found = Extents::kNone;
        for_each_extent(map(), [&](uint64_t chunk, ExtentWord word) {
            if (word.state == state) found = std::min(found, chunk);
        });
        if (found == Extents::kNone) test_die("no extent of this state in the region");
        return found;
    }
    RowHeader &row(int64_t id) { return *reinterpret_cast<RowHeader *>(broker.region().at(index.find(id))); }
    // The index entry of a row.
    AtomicU64 &entry(int64_t id) {
        for (uint32_t k = 0; k < index.known(); k++)
            for (uint64_t i = 0; i < index.level(k).slots; i++)
                if (IndexEntry::offset(index.level(k).entries[i]) == index.find(id)) return index.level(k).entries[i];
        test_die("no entry");
    }

    // A SEALED extent to slot 3.
    uint64_t lend_again() {
        const uint64_t chunk = head(ExtentState::Sealed);
        broker.extents().grant_sealed(chunk, 3);
        return chunk;
    }
    RowHeader &schema() {
        return *reinterpret_cast<RowHeader *>(broker.region().at(IndexEntry::offset(header().schema.load())));
    }

  private:
    Writer::Place begin(int64_t id, int64_t bytes, bool in_line) {
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
        return place;
    }
    void put(int64_t id, int64_t bytes, bool in_line) {
        cr_assert_eq(broker.writer_of(0).publish(begin(id, bytes, in_line)), 0, "%s", last_error());
    }
    void leave_dead_row() {
        const Writer::Place dead = begin(5000, 100, false);
        put(301, 600, false);
        broker.writer_of(0).give_back(dead);
        reinterpret_cast<RowHeader *>(dead.address)->check ^= 1;
    }
    void store_schema() {
        const int64_t bytes = 6;
        const cache_column column{this, uint64_t(bytes), &bytes, CACHE_BYTES, 1, {}};
        const auto layout = Layout::of(&column, 1);
        cr_assert_eq(broker.writer_of(0).store_schema(*layout, "image", FakeBroker::kTimeoutNs), 0, "%s", last_error());
    }
};

} // namespace libcache
