// SPDX-License-Identifier: Apache-2.0
// Rows: which columns are allowed, where they lie, and what becomes of column tables that somebody damaged.
#include "core/store/row.h"

#include "core/common/error.h"

#include <criterion/criterion.h>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

using namespace libcache;

namespace {

struct Columns {
    std::vector<cache_column> list;
    std::vector<std::vector<int64_t>> shapes;

    Columns &add(uint32_t dtype, std::vector<int64_t> shape) {
        cache_column c{};
        c.dtype = dtype;
        c.ndim = uint32_t(shape.size());
        c.bytes = dtype_bytes(dtype);
        for (int64_t extent : shape)
            c.bytes *= uint64_t(extent);
        static char data[1];
        c.data = data; // never read here
        list.push_back(c);
        shapes.push_back(std::move(shape));
        for (size_t i = 0; i < list.size(); i++)
            list[i].shape = shapes[i].data();
        return *this;
    }
    uint32_t n() const { return uint32_t(list.size()); }
};

Columns every_dtype() {
    Columns columns;
    for (uint32_t dtype = CACHE_BOOL; dtype <= CACHE_STRING; dtype++)
        columns.add(dtype, {}).add(dtype, {3}).add(dtype, {0, 5}).add(dtype, {7, 11, 13});
    return columns;
}

void refused(const std::function<void(Columns &)> &damage, const char *named) {
    Columns columns;
    columns.add(CACHE_FLOAT32, {2, 3}).add(CACHE_INT8, {5});
    cr_assert_eq(check_columns(columns.list.data(), columns.n(), false), 0, "%s", last_error());
    damage(columns);
    cr_assert_eq(check_columns(columns.list.data(), columns.n(), false), CACHE_EINVAL, "%s", named);
    cr_assert(std::string(last_error()).find(named) != std::string::npos, "'%s' is not in '%s'", named, last_error());
}

// Puts a header and an inline table at `residue` as a writer would; returns the row's first byte.
struct InlineRow {
    std::vector<char> memory;
    char *row;
    uint64_t bytes;
    InlineRow(const Columns &columns, uint32_t residue) {
        const auto layout = Layout::of(columns.list.data(), columns.n());
        bytes = layout->row_bytes(residue, true);
        memory.resize(bytes + 256);
        row = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64 + residue * kUnitBytes;
        memcpy(row + sizeof(RowHeader), layout->table(), layout->table_bytes());
    }
};

} // namespace

Test(columns, all_dtypes_shapes_and_empty_columns_are_allowed) {
    const Columns columns = every_dtype();
    cr_assert_eq(check_columns(columns.list.data(), columns.n(), false), 0, "%s", last_error());
}

Test(columns, element_sizes_are_those_of_the_header) {
    const uint64_t sizes[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 1, 1};
    for (uint32_t dtype = 0; dtype < std::size(sizes); dtype++)
        cr_assert_eq(dtype_bytes(dtype), sizes[dtype]);
    for (uint32_t dtype : {16u, 255u, 256u, UINT32_MAX})
        cr_assert_eq(dtype_bytes(dtype), 0);
}

Test(columns, each_impossible_column_is_refused_with_its_reason) {
    refused([](Columns &c) { c.list[1].dtype = 0; }, "dtype");
    refused([](Columns &c) { c.list[1].dtype = 16; }, "16");
    refused([](Columns &c) { c.list[1].ndim = 33; }, "33");
    refused([](Columns &c) { c.list[1].shape = nullptr; }, "shape");
    refused([](Columns &c) { c.shapes[1][0] = -5; }, "negative");
    refused([](Columns &c) { c.list[1].bytes = 4; }, "bytes");
    refused([](Columns &c) { c.list[0].data = nullptr; }, "data");
    refused(
        [](Columns &c) {
            c.list.clear();
            c.list.reserve(1);
        },
        "");
    refused(
        [](Columns &c) {
            c.shapes[0] = {INT64_MAX, INT64_MAX};
            c.list[0].shape = c.shapes[0].data();
        },
        "2^64");
    refused(
        [](Columns &c) { // 2^62 * 4 bytes wrap to 0
            c.shapes[0] = {int64_t{1} << 31, int64_t{1} << 31};
            c.list[0].shape = c.shapes[0].data();
            c.list[0].bytes = 0;
        },
        "column 0");
    refused(
        [](Columns &c) { // each is allowed, both together are more than a row may have
            for (int i = 0; i < 2; i++) {
                c.shapes[size_t(i)] = {int64_t{40} << 30};
                c.list[size_t(i)] = {
                    c.list[0].data, uint64_t{40} << 30, c.shapes[size_t(i)].data(), CACHE_UINT8, 1, {}};
            }
        },
        "smaller");
    cr_assert_eq(check_columns(nullptr, 1, false), CACHE_EINVAL);
    const Columns one = Columns().add(CACHE_INT8, {});
    cr_assert_eq(check_columns(one.list.data(), CACHE_MAX_COLUMNS + 1, false), CACHE_EINVAL);
}

Test(columns, a_0_makes_a_shape_empty_however_large_the_other_extents_are) {
    Columns c;
    c.add(CACHE_FLOAT64, {0}).shapes[0] = {INT64_MAX, 0, INT64_MAX};
    c.list[0].shape = c.shapes[0].data();
    c.list[0].ndim = 3;
    c.list[0].data = nullptr;
    cr_assert_eq(check_columns(c.list.data(), 1, false), 0, "%s", last_error());
}

Test(columns, data_may_be_missing_when_room_is_reserved) {
    Columns c;
    c.add(CACHE_INT8, {5}).list[0].data = nullptr;
    cr_assert_eq(check_columns(c.list.data(), 1, true), 0);
    cr_assert_eq(check_columns(c.list.data(), 1, false), CACHE_EINVAL);
}

Test(layout, columns_are_aligned_and_do_not_overlap_wherever_the_row_starts) {
    const Columns columns = every_dtype();
    const auto layout = Layout::of(columns.list.data(), columns.n());
    for (uint32_t residue = 0; residue < 4; residue++)
        for (bool in_line : {false, true}) {
            uint64_t end = sizeof(RowHeader) + (in_line ? layout->table_bytes() : 0);
            for (uint32_t i = 0; i < columns.n(); i++) {
                const uint64_t at =
                    in_line ? layout->column_offset_in_line(residue, i) : layout->column_offset(residue, i);
                cr_assert_geq(at, end);
                cr_assert_lt(at, end + 64, "padding of a whole cache line");
                cr_assert_eq((residue * kUnitBytes + at) % (columns.list[i].bytes >= 256 ? 64 : 16), 0);
                end = at + columns.list[i].bytes;
            }
            cr_assert_eq(layout->row_bytes(residue, in_line), end);
        }
}

Test(layout, a_small_row_carries_nothing_but_its_header) {
    Columns columns;
    columns.add(CACHE_UINT8, {16});
    cr_assert_eq(Layout::of(columns.list.data(), 1)->row_bytes(0, false), sizeof(RowHeader) + 16);
}

Test(layout, a_table_read_back_is_the_same_layout) {
    const Columns columns = every_dtype();
    const auto made = Layout::of(columns.list.data(), columns.n());
    const auto read = Layout::parse(made->table(), made->table_bytes(), columns.n());
    cr_assert(read != nullptr);
    cr_assert(*read == *made);
    cr_assert(read->matches(columns.list.data(), columns.n()));
    cr_assert_eq(read->column_bytes(), made->column_bytes());
    for (uint32_t i = 0; i < columns.n(); i++) {
        cache_column got;
        read->describe(nullptr, 0, i, &got);
        cr_assert(got.dtype == columns.list[i].dtype && got.ndim == columns.list[i].ndim &&
                  got.bytes == columns.list[i].bytes);
        for (uint32_t d = 0; d < got.ndim; d++)
            cr_assert_eq(got.shape[d], columns.shapes[i][d]);
    }
}

Test(layout, any_difference_is_no_match) {
    Columns base;
    base.add(CACHE_FLOAT32, {2, 3}).add(CACHE_INT32, {});
    const auto layout = Layout::of(base.list.data(), base.n());
    cr_assert(layout->matches(base.list.data(), 2));
    cr_assert_not(layout->matches(base.list.data(), 1));
    Columns swapped, other_dtype, other_ndim;
    swapped.add(CACHE_FLOAT32, {3, 2}).add(CACHE_INT32, {});
    other_dtype.add(CACHE_FLOAT32, {2, 3}).add(CACHE_UINT32, {});
    other_ndim.add(CACHE_FLOAT32, {2, 3}).add(CACHE_INT32, {1});
    for (const Columns *other : {&swapped, &other_dtype, &other_ndim})
        cr_assert_not(layout->matches(other->list.data(), other->n()));
}

Test(layout, tables_cut_short_or_too_long_are_refused) {
    const Columns columns = every_dtype();
    const auto made = Layout::of(columns.list.data(), columns.n());
    std::vector<char> table(made->table_bytes() + 64);
    memcpy(table.data(), made->table(), made->table_bytes());
    for (uint64_t bytes = 0; bytes <= table.size(); bytes++)
        cr_assert_eq(Layout::parse(table.data(), bytes, columns.n()) != nullptr, bytes == made->table_bytes());
    for (uint32_t n : {0u, 1u, columns.n() - 1, columns.n() + 1, CACHE_MAX_COLUMNS + 1, UINT32_MAX})
        cr_assert(Layout::parse(table.data(), made->table_bytes(), n) == nullptr, "%u columns", n);
}

Test(layout, a_damaged_table_is_refused_or_still_consistent) {
    const Columns columns = every_dtype();
    const auto made = Layout::of(columns.list.data(), columns.n());
    std::mt19937 random(42);
    for (int round = 0; round < 20000; round++) {
        std::vector<char> table(made->table(), made->table() + made->table_bytes());
        for (uint32_t flips = random() % 3 + 1; flips-- > 0;)
            table[random() % table.size()] ^= char(1 << random() % 8);
        const auto read = Layout::parse(table.data(), table.size(), columns.n());
        if (!read) continue;
        for (uint32_t i = 0; i < read->n_columns(); i++) {
            cache_column c;
            read->describe(nullptr, 0, i, &c);
            uint64_t product = dtype_bytes(c.dtype);
            for (uint32_t d = 0; d < c.ndim; d++)
                product *= uint64_t(c.shape[d]);
            cr_assert_eq(product, c.bytes);
            cr_assert_leq(read->column_offset(0, i) + c.bytes, read->row_bytes(0, false));
        }
    }
}

Test(inline_table, every_column_is_found_where_it_was_put) {
    const Columns columns = every_dtype();
    const auto layout = Layout::of(columns.list.data(), columns.n());
    for (uint32_t residue = 0; residue < 4; residue++) {
        InlineRow r(columns, residue);
        cr_assert_eq(check_inline_table(r.row, r.bytes, columns.n()), r.bytes);
        for (uint32_t i = 0; i < columns.n(); i++) {
            cache_column c;
            cr_assert(read_inline_column(r.row, r.bytes, columns.n(), i, &c));
            cr_assert_eq(static_cast<char *>(c.data) - r.row, int64_t(layout->column_offset_in_line(residue, i)));
            cr_assert(c.dtype == columns.list[i].dtype && c.ndim == columns.list[i].ndim &&
                      c.bytes == columns.list[i].bytes);
            for (uint32_t d = 0; d < c.ndim; d++)
                cr_assert_eq(c.shape[d], columns.shapes[i][d]);
        }
        cache_column c;
        cr_assert_not(read_inline_column(r.row, r.bytes, columns.n(), columns.n(), &c));
    }
}

Test(inline_table, rows_cut_short_are_refused) {
    const Columns columns = every_dtype();
    InlineRow r(columns, 1);
    for (uint64_t bytes = 0; bytes < r.bytes; bytes++)
        cr_assert_eq(check_inline_table(r.row, bytes, columns.n()), 0);
    for (uint32_t n : {0u, CACHE_MAX_COLUMNS + 1, UINT32_MAX})
        cr_assert_eq(check_inline_table(r.row, r.bytes, n), 0);
}

Test(inline_table, damage_never_leads_out_of_the_row) {
    const Columns columns = every_dtype();
    InlineRow r(columns, 2);
    const std::vector<char> good(r.row, r.row + r.bytes);
    std::mt19937 random(43);
    for (int round = 0; round < 20000; round++) {
        memcpy(r.row, good.data(), good.size());
        for (uint32_t flips = random() % 3 + 1; flips-- > 0;)
            r.row[sizeof(RowHeader) + random() % (good.size() - sizeof(RowHeader))] ^= char(1 << random() % 8);
        for (uint32_t i = 0; i < columns.n(); i++) {
            cache_column c;
            if (!read_inline_column(r.row, r.bytes, columns.n(), i, &c)) continue;
            const auto *data = static_cast<const char *>(c.data);
            cr_assert(data >= r.row + sizeof(RowHeader) && c.bytes <= r.bytes && data + c.bytes <= r.row + r.bytes);
        }
    }
}
