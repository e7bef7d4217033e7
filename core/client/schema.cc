// SPDX-License-Identifier: Apache-2.0
// Column names, stored once per cache.
#include "core/client/cache.h"

#include "core/common/error.h"

#include <cstring>
#include <string>

namespace libcache {
namespace {

constexpr uint64_t kMostBytes = 4000; // of all names

// The schema is a row of one CACHE_BYTES column: the names, each ended by a 0.
int read_schema(cache &handle, std::string *names) {
    const Region &region = *handle.region;
    // acq [publish] pairs with Writer::store_table
    const uint64_t entry = region.map.header()->schema.load(std::memory_order_acquire);
    if (entry == 0)
        return fail(CACHE_ENOTFOUND, "cache %u of session %u has no column names yet", handle.open->id.cache_id,
                    handle.open->id.session_id);
    const uint64_t offset = region.index.row_offset(entry);
    const uint64_t top = region.index.top();
    cache_column column;
    RowHeader header{};
    if (offset != 0) memcpy(&header, region.map.base() + offset, sizeof header);
    if (header.layout != kLayoutRow || offset > top || header.bytes > top - offset ||
        !read_inline_column(region.map.base() + offset, header.bytes, header.n_columns, 0, &column) ||
        column.bytes > kMostBytes)
        return fail(CACHE_ECORRUPT, "the column names of cache %u of session %u are damaged", handle.open->id.cache_id,
                    handle.open->id.session_id);
    names->assign(static_cast<const char *>(column.data), column.bytes);
    return 0;
}

} // namespace

int set_schema(cache &handle, const char *const *names, uint32_t n_names) {
    if (!handle.live()) return handle.gone();
    std::string all;
    for (uint32_t i = 0; i < n_names; i++) {
        if (names[i] == nullptr || names[i][0] == 0) return fail(CACHE_EINVAL, "column name %u is empty", i);
        all.append(names[i]).push_back(0);
    }
    if (all.empty() || all.size() > kMostBytes)
        return fail(CACHE_EINVAL, "the column names have %zu bytes, 1 to %llu are allowed", all.size(),
                    static_cast<unsigned long long>(kMostBytes));
    std::string stored;
    int rc = read_schema(handle, &stored);
    if (rc == CACHE_ENOTFOUND) {
        if ((handle.flags & CACHE_READ_ONLY) != 0)
            return fail(CACHE_EPERM, "cache %u of session %u was opened read-only", handle.open->id.cache_id,
                        handle.open->id.session_id);
        WriterUse *use = nullptr;
        if (rc = handle.writer(&use); rc != 0) return rc;
        const auto bytes = static_cast<int64_t>(all.size());
        const cache_column column{all.data(), all.size(), &bytes, CACHE_BYTES, 1, {}};
        rc = use->writer->store_schema(*Layout::of(&column, 1), all.data(), handle.config.timeout_ns);
        if (rc <= 0) return rc;
        rc = read_schema(handle, &stored); // another process was first
    }
    if (rc != 0) return rc;
    if (stored == all) return 0;
    return fail(CACHE_ECONFLICT, "cache %u of session %u has other column names: the first is '%s', not '%s'",
                handle.open->id.cache_id, handle.open->id.session_id, stored.c_str(), names[0]);
}

int get_schema(cache &handle, char *buffer, size_t *bytes) {
    if (!handle.live()) return handle.gone();
    std::string stored;
    if (int rc = read_schema(handle, &stored); rc != 0) return rc;
    const size_t room = *bytes;
    *bytes = stored.size();
    if (buffer != nullptr) {
        if (room < stored.size())
            return fail(CACHE_EINVAL, "the column names need %zu bytes, the buffer has %zu", stored.size(), room);
        memcpy(buffer, stored.data(), stored.size());
    }
    int n_names = 0;
    for (const char c : stored)
        n_names += c == 0;
    return n_names;
}

} // namespace libcache
