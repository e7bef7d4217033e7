// SPDX-License-Identifier: Apache-2.0
// Column tables with one wrong word each: every bound that is asked of a table in shared memory, alone. Tables lie in
// memory of exactly their length, so that ASan sees a look beyond it; what is impossible must be refused without one.
#include "core/store/row.h"

#include <atomic>
#include <criterion/criterion.h>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

using namespace libcache;

namespace {

std::atomic<size_t> largest_allocation{0};

// As others may have left a table: nothing of it need be true.
struct Table {
    struct Column {
        uint8_t dtype;
        uint64_t bytes;
        std::vector<int64_t> shape;
    };
    std::vector<Column> columns;

    uint32_t n() const { return uint32_t(columns.size()); }
    std::vector<char> bytes() const {
        std::vector<char> table(columns.size() * sizeof(ColumnEntry));
        for (size_t i = 0; i < columns.size(); i++) {
            const ColumnEntry entry{columns[i].bytes, columns[i].dtype, uint8_t(columns[i].shape.size()), 0, 0};
            memcpy(table.data() + i * sizeof entry, &entry, sizeof entry);
        }
        for (const Column &column : columns) {
            const char *const shape = reinterpret_cast<const char *>(column.shape.data());
            table.insert(table.end(), shape, shape + column.shape.size() * sizeof(int64_t));
        }
        table.resize(round_up(table.size(), kUnitBytes));
        return table;
    }
};

// A row that carries this table and has `bytes` bytes, of which no more are there.
class Row {
  public:
    Row(const std::vector<char> &table, uint64_t bytes)
        : bytes_(bytes), row_(static_cast<char *>(aligned_alloc(64, round_up(bytes, 64)))) {
        // Against the end: what lies behind is not ours.
        start_ = row_ + round_up(bytes, 64) - round_up(bytes, kUnitBytes);
        memset(row_, 0, round_up(bytes, 64));
        memcpy(start_ + sizeof(RowHeader), table.data(), std::min(table.size(), bytes - sizeof(RowHeader)));
    }
    explicit Row(const Table &table, uint64_t data = 1024)
        : Row(table.bytes(), sizeof(RowHeader) + table.bytes().size() + data) {}
    Row(const Row &) = delete;
    Row &operator=(const Row &) = delete;
    ~Row() { free(row_); }
    const char *start() const { return start_; }
    uint64_t bytes() const { return bytes_; }
    char *entry(uint32_t i) { return start_ + sizeof(RowHeader) + i * sizeof(ColumnEntry); }

  private:
    uint64_t bytes_;
    char *row_, *start_;
};

// Nobody takes this table for one, neither as a stored layout nor in a row with room for its columns.
void refused(const Table &table, const char *what) {
    const std::vector<char> bytes = table.bytes();
    cr_assert(Layout::parse(bytes.data(), bytes.size(), table.n()) == nullptr, "a stored layout: %s", what);
    const Row row(table);
    cr_assert_eq(check_inline_table(row.start(), row.bytes(), table.n()), 0, "a row's own: %s", what);
    cache_column column;
    cr_assert_not(read_inline_column(row.start(), row.bytes(), table.n(), table.n() - 1, &column), "a column: %s",
                  what);
}

constexpr int64_t kLarge = int64_t{1} << 32;

} // namespace

// Of this program; only its size is noted. Not inline: gcc would see one of a pair without the other.
[[gnu::noinline]] void *operator new(size_t bytes) {
    size_t seen = largest_allocation.load();
    while (bytes > seen && !largest_allocation.compare_exchange_weak(seen, bytes)) {
    }
    if (void *const memory = malloc(bytes)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void *memory) noexcept {
    free(memory);
}
[[gnu::noinline]] void operator delete(void *memory, size_t) noexcept {
    free(memory);
}

Test(column_tables, a_right_one_is_taken) {
    const Table table{{{CACHE_UINT8, 12, {3, 4}}, {CACHE_INT64, 8, {}}}};
    const std::vector<char> bytes = table.bytes();
    cr_assert(Layout::parse(bytes.data(), bytes.size(), 2) != nullptr);
    const Row row(table, 16 + 8);
    cr_assert_eq(check_inline_table(row.start(), row.bytes(), 2), row.bytes());
}

Test(column_tables, a_wrong_word_of_a_column_is_refused) {
    refused({{{0, 0, {}}}}, "no dtype");
    refused({{{16, 0, {}}}}, "a dtype that is none");
    refused({{{255, 0, {}}}}, "a dtype that is none");
    refused({{{CACHE_UINT8, 0, {-1, 0}}}}, "a negative extent before a 0");
    refused({{{CACHE_UINT8, 0, {0, -1}}}}, "a negative extent behind a 0");
    refused({{{CACHE_UINT8, 1, {-1, -1}}}}, "two negative extents");
    refused({{{CACHE_UINT8, 0, {kLarge, kLarge}}}}, "extents whose product wraps to 0");
    refused({{{CACHE_UINT64, 0, {kLarge << 29}}}}, "an extent whose bytes wrap to 0");
    refused({{{CACHE_UINT8, 16, {kLarge, kLarge, 2, 16}}}}, "extents whose product wraps");
    refused({{{CACHE_UINT8, 5, {4}}}}, "a byte too many");
    refused({{{CACHE_UINT8, 3, {4}}}}, "a byte too few");
    refused({{{CACHE_UINT64, 0, {}}}}, "a scalar without bytes");
    refused({{{CACHE_UINT8, 1, std::vector<int64_t>(CACHE_MAX_DIMENSIONS + 1, 1)}}}, "too many dimensions");
    refused({{{CACHE_UINT8, 1, std::vector<int64_t>(255, 1)}}}, "far too many dimensions");
}

// The bytes of a column and the gap before it make 2^64: a sum of such would be small.
Test(column_tables, columns_larger_than_any_row_are_refused) {
    refused({{{CACHE_UINT8, uint64_t{0} - 64, {64, (int64_t{1} << 58) - 1}}}}, "a column of nearly 2^64 bytes");
    refused({{{CACHE_UINT8, kMaxRowBytes + 64, {int64_t(kMaxRowBytes) + 64}}}}, "a column larger than a row");
    constexpr int64_t kHalf = int64_t(kMaxRowBytes) / 2;
    refused({{{CACHE_UINT8, uint64_t(kHalf), {kHalf}}, {CACHE_UINT8, uint64_t(kHalf), {kHalf}}}},
            "two columns that are more than a row together");
}

Test(column_tables, their_number_is_bounded) {
    std::vector<char> none(64);
    cr_assert(Layout::parse(none.data(), 0, 0) == nullptr, "no column");
    cr_assert_eq(check_inline_table(none.data(), sizeof(RowHeader), 0), 0, "no column");
    Table table;
    table.columns.assign(CACHE_MAX_COLUMNS, {CACHE_UINT8, 0, {0}});
    const std::vector<char> most = table.bytes();
    cr_assert(Layout::parse(most.data(), most.size(), table.n()) != nullptr);
    table.columns.push_back({CACHE_UINT8, 0, {0}});
    refused(table, "one column too many");
}

Test(column_tables, a_table_that_a_row_cannot_hold_is_not_looked_at) {
    const std::vector<char> table = Table{{{CACHE_UINT8, 1, std::vector<int64_t>(CACHE_MAX_DIMENSIONS, 1)}}}.bytes();
    cache_column column;
    for (uint64_t bytes = sizeof(RowHeader); bytes < sizeof(RowHeader) + table.size(); bytes += kUnitBytes) {
        const Row row(table, bytes);
        for (uint32_t n : {1u, 100u, CACHE_MAX_COLUMNS}) {
            cr_assert_eq(check_inline_table(row.start(), bytes, n), 0, "%u columns in %lu bytes", n, bytes);
            cr_assert_not(read_inline_column(row.start(), bytes, n, 0, &column));
        }
    }
    const Row row(table, sizeof(RowHeader)); // what is said to have fewer bytes than a header
    for (uint64_t bytes = 0; bytes < sizeof(RowHeader); bytes++)
        cr_assert_eq(check_inline_table(row.start(), bytes, 1), 0);
}

Test(column_tables, a_stored_table_of_another_length_than_its_columns_need_is_refused) {
    const std::vector<char> table = Table{{{CACHE_UINT8, 1, std::vector<int64_t>(CACHE_MAX_DIMENSIONS, 1)}}}.bytes();
    for (uint64_t bytes = 0; bytes < table.size(); bytes++)
        cr_assert(Layout::parse(table.data(), bytes, 1) == nullptr, "%lu of %zu bytes", bytes, table.size());
    std::vector<char> longer = table;
    longer.resize(table.size() + kUnitBytes);
    cr_assert(Layout::parse(longer.data(), longer.size(), 1) == nullptr, "a unit more than it needs");
}

// A row may say that it is as long as the region: nobody copies that.
Test(column_tables, no_more_of_a_stored_table_is_copied_than_its_columns_can_need) {
    std::vector<char> table = Table{{{CACHE_UINT8, 4, {4}}}}.bytes();
    table.resize(4 << 20);
    largest_allocation.store(0);
    cr_assert(Layout::parse(table.data(), table.size(), 1) == nullptr);
    cr_assert_lt(largest_allocation.load(), 64 << 10);
}

Test(column_tables, a_column_that_the_row_does_not_hold_is_refused) {
    const Table table{{{CACHE_UINT8, 100, {100}}, {CACHE_UINT8, 0, {0}}}};
    const uint64_t first = sizeof(RowHeader) + table.bytes().size(), all = first + round_up(100, kUnitBytes);
    cache_column column;
    for (uint64_t bytes = first; bytes <= all; bytes++) {
        const Row row(table.bytes(), bytes);
        cr_assert_eq(check_inline_table(row.start(), bytes, 2), bytes == all ? all : 0, "%lu bytes", bytes);
        cr_assert_eq(read_inline_column(row.start(), bytes, 2, 0, &column), bytes >= first + 100);
        cr_assert_eq(read_inline_column(row.start(), bytes, 2, 1, &column), bytes == all, "an empty one at the end");
    }
}

// Somebody changes the number of a column's dimensions while the table is looked at: the second look finds more shapes
// than the first one counted, or more dimensions than there may be.
Test(column_tables, what_changes_under_the_look_leads_nowhere) {
    constexpr int kLooks = 300'000;
    const auto look_while = [](Table table, uint8_t before, uint8_t after) {
        Row row(table, 16);
        std::atomic<bool> done{false};
        uint8_t &ndim = reinterpret_cast<ColumnEntry *>(row.entry(0))->ndim;
        std::thread changing([&] {
            while (!done.load(std::memory_order_relaxed)) {
                __atomic_store_n(&ndim, after, __ATOMIC_RELAXED);
                __atomic_store_n(&ndim, before, __ATOMIC_RELAXED);
            }
        });
        for (int i = 0; i < kLooks; i++) {
            cache_column column;
            const uint64_t end = check_inline_table(row.start(), row.bytes(), table.n());
            cr_expect_leq(end, row.bytes());
            if (read_inline_column(row.start(), row.bytes(), table.n(), 0, &column))
                cr_expect_leq(column.ndim, CACHE_MAX_DIMENSIONS);
        }
        done.store(true);
        changing.join();
    };
    look_while({{{CACHE_UINT8, 1, {1}}}}, 1, CACHE_MAX_DIMENSIONS);
    Table many;
    many.columns.assign(16, {CACHE_UINT8, 1, std::vector<int64_t>(CACHE_MAX_DIMENSIONS, 1)});
    look_while(many, CACHE_MAX_DIMENSIONS, 255);
}
