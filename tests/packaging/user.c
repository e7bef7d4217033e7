/* SPDX-License-Identifier: Apache-2.0
 * user: a program of somebody who has only what is installed. C11 and C++17. */
#include <libcache.h>
#include <stdio.h>
#include <string.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, cache_last_error());
    return 1;
}

int main(void) {
    cache_client *client;
    cache *rows;
    cache_view view;
    cache_column in, out;
    uint32_t session;
    cache_options options = CACHE_OPTIONS_INIT;
    char text[] = "installed";
    const int64_t shape[] = {sizeof text};
    memset(&in, 0, sizeof in);
    in.data = text, in.bytes = sizeof text, in.shape = shape, in.ndim = 1, in.dtype = CACHE_STRING;
    options.memory_limit_bytes = 1 << 20;
    if (cache_connect(NULL, &client) < 0) return failed("cache_connect");
    if (cache_session_create(client, &session) < 0) return failed("cache_session_create");
    if (cache_open(client, session, 1, &options, &rows) < 0) return failed("cache_open");
    if (cache_put(rows, 42, &in, 1) != 0) return failed("cache_put");
    if (cache_get(rows, 42, &view) != 0 || cache_view_column(&view, 0, &out) != 0) return failed("cache_get");
    if (out.bytes != sizeof text || memcmp(out.data, text, sizeof text) != 0) return failed("another row");
    printf("libcache %s: row 42 is there\n", cache_version());
    cache_close(rows);
    cache_disconnect(client);
    return 0;
}
