// SPDX-License-Identifier: Apache-2.0
#include "core/store/check.h"

#include "core/store/audit.h"
#include "core/store/layouts.h"
#include "core/store/stats.h"

#include <cstdarg>
#include <cstring>
#include <map>
#include <unordered_set>

namespace libcache {
namespace {

struct Run {
    ExtentWord word;
    uint32_t used;
};

class Checker {
  public:
    Checker(const RegionMap &map, std::string *report) : map_(map), header_(*map.header()), report_(report) {
        const Geometry &g = map.geometry();
        index_.attach(map.base(), map.base(), g.data_offset, g.region_bytes);
        layouts_.attach(map.base(), g.data_offset, g.region_bytes);
    }

    bool run() {
        check_header();
        check_extents();
        check_rows();
        check_index();
        return ok_;
    }

  private:
    const RegionMap &map_;
    const RegionHeader &header_;
    std::string *report_;
    Index index_;
    Layouts layouts_;
    std::map<uint64_t, Run> heads_; // by chunk
    uint64_t live_rows_ = 0;
    bool ok_ = true;

    [[gnu::format(printf, 2, 3)]] void wrong(const char *format, ...) {
        ok_ = false;
        if (report_ == nullptr || report_->size() > 20'000) return;
        char line[300];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(line, sizeof line, format, arguments);
        va_end(arguments);
        report_->append(line).push_back('\n');
    }
    static unsigned long long big(uint64_t n) { return n; }

    void check_header() {
        const Geometry &g = map_.geometry();
        if (header_.region_bytes != g.region_bytes || header_.chunks != g.chunks ||
            header_.data_offset != g.data_offset)
            wrong("header: the geometry was changed");
        const uint64_t top = header_.top_bytes.load(std::memory_order_acquire);
        if (top < g.data_offset || top > g.region_bytes) wrong("header: top_bytes %llu out of range", big(top));
        if (header_.table_top.load(std::memory_order_acquire) > g.chunks) wrong("header: table_top out of range");
        if (header_.slots_top.load(std::memory_order_acquire) > g.slots) wrong("header: slots_top out of range");
        if (header_.levels.load(std::memory_order_acquire) > kMaxLevels) wrong("header: levels out of range");
        if (index_.refresh() != 0) wrong("header: an index level is impossible");
    }

    void check_extents() {
        uint64_t charged = 0;
        const uint64_t end = for_each_extent(map_, [&](uint64_t chunk, ExtentWord word) {
            const uint32_t used = Bump::unpack(map_.extent(chunk)->bump.load(std::memory_order_acquire)).used;
            heads_[chunk] = {word, used};
            if (word.state != ExtentState::Empty) charged += uint64_t{word.len} * kChunkBytes;
            check_state(chunk, word);
        });
        const uint64_t table_top = header_.table_top.load(std::memory_order_acquire);
        if (end < table_top) wrong("extents: the walk ends at chunk %llu of %llu", big(end), big(table_top));
        const Geometry &g = map_.geometry();
        const uint64_t slots_end = g.slots_offset + header_.slots_top.load(std::memory_order_acquire) * sizeof(Slot);
        charged += round_up(slots_end, 4096);
        charged += round_up(table_top * sizeof(Extent), 4096);
        const uint64_t stated = header_.charged_bytes.load(std::memory_order_acquire);
        for (uint32_t k = 0; k < index_.known(); k++)
            check_level(k);
        if (stated != charged) wrong("charged: %llu stated, the words make %llu", big(stated), big(charged));
        if (stated > header_.limit_bytes)
            wrong("charged: %llu exceed the limit %llu", big(stated), big(header_.limit_bytes));
    }

    void check_state(uint64_t chunk, ExtentWord word) {
        const Bump bump = Bump::unpack(map_.extent(chunk)->bump.load(std::memory_order_acquire));
        const uint64_t units = uint64_t{word.len} * (kChunkBytes / kUnitBytes);
        const uint64_t end_offset = map_.chunk_offset(chunk + word.len);
        if (word.state != ExtentState::Empty && word.state != ExtentState::Busy &&
            end_offset > header_.top_bytes.load(std::memory_order_acquire))
            wrong("extent %llu: reaches beyond top_bytes", big(chunk));
        switch (word.state) {
        case ExtentState::Granted:
        case ExtentState::Held: {
            if (word.slot >= header_.slots_top.load(std::memory_order_acquire)) {
                wrong("extent %llu: lent to slot %u, which does not exist", big(chunk), word.slot);
                break;
            }
            const SlotWord owner = SlotWord::unpack(map_.slot(word.slot)->owner.load(std::memory_order_acquire));
            if (owner.state != SlotState::Active)
                wrong("extent %llu: lent to slot %u, which is not active", big(chunk), word.slot);
            if (bump.used > bump.limit || bump.limit > units)
                wrong("extent %llu: used %u, limit %u of %llu", big(chunk), bump.used, bump.limit, big(units));
            break;
        }
        case ExtentState::Sealed:
            if (bump.used > units) wrong("extent %llu: used %u of %llu", big(chunk), bump.used, big(units));
            break;
        case ExtentState::Index: check_index_extent(chunk, word); break;
        case ExtentState::Empty:
        case ExtentState::Busy:
        case ExtentState::Free: break;
        default: wrong("extent %llu: state %u", big(chunk), static_cast<unsigned>(word.state));
        }
    }

    void check_index_extent(uint64_t chunk, ExtentWord word) {
        int named = 0;
        for (uint32_t k = 0; k < index_.known(); k++) {
            const uint64_t offset = header_.level[k].offset.load(std::memory_order_relaxed);
            if (offset < map_.chunk_offset(chunk) || offset >= map_.chunk_offset(chunk + word.len)) continue;
            named++;
            if (offset + index_.level(k).slots * sizeof(uint64_t) > map_.chunk_offset(chunk + word.len))
                wrong("level %u: longer than its extent %llu", k, big(chunk));
        }
        if (named != 1) wrong("extent %llu: an index extent that %d levels name", big(chunk), named);
    }

    void check_level(uint32_t k) {
        const uint64_t offset = header_.level[k].offset.load(std::memory_order_relaxed);
        auto head = heads_.upper_bound((offset - map_.geometry().data_offset) / kChunkBytes);
        if (head == heads_.begin() || (--head)->second.word.state != ExtentState::Index ||
            offset != map_.chunk_offset(head->first))
            wrong("level %u: does not begin an index extent", k);
    }

    void check_rows() {
        for (const auto &[chunk, run] : heads_) {
            if (run.word.state != ExtentState::Sealed && run.word.state != ExtentState::Held &&
                run.word.state != ExtentState::Granted)
                continue;
            const uint64_t units = uint64_t{run.word.len} * (kChunkBytes / kUnitBytes);
            if (run.used > units) continue; // reported already
            const ExtentAudit audit =
                audit_extent(index_, header_, map_.chunk_address(chunk), map_.chunk_offset(chunk), run.used);
            if (!audit.clear) wrong("extent %llu: its chain of headers is broken", big(chunk));
            const uint64_t rows = map_.extent(chunk)->rows.load(std::memory_order_acquire);
            if (run.word.state == ExtentState::Sealed && rows != audit.rows)
                wrong("extent %llu: %llu rows stated, %llu found", big(chunk), big(rows), big(audit.rows));
            live_rows_ += audit.rows;
            check_live_rows(chunk, run.used);
        }
    }

    void check_live_rows(uint64_t chunk, uint32_t used) {
        for (uint64_t at = 0; at < used;) {
            const uint64_t offset = map_.chunk_offset(chunk) + at * kUnitBytes;
            RowHeader row;
            memcpy(&row, map_.base() + offset, sizeof row);
            if (row.stride < 2 || row.stride > used - at) return; // reported by the audit
            at += row.stride;
            if (!row_is_live(index_, header_, row, offset)) continue;
            if (row.check != row_check(row.layout, row.row_id, row.bytes, row.n_columns) ||
                row.bytes > uint64_t{row.stride} * kUnitBytes)
                wrong("row %lld at %llu: its header is damaged", static_cast<long long>(row.row_id), big(offset));
            else if (row.layout == kInlineLayout) {
                if (check_inline_table(map_.base() + offset, row.bytes, row.n_columns) != row.bytes)
                    wrong("row %lld at %llu: its column table is damaged", static_cast<long long>(row.row_id),
                          big(offset));
            } else if (row.layout != kLayoutRow) {
                const Layout *layout = layouts_.get(row.layout);
                if (layout == nullptr || layout->row_bytes(residue_of(offset), false) != row.bytes)
                    wrong("row %lld at %llu: does not fit layout %u", static_cast<long long>(row.row_id), big(offset),
                          row.layout);
            }
        }
    }

    // The extent that holds rows and has `offset` below its `used`, or none.
    bool in_row_extent(uint64_t offset) const {
        if (offset < map_.geometry().data_offset) return false;
        const uint64_t chunk = (offset - map_.geometry().data_offset) / kChunkBytes;
        auto head = heads_.upper_bound(chunk);
        if (head == heads_.begin()) return false;
        --head;
        const ExtentState state = head->second.word.state;
        return (state == ExtentState::Sealed || state == ExtentState::Held || state == ExtentState::Granted) &&
               offset < map_.chunk_offset(head->first) + uint64_t{head->second.used} * kUnitBytes;
    }

    void check_index() {
        std::unordered_set<int64_t> ids;
        for (uint32_t k = 0; k < index_.known(); k++) {
            const Index::KnownLevel level = index_.level(k);
            const bool hash = level.kind == LevelKind::Hash;
            bool empty_before = false;
            for (uint64_t i = 0; i < level.slots; i++) {
                if (i % kWindow == 0) empty_before = false;
                const uint64_t e = level.entries[i].load(std::memory_order_acquire);
                if (e == 0) {
                    empty_before = true;
                    continue;
                }
                if (hash && empty_before) wrong("level %u: entry %llu after a gap", k, big(i));
                const uint64_t offset = index_.row_offset(e);
                if (offset == 0 || !in_row_extent(offset)) {
                    wrong("level %u: entry %llu names no row", k, big(i));
                    continue;
                }
                const int64_t id = reinterpret_cast<const RowHeader *>(map_.base() + offset)->row_id;
                if (!ids.insert(id).second) wrong("row %lld stands twice in the index", static_cast<long long>(id));
                if (index_.find(id) != offset)
                    wrong("row %lld is not found where it stands", static_cast<long long>(id));
            }
        }
        if (ids.size() != live_rows_) wrong("%llu rows are live, the index has %zu", big(live_rows_), ids.size());
    }
};

} // namespace

bool region_check(const RegionMap &map, std::string *report) {
    return Checker(map, report).run();
}

} // namespace libcache
