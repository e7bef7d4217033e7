/* SPDX-License-Identifier: Apache-2.0
 * The C ABI from C: the way of one row, from an empty machine to a hit. */
#include "capi/libcache.h"
#include "tests/support/server.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static test_server *server;
static cache_client *client;
static uint32_t session_id;
static cache *rows;

/* Called by each test itself: what fails in Criterion's own set-up and tear-down does not count as a failure. */
static void start(void) {
    server = test_server_start(NULL);
    cr_assert_eq(cache_connect(NULL, &client), 0, "%s", cache_last_error());
    cr_assert_eq(cache_session_create(client, &session_id), 0, "%s", cache_last_error());
    cache_options options = CACHE_OPTIONS_INIT;
    options.memory_limit_bytes = 16 << 20;
    cr_assert_eq(cache_open(client, session_id, 1, &options, &rows), 0, "%s", cache_last_error());
}

static void stop(void) {
    cr_assert_eq(cache_close(rows), 0);
    cr_assert_eq(cache_disconnect(client), 0);
    test_server_stop(server);
}

Test(basics, a_row_comes_back_as_it_was_put) {
    start();
    uint8_t image[28][28];
    int32_t label = 7;
    const int64_t shape[] = {28, 28};
    for (int i = 0; i < 28 * 28; i++)
        ((uint8_t *)image)[i] = (uint8_t)(i * 31);
    const cache_column columns[2] = {{image, sizeof image, shape, CACHE_UINT8, 2, {0}},
                                     {&label, sizeof label, NULL, CACHE_INT32, 0, {0}}};
    cache_view view;
    cr_assert_eq(cache_get(rows, 42, &view), CACHE_ENOTFOUND);
    cr_assert_eq(cache_put(rows, 42, columns, 2), 0, "%s", cache_last_error());
    cr_assert_eq(cache_put(rows, 42, columns, 2), 1, "the first one wins");

    cr_assert_eq(cache_get(rows, 42, &view), 0, "%s", cache_last_error());
    cr_assert_eq(view.row_id, 42);
    cr_assert_eq(cache_view_columns(&view), 2);
    cache_column column;
    cr_assert_eq(cache_view_column(&view, 0, &column), 0);
    cr_assert(column.dtype == CACHE_UINT8 && column.ndim == 2 && column.bytes == sizeof image);
    cr_assert(column.shape[0] == 28 && column.shape[1] == 28);
    cr_assert_eq(memcmp(column.data, image, sizeof image), 0);
    cr_assert_eq((uintptr_t)column.data % 64, 0);
    cr_assert_eq(cache_view_column(&view, 1, &column), 0);
    cr_assert(column.dtype == CACHE_INT32 && column.ndim == 0 && column.bytes == 4);
    cr_assert_eq(memcmp(column.data, &label, 4), 0);
    cr_assert_eq(cache_view_release(&view), 0);
    cr_assert_null(view.cache);
    cr_assert_eq(cache_view_release(&view), 0, "a released view may be released again");
    cr_assert_eq(cache_view_release(NULL), 0);
    stop();
}

/* C25 of the original's client tests, without its build phase and spilling. */
Test(basics, a_schema_and_a_row_of_numbers_are_equal_when_fetched) {
    start();
    const char *const names[] = {"label", "image"};
    cr_assert_eq(cache_schema_set(rows, names, 2), 0, "%s", cache_last_error());
    uint64_t numbers[2][3] = {{1, 2, 3}, {4, 5, 6}};
    const int64_t shape[] = {2, 3};
    const cache_column column = {numbers, sizeof numbers, shape, CACHE_UINT64, 2, {0}};
    cr_assert_eq(cache_put(rows, 0, &column, 1), 0, "%s", cache_last_error());

    cache_view view;
    cr_assert_eq(cache_get(rows, 0, &view), 0);
    cache_column got;
    cr_assert_eq(cache_view_column(&view, 0, &got), 0);
    cr_assert(got.dtype == CACHE_UINT64 && got.ndim == 2 && got.shape[0] == 2 && got.shape[1] == 3);
    cr_assert_eq(memcmp(got.data, numbers, sizeof numbers), 0);
    char buffer[64];
    size_t bytes = sizeof buffer;
    cr_assert_eq(cache_schema_get(rows, buffer, &bytes), 2);
    cr_assert_eq(bytes, 12);
    cr_assert_str_eq(buffer, "label");
    cr_assert_str_eq(buffer + 6, "image");
    cr_assert_eq(cache_view_release(&view), 0);
    cr_assert_eq(cache_destroy(client, session_id, 1), 0, "%s", cache_last_error());
    stop();
}

Test(basics, structures_keep_their_sizes) {
    cr_assert_eq(sizeof(cache_column), 64);
    cr_assert_eq(sizeof(cache_view), 64);
    cr_assert_str_eq(cache_version(), "1.0.0");
}

Test(basics, every_code_has_a_text_of_its_own) {
    for (int code = -1020; code <= 20; code++) {
        cr_assert_not_null(cache_strerror(code));
        cr_assert_gt(strlen(cache_strerror(code)), 3);
    }
    for (int a = CACHE_ELIMIT; a <= CACHE_EINVAL; a++)
        for (int b = CACHE_ELIMIT; b < a; b++)
            cr_assert_str_neq(cache_strerror(a), cache_strerror(b));
}

Test(basics, a_thread_without_a_failure_has_no_last_error) {
    cr_assert_str_eq(cache_last_error(), "");
}

Test(basics, a_miss_is_worded_with_its_row_and_cache) {
    start();
    cache_view view;
    char expected[100];
    cr_assert_eq(cache_get(rows, 123456, &view), CACHE_ENOTFOUND);
    snprintf(expected, sizeof expected, "row 123456 is not in cache 1 of session %u", session_id);
    cr_assert_str_eq(cache_last_error(), expected);
    stop();
}
