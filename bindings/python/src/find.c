// SPDX-License-Identifier: Apache-2.0
// Looking rows up. A row in memory is found in less time than it takes to give up the GIL and to get it again, and a
// busy thread keeps who asks for it waiting for milliseconds; reading a row from disk must not keep the others waiting.
// Which of the two it will be is known afterwards only, so that what was found lately decides.
#include "rows.h"

enum { kWaryReads = 64 }; // in memory one after the other, until the next one is taken to be there, too

int any_from_disk(const cache_view *views, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (views[i].cache != NULL && views[i].reserved[5] != 0) return 1; // it has memory of its own
    return 0;
}

void note_reading(Mapping *mapping, int from_disk) {
    if (from_disk)
        mapping->wary = kWaryReads;
    else if (mapping->wary > 0)
        mapping->wary--;
}

int find_row(Mapping *mapping, int64_t id, cache_view *view) {
    int rc;
    if (mapping->wary > 0) {
        Py_BEGIN_ALLOW_THREADS rc = cache_get(mapping->handle, id, view);
        Py_END_ALLOW_THREADS
    } else {
        rc = cache_get(mapping->handle, id, view);
    }
    note_reading(mapping, rc == 0 && any_from_disk(view, 1));
    return rc;
}

int64_t find_rows(Mapping *mapping, const int64_t *ids, size_t n, cache_view *views) {
    int64_t rc;
    if (mapping->wary > 0) {
        Py_BEGIN_ALLOW_THREADS rc = cache_get_batch(mapping->handle, ids, n, views);
        Py_END_ALLOW_THREADS
    } else {
        rc = cache_get_batch(mapping->handle, ids, n, views);
    }
    note_reading(mapping, rc > 0 && any_from_disk(views, n));
    return rc;
}
