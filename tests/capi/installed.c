/* SPDX-License-Identifier: Apache-2.0
 * A user's program: knows the installed header and library only. Built as C11 and as C++17, warnings as errors. */
#include <libcache.h>

#include "server.h"

#include <stdio.h>
#include <string.h>

static int fail_at(const char *what) {
    fprintf(stderr, "%s: %s\n", what, cache_last_error());
    return 1;
}

int main(void) {
    test_server *server = test_server_start(NULL);
    cache_client_options client_options = CACHE_CLIENT_OPTIONS_INIT;
    client_options.port = test_server_port(server);
    cache_client *client;
    cache *rows;
    cache_view view;
    cache_column got;
    uint32_t session_id;
    float pixels[4] = {1, 2, 3, 4};
    const int64_t shape[2] = {2, 2};
    cache_column column = {pixels, sizeof pixels, shape, CACHE_FLOAT32, 2, {0, 0, 0, 0}};
    cache_options options = CACHE_OPTIONS_INIT;
    options.memory_limit_bytes = 4 << 20;

    if (cache_connect(&client_options, &client)) return fail_at("cache_connect");
    if (cache_session_open(client, "installed", &session_id)) return fail_at("cache_session_open");
    if (cache_open(client, session_id, 1, &options, &rows)) return fail_at("cache_open");
    if (cache_put(rows, 5, &column, 1)) return fail_at("cache_put");
    if (cache_get(rows, 5, &view)) return fail_at("cache_get");
    if (cache_view_column(&view, 0, &got)) return fail_at("cache_view_column");
    if (got.bytes != sizeof pixels || memcmp(got.data, pixels, sizeof pixels) != 0) return fail_at("other bytes");
    cache_view_release(&view);
    if (cache_close(rows) || cache_disconnect(client)) return fail_at("closing");
    test_server_stop(server);
    return strncmp(cache_version(), "1.", 2) != 0;
}
