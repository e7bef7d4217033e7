/* SPDX-License-Identifier: Apache-2.0
 * old_client: a program of the first release. It is kept as it was compiled then (keep_first), and speaks every part of
 * the interface that a later one must go on serving. old_client put NAME    fills a cache of the session NAME, in every
 * way there was old_client get NAME    reads all of it back, in every way there was; checks each byte */
#include <libcache.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 500, PIXELS = 6, STREAM_ROWS = 20, RESERVED_ROW = 1000, ABORTED_ROW = 1001 };
#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))

static cache_client *client;
static cache *rows, *stream;
static uint32_t session;

static _Noreturn void fail(int line, const char *condition) {
    fprintf(stderr, "old_client.c:%d: not so: %s. libcache %s. Last error: %s\n", line, condition, cache_version(),
            cache_last_error());
    exit(1);
}

static void make_row(int64_t id, uint16_t pixels[PIXELS], double *label) {
    for (int i = 0; i < PIXELS; i++)
        pixels[i] = (uint16_t)(id * 31 + i);
    *label = (double)id / 4;
}

static const int64_t shape[] = {2, 3};

static void describe(cache_column columns[2], uint16_t *pixels, double *label) {
    memset(columns, 0, 2 * sizeof *columns);
    columns[0] = (cache_column){.data = pixels, .bytes = 12, .shape = shape, .ndim = 2, .dtype = CACHE_UINT16};
    columns[1] = (cache_column){.data = label, .bytes = 8, .dtype = CACHE_FLOAT64};
}

static void open_caches(const char *name) {
    cache_client_options connection = CACHE_CLIENT_OPTIONS_INIT;
    cache_options options = CACHE_OPTIONS_INIT;
    connection.timeout_ms = 50000;
    CHECK(cache_connect(&connection, &client) == 0);
    CHECK(cache_session_open(client, name, &session) == 0 && session != 0);
    options.memory_limit_bytes = 8 << 20;
    options.expected_rows = ROWS;
    options.tag = "first";
    options.label = "rows of the first release";
    CHECK(cache_open(client, session, 1, &options, &rows) == 0);
    options.flags = CACHE_BUILD;
    CHECK(cache_open(client, session, 2, &options, &stream) == 0);
    options.flags = 0;
    options.tag = "another";
    cache *conflict;
    CHECK(cache_open(client, session, 1, &options, &conflict) == CACHE_ECONFLICT);
}

/* ---- put */
static void put_in_place(cache_column columns[2]) {
    cache_reservation *reservation;
    uint16_t pixels[PIXELS];
    double label;
    make_row(RESERVED_ROW, pixels, &label);
    CHECK(cache_reserve(rows, RESERVED_ROW, columns, 2, &reservation) == 0);
    memcpy(columns[0].data, pixels, sizeof pixels);
    memcpy(columns[1].data, &label, sizeof label);
    CHECK(cache_commit(reservation) == 0);
    CHECK(cache_reserve(rows, ABORTED_ROW, columns, 2, &reservation) == 0);
    CHECK(cache_abort(reservation) == 0);
}

static void append(cache_column columns[2], uint16_t *pixels, double *label) {
    int64_t id;
    CHECK(cache_build_begin(stream, &id) == 0 && id == 0);
    for (int64_t i = 0; i < STREAM_ROWS; i++) {
        make_row(i, pixels, label);
        CHECK(cache_append(stream, columns, 2, &id) == 0 && id == i);
    }
    CHECK(cache_build_done(stream) == 0);
}

static void put(void) {
    uint16_t pixels[PIXELS];
    double label;
    cache_column columns[2];
    static const char *const names[] = {"pixels", "label"};
    describe(columns, pixels, &label);
    for (int64_t id = 0; id < ROWS; id++) {
        make_row(id, pixels, &label);
        CHECK(cache_put(rows, id, columns, 2) == 0);
    }
    CHECK(cache_put(rows, 0, columns, 2) == 1);
    append(columns, pixels, &label);
    put_in_place(columns);
    CHECK(cache_schema_set(rows, names, 2) == 0 && cache_flush(rows) == 0);
}

/* ---- get */
static void check_view(const cache_view *view) {
    uint16_t pixels[PIXELS];
    double label;
    cache_column column;
    make_row(view->row_id, pixels, &label);
    CHECK(cache_view_columns(view) == 2);
    CHECK(cache_view_column(view, 0, &column) == 0 && column.dtype == CACHE_UINT16 && column.ndim == 2);
    CHECK(column.shape[0] == 2 && column.shape[1] == 3 && column.bytes == sizeof pixels);
    CHECK(memcmp(column.data, pixels, sizeof pixels) == 0);
    CHECK(cache_view_column(view, 1, &column) == 0 && column.dtype == CACHE_FLOAT64 && column.ndim == 0);
    CHECK(column.bytes == cache_dtype_bytes(CACHE_FLOAT64) && memcmp(column.data, &label, sizeof label) == 0);
}

static void get_one(cache *handle, int64_t id) {
    cache_view view;
    CHECK(cache_get(handle, id, &view) == 0 && view.row_id == id);
    check_view(&view);
    CHECK(cache_view_release(&view) == 0);
}

static void get_many(void) {
    int64_t ids[ROWS];
    static cache_view views[ROWS];
    static uint16_t gathered[ROWS][PIXELS];
    uint8_t found[ROWS];
    for (int i = 0; i < ROWS; i++)
        ids[i] = ROWS - 1 - i;
    CHECK(cache_get_batch(rows, ids, ROWS, views) == ROWS);
    for (int i = 0; i < ROWS; i++)
        check_view(&views[i]), cache_view_release(&views[i]);
    CHECK(cache_contains(rows, ids, ROWS, found) == ROWS);
    CHECK(cache_gather(rows, ids, ROWS, 0, gathered, sizeof gathered[0], found) == ROWS);
    for (int i = 0; i < ROWS; i++) {
        uint16_t pixels[PIXELS];
        double label;
        make_row(ids[i], pixels, &label);
        CHECK(found[i] == 1 && memcmp(gathered[i], pixels, sizeof pixels) == 0);
    }
}

static void look_around(void) {
    int64_t ids[64], n, total = 0;
    uint64_t cursor = 0;
    char names[64];
    size_t bytes = sizeof names;
    cache_stats stats;
    cache_server_stats server;
    memset(&stats, 0, sizeof stats), memset(&server, 0, sizeof server);
    stats.size = sizeof stats, server.size = sizeof server;
    while ((n = cache_scan(rows, &cursor, ids, 64)) > 0)
        total += n;
    CHECK(n == 0 && total == ROWS + 1);
    CHECK(cache_schema_get(rows, names, &bytes) == 2 && strcmp(names, "pixels") == 0 &&
          strcmp(names + 7, "label") == 0);
    CHECK(cache_stat(rows, &stats) == 0 && stats.rows_in_memory == ROWS + 1 && stats.session_id == session);
    CHECK(strcmp(stats.tag, "first") == 0 && strcmp(stats.label, "rows of the first release") == 0);
    CHECK(stats.row_bytes == (ROWS + 1) * 20 && stats.limit_bytes == 8 << 20);
    CHECK(cache_server_info(client, &server) == 0 && server.version_major == CACHE_VERSION_MAJOR);
    CHECK(server.sessions >= 1 && server.caches >= 2 && server.socket_path[0] == '/');
}

static int count(const cache_list_entry *entry, void *argument) {
    if (entry->session_id == session && entry->stats && entry->stats->rows_in_memory > 0) ++*(int *)argument;
    return 0;
}

static void get(void) {
    int64_t resume_at;
    int listed = 0;
    cache_view view;
    for (int64_t id = 0; id < ROWS; id++)
        get_one(rows, id);
    get_one(rows, RESERVED_ROW);
    CHECK(cache_get(rows, ABORTED_ROW, &view) == CACHE_ENOTFOUND);
    get_many();
    look_around();
    CHECK(cache_list(client, count, &listed) >= 2 && listed == 2);
    CHECK(cache_build_wait(stream, 1000) == 0 && cache_build_begin(stream, &resume_at) == 1 &&
          resume_at == STREAM_ROWS);
    for (int64_t id = 0; id < STREAM_ROWS; id++)
        get_one(stream, id);
    CHECK(cache_strerror(CACHE_EFULL)[0] != 0);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    open_caches(argv[2]);
    if (strcmp(argv[1], "put") == 0)
        put();
    else
        get();
    CHECK(cache_close(rows) == 0 && cache_close(stream) == 0 && cache_disconnect(client) == 0);
    printf("libcache %s\n", cache_version());
    return 0;
}
