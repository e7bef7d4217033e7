// SPDX-License-Identifier: Apache-2.0
#include "core/store/row.h"

#include "core/common/error.h"

#include <cstring>

namespace libcache {
namespace {

// Product of the shape times the element's size; false when it overflows 64 bits or an extent is negative.
bool shape_bytes(uint32_t dtype, const int64_t *shape, uint32_t ndim, uint64_t *bytes) {
    uint64_t product = dtype_bytes(dtype);
    bool overflow = false, zero = false;
    for (uint32_t d = 0; d < ndim; d++) {
        if (shape[d] < 0) return false;
        if (shape[d] == 0) zero = true; // legal, whatever the other extents are
        if (!zero) overflow |= __builtin_mul_overflow(product, static_cast<uint64_t>(shape[d]), &product);
    }
    *bytes = zero ? 0 : product;
    return zero || !overflow;
}

// Reads entry i of a table in shared memory into locals and checks it by itself.
bool read_entry(const char *table, uint32_t i, ColumnEntry *entry) {
    memcpy(entry, table + uint64_t{i} * sizeof(ColumnEntry), sizeof *entry);
    return dtype_bytes(entry->dtype) != 0 && entry->ndim <= CACHE_MAX_DIMENSIONS && entry->bytes <= kMaxRowBytes;
}

// Walks an inline table up to column `wanted` (n_columns: to the end). Everything is read once and checked; the shapes
// are copied for the check, so that what is computed is what was seen.
bool walk_inline(const char *row, uint64_t bytes, uint32_t n_columns, uint32_t wanted, cache_column *column,
                 uint64_t *end) {
    if (n_columns == 0 || n_columns > CACHE_MAX_COLUMNS) return false;
    const char *const table = row + sizeof(RowHeader);
    const uint64_t entries_bytes = uint64_t{n_columns} * sizeof(ColumnEntry);
    if (bytes < sizeof(RowHeader) + entries_bytes) return false;
    const uint64_t room = bytes - sizeof(RowHeader);
    uint64_t dimensions = 0;
    ColumnEntry entry{};
    for (uint32_t i = 0; i < n_columns; i++) {
        if (!read_entry(table, i, &entry)) return false;
        dimensions += entry.ndim;
    }
    const uint64_t table_bytes = round_up(entries_bytes + dimensions * sizeof(int64_t), kUnitBytes);
    if (table_bytes > room) return false;
    const uint64_t skew = reinterpret_cast<uintptr_t>(row) % 64;
    uint64_t at = skew + sizeof(RowHeader) + table_bytes, shape_at = entries_bytes;
    for (uint32_t i = 0; i < n_columns; i++) {
        if (!read_entry(table, i, &entry)) return false;
        int64_t shape[CACHE_MAX_DIMENSIONS];
        const uint64_t shape_size = entry.ndim * sizeof(int64_t);
        if (shape_at + shape_size > table_bytes) return false; // changed under us
        memcpy(shape, table + shape_at, shape_size);
        uint64_t product = 0;
        if (!shape_bytes(entry.dtype, shape, entry.ndim, &product) || product != entry.bytes) return false;
        at = round_up(at, column_alignment(entry.bytes));
        if (at - skew > bytes || entry.bytes > bytes - (at - skew)) return false;
        if (i == wanted) {
            *column = {const_cast<char *>(row) + (at - skew),
                       entry.bytes,
                       entry.ndim != 0 ? reinterpret_cast<const int64_t *>(table + shape_at) : nullptr,
                       entry.dtype,
                       entry.ndim,
                       {0, 0, 0, 0}};
            return true;
        }
        at += entry.bytes;
        shape_at += shape_size;
    }
    *end = at - skew;
    return wanted == n_columns;
}

} // namespace

uint64_t dtype_bytes(uint32_t dtype) {
    static constexpr uint8_t kBytes[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 1, 1};
    return dtype < sizeof kBytes ? kBytes[dtype] : 0;
}

int check_columns(const cache_column *columns, uint32_t n_columns, bool reserving) {
    if (columns == nullptr) return fail(CACHE_EINVAL, "columns is NULL");
    if (n_columns == 0 || n_columns > CACHE_MAX_COLUMNS)
        return fail(CACHE_EINVAL, "a row has 1 to %u columns, not %u", CACHE_MAX_COLUMNS, n_columns);
    uint64_t total = 0;
    for (uint32_t i = 0; i < n_columns; i++) {
        const cache_column &c = columns[i];
        if (dtype_bytes(c.dtype) == 0)
            return fail(CACHE_EINVAL, "column %u: %u is no dtype (see enum cache_dtype)", i, c.dtype);
        if (c.ndim > CACHE_MAX_DIMENSIONS)
            return fail(CACHE_EINVAL, "column %u has %u dimensions, at most %u are allowed", i, c.ndim,
                        CACHE_MAX_DIMENSIONS);
        if (c.ndim != 0 && c.shape == nullptr)
            return fail(CACHE_EINVAL, "column %u has %u dimensions and no shape", i, c.ndim);
        uint64_t bytes = 0;
        if (!shape_bytes(c.dtype, c.shape, c.ndim, &bytes))
            return fail(CACHE_EINVAL, "column %u: its shape has a negative extent or more than 2^64 bytes", i);
        if (bytes != c.bytes)
            return fail(CACHE_EINVAL, "column %u: its shape and dtype make %llu bytes, bytes says %llu", i,
                        static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(c.bytes));
        if (bytes != 0 && c.data == nullptr && !reserving)
            return fail(CACHE_EINVAL, "column %u has %llu bytes and no data", i,
                        static_cast<unsigned long long>(bytes));
        if (bytes > kMaxRowBytes || (total += bytes + 64) > kMaxRowBytes - (1 << 20))
            return fail(CACHE_EINVAL, "a row must be smaller than %llu bytes",
                        static_cast<unsigned long long>(kMaxRowBytes - (1 << 20)));
    }
    return 0;
}

std::unique_ptr<const Layout> Layout::of(const cache_column *columns, uint32_t n_columns) {
    auto layout = std::make_unique<Layout>();
    uint64_t dimensions = 0;
    for (uint32_t i = 0; i < n_columns; i++)
        dimensions += columns[i].ndim;
    const uint64_t entries_bytes = uint64_t{n_columns} * sizeof(ColumnEntry);
    layout->table_.resize(round_up(entries_bytes + dimensions * sizeof(int64_t), kUnitBytes) / sizeof(uint64_t));
    char *const table = reinterpret_cast<char *>(layout->table_.data());
    char *shapes = table + entries_bytes;
    for (uint32_t i = 0; i < n_columns; i++) {
        const cache_column &c = columns[i];
        const ColumnEntry entry{c.bytes, static_cast<uint8_t>(c.dtype), static_cast<uint8_t>(c.ndim), 0, 0};
        memcpy(table + i * sizeof entry, &entry, sizeof entry);
        if (c.ndim != 0) memcpy(shapes, c.shape, c.ndim * sizeof(int64_t));
        shapes += c.ndim * sizeof(int64_t);
    }
    layout->columns_.resize(n_columns);
    layout->finish();
    return layout;
}

std::unique_ptr<const Layout> Layout::parse(const char *table, uint64_t bytes, uint32_t n_columns) {
    const uint64_t entries_bytes = uint64_t{n_columns} * sizeof(ColumnEntry);
    if (n_columns == 0 || n_columns > CACHE_MAX_COLUMNS || bytes < entries_bytes || bytes % kUnitBytes != 0)
        return nullptr;
    const uint64_t longest = entries_bytes + uint64_t{n_columns} * CACHE_MAX_DIMENSIONS * sizeof(int64_t) + kUnitBytes;
    if (bytes > longest) return nullptr;
    auto layout = std::make_unique<Layout>();
    layout->table_.resize(bytes / sizeof(uint64_t));
    memcpy(layout->table_.data(), table, bytes); // from here on only the private copy is looked at
    uint64_t dimensions = 0, total = 0;
    for (uint32_t i = 0; i < n_columns; i++) {
        ColumnEntry entry{};
        if (!read_entry(layout->table(), i, &entry)) return nullptr;
        if (entries_bytes + (dimensions + entry.ndim) * sizeof(int64_t) > bytes) return nullptr;
        int64_t shape[CACHE_MAX_DIMENSIONS];
        memcpy(shape, layout->table() + entries_bytes + dimensions * sizeof(int64_t), entry.ndim * sizeof(int64_t));
        uint64_t product = 0;
        if (!shape_bytes(entry.dtype, shape, entry.ndim, &product) || product != entry.bytes) return nullptr;
        dimensions += entry.ndim;
        if ((total += entry.bytes + 64) > kMaxRowBytes) return nullptr;
    }
    if (round_up(entries_bytes + dimensions * sizeof(int64_t), kUnitBytes) != bytes) return nullptr;
    layout->columns_.resize(n_columns);
    layout->finish();
    return layout;
}

void Layout::finish() {
    n_columns_ = static_cast<uint32_t>(columns_.size());
    const auto *shape = reinterpret_cast<const int64_t *>(table() + columns_.size() * sizeof(ColumnEntry));
    for (uint32_t i = 0; i < n_columns_; i++) {
        ColumnEntry entry{};
        memcpy(&entry, table() + i * sizeof entry, sizeof entry);
        const int64_t *const extents = entry.ndim != 0 ? shape : nullptr;
        columns_[i] = {{nullptr, entry.bytes, extents, entry.dtype, entry.ndim, {0, 0, 0, 0}}, {}};
        shape += entry.ndim;
        column_bytes_ += entry.bytes;
    }
    for (uint32_t residue = 0; residue < 4; residue++) {
        uint64_t at = residue * kUnitBytes + sizeof(RowHeader);
        for (Column &c : columns_) {
            at = round_up(at, column_alignment(c.described.bytes));
            c.offset[residue] = at - residue * kUnitBytes;
            at += c.described.bytes;
        }
        row_bytes_[residue] = at - residue * kUnitBytes;
    }
}

uint64_t Layout::place(uint32_t residue, uint32_t i, bool in_line) const {
    const uint64_t skew = residue * kUnitBytes;
    uint64_t at = skew + sizeof(RowHeader) + (in_line ? table_bytes() : 0);
    for (uint32_t c = 0; c < n_columns(); c++) {
        at = round_up(at, column_alignment(columns_[c].described.bytes));
        if (c == i) return at - skew;
        at += columns_[c].described.bytes;
    }
    return at - skew;
}

bool read_inline_column(const char *row, uint64_t bytes, uint32_t n_columns, uint32_t i, cache_column *column) {
    uint64_t end = 0;
    return i < n_columns && walk_inline(row, bytes, n_columns, i, column, &end);
}

uint64_t check_inline_table(const char *row, uint64_t bytes, uint32_t n_columns) {
    uint64_t end = 0;
    return walk_inline(row, bytes, n_columns, n_columns, nullptr, &end) ? end : 0;
}

} // namespace libcache
