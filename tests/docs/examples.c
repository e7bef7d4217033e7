/* SPDX-License-Identifier: Apache-2.0
 * Runs the EXAMPLES of a manual page against a server. test_man.py extracts the page's code into example.inc and
 * compiles this file once a page, with PAGE_<name> defined. A section defines what the example leaves to its user, and
 * `run`, which judges what the example does. */
#include "example.inc"

#include <libcache.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))

static cache_client *client;
static uint32_t session;
static cache *rows;

static _Noreturn void fail(int line, const char *condition) {
    fprintf(stderr, "examples.c:%d: not so: %s. Last error: %s\n", line, condition, cache_last_error());
    exit(1);
}

/* Rows [first, last) of one column of 4-byte elements; some sections have no use for it. */
static inline void put_rows(int64_t first, int64_t last, uint32_t dtype, int64_t elements) {
    void *data = calloc((size_t)elements, 4);
    const cache_column column = {
        .data = data, .bytes = (uint64_t)elements * 4, .shape = &elements, .ndim = 1, .dtype = dtype};
    for (int64_t id = first; id < last; id++)
        CHECK(cache_put(rows, id, &column, 1) == 0);
    free(data);
}

#if defined PAGE_cache_connect
static void run(void) {
    cache_client *same = connect_or_not();
    CHECK(same != NULL);
    cache_disconnect(same);
}

#elif defined PAGE_cache_session_create
static void run(void) {
    cache *first, *second;
    cache_stats stats = {.size = sizeof stats}, other = stats;
    CHECK(open_shared(client, &first) == 0 && open_shared(client, &second) == 0);
    CHECK(cache_stat(first, &stats) == 0 && cache_stat(second, &other) == 0);
    CHECK(stats.session_id == other.session_id);
    cache_close(first);
    cache_close(second);
}

#elif defined PAGE_cache_list
static void run(void) {
    CHECK(print_all(client) >= 1);
}

#elif defined PAGE_cache_full_cause
static void run(void) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.memory_limit_bytes = (uint64_t)1 << 60;
    cache *none;
    const int rc = cache_open(client, session, 99, &options, &none);
    CHECK(rc == CACHE_EFULL && cache_full_cause() == CACHE_FULL_SERVER && !is_full_for_good(rc));
    CHECK(!is_full_for_good(0));
}

#elif defined PAGE_cache_server_info
static void run(void) {
    CHECK(print_memory(client) == 0);
}

#elif defined PAGE_cache_open
static void run(void) {
    cache *opened = open_rows(client, session);
    CHECK(opened != NULL || strstr(cache_last_error(), "server may use")); /* a machine with less memory */
    cache_close(opened);
}

#elif defined PAGE_cache_destroy
static void run(void) {
    cache *again;
    put_rows(0, 1, CACHE_INT32, 1);
    CHECK(reopen_empty(client, session, NULL, &again) == 0);
    const int64_t id = 0;
    uint8_t found;
    CHECK(cache_contains(again, &id, 1, &found) == 0);
    CHECK(cache_contains(rows, &id, 1, &found) == CACHE_EGONE);
    cache_close(again);
}

#elif defined PAGE_cache_stat
static void run(void) {
    CHECK(print_fill(rows) == 0);
}

#elif defined PAGE_cache_check
static void run(void) {
    put_rows(0, 3, CACHE_FLOAT32, 4);
    CHECK(is_right(rows));
}

#elif defined PAGE_cache_put
static void run(void) {
    const uint8_t pixels[2 * 3 * 3] = {1};
    CHECK(put_sample(rows, 7, pixels, 2, 3, 5) == 0);
    CHECK(put_sample(rows, 7, pixels, 2, 3, 5) == 1);
}

#elif defined PAGE_cache_reserve
int decode(const char *path, uint8_t *pixels) {
    if (!path) return -1;
    memset(pixels, 9, 2 * 3 * 3);
    return 0;
}
static void run(void) {
    cache_view view;
    cache_column column;
    CHECK(decode_into(rows, 1, NULL, 2, 3) == -1);
    CHECK(cache_get(rows, 1, &view) == CACHE_ENOTFOUND);
    CHECK(decode_into(rows, 1, "", 2, 3) == 0 && decode_into(rows, 1, "", 2, 3) == 1);
    CHECK(cache_get(rows, 1, &view) == 0 && cache_view_column(&view, 0, &column) == 0);
    CHECK(column.bytes == 18 && ((const uint8_t *)column.data)[17] == 9);
}

#elif defined PAGE_cache_flush
static void run(void) {
    CHECK(finish(rows) == 0);
    rows = NULL; /* closed by the example */
}

#elif defined PAGE_cache_get
static int reads;
int read_source(int64_t id, float sample[1024]) {
    reads++;
    for (int i = 0; i < 1024; i++)
        sample[i] = (float)id;
    return 0;
}
static void run(void) {
    float sample[1024] = {0};
    CHECK(load(rows, 3, sample) == 0 && load(rows, 3, sample) == 0);
    CHECK(reads == 1 && sample[1023] == 3);
}

#elif defined PAGE_cache_view_columns
static void run(void) {
    CHECK(print_row(rows, 0) == CACHE_ENOTFOUND);
    put_rows(0, 1, CACHE_INT32, 5);
    CHECK(print_row(rows, 0) == 0);
}

#elif defined PAGE_cache_get_batch
static int used, read_again;
void use(int64_t id, const cache_column *column) {
    used += id < 20 && column->bytes == 40;
}
void read_source(int64_t id) {
    read_again += id >= 20;
}
static void run(void) {
    int64_t ids[32];
    for (int i = 0; i < 32; i++)
        ids[i] = 31 - i;
    put_rows(0, 20, CACHE_INT32, 10);
    CHECK(each(rows, ids) == 20 && used == 20 && read_again == 12);
}

#elif defined PAGE_cache_gather
static int read_again;
void read_source(int64_t id, uint8_t *sample) {
    read_again++;
    memset(sample, (int)id, SAMPLE_BYTES);
}
static void run(void) {
    static uint8_t batch[BATCH][SAMPLE_BYTES];
    int64_t ids[BATCH];
    for (int i = 0; i < BATCH; i++)
        ids[i] = i;
    put_rows(0, 60, CACHE_INT32, SAMPLE_BYTES / 4);
    CHECK(make_batch(rows, ids, batch) == 60 && read_again == BATCH - 60 && batch[63][0] == 63);
}

#elif defined PAGE_cache_contains
static int fetched;
void fetch_and_put(cache *handle, int64_t id) {
    CHECK(handle == rows);
    put_rows(id, id + 1, CACHE_INT32, 1);
    fetched++;
}
static void run(void) {
    int64_t ids[600];
    for (int i = 0; i < 600; i++)
        ids[i] = i;
    put_rows(100, 200, CACHE_INT32, 1);
    CHECK(fill(rows, ids, 600) == 0 && fetched == 500);
    CHECK(fill(rows, ids, 600) == 0 && fetched == 500);
}

#elif defined PAGE_cache_scan
static void run(void) {
    CHECK(largest_id(rows) == CACHE_ENOTFOUND);
    put_rows(0, 1500, CACHE_INT32, 1);
    CHECK(largest_id(rows) == 1499);
}

#elif defined PAGE_cache_schema_set
static void run(void) {
    CHECK(print_columns(rows) == CACHE_ENOTFOUND);
    CHECK(name_columns(rows) == 0 && name_columns(rows) == 0);
    CHECK(print_columns(rows) == 0);
}

#elif defined PAGE_cache_build_begin
static int64_t samples, skipped;
void skip_samples(int64_t count) {
    skipped = samples = count;
}
int next_sample(float sample[256]) {
    sample[0] = (float)samples;
    return samples++ < 40;
}
static void run(void) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.flags = CACHE_BUILD;
    cache *stream;
    int64_t resume_at;
    CHECK(cache_open(client, session, 2, &options, &stream) == 0);
    CHECK(build_or_wait(stream) == 0 && skipped == 0);
    CHECK(cache_build_begin(stream, &resume_at) == 1 && resume_at == 40);
    CHECK(build_or_wait(stream) == 0);
    cache_close(stream);
}

#elif defined PAGE_cache_strerror
static void run(void) {
    CHECK(report(cache_put(NULL, 0, NULL, 0)) == CACHE_EINVAL);
}

#elif defined PAGE_cache_dtype_bytes
static void run(void) {
    const cache_column column = {.bytes = 24, .dtype = CACHE_FLOAT64}, nothing = {.bytes = 24};
    CHECK(elements(&column) == 3 && elements(&nothing) == 0);
}

#else
#error "this page has no section here: write one"
#endif

int main(void) {
    CHECK(cache_connect(NULL, &client) == 0);
    CHECK(cache_session_create(client, &session) == 0);
    CHECK(cache_open(client, session, 1, NULL, &rows) == 0);
    run();
    cache_close(rows);
    cache_disconnect(client);
    return 0;
}
