// SPDX-License-Identifier: Apache-2.0
// Rows of every kind come back as they were put; each id is stored once.
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <sys/mman.h>
#include <thread>
#include <vector>

namespace {

struct Column {
    uint32_t dtype;
    std::vector<int64_t> shape;
};

// Puts columns of these kinds as row `id` and reads them back.
void round_trip(cache *rows, int64_t id, const std::vector<Column> &kinds) {
    std::vector<std::vector<unsigned char>> bytes;
    std::vector<cache_column> columns;
    for (const Column &kind : kinds) {
        cache_column c{};
        c.dtype = kind.dtype;
        c.ndim = uint32_t(kind.shape.size());
        c.shape = kind.shape.empty() ? nullptr : kind.shape.data();
        c.bytes = cache_dtype_bytes(kind.dtype);
        for (int64_t extent : kind.shape)
            c.bytes *= uint64_t(extent);
        bytes.emplace_back(c.bytes);
        rows::fill(bytes.back().data(), c.bytes, id, uint32_t(columns.size()));
        c.data = c.bytes ? bytes.back().data() : nullptr;
        columns.push_back(c);
    }
    OK(cache_put(rows, id, columns.data(), uint32_t(columns.size())));
    cache_view view;
    OK(cache_get(rows, id, &view));
    cr_assert_eq(cache_view_columns(&view), int(kinds.size()));
    for (uint32_t i = 0; i < columns.size(); i++) {
        cache_column got;
        OK(cache_view_column(&view, i, &got));
        cr_assert(got.dtype == columns[i].dtype && got.ndim == columns[i].ndim && got.bytes == columns[i].bytes,
                  "row %ld column %u", id, i);
        cr_assert(std::equal(kinds[i].shape.begin(), kinds[i].shape.end(), got.shape), "row %ld column %u", id, i);
        cr_assert(got.bytes == 0 || memcmp(got.data, bytes[i].data(), got.bytes) == 0, "row %ld column %u", id, i);
        cr_assert(got.bytes == 0 || reinterpret_cast<uintptr_t>(got.data) % (got.bytes >= 256 ? 64 : 16) == 0,
                  "row %ld column %u of %lu bytes at %p", id, i, got.bytes, got.data);
    }
    OK(cache_view_release(&view));
}

} // namespace

Test(rows, of_every_dtype_and_shape_come_back) {
    Session s;
    int64_t id = 0;
    for (uint32_t dtype = CACHE_BOOL; dtype <= CACHE_STRING; dtype++)
        for (const std::vector<int64_t> &shape :
             std::vector<std::vector<int64_t>>{{}, {1}, {7}, {0}, {3, 0, 5}, {2, 3, 4}, {31, 33}, {1, 1, 1, 1, 1, 1}})
            round_trip(s.rows, id++, {{dtype, shape}});
    round_trip(s.rows, id++, {{CACHE_UINT8, std::vector<int64_t>(32, 1)}});
    round_trip(s.rows, id++, {{CACHE_UINT8, {INT64_MAX, 0, INT64_MAX}}});
    cr_assert_eq(s.stat().rows_in_memory, id);
}

Test(rows, with_many_columns_come_back) {
    Session s;
    std::vector<Column> kinds;
    for (uint32_t i = 0; i < CACHE_MAX_COLUMNS; i++)
        kinds.push_back({CACHE_BOOL + i % 15, i % 3 == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{i % 11, 5}});
    round_trip(s.rows, 0, kinds);
    round_trip(s.rows, 1, kinds);
    kinds.resize(1000);
    round_trip(s.rows, 2, kinds);
}

Test(rows, of_any_sizes_are_aligned) {
    Session s;
    std::mt19937 random(1);
    for (int64_t id = 0; id < 2000; id++)
        round_trip(s.rows, id,
                   {{CACHE_BYTES, {int64_t(random() % 40)}},
                    {CACHE_UINT8, {int64_t(random() % 600)}},
                    {CACHE_FLOAT64, {int64_t(random() % 70)}}});
}

Test(rows, ids_may_be_any_number_from_0_on) {
    Session s;
    std::mt19937_64 random(2);
    std::vector<int64_t> ids = {0, 1, 4095, 4096, 8191, 1 << 20, INT32_MAX, int64_t{1} << 32, INT64_MAX - 1, INT64_MAX};
    for (int i = 0; i < 20000; i++)
        ids.push_back(int64_t(random() >> 1));
    for (int64_t id : ids)
        OK(rows::put(s.rows, id, 100));
    for (int64_t id : ids) {
        RIGHT(rows::check(s.rows, id, 100));
        cr_assert_eq(rows::put(s.rows, id, 100), 1);
    }
    cr_assert_eq(s.stat().rows_in_memory, int64_t(ids.size()));
}

Test(rows, of_one_shape_store_their_layout_once) {
    Session s;
    for (int64_t id = 0; id < 1000; id++)
        round_trip(s.rows, id, {{CACHE_UINT8, {28, 28}}, {CACHE_INT32, {}}});
    cr_assert_eq(s.stat().layouts, 1);
    cr_assert_lt(s.stat().used_bytes, 1000 * (784 + 4 + 32 + 64 + 16) + 1000, "a layout in each row?");
    cr_assert_eq(s.stat().row_bytes, 1000 * 788);
}

Test(rows, of_more_shapes_than_the_layout_table_holds_come_back) {
    Session s;
    for (int64_t id = 0; id < 1000; id++)
        round_trip(s.rows, id, {{CACHE_UINT8, {id + 1}}, {CACHE_INT64, {}}, {CACHE_STRING, {id % 7, 3}}});
    cr_assert_leq(s.stat().layouts, 256);
    for (int64_t id = 1000; id < 1100; id++)
        round_trip(s.rows, id, {{CACHE_UINT8, {5}}, {CACHE_INT64, {}}, {CACHE_STRING, {4, 3}}});
}

Test(rows, put_twice_keep_the_first_copy_and_cost_nothing) {
    Session s;
    char first[1000], second[1000];
    memset(first, 1, sizeof first);
    memset(second, 2, sizeof second);
    const Bytes a(first, sizeof first), b(second, sizeof second);
    OK(cache_put(s.rows, 5, &a.column, 1));
    const int64_t used = s.stat().used_bytes;
    for (int i = 0; i < 5000; i++)
        cr_assert_eq(cache_put(s.rows, 5, &b.column, 1), 1);
    cache_view view;
    cache_column column;
    OK(cache_get(s.rows, 5, &view));
    OK(cache_view_column(&view, 0, &column));
    cr_assert_eq(memcmp(column.data, first, sizeof first), 0);
    cr_assert_leq(s.stat().used_bytes - used, 4096, "losers keep their holes");
    cr_assert_eq(s.stat().rows_in_memory, 1);
}

Test(rows, put_again_by_many_threads_leave_no_dead_room, .timeout = 120) {
    constexpr int64_t kRows = 2000;
    Session s;
    const std::vector<char> zeros(788);
    // How many puts of all rows, from this one on, do not say what they must.
    const auto put_all = [&](int64_t from, int must_say) {
        const Bytes column(zeros.data(), zeros.size());
        int64_t wrong = 0;
        for (int64_t i = 0; i < kRows; i++)
            wrong += cache_put(s.rows, (from + i) % kRows, &column.column, 1) != must_say;
        return wrong;
    };
    cr_assert_eq(put_all(0, 0), 0);
    const int64_t used = s.stat().used_bytes;
    std::atomic<int64_t> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            for (int round = 0; round < 5; round++)
                wrong += put_all(t * kRows / 4, 1);
        });
    for (std::thread &thread : threads)
        thread.join();
    cr_assert_eq(wrong, 0);
    // What is tried first and given back must not pile up: at most a hole for each thread.
    cr_assert_leq(s.stat().used_bytes - used, 4 * 1024, "losers keep their holes");
}

Test(rows, larger_than_what_is_granted_ahead_come_back) {
    Session s(512 << 20);
    int64_t id = 0;
    for (int64_t mib : {1, 3, 10, 33, 70}) {
        round_trip(s.rows, id++, {{CACHE_UINT8, {mib << 20}}});
        round_trip(s.rows, id++, {{CACHE_UINT8, {(mib << 20) - 33}}, {CACHE_INT8, {7}}});
    }
}

Test(rows, as_large_as_the_limit_are_full_and_smaller_ones_still_fit) {
    Session s(8 << 20);
    const std::vector<unsigned char> large(8 << 20);
    const Bytes column(large.data(), large.size());
    FAILS(cache_put(s.rows, 1, &column.column, 1), CACHE_EFULL, "8388608");
    for (int64_t id = 2; id < 100; id++)
        OK(rows::put(s.rows, id));
    RIGHT(rows::check(s.rows, 99));
}

Test(rows, fill_a_cache_to_its_limit_and_not_beyond) {
    for (uint64_t limit : {uint64_t{1} << 20, uint64_t{3} << 20, uint64_t{17} << 20}) {
        Session s(limit);
        int64_t id = 0;
        int result = 0;
        while ((result = rows::put(s.rows, id, 3000)) == 0)
            id++;
        cr_assert_eq(result, CACHE_EFULL, "%s", cache_last_error());
        cr_assert(strstr(cache_last_error(), std::to_string(limit).c_str()), "%s", cache_last_error());
        const cache_stats stats = s.stat();
        cr_assert_eq(stats.limit_bytes, int64_t(limit));
        cr_assert_leq(stats.charged_bytes, int64_t(limit));
        cr_assert_eq(stats.rows_in_memory, id);
        cr_assert_gt(stats.row_bytes, int64_t(limit / 3), "only %ld of %lu bytes were used", stats.row_bytes, limit);
        cr_assert_eq(rows::put(s.rows, id, 3000), CACHE_EFULL);
        cr_assert_eq(rows::put(s.rows, 0, 3000), 1, "what is there is there");
        for (int64_t i = 0; i < id; i++)
            RIGHT(rows::check(s.rows, i, 3000));
        cr_assert_eq(s.stat().rows_in_memory, id);
    }
}

Test(rows, one_of_more_than_4_GiB_comes_back) {
    if (kSanitized) SKIP("a row of 4 GiB under a sanitizer: the plain build has it");
    if (test_memory_available() < uint64_t{12} << 30) SKIP("a row of 4 GiB: less than 12 GiB of memory are available");
    Session s(uint64_t{10} << 30);
    const uint64_t bytes = (uint64_t{4} << 30) + 12345;
    auto *source = static_cast<char *>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    cr_assert_neq(source, static_cast<char *>(MAP_FAILED));
    const uint64_t marks[] = {0, (uint64_t{4} << 30) - 1, uint64_t{4} << 30, bytes - 1};
    for (uint64_t mark : marks)
        source[mark] = char(mark + 1);
    const Bytes column(source, bytes);
    OK(cache_put(s.rows, 7, &column.column, 1));
    OK(rows::put(s.rows, 8));
    cache_view view;
    cache_column got;
    OK(cache_get(s.rows, 7, &view));
    OK(cache_view_column(&view, 0, &got));
    cr_assert_eq(got.bytes, bytes);
    cr_assert_eq(got.shape[0], int64_t(bytes));
    for (uint64_t mark : marks)
        cr_assert_eq(static_cast<char *>(got.data)[mark], char(mark + 1), "byte %lu", mark);
    for (uint64_t at = 4096; at < bytes - 4096; at += 999983)
        cr_assert_eq(static_cast<char *>(got.data)[at], source[at], "byte %lu", at);
    RIGHT(rows::check(s.rows, 8));
    munmap(source, bytes);
}
