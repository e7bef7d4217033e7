// SPDX-License-Identifier: Apache-2.0
// cache_check: what must hold in a region, and in each row as a reader finds it.
#include "core/store/check.h"
#include "core/client/cache.h"
#include "core/common/error.h"

namespace libcache {
namespace {

struct Faults {
    cache_check_callback report;
    void *argument;
    int64_t count = 0;

    void add(const std::string &fault) {
        count++;
        if (report != nullptr) report(fault.c_str(), argument);
    }
};

// The row as any reader gets it: of a spilled one this reads the bytes and compares their checksum.
std::string fault_of_row(cache &handle, int64_t id) {
    cache_view view{};
    int result = get_row(handle, id, &view);
    for (uint32_t i = 0; result == 0 && i < view_columns(view); i++) {
        cache_column column{};
        result = view_column(view, i, &column);
    }
    const std::string why = result != 0 ? last_error() : "";
    (void)cache_view_release(&view);
    return result == 0 || result == CACHE_EGONE ? "" : "row " + std::to_string(id) + ": " + why;
}

void check_each_row(cache &handle, Faults *faults) {
    uint64_t cursor = 0;
    int64_t ids[256];
    for (int64_t n; (n = scan_rows(handle, &cursor, ids, std::size(ids))) != 0;) {
        if (n < 0) return faults->add(std::string("the rows cannot be listed: ") + last_error());
        for (int64_t i = 0; i < n; i++)
            if (const std::string fault = fault_of_row(handle, ids[i]); !fault.empty()) faults->add(fault);
    }
}

} // namespace

int64_t check_cache(cache &handle, uint32_t flags, cache_check_callback report, void *argument) {
    if ((flags & ~uint32_t{CACHE_CHECK_ROWS}) != 0)
        return fail(CACHE_EINVAL, "unknown flags 0x%x for cache_check: only CACHE_CHECK_ROWS is known", flags);
    if (!handle.live()) return handle.gone();
    Faults faults{report, argument};
    for (const std::string &fault : region_check_live(handle.region->map))
        faults.add(fault);
    if ((flags & CACHE_CHECK_ROWS) != 0 && handle.live()) check_each_row(handle, &faults);
    return handle.live() ? faults.count : handle.gone();
}

} // namespace libcache
