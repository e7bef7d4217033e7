// SPDX-License-Identifier: Apache-2.0
// Rows that a look-up found to be stubs: read.cc collects them, here they are read, all of a call together.
#pragma once

#include "core/client/read_usual.h"

#include <vector>

namespace libcache {

struct SpilledRow {
    size_t at; // of the caller's row ids
    SpillRead read;
};

// A row that was missed may be one that this process is writing to disk: waits for it. Its offset, or 0.
uint64_t find_written(cache &handle, int64_t row_id);

int get_spilled(cache &handle, int64_t row_id, const SpillStub &stub, cache_view *view);
// Fills the views of these rows. How many, or the error of the first in the caller's order that fails: then no view
// from there on is filled.
int64_t get_spilled_rows(cache &handle, std::vector<SpilledRow> &rows, size_t n, cache_view *views);
// Calls use(at, found, code) for each row: code 0 and the row, or an error. Reads so many at once as fit a bound of
// memory.
template <typename Use> void each_spilled_row(cache &handle, std::vector<SpilledRow> &rows, Use use);

// ---- for the above
// Reads rows [from, returned end): not more at once than is good for this process's memory.
size_t read_some(const Region &region, std::vector<SpilledRow> &rows, size_t from);
// The row in an image. An error with its sentence, also of one that could not be read.
int check_image(cache &handle, const SpillRead &read, FoundRow *found);

template <typename Use> void each_spilled_row(cache &handle, std::vector<SpilledRow> &rows, Use use) {
    for (size_t from = 0; from < rows.size();) {
        const size_t end = read_some(*handle.region, rows, from);
        for (; from < end; from++) {
            FoundRow found;
            const int code = check_image(handle, rows[from].read, &found);
            use(rows[from].at, found, code);
            rows[from].read.image.reset();
        }
    }
}

} // namespace libcache
