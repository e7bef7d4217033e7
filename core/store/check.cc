// SPDX-License-Identifier: Apache-2.0
#include "core/store/check.h"

#include "core/common/page.h"
#include "core/store/audit.h"
#include "core/store/layouts.h"
#include "core/store/stats.h"

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <ctime>
#include <map>
#include <set>
#include <unordered_set>

namespace libcache {
namespace {

struct Run {
    ExtentWord word;
    uint32_t used;
    bool counted = false; // SEALED, and its rows were looked at: `live` of them are found by the index
    uint64_t live = 0, entries = 0;
};
using Heads = std::map<uint64_t, Run>; // by chunk

constexpr uint32_t kKnownFlags = kRegionHuge | kRegionBuild | kRegionSpill;

class Checker {
  public:
    // `live`: writers and broker go on meanwhile. What they may leave half done for long is no fault then.
    Checker(const RegionMap &map, std::string *report, bool live = false)
        : map_(map), header_(*map.header()), report_(report), live_(live) {
        const Geometry &g = map.geometry();
        index_.attach(map.base(), map.base(), g.data_offset, g.region_bytes);
        layouts_.attach(map.base(), g.data_offset, g.region_bytes);
    }

    bool run() {
        check_header();
        check_slots();
        check_extents();
        check_tables();
        check_rows();
        check_spill();
        check_index();
        return ok_;
    }

  private:
    const RegionMap &map_;
    const RegionHeader &header_;
    std::string *report_;
    const bool live_;
    Index index_;
    Layouts layouts_;
    Heads heads_;
    Heads heads_now_; // of a live region: looked at once more
    uint64_t live_rows_ = 0;
    std::map<uint64_t, std::pair<uint64_t, int64_t>> spilled_; // place in the file -> its end, row id
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

    // What was written once, before anybody else had the region.
    void check_constants() {
        const RegionHeader &h = header_;
        const Geometry &g = map_.geometry();
        const Geometry said{h.region_bytes, h.slots_offset, h.slots,        h.table_offset,  h.chunks,
                            h.data_offset,  h.huge_chunks,  h.spill_offset, h.spill_segments};
        const uint64_t magic = h.magic.load(std::memory_order_relaxed);
        if (magic != kRegionMagic || h.version != kFormatVersion || h.stamp != kLayoutStamp)
            wrong("header: magic %016llx, version %u, stamp %016llx are not those of a region", big(magic), h.version,
                  big(h.stamp));
        if (!(said == g)) wrong("header: the geometry was changed");
        // Asked for on huge pages, a limit below one of them makes a region without any.
        if (!(Geometry::for_limit(h.limit_bytes, false, g.spill_segments) == g) &&
            !(Geometry::for_limit(h.limit_bytes, true, g.spill_segments) == g))
            wrong("header: a limit of %llu bytes makes another region than this", big(h.limit_bytes));
        if ((h.flags & ~kKnownFlags) != 0 || ((h.flags & kRegionHuge) != 0) != (g.huge_chunks != 0) ||
            ((h.flags & kRegionSpill) != 0) != (g.spill_segments != 0))
            wrong("header: flags 0x%x do not go with its %llu huge chunks and %llu spill segments", h.flags,
                  big(g.huge_chunks), big(g.spill_segments));
    }

    // Who may append, and the state of the whole.
    void check_states() {
        const uint64_t state = header_.state.load(std::memory_order_acquire);
        if (state != uint64_t(CacheState::Live) && state != uint64_t(CacheState::Dying))
            wrong("header: state %llu", big(state));
        const uint64_t built = header_.built.load(std::memory_order_acquire);
        const uint64_t builder = header_.builder.load(std::memory_order_acquire);
        const uint64_t next = header_.next.load(std::memory_order_acquire);
        const bool stream = (header_.flags & kRegionBuild) != 0;
        if (built > 1 || (!stream && (built | builder | next) != 0))
            wrong("stream: built %llu, builder %llx, next id %llu in a cache %s", big(built), big(builder), big(next),
                  stream ? "that is built" : "whose rows are put");
        if (builder != 0 && !is_lent_to(Builder::unpack(builder).slot))
            wrong("stream: its builder is slot %u, which is not active", Builder::unpack(builder).slot);
    }

    uint64_t slots_top() const {
        return std::min(header_.slots_top.load(std::memory_order_acquire), map_.geometry().slots);
    }

    // Something may be lent to this slot. When live also one that is being recovered.
    bool is_lent_to(uint32_t slot) const {
        if (slot >= slots_top()) return false;
        const SlotWord owner = SlotWord::unpack(map_.slot(slot)->owner.load(std::memory_order_acquire));
        return owner.state == SlotState::Active || (live_ && owner.state == SlotState::Dead);
    }

    void check_ring(uint32_t slot, const char *name, const TokenRing &ring) {
        // In this order: of a ring in use `head` is the later one, and never seems to be behind
        const uint64_t tail = ring.tail.load(std::memory_order_acquire);
        const uint64_t head = ring.head.load(std::memory_order_acquire);
        if (head - tail > kRingTokens)
            wrong("slot %u: its ring of %s tells of %llu written and %llu taken tokens", slot, name, big(head),
                  big(tail));
    }

    void check_slots() {
        std::map<uint64_t, uint32_t> connections;
        for (uint32_t i = 0; i < slots_top(); i++) {
            const Slot &slot = *map_.slot(i);
            const SlotWord owner = SlotWord::unpack(slot.owner.load(std::memory_order_acquire));
            if (static_cast<uint32_t>(owner.state) > static_cast<uint32_t>(SlotState::Dead))
                wrong("slot %u: state %u", i, static_cast<unsigned>(owner.state));
            if (owner.state != SlotState::Active) continue;
            check_ring(i, "grants", slot.grant);
            check_ring(i, "returns", slot.back);
            const uint64_t id = slot.conn_id.load(std::memory_order_relaxed);
            if (const auto [other, fresh] = connections.insert({id, i}); !fresh && id != 0)
                wrong("slots %u and %u are both connection %llu's", other->second, i, big(id));
        }
    }

    void check_header() {
        check_constants();
        check_states();
        const Geometry &g = map_.geometry();
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
            heads_[chunk] = {.word = word, .used = used};
            if (word.state != ExtentState::Empty) charged += uint64_t{word.len} * kChunkBytes;
            check_state(chunk, word);
        });
        const uint64_t table_top = header_.table_top.load(std::memory_order_acquire);
        if (end < table_top) wrong("extents: the walk ends at chunk %llu of %llu", big(end), big(table_top));
        const Geometry &g = map_.geometry();
        const uint64_t slots_end = g.slots_offset + slots_top() * sizeof(Slot);
        charged += round_up(slots_end, page_bytes());
        charged += round_up(table_top * sizeof(Extent), page_bytes());
        charged += round_up(spill_top() * sizeof(SpillSegment), page_bytes());
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
            if (word.slot >= slots_top())
                wrong("extent %llu: lent to slot %u, which does not exist", big(chunk), word.slot);
            else if (!is_lent_to(word.slot))
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
            if (word.slot != k) wrong("extent %llu: is index level %u and says level %u", big(chunk), k, word.slot);
            if (offset + index_.level(k).slots * sizeof(uint64_t) > map_.chunk_offset(chunk + word.len))
                wrong("level %u: longer than its extent %llu", k, big(chunk));
        }
        const bool growing = live_ && named == 0 && word.slot == index_.known(); // the next level, being zeroed
        if (named != 1 && !growing) wrong("extent %llu: an index extent that %d levels name", big(chunk), named);
    }

    void check_level(uint32_t k) {
        const uint64_t offset = header_.level[k].offset.load(std::memory_order_relaxed);
        auto head = heads_.upper_bound((offset - map_.geometry().data_offset) / kChunkBytes);
        if (head == heads_.begin() || (--head)->second.word.state != ExtentState::Index ||
            offset != map_.chunk_offset(head->first))
            wrong("level %u: does not begin an index extent", k);
    }

    // Its pages are there.
    bool touchable(uint64_t chunk, ExtentWord word) const {
        return map_.chunk_offset(chunk + word.len) <= header_.top_bytes.load(std::memory_order_acquire);
    }
    // Since it was looked at. acq: as that load
    bool changed(uint64_t chunk, ExtentWord word) const {
        return live_ && map_.extent(chunk)->own.load(std::memory_order_acquire) != word.pack();
    }

    // Layouts and the schema: stored in order, each a row that has no id.
    void check_tables() {
        bool gap = false;
        for (uint32_t i = 0; i < kMaxLayouts; i++) {
            const uint64_t entry = header_.layout[i].load(std::memory_order_acquire); // [publish]
            if (entry == 0) {
                gap = true;
                continue;
            }
            if (gap) wrong("layout %u: is stored after a gap", i);
            if (!in_row_extent(index_.row_offset(entry)))
                wrong("layout %u: its entry names no row", i);
            else if (layouts_.get(i) == nullptr)
                wrong("layout %u: its column table is damaged", i);
        }
        const uint64_t entry = header_.schema.load(std::memory_order_acquire); // [publish]
        if (entry == 0) return;
        const uint64_t offset = index_.row_offset(entry);
        RowHeader row{};
        const bool there = in_row_extent(offset);
        if (there) memcpy(&row, map_.base() + offset, sizeof row);
        if (row.layout != kLayoutRow || row.row_id != int64_t{kMaxLayouts} ||
            row.check != row_check(row.layout, row.row_id, row.bytes, row.n_columns) ||
            !index_.reaches(offset, row.bytes) || row.bytes == 0 ||
            check_inline_table(map_.base() + offset, row.bytes, row.n_columns) != row.bytes)
            wrong("schema: its entry names %s", there ? "a damaged row" : "no row");
    }

    void check_rows() {
        for (auto &[chunk, run] : heads_) {
            if (run.word.state != ExtentState::Sealed && run.word.state != ExtentState::Held &&
                run.word.state != ExtentState::Granted)
                continue;
            const uint64_t units = uint64_t{run.word.len} * (kChunkBytes / kUnitBytes);
            if (run.used > units || !touchable(chunk, run.word)) continue; // reported already
            if (changed(chunk, run.word)) continue;                        // no word of it means anything any more
            const ExtentAudit audit =
                audit_extent(index_, header_, map_.chunk_address(chunk), map_.chunk_offset(chunk), run.used);
            const Extent &extent = *map_.extent(chunk);
            const uint64_t rows = extent.rows.load(std::memory_order_acquire);
            const uint64_t bytes = extent.bytes.load(std::memory_order_acquire);
            const uint64_t dead = extent.dead.load(std::memory_order_acquire);
            if (changed(chunk, run.word)) continue;
            if (!audit.clear) wrong("extent %llu: its chain of headers is broken", big(chunk));
            live_rows_ += audit.rows;
            const uint64_t columns = check_live_rows(chunk, run.used);
            if (run.word.state != ExtentState::Sealed) continue; // counts of a holder are behind its rows
            run.counted = audit.clear;
            run.live = audit.rows;
            if (rows != audit.rows)
                wrong("extent %llu: %llu rows stated, %llu found", big(chunk), big(rows), big(audit.rows));
            // A writer counts columns, recovery all that is behind the headers.
            if (audit.clear && (bytes < columns || bytes > audit.bytes))
                wrong("extent %llu: %llu bytes stated, its rows have %llu to %llu", big(chunk), big(bytes),
                      big(columns), big(audit.bytes));
            if (audit.clear && dead > audit.dead_units) // as recovery counted them; since then there may be more
                wrong("extent %llu: %llu dead units stated, %llu found", big(chunk), big(dead), big(audit.dead_units));
        }
    }

    // The bytes of the columns of those rows whose layout is stored.
    uint64_t check_live_rows(uint64_t chunk, uint32_t used) {
        constexpr uint64_t kHeaderUnits = sizeof(RowHeader) / kUnitBytes;
        uint64_t columns = 0;
        for (uint64_t at = 0; at < used && used - at >= kHeaderUnits;) {
            const uint64_t offset = map_.chunk_offset(chunk) + at * kUnitBytes;
            RowHeader row;
            memcpy(&row, map_.base() + offset, sizeof row);
            if (row.stride < kHeaderUnits || row.stride > used - at) break; // reported by the audit
            at += row.stride;
            if (!row_is_live(index_, header_, row, offset)) continue;
            if (row.check != row_check(row.layout, row.row_id, row.bytes, row.n_columns) ||
                (row.bytes > uint64_t{row.stride} * kUnitBytes && !SpillStub::is(row.layout)))
                wrong("row %lld at %llu: its header is damaged", static_cast<long long>(row.row_id), big(offset));
            else if (SpillStub::is(row.layout)) {
                check_stub(row.row_id, SpillStub::unpack(row.layout, row.bytes, row.n_columns));
            } else if (row.layout == kInlineLayout) {
                if (row.bytes == 0 || check_inline_table(map_.base() + offset, row.bytes, row.n_columns) != row.bytes)
                    wrong("row %lld at %llu: its column table is damaged", static_cast<long long>(row.row_id),
                          big(offset));
            } else if (row.layout != kLayoutRow) {
                const Layout *layout = layouts_.get(row.layout);
                if (layout == nullptr || layout->row_bytes(residue_of(offset), false) != row.bytes ||
                    layout->n_columns() != row.n_columns)
                    wrong("row %lld at %llu: does not fit layout %u", static_cast<long long>(row.row_id), big(offset),
                          row.layout);
                else
                    columns += layout->column_bytes();
            }
        }
        return columns;
    }

    uint64_t spill_top() const {
        return std::min(header_.spill_top.load(std::memory_order_acquire), map_.geometry().spill_segments);
    }

    void check_stub(int64_t id, const SpillStub &stub) {
        const auto [place, fresh] = spilled_.insert({stub.offset, {stub.offset + stub.bytes, id}});
        if (!fresh)
            wrong("rows %lld and %lld are spilled to the same place", static_cast<long long>(id),
                  static_cast<long long>(place->second.second));
    }

    void check_spill() {
        if (header_.spill_top.load(std::memory_order_acquire) > map_.geometry().spill_segments)
            wrong("header: spill_top out of range");
        uint64_t end = 0;
        for (const auto &[start, row] : spilled_) {
            if (start < end) wrong("row %lld lies over another in the spill file", static_cast<long long>(row.second));
            end = std::max(end, row.first);
        }
        auto stub = spilled_.cbegin();
        for (uint64_t segment = 0; segment < spill_top();) {
            const uint64_t own = map_.segment(segment)->own.load(std::memory_order_acquire);
            const ExtentWord word = ExtentWord::unpack(own);
            if (word.len == 0 || word.len > map_.geometry().spill_segments - segment) {
                wrong("spill segment %llu: length %u", big(segment), word.len);
                break;
            }
            check_run(segment, word, &stub);
            segment += word.len;
        }
        if (stub != spilled_.end())
            wrong("row %lld: its stub names no place in the spill file", static_cast<long long>(stub->second.second));
    }

    // A run of the spill file against the stubs from *stub on that point into it.
    void check_run(uint64_t segment, ExtentWord word, decltype(spilled_)::const_iterator *stub) {
        const SpillSegment &run = *map_.segment(segment);
        const uint64_t start = segment * kSegmentBytes, end = start + word.len * kSegmentBytes;
        const bool lent = word.state == ExtentState::Granted || word.state == ExtentState::Held;
        const uint64_t used = run.used.load(std::memory_order_acquire);
        const uint64_t stated = run.rows.load(std::memory_order_acquire);
        const uint64_t stated_bytes = run.bytes.load(std::memory_order_acquire);
        uint64_t rows = 0, last = start, bytes = 0; // of the images: columns, and a little more
        for (; *stub != spilled_.end() && (*stub)->first < end; ++*stub, rows++) {
            last = std::max(last, (*stub)->second.first);
            bytes += (*stub)->second.first - (*stub)->first;
        }
        if (live_ && run.own.load(std::memory_order_acquire) != word.pack()) return; // changed since it was looked at
        if (word.state != ExtentState::Sealed && !lent) {
            if (static_cast<uint32_t>(word.state) >= static_cast<uint32_t>(ExtentState::Sealed))
                wrong("spill segment %llu: state %u", big(segment), static_cast<unsigned>(word.state));
            if (rows != 0) wrong("spill segment %llu: holds %llu rows and is free", big(segment), big(rows));
            return;
        }
        if (used > word.len * kSegmentBytes || used % kUnitBytes != 0)
            wrong("spill segment %llu: %llu bytes used of %u segments", big(segment), big(used), word.len);
        if (last > start + used) wrong("spill segment %llu: a row lies beyond what is used", big(segment));
        if (word.state == ExtentState::Sealed && rows != stated)
            wrong("spill segment %llu: %llu rows stated, %llu found", big(segment), big(stated), big(rows));
        if (word.state == ExtentState::Sealed && stated_bytes > bytes)
            wrong("spill segment %llu: %llu bytes stated, its rows take %llu", big(segment), big(stated_bytes),
                  big(bytes));
        if (lent && !is_lent_to(word.slot))
            wrong("spill segment %llu: lent to slot %u, which is not active", big(segment), word.slot);
    }

    static bool holds_rows(ExtentState state) {
        return state == ExtentState::Sealed || state == ExtentState::Held || state == ExtentState::Granted;
    }
    // The extent that holds rows and has `offset` below its `used`, or null.
    Run *row_extent(Heads &heads, uint64_t offset) const {
        if (offset < map_.geometry().data_offset) return nullptr;
        const uint64_t chunk = (offset - map_.geometry().data_offset) / kChunkBytes;
        auto head = heads.upper_bound(chunk);
        if (head == heads.begin()) return nullptr;
        --head;
        auto &[first, run] = *head;
        if (!holds_rows(run.word.state)) return nullptr;
        // Its holder goes on meanwhile: acq, for whoever saw the row's entry sees the `used` that was before
        const uint32_t used =
            live_ ? Bump::unpack(map_.extent(first)->bump.load(std::memory_order_acquire)).used : run.used;
        return offset < map_.chunk_offset(first) + uint64_t{used} * kUnitBytes ? &run : nullptr;
    }
    // The same, of a live region also in what was lent since the heads were walked.
    bool in_row_extent(uint64_t offset) {
        if (row_extent(heads_, offset) != nullptr) return true;
        if (!live_ || offset == 0) return false;
        if (row_extent(heads_now_, offset) != nullptr) return true;
        heads_now_.clear();
        for_each_extent(map_, [&](uint64_t chunk, ExtentWord word) { heads_now_[chunk] = {.word = word, .used = 0}; });
        return row_extent(heads_now_, offset) != nullptr;
    }

    // All entries of the window before entry `i`.
    static bool filled(const Index::KnownLevel &level, uint64_t i) {
        for (uint64_t k = i / kWindow * kWindow; k < i; k++)
            if (level.entries[k].load(std::memory_order_acquire) == 0) return false;
        return true;
    }

    // A stream has no hole: its rows are those below `next`, and maybe the one that is being appended.
    void check_stream(uint64_t next_before, const std::unordered_set<int64_t> &ids) {
        if ((header_.flags & kRegionBuild) == 0) return;
        const uint64_t next = header_.next.load(std::memory_order_acquire); // [append]
        uint64_t below = 0;
        for (const int64_t id : ids) {
            below += static_cast<uint64_t>(id) < next_before;
            if (static_cast<uint64_t>(id) > next)
                wrong("stream: row %lld stands beyond the next id %llu", static_cast<long long>(id), big(next));
        }
        if (below != next_before)
            wrong("stream: %llu rows appended, the index has %llu of them", big(next_before), big(below));
    }

    void check_entry(uint32_t k, uint64_t i, uint64_t entry, std::unordered_set<int64_t> *ids) {
        const uint64_t offset = index_.row_offset(entry);
        if (Run *run = row_extent(heads_, offset); run != nullptr)
            run->entries++;
        else if (!in_row_extent(offset))
            return wrong("level %u: entry %llu names no row", k, big(i));
        const int64_t id = reinterpret_cast<const RowHeader *>(map_.base() + offset)->row_id;
        if (!ids->insert(id).second) wrong("row %lld stands twice in the index", static_cast<long long>(id));
        if (index_.find(id) != offset) wrong("row %lld is not found where it stands", static_cast<long long>(id));
        // Dense entries are found without their tag; recovery asks for it.
        if (IndexEntry::tag(entry) != (index_hash(id, k) & 0xffff))
            wrong("level %u: entry %llu has another tag than row %lld", k, big(i), static_cast<long long>(id));
    }

    void check_index() {
        std::unordered_set<int64_t> ids;
        const uint64_t next = header_.next.load(std::memory_order_acquire); // [append] and the levels of those rows
        (void)index_.refresh();                                             // what is impossible was reported
        for (uint32_t k = 0; k < index_.known(); k++) {
            const Index::KnownLevel level = index_.level(k);
            const bool hash = level.kind == LevelKind::Hash;
            for (uint64_t i = 0; i < level.slots; i++) {
                const uint64_t e = level.entries[i].load(std::memory_order_acquire);
                if (e == 0) continue;
                // Writers fill a window from its front: before this entry, seen acq, no gap can be left.
                if (hash && !filled(level, i)) wrong("level %u: entry %llu after a gap", k, big(i));
                check_entry(k, i, e, &ids);
            }
        }
        check_stream(next, ids);
        for (const auto &[chunk, run] : heads_)
            if (run.counted && run.live != run.entries && !changed(chunk, run.word))
                wrong("extent %llu: %llu of its rows are live, the index names %llu", big(chunk), big(run.live),
                      big(run.entries));
        // A moving target when live: there it is counted extent by extent.
        if (ids.size() != live_rows_ && !live_)
            wrong("%llu rows are live, the index has %zu", big(live_rows_), ids.size());
    }
};

} // namespace

bool region_check(const RegionMap &map, std::string *report) {
    return Checker(map, report).run();
}

namespace {

std::set<std::string> look(const RegionMap &map) {
    std::string report;
    std::set<std::string> faults;
    if (Checker(map, &report, true).run()) return faults;
    for (size_t at = 0, end; (end = report.find('\n', at)) != std::string::npos; at = end + 1)
        faults.insert(report.substr(at, end - at));
    return faults;
}

} // namespace

std::vector<std::string> region_check_live(const RegionMap &map) {
    std::set<std::string> faults = look(map);
    for (int64_t pause_ms = 5; !faults.empty() && pause_ms <= 160; pause_ms *= 2) {
        const timespec pause{0, pause_ms * 1'000'000};
        nanosleep(&pause, nullptr);
        const std::set<std::string> again = look(map);
        std::erase_if(faults, [&](const std::string &fault) { return again.count(fault) == 0; });
    }
    return {faults.begin(), faults.end()};
}

} // namespace libcache
