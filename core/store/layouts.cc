// SPDX-License-Identifier: Apache-2.0
#include "core/store/layouts.h"

#include <algorithm>

namespace libcache {

void Layouts::attach(const char *rows, uint64_t data_offset, uint64_t region_bytes) {
    header_ = reinterpret_cast<const RegionHeader *>(rows);
    rows_ = rows;
    data_offset_ = data_offset;
    region_bytes_ = region_bytes;
}

Layouts::~Layouts() {
    for (auto &known : known_)
        delete known.load(std::memory_order_relaxed); // nobody else is left
}

uint64_t Layouts::offset(uint32_t number) const {
    // acq [publish] pairs with Writer's CAS of the entry: the table's bytes before
    return IndexEntry::offset(header_->layout[number].load(std::memory_order_acquire));
}

uint32_t Layouts::stored() const {
    for (uint32_t i = 0; i < kMaxLayouts; i++)
        if (offset(i) == 0) return i;
    return kMaxLayouts;
}

const Layout *Layouts::load(uint32_t number) {
    const uint64_t at = offset(number);
    // Read after the entry: an older value would make a table that was just published look impossible.
    const uint64_t top = std::min(header_->top_bytes.load(std::memory_order_acquire), region_bytes_);
    if (at < data_offset_ || at + sizeof(RowHeader) > top) return nullptr;
    RowHeader header;
    __builtin_memcpy(&header, rows_ + at, sizeof header);
    if (header.layout != kLayoutRow || header.row_id != number || header.bytes < sizeof header ||
        header.bytes > top - at ||
        header.check != row_check(header.layout, header.row_id, header.bytes, header.n_columns))
        return nullptr;
    const Layout *fresh =
        Layout::parse(rows_ + at + sizeof header, header.bytes - sizeof header, header.n_columns).release();
    if (fresh == nullptr) return nullptr;
    const Layout *seen = nullptr;
    // rel: the copy before its pointer. Lost: another thread's equal copy stays
    if (known_[number].compare_exchange_strong(seen, fresh, std::memory_order_acq_rel, std::memory_order_acquire))
        return fresh;
    delete fresh;
    return seen;
}

int Layouts::find(const cache_column *columns, uint32_t n_columns) {
    const uint32_t hint = last_found_.load(std::memory_order_relaxed);
    if (const Layout *known = known_[hint].load(std::memory_order_acquire);
        known != nullptr && known->matches(columns, n_columns))
        return static_cast<int>(hint);
    for (uint32_t i = 0; i < kMaxLayouts; i++) {
        if (offset(i) == 0) return -1; // the table fills in order
        const Layout *const known = get(i);
        if (known == nullptr || !known->matches(columns, n_columns)) continue;
        last_found_.store(i, std::memory_order_relaxed);
        return static_cast<int>(i);
    }
    return -1;
}

} // namespace libcache
