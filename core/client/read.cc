// SPDX-License-Identifier: Apache-2.0
// Reading rows: no lock, no system call, no message. What stands in the region was written by another process: each
// number is read once, checked, and then the checked copy is used.
#include "core/client/read_spilled.h"

#include "core/common/error.h"

#include <algorithm>
#include <cstring>

namespace libcache {
namespace {

constexpr size_t kBlock = 32; // rows looked up together: enough to hide a cache miss, few enough to stay in L1
constexpr int kSpilled = 2;   // a stub was found

int corrupt(const cache &handle, int64_t row_id, uint64_t offset, const char *what) {
    return fail(CACHE_ECORRUPT, "row %lld of cache %u of session %u, at %llu of its region: %s",
                static_cast<long long>(row_id), handle.open->id.cache_id, handle.open->id.session_id,
                static_cast<unsigned long long>(offset), what);
}

// Checks the row whose header, inside the region and with this id, the index gave.
[[gnu::noinline]] int check_row(cache &handle, Region &region, uint64_t offset, int64_t row_id, FoundRow *found) {
    const char *const row = region.map.base() + offset;
    // Each field once, into a register: somebody may be changing them.
    const auto &shared = *reinterpret_cast<const RowHeader *>(row);
    struct {
        uint64_t bytes;
        uint32_t layout, n_columns, check;
    } const header{__atomic_load_n(&shared.bytes, __ATOMIC_RELAXED), __atomic_load_n(&shared.layout, __ATOMIC_RELAXED),
                   __atomic_load_n(&shared.n_columns, __ATOMIC_RELAXED),
                   __atomic_load_n(&shared.check, __ATOMIC_RELAXED)};
    if (header.check != row_check(header.layout, row_id, header.bytes, header.n_columns))
        return corrupt(handle, row_id, offset, "its header is damaged");
    if (SpillStub::is(header.layout)) {
        *found = {row, nullptr, header.bytes, header.n_columns, header.layout}; // see stub_of()
        return kSpilled;
    }
    if (!region.index.reaches(offset, header.bytes))
        return corrupt(handle, row_id, offset, "its length leads out of the region");
    *found = {row, nullptr, header.bytes, header.n_columns, residue_of(offset)};
    const char *const fault = layout_fault(region, header.layout, found);
    return fault == nullptr ? 0 : corrupt(handle, row_id, offset, fault);
}

// The stub that check_row() found.
SpillStub stub_of(const FoundRow &found) {
    return SpillStub::unpack(found.residue, found.bytes, found.n_columns);
}

bool column_of(const FoundRow &found, uint32_t i, cache_column *column) {
    if (i >= found.n_columns) return false;
    if (found.layout == nullptr) return read_inline_column(found.row, found.bytes, found.n_columns, i, column);
    found.layout->describe(found.row, found.residue, i, column);
    return true;
}

FoundRow found_of(const cache_view &view) {
    return {reinterpret_cast<const char *>(view.reserved[0]), reinterpret_cast<const Layout *>(view.reserved[1]),
            view.reserved[2], static_cast<uint32_t>(view.reserved[3]), static_cast<uint32_t>(view.reserved[3] >> 32)};
}

// Before anything is done for any of them. Written so that the compiler makes a wide loop of it.
int check_ids(const int64_t *row_ids, size_t n) {
    int64_t any = 0;
    for (size_t i = 0; i < n; i++)
        any |= row_ids[i];
    if (any >= 0) return 0;
    const int64_t *const wrong = std::find_if(row_ids, row_ids + n, [](int64_t id) { return id < 0; });
    return fail(CACHE_EINVAL, "row id %lld, at %td of %zu, is negative", static_cast<long long>(*wrong),
                wrong - row_ids, n);
}

// The offsets of up to kBlock rows, 0 for a miss: entries first, then rows, so that the misses of the memory overlap.
// An offset may be anything that stands in the index: look_at_row() checks it.
void find_block(Index &index, const int64_t *row_ids, size_t n, uint64_t *offsets) {
    const Index::DenseStart start = index.dense_start();
    size_t covered = 0;
    for (; covered < n && start.covers(row_ids[covered]); covered++) { // loads that wait for nothing, side by side
        offsets[covered] = Index::offset_in(start.entries[row_ids[covered]]);
        index.prefetch_header(offsets[covered]);
    }
    if (covered == n) return;
    index.look_for_levels();
    for (size_t i = 0; i < n; i++)
        index.prefetch_entry(row_ids[i]);
    for (size_t i = 0; i < n; i++) {
        offsets[i] = index.candidate(row_ids[i]);
        index.prefetch_header(offsets[i]);
    }
}

// What stands at an offset that find_block() gave and is no usual row: 1 a hit, kSpilled a stub, 0 a miss, or an error.
[[gnu::noinline]] int look_at_row(cache &handle, Region &region, uint64_t offset, int64_t row_id, FoundRow *found) {
    // find_block() takes another row with the id's tag for it: only find() knows, and then whoever is writing the row.
    uint64_t checked = offset != 0 ? region.index.find(row_id) : 0;
    if (checked == 0) checked = find_written(handle, row_id);
    if (checked == 0) return 0;
    const int rc = check_row(handle, region, checked, row_id, found);
    return rc != 0 ? rc : 1; // kSpilled as it is
}

// Copies one column of a checked row. The sentence of a failure names the row.
int gather_one(cache &handle, const FoundRow &found, int64_t row_id, uint32_t column, char *dst, size_t stride) {
    const char *data = nullptr;
    uint64_t bytes = 0;
    if (cache_column c; found.layout != nullptr && column < found.n_columns) {
        data = found.row + found.layout->column_offset(found.residue, column);
        bytes = found.layout->column_bytes_of(column);
    } else if (column_of(found, column, &c)) {
        data = static_cast<const char *>(c.data);
        bytes = c.bytes;
    } else {
        return fail(CACHE_EINVAL, "row %lld has %u columns, there is no column %u", static_cast<long long>(row_id),
                    found.n_columns, column);
    }
    if (bytes > stride)
        return fail(CACHE_EINVAL, "column %u of row %lld of cache %u has %llu bytes, the stride is %zu", column,
                    static_cast<long long>(row_id), handle.open->id.cache_id, static_cast<unsigned long long>(bytes),
                    stride);
    memcpy(dst, data, bytes);
    return 0;
}

void prefetch_bytes(const char *row) {
    // The first kilobyte: what follows, the processor's own prefetcher has seen coming by then
    for (uint64_t at = 2 * kCacheLine; at < 1024; at += kCacheLine)
        prefetch_to_read(row + at);
}

} // namespace

const char *layout_fault(Region &region, uint32_t layout, FoundRow *found) {
    if (layout == kInlineLayout)
        return found->bytes != 0 && check_inline_table(found->row, found->bytes, found->n_columns) == found->bytes
                   ? nullptr
                   : "its column table is damaged";
    found->layout = region.layouts.get(layout);
    return found->layout != nullptr && found->layout->n_columns() == found->n_columns &&
                   found->layout->row_bytes(found->residue, false) == found->bytes
               ? nullptr
               : "it does not fit the layout it names";
}

int get_row(cache &handle, int64_t row_id, cache_view *view) {
    Region &region = *handle.region;
    if (!handle.live()) return handle.gone();
    if (row_id < 0) return fail(CACHE_EINVAL, "row id %lld is negative", static_cast<long long>(row_id));
    uint64_t offset = region.index.find(row_id);
    if (offset == 0) offset = find_written(handle, row_id);
    if (offset == 0) return note_miss(row_id, handle.open->id.session_id, handle.open->id.cache_id);
    FoundRow found;
    const int rc = check_row(handle, region, offset, row_id, &found);
    if (rc == kSpilled) return get_spilled(handle, row_id, stub_of(found), view);
    if (rc != 0) return rc;
    fill_view(handle, row_id, found, view);
    return 0;
}

int64_t get_rows(cache &handle, const int64_t *row_ids, size_t n, cache_view *views) {
    Region &region = *handle.region;
    if (!handle.live()) return handle.gone();
    if (int rc = check_ids(row_ids, n); rc != 0) return rc;
    int64_t hits = 0;
    uint64_t offsets[kBlock];
    std::vector<SpilledRow> spilled;
    for (size_t from = 0; from < n; from += kBlock) {
        const size_t count = std::min(kBlock, n - from);
        find_block(region.index, row_ids + from, count, offsets);
        for (size_t i = 0; i < count; i++) {
            const int64_t row_id = row_ids[from + i];
            FoundRow found;
            const int hit = usual_row(region, offsets[i], row_id, &found)
                                ? 1
                                : look_at_row(handle, region, offsets[i], row_id, &found);
            if (hit < 0) {
                for (size_t rest = from + i; rest < n; rest++)
                    views[rest] = {nullptr, row_ids[rest], {}};
                return hit;
            }
            if (hit == 1) {
                fill_view(handle, row_id, found, &views[from + i]);
                hits++;
                continue;
            }
            views[from + i] = {nullptr, row_id, {}};
            if (hit != kSpilled) continue;
            if (spilled.empty()) { // the only memory that this takes: if there is none, the rest are misses
                for (size_t rest = from + i + 1; rest < n; rest++)
                    views[rest] = {nullptr, row_ids[rest], {}};
                spilled.reserve(n - from - i);
            }
            spilled.push_back({from + i, {stub_of(found), row_id, nullptr}});
        }
    }
    if (spilled.empty()) return hits;
    const int64_t read = get_spilled_rows(handle, spilled, n, views);
    return read < 0 ? read : hits + read;
}

int64_t gather_rows(cache &handle, const int64_t *row_ids, size_t n, uint32_t column, char *dst, size_t stride,
                    uint8_t *found) {
    Region &region = *handle.region;
    if (!handle.live()) return handle.gone();
    if (int rc = check_ids(row_ids, n); rc != 0) return rc;
    int64_t copied = 0;
    int error = 0;
    uint64_t offsets[kBlock];
    std::vector<SpilledRow> spilled;
    for (size_t from = 0; from < n; from += kBlock) {
        const size_t count = std::min(kBlock, n - from);
        find_block(region.index, row_ids + from, count, offsets);
        for (size_t i = 0; i < count; i++) {
            const int64_t row_id = row_ids[from + i];
            if (i + 1 < count && offsets[i + 1] != 0) prefetch_bytes(region.map.base() + offsets[i + 1]);
            FoundRow row;
            const int hit =
                usual_row(region, offsets[i], row_id, &row) ? 1 : look_at_row(handle, region, offsets[i], row_id, &row);
            if (hit == kSpilled) {
                spilled.push_back({from + i, {stub_of(row), row_id, nullptr}});
                continue;
            }
            int rc = hit;
            if (hit > 0)
                rc = gather_one(handle, row, row_id, column, dst + (from + i) * stride, stride);
            else if (hit == 0 && found == nullptr)
                rc = note_miss(row_id, handle.open->id.session_id, handle.open->id.cache_id);
            const bool done = hit > 0 && rc == 0;
            if (rc < 0) error = rc;
            if (found != nullptr) found[from + i] = done;
            copied += done;
        }
    }
    each_spilled_row(handle, spilled, [&](size_t at, const FoundRow &row, int code) {
        const int rc = code != 0 ? code : gather_one(handle, row, row_ids[at], column, dst + at * stride, stride);
        if (rc < 0) error = rc;
        if (found != nullptr) found[at] = rc == 0;
        copied += rc == 0;
    });
    return error != 0 ? error : copied;
}

int64_t contains_rows(cache &handle, const int64_t *row_ids, size_t n, uint8_t *found) {
    if (!handle.live()) return handle.gone();
    if (int rc = check_ids(row_ids, n); rc != 0) return rc;
    Index &index = handle.region->index;
    int64_t hits = 0;
    uint64_t offsets[kBlock];
    for (size_t from = 0; from < n; from += kBlock) {
        const size_t count = std::min(kBlock, n - from);
        find_block(index, row_ids + from, count, offsets);
        for (size_t i = 0; i < count; i++)
            hits += found[from + i] = index.has_id(offsets[i], row_ids[from + i]) ||
                                      (offsets[i] != 0 && index.find(row_ids[from + i]) != 0) ||
                                      find_written(handle, row_ids[from + i]) != 0;
    }
    return hits;
}

// The cursor counts the entries of all levels passed so far: {level:8 | slot:56}.
int64_t scan_rows(cache &handle, uint64_t *cursor, int64_t *ids, size_t n) {
    if (!handle.live()) return handle.gone();
    Region &region = *handle.region;
    if (int rc = region.index.refresh(); rc != 0) return rc;
    uint64_t level = *cursor >> 56, slot = *cursor & (~uint64_t{0} >> 8);
    size_t count = 0;
    for (; level < region.index.known() && count < n; level++, slot = 0) {
        const Index::KnownLevel known = region.index.level(static_cast<uint32_t>(level));
        for (; slot < known.slots && count < n; slot++) {
            // acq [publish]: the header is read next
            const uint64_t offset = region.index.row_offset(known.entries[slot].load(std::memory_order_acquire));
            if (offset == 0) continue;
            const int64_t row_id = reinterpret_cast<const RowHeader *>(region.map.base() + offset)->row_id;
            if (row_id >= 0) ids[count++] = row_id;
        }
        if (slot < known.slots) break;
    }
    *cursor = level << 56 | slot;
    return static_cast<int64_t>(count);
}

uint32_t view_columns(const cache_view &view) {
    return found_of(view).n_columns;
}

int view_column(const cache_view &view, uint32_t i, cache_column *column) {
    const FoundRow found = found_of(view);
    if (column_of(found, i, column)) return 0;
    if (i >= found.n_columns)
        return fail(CACHE_EINVAL, "row %lld has %u columns, there is no column %u", static_cast<long long>(view.row_id),
                    found.n_columns, i);
    return fail(CACHE_ECORRUPT, "the column table of row %lld was changed", static_cast<long long>(view.row_id));
}

} // namespace libcache
