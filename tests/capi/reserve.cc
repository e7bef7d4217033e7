// SPDX-License-Identifier: Apache-2.0
// Rows written in place: reserve, commit, abort.
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <thread>
#include <vector>

namespace {

// Reserves row `id` of `bytes` bytes and fills it.
cache_reservation *reserve(cache *handle, int64_t id, uint64_t bytes) {
    Bytes bytes_column(nullptr, bytes);
    cache_column column = bytes_column.column;
    cache_reservation *reservation = nullptr;
    OK(cache_reserve(handle, id, &column, 1, &reservation));
    cr_assert_not_null(reservation);
    cr_assert_not_null(column.data);
    cr_assert(bytes < 256 || reinterpret_cast<uintptr_t>(column.data) % 64 == 0);
    rows::fill(column.data, bytes, id, 0);
    return reservation;
}

// All that the limit has room for is written once and given back: what was only made ahead would be zero.
void write_all_room(cache *handle) {
    std::vector<cache_reservation *> open;
    for (uint64_t bytes : {600'000, 20'000, 200}) {
        for (;;) {
            Bytes bytes_column(nullptr, bytes);
            cache_column column = bytes_column.column;
            cache_reservation *reservation = nullptr;
            const int result = cache_reserve(handle, int64_t(open.size()), &column, 1, &reservation);
            if (result == CACHE_EFULL) break;
            OK(result);
            rows::fill(column.data, bytes, int64_t(open.size()), 0);
            open.push_back(reservation);
        }
    }
    for (; !open.empty(); open.pop_back()) // the last first: no hole is left
        OK(cache_abort(open.back()));
}

bool there(cache *handle, int64_t id) {
    uint8_t found = 9;
    return cache_contains(handle, &id, 1, &found) == 1;
}

void check(cache *handle, int64_t id, uint64_t bytes) {
    cache_view view;
    cache_column column;
    OK(cache_get(handle, id, &view));
    OK(cache_view_column(&view, 0, &column));
    cr_assert_eq(column.bytes, bytes);
    cr_assert_eq(rows::first_wrong(column.data, bytes, id, 0), -1);
    OK(cache_view_release(&view));
}

} // namespace

Test(reserve, a_row_is_seen_at_its_commit_and_not_before) {
    Session s;
    cache_reservation *reservation = reserve(s.rows, 3, 1000);
    cr_assert_not(there(s.rows, 3));
    cr_assert_eq(s.stat().rows_in_memory, 0);
    OK(cache_commit(reservation));
    check(s.rows, 3, 1000);
    cr_assert_eq(s.stat().rows_in_memory, 1);
}

Test(reserve, of_a_row_that_is_there_is_1_and_no_reservation) {
    Session s;
    OK(cache_commit(reserve(s.rows, 3, 1000)));
    Bytes bytes(nullptr, 1000);
    cache_reservation *reservation = reinterpret_cast<cache_reservation *>(1);
    cr_assert_eq(cache_reserve(s.rows, 3, &bytes.column, 1, &reservation), 1);
    cr_assert_null(reservation);
}

Test(reserve, the_later_commit_of_one_row_loses) {
    Session s;
    cache_reservation *first = reserve(s.rows, 3, 1000), *second = reserve(s.rows, 3, 1000);
    OK(cache_commit(second));
    cr_assert_eq(cache_commit(first), 1);
    check(s.rows, 3, 1000);
    cr_assert_eq(s.stat().rows_in_memory, 1);
}

Test(reserve, an_aborted_row_is_never_seen_and_its_room_is_used_again) {
    Session s;
    OK(cache_commit(reserve(s.rows, 0, 5000)));
    const int64_t used = s.stat().used_bytes;
    for (int64_t round = 0; round < 2000; round++) {
        cache_reservation *hole = reserve(s.rows, 1, 5000);
        cache_reservation *behind = reserve(s.rows, 2, 5000); // so that the hole is not at the end
        OK(cache_abort(hole));
        OK(cache_abort(behind));
    }
    cr_assert_not(there(s.rows, 1));
    cr_assert_leq(s.stat().used_bytes - used, 64 << 10, "the holes of aborted rows pile up");
    OK(cache_commit(reserve(s.rows, 1, 5000)));
    check(s.rows, 1, 5000);
    check(s.rows, 0, 5000);
}

Test(reserve, a_hole_between_rows_takes_a_row_that_fits) {
    Session s;
    OK(cache_commit(reserve(s.rows, 0, 3000))); // stores the layout, which would take the hole otherwise
    cache_reservation *hole = reserve(s.rows, 1, 5000);
    OK(cache_commit(reserve(s.rows, 2, 5000)));
    const int64_t used = s.stat().used_bytes;
    OK(cache_abort(hole));
    OK(cache_commit(reserve(s.rows, 3, 3000)));
    cr_assert_leq(s.stat().used_bytes, used, "row 3 went behind instead of into the hole");
    check(s.rows, 2, 5000);
    check(s.rows, 3, 3000);
}

// Bytes that were written and given back are somebody's; those of an index level must be zero.
Test(reserve, room_given_back_may_become_an_index_level) {
    constexpr int64_t kRows = 30'000, kApart = 1'000'003;
    Session s(16 << 20);
    write_all_room(s.rows);
    OK(cache_close(s.rows)); // what it was lent is free, and as it was written
    s.rows = s.open(1, options_with_limit(16 << 20));
    for (int64_t i = 1; i <= kRows; ++i) // too far apart for one level of places by number
        OK(rows::put(s.rows, i * kApart, 8));
    for (int64_t i = 1; i <= kRows; ++i)
        RIGHT(rows::check(s.rows, i * kApart, 8));
    cr_assert_leq(s.stat().index_levels, 6);
}

Test(reserve, closing_the_handle_aborts_what_is_open) {
    Session s;
    cache *second = s.open(1, options_with_limit(0));
    reserve(second, 3, 1000);
    OK(cache_commit(reserve(second, 4, 1000)));
    OK(cache_close(second));
    cr_assert_not(there(s.rows, 3));
    OK(cache_commit(reserve(s.rows, 3, 1000)));
    check(s.rows, 3, 1000);
    check(s.rows, 4, 1000);
}

Test(reserve, many_rows_may_be_open_at_once_in_any_order) {
    Session s;
    std::vector<cache_reservation *> open;
    for (int64_t id = 0; id < 300; id++)
        open.push_back(reserve(s.rows, id, 20000));
    for (int64_t id = 299; id >= 0; id--)
        OK(id % 3 ? cache_commit(open[size_t(id)]) : cache_abort(open[size_t(id)]));
    for (int64_t id = 0; id < 300; id++)
        if (id % 3)
            check(s.rows, id, 20000);
        else
            cr_assert_not(there(s.rows, id));
    cr_assert_eq(s.stat().rows_in_memory, 200);
}

Test(reserve, another_thread_may_commit) {
    Session s;
    cache_reservation *reservation = reserve(s.rows, 3, 1000);
    int result = -1;
    std::thread([&] { result = cache_commit(reservation); }).join();
    cr_assert_eq(result, 0);
    check(s.rows, 3, 1000);
}

Test(reserve, a_slow_one_does_not_hinder_others) {
    Session s;
    cache_reservation *slow = reserve(s.rows, 1000000, 1000);
    for (int64_t id = 0; id < 10000; id++)
        OK(rows::put(s.rows, id, 1000));
    OK(cache_commit(slow));
    check(s.rows, 1000000, 1000);
    for (int64_t id = 0; id < 10000; id++)
        RIGHT(rows::check(s.rows, id, 1000));
}

Test(reserve, columns_without_data_store_their_layout_once) {
    Session s;
    for (int64_t id = 0; id < 1000; id++)
        OK(cache_commit(reserve(s.rows, id, 300)));
    cr_assert_eq(s.stat().layouts, 1);
}

Test(reserve, in_a_destroyed_session_ends_in_egone_at_commit) {
    Session s;
    cache_reservation *reservation = reserve(s.rows, 3, 1000);
    OK(cache_session_destroy(s.client, s.id));
    FAILS(cache_commit(reservation), CACHE_EGONE, std::to_string(s.id));
}
