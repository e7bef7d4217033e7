/* SPDX-License-Identifier: Apache-2.0
 * quickstart: one row into a cache and out of it again.
 *     cache_admin --start
 *     cc -std=c11 quickstart.c $(pkg-config --cflags --libs libcache) -o quickstart && ./quickstart
 * Where PREFIX is a place of your own: export PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig, and add -Wl,-rpath,$PREFIX/lib. */
#include <libcache.h>
#include <stdio.h>

int main(void) {
    cache_client *client;
    cache *rows;
    uint32_t session;
    cache_view view;
    int64_t shape[] = {2, 3};
    uint8_t image[2][3] = {{1, 2, 3}, {4, 5, 6}};
    int32_t label = 7;
    cache_column row[] = {{.data = image, .bytes = sizeof image, .shape = shape, .ndim = 2, .dtype = CACHE_UINT8},
                          {.data = &label, .bytes = sizeof label, .dtype = CACHE_INT32}};
    if (cache_connect(NULL, &client) < 0 || cache_session_open(client, "quickstart", &session) < 0 ||
        cache_open(client, session, 1, NULL, &rows) < 0 || cache_put(rows, 42, row, 2) < 0 ||
        cache_get(rows, 42, &view) < 0) {
        fprintf(stderr, "%s\n", cache_last_error());
        return 1;
    }

    cache_column found; /* points into shared memory: nothing is copied */
    cache_view_column(&view, 0, &found);
    printf("row 42: %d columns, the image's last byte is %d\n", cache_view_columns(&view),
           ((const uint8_t *)found.data)[found.bytes - 1]);
    cache_view_release(&view);
    cache_close(rows);
    cache_disconnect(client);
    return 0;
}
