// SPDX-License-Identifier: Apache-2.0
#include "core/store/audit.h"

#include <cstring>

namespace libcache {
namespace {

constexpr uint32_t kHeaderUnits = sizeof(RowHeader) / kUnitBytes;

} // namespace

bool row_is_live(Index &index, const RegionHeader &header, const RowHeader &row, uint64_t offset) {
    if (row.layout != kLayoutRow) return row.row_id >= 0 && index.holds(row.row_id, offset);
    if (row.row_id < 0 || row.row_id > static_cast<int64_t>(kMaxLayouts)) return false;
    const AtomicU64 &entry =
        row.row_id == static_cast<int64_t>(kMaxLayouts) ? header.schema : header.layout[row.row_id];
    // acq [publish]: who asks goes on to read the row
    const uint64_t seen = entry.load(std::memory_order_acquire);
    return seen != 0 && IndexEntry::offset(seen) == offset;
}

ExtentAudit audit_extent(Index &index, const RegionHeader &header, const char *extent, uint64_t offset, uint32_t used) {
    ExtentAudit audit;
    uint64_t dead_run = 0; // dead units since the last live row
    for (uint32_t at = 0; at < used;) {
        RowHeader row{}; // its stride is 0, and none may be, when fewer bytes than a header are left
        if (used - at >= kHeaderUnits) memcpy(&row, extent + uint64_t{at} * kUnitBytes, sizeof row);
        if (row.stride < kHeaderUnits || row.stride > used - at) {
            audit.clear = false; // keep everything: never trim what is unclear
            audit.used = used;
            audit.dead_units += dead_run;
            return audit;
        }
        if (row_is_live(index, header, row, offset + uint64_t{at} * kUnitBytes)) {
            if (row.layout != kLayoutRow) {
                audit.rows++;
                if (row.bytes > sizeof(RowHeader) && !SpillStub::is(row.layout))
                    audit.bytes += row.bytes - sizeof(RowHeader);
            }
            audit.dead_units += dead_run;
            dead_run = 0;
            audit.used = at + row.stride;
        } else {
            dead_run += row.stride;
        }
        at += row.stride;
    }
    return audit;
}

} // namespace libcache
