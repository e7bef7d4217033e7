// SPDX-License-Identifier: Apache-2.0
// Stored layouts as another process may have left them: what does not lie in the published part of the region is none.
#include "core/store/layouts.h"

#include "tests/support/fake_region.h"

#include <criterion/criterion.h>

using namespace libcache;

namespace {

struct Stored {
    FakeRegion region;
    const int64_t shape[2] = {3, 5};
    const cache_column column{nullptr, 60, shape, CACHE_FLOAT32, 2, {}};
    const std::unique_ptr<const Layout> layout = Layout::of(&column, 1);
    const uint64_t offset = region.geometry().data_offset;
    const uint64_t bytes = sizeof(RowHeader) + layout->table_bytes();

    // Layout 0, in a row that says that it has so many bytes; everything below `top` is published.
    bool found(uint64_t said_bytes, uint64_t top) {
        const RowHeader header{uint32_t(bytes / kUnitBytes),           kLayoutRow, 0, said_bytes, 1,
                               row_check(kLayoutRow, 0, said_bytes, 1)};
        memcpy(region.at(offset), &header, sizeof header);
        memcpy(region.at(offset) + sizeof header, layout->table(), layout->table_bytes());
        region.header()->layout[0].store(IndexEntry::pack(1, offset), std::memory_order_release);
        region.header()->top_bytes.store(top, std::memory_order_release);
        Layouts layouts; // one that has not read it yet
        layouts.attach(region.at(0), region.geometry().data_offset, region.geometry().region_bytes);
        const Layout *const got = layouts.get(0);
        cr_assert(got == nullptr || *got == *layout);
        return got != nullptr;
    }
};

} // namespace

Test(layouts, a_table_that_ends_where_rows_end_is_found) {
    Stored s;
    cr_assert(s.found(s.bytes, s.offset + s.bytes));
    cr_assert(s.found(s.bytes, s.region.geometry().region_bytes + 1000));
}

Test(layouts, a_table_beyond_what_is_published_is_none) {
    Stored s;
    for (uint64_t missing = 1; missing <= s.bytes; missing++)
        cr_assert(!s.found(s.bytes, s.offset + s.bytes - missing), "%lu bytes are missing", missing);
}

Test(layouts, a_table_of_another_length_is_none) {
    Stored s;
    const uint64_t top = s.offset + 64 * s.bytes;
    for (const uint64_t said : {uint64_t{0}, sizeof(RowHeader) - 1, sizeof(RowHeader), s.bytes - 1, s.bytes + 1,
                                s.bytes + kUnitBytes, top, UINT64_MAX - s.offset, UINT64_MAX})
        cr_assert(!s.found(said, top), "%lu bytes instead of %lu", said, s.bytes);
}
