// SPDX-License-Identifier: Apache-2.0
// How a row's columns are laid out and checked (layout.h has the bytes). Used by the store; pure functions and
// immutable values, so any thread may call.
//
// Column offsets depend on where the row starts modulo 64 (rows start on 16 bytes, big columns on 64), so everything is
// kept for the four possible residues.
#pragma once

#include "capi/libcache.h"
#include "core/shm/layout.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace libcache {

inline constexpr uint64_t kMaxRowBytes = kMaxExtentChunks * kChunkBytes;

constexpr uint32_t residue_of(uint64_t offset) {
    return static_cast<uint32_t>(offset / kUnitBytes % 4);
}

uint64_t dtype_bytes(uint32_t dtype); // 0: no dtype

// 0 or CACHE_EINVAL with a sentence: dtype, dimensions, bytes == product of shape * element, data where bytes > 0
// (unless `reserving`), no overflow, row below kMaxRowBytes.
int check_columns(const cache_column *columns, uint32_t n_columns, bool reserving);

// A list of (dtype, shape) with the places of the columns: private to this process, checked, immutable.
class Layout {
  public:
    // From columns that check_columns() accepted. `in_line`: the column table is part of the row.
    static std::unique_ptr<const Layout> of(const cache_column *columns, uint32_t n_columns);
    // From a column table in shared memory, `bytes` of it readable; null if it is impossible.
    static std::unique_ptr<const Layout> parse(const char *table, uint64_t bytes, uint32_t n_columns);

    uint32_t n_columns() const { return n_columns_; }
    // True if these columns have this layout and are, apart from their data, all that check_columns() asks for.
    bool matches(const cache_column *columns, uint32_t n_columns) const {
        if (n_columns != n_columns_) return false;
        for (uint32_t i = 0; i < n_columns; i++)
            if (!matches_one(columns_[i], columns[i])) return false;
        return true;
    }
    bool operator==(const Layout &other) const { return table_ == other.table_; }

    // The column table as it stands in shared memory, a multiple of 16 bytes.
    const char *table() const { return reinterpret_cast<const char *>(table_.data()); }
    uint64_t table_bytes() const { return table_.size() * sizeof(uint64_t); }

    uint64_t column_bytes() const { return column_bytes_; }
    // Bytes from the start of the header to the end of the last column, for a row that starts at `residue`.
    uint64_t row_bytes(uint32_t residue, bool in_line) const {
        return in_line ? place(residue, n_columns(), true) : row_bytes_[residue];
    }
    // Column i's place from the start of the header.
    uint64_t column_offset(uint32_t residue, uint32_t i) const { return columns_[i].offset[residue]; }
    uint64_t column_bytes_of(uint32_t i) const { return columns_[i].described.bytes; }
    uint64_t column_offset_in_line(uint32_t residue, uint32_t i) const { return place(residue, i, true); }
    // Column i of a row that starts at `row`, at `residue`.
    void describe(const char *row, uint32_t residue, uint32_t i, cache_column *column) const {
        const Column &c = columns_[i];
        *column = c.described;
        column->data = const_cast<char *>(row) + c.offset[residue];
    }

  private:
    struct Column {
        cache_column described; // all but its data; the shape stands in table_
        uint64_t offset[4];
    };
    std::vector<uint64_t> table_;
    uint32_t n_columns_ = 0;
    std::vector<Column> columns_;
    uint64_t row_bytes_[4] = {};
    uint64_t column_bytes_ = 0;

    void finish();
    // Offset of column i (i == n_columns(): the end of the row's last column).
    uint64_t place(uint32_t residue, uint32_t i, bool in_line) const;
    bool matches_one(const Column &mine, const cache_column &column) const {
        const cache_column &is = mine.described;
        if (is.bytes != column.bytes || is.dtype != column.dtype || is.ndim != column.ndim ||
            (column.shape == nullptr && is.ndim != 0))
            return false;
        for (uint32_t d = 0; d < is.ndim; d++)
            if (is.shape[d] != column.shape[d]) return false;
        return true;
    }
};

// A column of a row that carries its own table, read from shared memory and checked. `row`: the header, `bytes`: from
// there to the end of the row. False: impossible.
bool read_inline_column(const char *row, uint64_t bytes, uint32_t n_columns, uint32_t i, cache_column *column);
// All of it at once: the place where the last column ends, or 0 if the table is impossible.
uint64_t check_inline_table(const char *row, uint64_t bytes, uint32_t n_columns);

} // namespace libcache
