// SPDX-License-Identifier: Apache-2.0
// Words that another writer of the cache has damaged: who meets them is told so, and neither waits for ever nor hands
// out what cannot be.
#include "tests/support/rows.h"
#include "tests/support/session.h"
#include "tests/support/writable_region.h"

using namespace libcache;

namespace {

RegionHeader &header_of(char *region) {
    return *reinterpret_cast<RegionHeader *>(region);
}

int put_bytes(cache *handle, int64_t id, const std::vector<char> &bytes) {
    const Bytes column(bytes.data(), bytes.size());
    return cache_put(handle, id, &column.column, 1);
}

// Row `id`, as the dense level names it.
RowHeader &row_of(char *region, int64_t id) {
    const auto *entries = reinterpret_cast<AtomicU64 *>(region + header_of(region).level[0].offset.load());
    return *reinterpret_cast<RowHeader *>(region + IndexEntry::offset(entries[id].load()));
}

// A schema of one column of names written over a row that is longer. Its own bytes come back at the end.
class ForgedSchema {
  public:
    ForgedSchema(char *region, RowHeader &row) : region_(region), row_(row) { memcpy(before_, &row, sizeof before_); }
    ForgedSchema(const ForgedSchema &) = delete;
    ForgedSchema &operator=(const ForgedSchema &) = delete;
    ~ForgedSchema() {
        header_of(region_).schema.store(0);
        memcpy(&row_, before_, sizeof before_);
    }

    void say(uint64_t names_bytes) {
        const auto offset = uint64_t(reinterpret_cast<char *>(&row_) - region_);
        const uint64_t table_bytes = sizeof(ColumnEntry) + 2 * sizeof(int64_t); // a shape, and padding
        const uint64_t column = round_up(offset + sizeof(RowHeader) + table_bytes, 64) - offset;
        const uint64_t bytes = column + names_bytes;
        row_ = {row_.stride, kLayoutRow, kMaxLayouts, bytes, 1, row_check(kLayoutRow, kMaxLayouts, bytes, 1)};
        auto *const table = reinterpret_cast<ColumnEntry *>(&row_ + 1);
        *table = {names_bytes, CACHE_BYTES, 1, 0, 0};
        const int64_t shape[2] = {int64_t(names_bytes), 0};
        memcpy(table + 1, shape, sizeof shape);
        header_of(region_).schema.store(IndexEntry::pack(0, offset));
    }

  private:
    char *region_;
    RowHeader &row_;
    char before_[sizeof(RowHeader) + sizeof(ColumnEntry) + 2 * sizeof(int64_t)];
};

} // namespace

// Of an entry whose place is 0 but which is not free: it can neither be had nor be filled.
Test(damaged, an_entry_of_a_layout_that_leads_nowhere_ends_a_put, .timeout = 30) {
    Session s;
    OK(put_bytes(s.rows, 1, std::vector<char>(100)));
    AtomicU64 &entry = header_of(writable_region()).layout[1];
    cr_assert_eq(entry.load(), 0);
    entry.store(uint64_t{7} << 48);
    FAILS(put_bytes(s.rows, 2, std::vector<char>(200)), CACHE_ECORRUPT, "layout 1", "damaged");
    OK(put_bytes(s.rows, 3, std::vector<char>(100)));
    entry.store(0);
    OK(put_bytes(s.rows, 2, std::vector<char>(200)));
}

Test(damaged, no_stream_goes_on_at_an_id_below_zero) {
    Session s;
    cache_options options = options_with_limit(8 << 20);
    options.flags = CACHE_BUILD;
    cache *const stream = s.open(2, options);
    int64_t next = -7, id = -7;
    OK(cache_build_begin(stream, &next));
    const Bytes column("abc", 3);
    OK(cache_append(stream, &column.column, 1, &id));
    AtomicU64 &word = header_of(writable_region()).next;
    for (const int64_t wrong : {INT64_MIN, int64_t{-1}}) {
        word.store(uint64_t(wrong));
        id = next = -7;
        FAILS(cache_append(stream, &column.column, 1, &id), CACHE_ECORRUPT, "next id", std::to_string(wrong));
        FAILS(cache_build_begin(stream, &next), CACHE_ECORRUPT, std::to_string(wrong));
        cr_assert_eq(next, -7, "where the build goes on");
    }
    word.store(1);
    OK(cache_append(stream, &column.column, 1, &id));
    cr_assert_eq(id, 1);
    OK(cache_build_done(stream));
    word.store(UINT64_MAX);
    FAILS(cache_build_begin(stream, &next), CACHE_ECORRUPT, "-1");
    cr_assert_eq(next, -7, "how many rows there are");
    word.store(2);
    cr_assert_eq(cache_build_begin(stream, &next), 1);
    cr_assert_eq(next, 2);
    OK(cache_close(stream));
}

Test(damaged, no_schema_is_longer_than_one_that_can_be_set) {
    Session s;
    OK(put_bytes(s.rows, 1, std::vector<char>(1 << 20)));
    char *const region = writable_region();
    ForgedSchema forged(region, row_of(region, 1));
    const char *const names[] = {"image"};
    for (const uint64_t longest : {uint64_t{1}, uint64_t{4000}}) {
        forged.say(longest);
        size_t bytes = 0;
        cr_assert_eq(cache_schema_get(s.rows, nullptr, &bytes), int(longest), "%s", cache_last_error());
        cr_assert_eq(bytes, longest);
    }
    for (const uint64_t too_long : {uint64_t{4001}, uint64_t{1000000}}) {
        forged.say(too_long);
        size_t bytes = 7;
        FAILS(cache_schema_get(s.rows, nullptr, &bytes), CACHE_ECORRUPT, "column names", "damaged");
        cr_assert_eq(bytes, 7);
        FAILS(cache_schema_set(s.rows, names, 1), CACHE_ECORRUPT, "column names", "damaged");
    }
}
