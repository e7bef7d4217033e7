// SPDX-License-Identifier: Apache-2.0
// get_batch, gather, contains and scan; views that outlive their session.
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <algorithm>
#include <set>

namespace {

// Rows 0, 10, 20 ... of one fixed layout: 100 bytes, and a number.
struct Numbers : Session {
    static constexpr int64_t kRows = 500;
    Numbers() {
        for (int64_t n = 0; n < kRows; n++) {
            char bytes[100];
            rows::fill(bytes, sizeof bytes, n * 10, 0);
            const int64_t number = n * 10;
            const Bytes first(bytes, sizeof bytes);
            cache_column columns[2] = {first.column, {}};
            columns[1].data = const_cast<int64_t *>(&number);
            columns[1].bytes = 8;
            columns[1].dtype = CACHE_INT64;
            OK(cache_put(rows, n * 10, columns, 2));
        }
    }
};

std::vector<int64_t> scan_all(cache *handle, size_t at_a_time) {
    std::vector<int64_t> all, page(at_a_time);
    uint64_t cursor = 0;
    int64_t n;
    while ((n = cache_scan(handle, &cursor, page.data(), at_a_time)) > 0) {
        cr_assert_leq(n, int64_t(at_a_time));
        all.insert(all.end(), page.begin(), page.begin() + n);
    }
    cr_assert_eq(n, 0, "%s", cache_last_error());
    std::sort(all.begin(), all.end());
    return all;
}

} // namespace

Test(get_batch, finds_hits_and_leaves_misses_empty) {
    Numbers s;
    std::vector<int64_t> ids;
    for (int64_t id = 0; id < Numbers::kRows * 10; id++)
        ids.push_back((id * 7919) % (Numbers::kRows * 10));
    std::vector<cache_view> views(ids.size());
    memset(views.data(), 0x55, views.size() * sizeof(cache_view));
    cr_assert_eq(cache_get_batch(s.rows, ids.data(), ids.size(), views.data()), Numbers::kRows);
    for (size_t i = 0; i < ids.size(); i++) {
        cr_assert_eq(views[i].cache != nullptr, ids[i] % 10 == 0, "id %ld", ids[i]);
        if (!views[i].cache) continue;
        cache_column column;
        cr_assert_eq(views[i].row_id, ids[i]);
        OK(cache_view_column(&views[i], 0, &column));
        cr_assert_eq(rows::first_wrong(column.data, 100, ids[i], 0), -1);
        OK(cache_view_release(&views[i]));
    }
}

Test(get_batch, refuses_a_negative_id) {
    Numbers s;
    const int64_t ids[] = {10, -3, 20};
    cache_view views[3];
    FAILS(cache_get_batch(s.rows, ids, 3, views), CACHE_EINVAL, "-3");
}

Test(gather, copies_one_column_of_each_row_to_its_place) {
    Numbers s;
    const int64_t ids[] = {4990, 0, 5, 20, 20};
    constexpr size_t kStride = 128;
    unsigned char out[5 * kStride];
    uint8_t found[5] = {9, 9, 9, 9, 9};
    memset(out, 0xee, sizeof out);
    cr_assert_eq(cache_gather(s.rows, ids, 5, 0, out, kStride, found), 4, "%s", cache_last_error());
    for (size_t i = 0; i < 5; i++) {
        cr_assert_eq(found[i], i != 2);
        if (i != 2) cr_assert_eq(rows::first_wrong(out + i * kStride, 100, ids[i], 0), -1, "row %zu", i);
        for (size_t b = i == 2 ? 0 : 100; b < kStride; b++)
            cr_assert_eq(out[i * kStride + b], 0xee, "row %zu byte %zu", i, b);
    }
    int64_t numbers[4];
    const int64_t hits[] = {0, 10, 20, 30};
    cr_assert_eq(cache_gather(s.rows, hits, 4, 1, numbers, sizeof *numbers, nullptr), 4);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(numbers[i], hits[i]);
}

Test(gather, without_found_a_miss_is_said_after_all_rows_were_tried) {
    Numbers s;
    const int64_t ids[] = {1, 10};
    int64_t numbers[2] = {-1, -1};
    FAILS(cache_gather(s.rows, ids, 2, 1, numbers, 8, nullptr), CACHE_ENOTFOUND, "1");
    cr_assert_eq(numbers[0], -1);
    cr_assert_eq(numbers[1], 10);
}

Test(gather, a_column_longer_than_the_stride_or_missing_is_einval_and_the_others_are_copied) {
    Numbers s;
    const Bytes longer("0123456789abcdef", 16);
    OK(cache_put(s.rows, 7, &longer.column, 1));
    const Bytes fits("01234567", 8);
    OK(cache_put(s.rows, 8, &fits.column, 1));
    const int64_t ids[] = {7, 8};
    char out[16];
    uint8_t found[2] = {9, 9};
    memset(out, '-', sizeof out);
    FAILS(cache_gather(s.rows, ids, 2, 0, out, 8, found), CACHE_EINVAL, "7", "16");
    cr_assert(found[0] == 0 && found[1] == 1);
    cr_assert_eq(memcmp(out, "--------01234567", 16), 0);
    const int64_t mixed[] = {8, 10};
    int64_t numbers[2] = {-1, -1};
    FAILS(cache_gather(s.rows, mixed, 2, 1, numbers, 8, found), CACHE_EINVAL, "8");
    cr_assert(found[0] == 0 && found[1] == 1 && numbers[0] == -1 && numbers[1] == 10);
    FAILS(cache_gather(s.rows, ids, 2, 0, out, SIZE_MAX, found), CACHE_EINVAL);
}

Test(contains, says_which_rows_are_there) {
    Numbers s;
    const int64_t ids[] = {0, 1, 10, INT64_MAX, 4990, 5000};
    uint8_t found[6] = {9, 9, 9, 9, 9, 9};
    cr_assert_eq(cache_contains(s.rows, ids, 6, found), 3);
    const uint8_t expected[6] = {1, 0, 1, 0, 1, 0};
    cr_assert_eq(memcmp(found, expected, 6), 0);
    FAILS(cache_contains(s.rows, ids, 6, nullptr), CACHE_EINVAL, "found");
}

Test(scan, lists_every_row_once_whatever_the_page) {
    Numbers s;
    for (int64_t i = 1; i <= 3000; i++)
        OK(rows::put(s.rows, (int64_t{1} << 50) + i * 12345, 50));
    const std::vector<int64_t> all = scan_all(s.rows, 100000);
    cr_assert_eq(all.size(), Numbers::kRows + 3000);
    cr_assert_eq(std::set<int64_t>(all.begin(), all.end()).size(), all.size(), "a row came twice");
    for (int64_t id : all)
        cr_assert(id % 10 == 0 || id > int64_t{1} << 50);
    for (size_t page : {1, 7, 64})
        cr_assert(scan_all(s.rows, page) == all, "page of %zu", page);
}

Test(scan, of_an_empty_cache_ends_at_once) {
    Session s;
    cr_assert(scan_all(s.rows, 10).empty());
}

Test(scan, rows_that_were_there_at_its_start_come_although_the_index_grows_meanwhile) {
    Session s;
    for (int64_t id = 0; id < 3000; id++)
        OK(rows::put(s.rows, id * 1000003, 50));
    std::set<int64_t> seen;
    uint64_t cursor = 0;
    int64_t page[100], next = 3000, n;
    while ((n = cache_scan(s.rows, &cursor, page, 100)) > 0) {
        for (int64_t i = 0; i < n; i++)
            cr_assert(seen.insert(page[i]).second, "row %ld came twice", page[i]);
        for (int i = 0; i < 300 && next < 20000; i++, next++)
            OK(rows::put(s.rows, next * 1000003, 50));
    }
    cr_assert_eq(n, 0);
    for (int64_t id = 0; id < 3000; id++)
        cr_assert(seen.contains(id * 1000003), "row %ld is missing", id * 1000003);
}

Test(scan, a_cursor_from_nowhere_is_no_crash) {
    Numbers s;
    int64_t ids[10];
    for (uint64_t cursor : {UINT64_MAX, uint64_t{1} << 63, uint64_t{1} << 40, uint64_t{12345}}) {
        uint64_t at = cursor;
        const int64_t n = cache_scan(s.rows, &at, ids, 10);
        cr_assert_leq(n, 10);
    }
}

Test(views, stay_readable_after_their_session_was_destroyed) {
    Session s;
    for (int64_t id = 0; id < 100; id++)
        OK(rows::put(s.rows, id));
    std::vector<cache_view> views(100);
    std::vector<int64_t> ids(100);
    for (int64_t id = 0; id < 100; id++)
        ids[size_t(id)] = id;
    cr_assert_eq(cache_get_batch(s.rows, ids.data(), 100, views.data()), 100);
    OK(cache_session_destroy(s.client, s.id));
    for (int64_t id = 0; id < 100; id++)
        RIGHT(rows::Row(id).difference(views[size_t(id)]));
    cache_view view;
    FAILS(cache_get(s.rows, 5, &view), CACHE_EGONE, std::to_string(s.id));
    for (cache_view &v : views)
        OK(cache_view_release(&v));
}

Test(views, stay_readable_after_the_server_has_ended) {
    Session s;
    for (int64_t id = 0; id < 100; id++)
        OK(rows::put(s.rows, id));
    cache_view view;
    OK(cache_get(s.rows, 5, &view));
    test_server_stop(s.server);
    s.server = nullptr;
    RIGHT(rows::Row(5).difference(view));
    OK(cache_view_release(&view));
}
