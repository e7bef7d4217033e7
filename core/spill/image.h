// SPDX-License-Identifier: Apache-2.0
// A row as it stands in the spill file: as in an extent at residue 0 (layout.h, SpillStub). Used by the spill writer.
#pragma once

#include "core/spill/checksum.h"
#include "core/store/row.h"

#include <algorithm>
#include <cstring>

namespace libcache {

struct SpillRow {
    const Layout *layout;
    uint32_t number; // of the layout, or kInlineLayout
    const cache_column *columns;
    int64_t timeout_ns; // for what must come from the broker
};

class RowImage {
  public:
    RowImage(const SpillRow &row, int64_t row_id) : row_(row) {
        const uint64_t end = row.layout->row_bytes(0, in_line());
        bytes_ = round_up(end, kUnitBytes);
        header_ = {static_cast<uint32_t>(bytes_ / kUnitBytes),
                   row.number,
                   row_id,
                   end,
                   row.layout->n_columns(),
                   row_check(row.number, row_id, end, row.layout->n_columns())};
    }

    uint64_t bytes() const { return bytes_; } // a multiple of 16

    // Calls emit(data, bytes) for one piece after the other, padding included.
    template <typename Emit> void for_each_piece(Emit emit) const {
        static constexpr char kZeros[64] = {};
        emit(&header_, sizeof header_);
        uint64_t at = sizeof header_;
        if (in_line()) {
            emit(row_.layout->table(), row_.layout->table_bytes());
            at += row_.layout->table_bytes();
        }
        for (uint32_t i = 0; i < row_.layout->n_columns(); i++) {
            const cache_column &column = row_.columns[i];
            const uint64_t bytes = row_.layout->column_bytes_of(i), start = round_up(at, column_alignment(bytes));
            if (start != at) emit(kZeros, start - at);
            if (bytes != 0) emit(column.data, bytes);
            at = start + bytes;
        }
        if (bytes_ != at) emit(kZeros, bytes_ - at);
    }

    // Writes bytes() bytes to `to` and returns their CRC-32C.
    uint32_t copy_to(char *to) const {
        Crc32c crc;
        const char *checked = to;
        for_each_piece([&](const void *data, uint64_t bytes) {
            // In pieces that are in the first cache still when their sum is made
            for (const char *from = static_cast<const char *>(data); bytes != 0;) {
                const uint64_t n = std::min(bytes, kCopiedPiece);
                memcpy(to, from, n);
                to += n;
                from += n;
                bytes -= n;
                if (static_cast<uint64_t>(to - checked) < kCopiedPiece) continue;
                crc.add(checked, static_cast<uint64_t>(to - checked));
                checked = to;
            }
        });
        crc.add(checked, static_cast<uint64_t>(to - checked));
        return crc.value();
    }

  private:
    static constexpr uint64_t kCopiedPiece = 16 << 10;

    const SpillRow &row_;
    uint64_t bytes_;
    RowHeader header_;

    bool in_line() const { return row_.number == kInlineLayout; }
};

} // namespace libcache
