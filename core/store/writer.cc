// SPDX-License-Identifier: Apache-2.0
// Placing and publishing rows. Taking and sealing extents: writer_extents.cc. Waiting for the broker: writer_wait.cc.
#include "core/store/writer.h"

#include "core/common/error.h"
#include "core/common/pause.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace libcache {

Writer::Writer(const RegionMap &writing, const RegionMap &reading, uint32_t slot, uint64_t epoch, BrokerLink &link,
               Layouts &layouts)
    : map_(writing), reading_(reading), header_(writing.header()), slot_(writing.slot(slot)), slot_number_(slot),
      epoch_(epoch), link_(link), layouts_(layouts), grants_(&slot_->grant), returns_(&slot_->back) {
    const Geometry &g = writing.geometry();
    index_.attach(writing.base(), reading.base(), g.data_offset, g.region_bytes);
    aside_.reserve(kRingTokens);
}

Writer::~Writer() = default;

// Units that a row takes when it begins at `at` units into an extent (extents begin on 64 KiB).
uint32_t Writer::units_of(const Row &row, uint32_t at) {
    return static_cast<uint32_t>(round_up(row.bytes(at % 4), kUnitBytes) / kUnitBytes);
}

// Writes the header of a row at `at` units into the extent, in pages that are ours.
void Writer::finish_place(Held &held, const Row &row, uint32_t at, uint32_t units, Place *place) {
    const uint64_t offset = map_.chunk_offset(held.chunk) + uint64_t{at} * kUnitBytes;
    place->address = map_.base() + offset;
    place->offset = offset;
    place->row_id = row.row_id;
    place->timeout_ns = row.timeout_ns;
    place->held = &held;
    place->units = units;
    place->column_bytes = row.number == kLayoutRow || row.stub() ? 0 : row.layout->column_bytes();
    const uint64_t bytes = row.bytes(residue_of(offset));
    const uint32_t n_columns = row.stub() ? 0 : row.layout->n_columns();
    const RowHeader header{units, row.number, row.row_id,
                           bytes, n_columns,  row_check(row.number, row.row_id, bytes, n_columns)};
    memcpy(place->address, &header, sizeof header);
}

// A row that lost its race left a hole; a row that fits goes there, with the hole's stride.
bool Writer::place_in_hole(Held &held, const Row &row, Place *place) {
    Hole *best = nullptr;
    for (Hole &hole : held.holes) {
        const uint32_t units = units_of(row, hole.at);
        // None that would stay more than half empty: a small row must not use up the room of a large one.
        if (units <= hole.units && hole.units <= 2 * uint64_t{units} && (best == nullptr || hole.units < best->units))
            best = &hole;
    }
    if (best == nullptr) return false;
    const Hole hole = *best;
    *best = held.holes.back();
    held.holes.pop_back();
    finish_place(held, row, hole.at, hole.units, place);
    return true;
}

// PROTOCOL "Use": header at `used`, then one CAS makes it part of the chain [0, used).
int Writer::use(Held &held, const Row &row, Place *place, bool *fits) {
    Extent &extent = *map_.extent(held.chunk);
    const uint32_t units = units_of(row, held.used);
    // rlx: only we move `used`; the broker may lower `limit`, which the CAS notices
    uint64_t seen = extent.bump.load(std::memory_order_relaxed);
    for (;;) {
        const Bump bump = Bump::unpack(seen);
        if (bump.used != held.used)
            return fail(CACHE_ECORRUPT, "extent %llu: its fill mark is %u, this process left it at %u",
                        static_cast<unsigned long long>(held.chunk), bump.used, held.used);
        const uint32_t limit = std::min(bump.limit, held.units);
        *fits = held.used <= limit && units <= limit - held.used;
        if (!*fits) return 0;
        const uint64_t header_end = uint64_t{held.used} * kUnitBytes + sizeof(RowHeader);
        if (header_end > held.populated) {
            // Safe before the CAS: a revoke leaves the pages of the next 4,096 bytes. Failure means page faults
            // instead.
            const uint64_t end = window_end(held, header_end);
            (void)populate(map_.chunk_address(held.chunk) + held.populated, end - held.populated);
            held.populated = end;
        }
        finish_place(held, row, held.used, units, place);
        LIBCACHE_PAUSE("writer.use.3");
        // rel [walk]: who reads this `used` (recovery) finds the header written
        if (extent.bump.compare_exchange_weak(seen, Bump{held.used + units, bump.limit}.pack(),
                                              std::memory_order_release, std::memory_order_relaxed))
            break;
    }
    LIBCACHE_PAUSE("writer.use.4");
    held.used += units;
    return 0;
}

// Rows to come will most likely lie behind this one and be as large. The locked instruction that publishes a row waits
// for all its stores, so their cache lines had better be ours by then: the server has zeroed them, on another
// processor. Two rows ahead; `populated` bytes of ours follow. At most 64 lines, a page: the mutex is held, and over a
// larger row the copy is long enough for the processor to see where it goes and to run ahead by itself.
void Writer::prefetch_ahead(const Place &place, uint64_t populated) {
    constexpr uint64_t kMost = 4096;
    const uint64_t bytes = uint64_t{place.units} * kUnitBytes;
    if (bytes > kMost || populated < 2 * bytes) return;
    for (uint64_t at = 2 * bytes; at < 3 * bytes && at < bytes + populated; at += kCacheLine)
        prefetch_to_write(place.address + at);
}

int Writer::place(const Row &row, Place *place) {
    return place_in(&Writer::current_, row, place);
}

int Writer::place_stub(int64_t row_id, int64_t timeout_ns, Place *place) {
    const Row stub{nullptr, kSpilledRow, row_id, timeout_ns};
    const int rc = place_in(&Writer::stubs_, stub, place);
    if (rc != CACHE_EFULL) return rc;
    // Many writers of a small cache may have used up what is kept for stubs. Here is what a row was too large for.
    std::lock_guard lock(mutex_);
    bool fits = false;
    if (current_ != nullptr && !(fits = place_in_hole(*current_, stub, place)))
        if (int failed = use(*current_, stub, place, &fits); failed != 0) return failed;
    if (!fits) return rc;
    current_->started++;
    return 0;
}

void Writer::fill_stub(const Place &place, const SpillStub &stub) {
    auto &header = *reinterpret_cast<RowHeader *>(place.address);
    header.layout = stub.layout_word();
    header.bytes = stub.bytes_word();
    header.n_columns = stub.crc;
    header.check = row_check(header.layout, place.row_id, header.bytes, header.n_columns);
}

// Rows and stubs have extents of their own, each a lane (current_, stubs_): small rows would use up the share that is
// kept for stubs.
int Writer::place_in(Held *Writer::*lane, const Row &row, Place *place) {
    Held *&current = this->*lane;
    Deadline deadline{row.timeout_ns};
    std::unique_lock lock(mutex_);
    for (;;) {
        bool fits = false;
        Held *held = current;
        if (held != nullptr && !(fits = place_in_hole(*held, row, place)))
            if (int rc = use(*held, row, place, &fits); rc != 0) return rc;
        if (!fits) {
            // acq, and before looking at the ring: an answer that comes later ends the wait at once
            const uint32_t seen = slot_->futex.load(std::memory_order_acquire);
            held = take(row);
            if (held == nullptr) {
                if (int rc = wait_for_extent(lock, seen, row, &deadline); rc != 0) return rc;
                continue;
            }
            if (int rc = use(*held, row, place, &fits); rc != 0) return rc;
        }
        if (fits) {
            held->started++;
            Extent &extent = *map_.extent(held->chunk);
            // Not a read-modify-write: all writers of this word hold this mutex
            extent.bytes.store(extent.bytes.load(std::memory_order_relaxed) + place->column_bytes,
                               std::memory_order_relaxed);
        }
        // `held` was taken just now, since `current` had no room for this row. Whichever of the two has more room left
        // is the lane's from here on, so that a large row does not end an extent where small ones still fit: the swap
        // puts the other one into `held`, and that is retired. If it holds this row, the row is in flight (`started`)
        // and the seal waits for it.
        if (held != current) {
            if (current == nullptr || room(*held) > room(*current)) std::swap(held, current);
            if (current != nullptr) current->current.store(true, std::memory_order_seq_cst);
            if (held != nullptr) retire(*held);
        }
        if (!fits) continue; // `limit` was cut by a revoke since it was taken
        const uint64_t row_end =
            place->offset + uint64_t{place->units} * kUnitBytes - map_.chunk_offset(place->held->chunk);
        if (row_end > place->held->populated)
            populate_to(lock, *place->held, row_end);
        else
            prefetch_ahead(*place, place->held->populated - row_end);
        return 0;
    }
}

bool Writer::place_usual(const Layout &layout, uint32_t number, int64_t row_id, Place *place) {
    std::lock_guard lock(mutex_);
    Held *const held = current_;
    if (held == nullptr || !held->holes.empty()) return false;
    Extent &extent = *map_.extent(held->chunk);
    const uint32_t at = held->used;
    const uint32_t residue = at % 4; // as residue_of(its offset): extents begin on 64 KiB
    const uint64_t bytes = layout.row_bytes(residue, false);
    const uint32_t units = static_cast<uint32_t>(round_up(bytes, kUnitBytes) / kUnitBytes);
    uint64_t seen = extent.bump.load(std::memory_order_relaxed); // as in use()
    const Bump bump = Bump::unpack(seen);
    const uint64_t end = uint64_t{at} + units; // none is made of a `used` that is not ours
    if (bump.used != at || end > std::min(bump.limit, held->units) || end * kUnitBytes > held->populated) return false;
    place->offset = map_.chunk_offset(held->chunk) + uint64_t{at} * kUnitBytes;
    place->address = map_.base() + place->offset;
    place->row_id = row_id;
    place->held = held;
    place->units = units;
    place->column_bytes = layout.column_bytes();
    *reinterpret_cast<RowHeader *>(place->address) = {
        units, number, row_id, bytes, layout.n_columns(), row_check(number, row_id, bytes, layout.n_columns())};
    LIBCACHE_PAUSE("writer.use.3");
    // rel [walk]: as in use(). Lost to a revoke, which lowered `limit`: the header stays above `used`, where nobody
    // reads, until place() or another row writes its own over it.
    if (!extent.bump.compare_exchange_strong(seen, Bump{at + units, bump.limit}.pack(), std::memory_order_release,
                                             std::memory_order_relaxed))
        return false;
    LIBCACHE_PAUSE("writer.use.4");
    held->used = at + units;
    held->started++;
    // Not a read-modify-write: all writers of this word hold this mutex
    extent.bytes.store(extent.bytes.load(std::memory_order_relaxed) + place->column_bytes, std::memory_order_relaxed);
    prefetch_ahead(*place, held->populated - end * kUnitBytes);
    return true;
}

// A row was published: its flight ends. Not under the mutex.
void Writer::count_row(Held &held) {
    LIBCACHE_PAUSE("writer.publish.1");
    // seq_cst [inflight]: counts the row and ends its flight. Either we see that the extent is no more the current one,
    // or who retires it sees our count: somebody seals it. Also rel: our bytes before a seal.
    map_.extent(held.chunk)->rows.fetch_add(1, std::memory_order_seq_cst);
    if (!held.current.load(std::memory_order_seq_cst)) seal_if_done(held); // [inflight]
}

int Writer::publish(const Place &place) {
    LIBCACHE_PAUSE("writer.insert.1");
    if (index_.insert_usual(place.row_id, place.offset)) {
        if (meets_repeats()) meets_repeats_.store(false, std::memory_order_relaxed);
        return count_row(*place.held), 0;
    }
    Deadline deadline{place.timeout_ns};
    for (;;) {
        uint32_t levels = 0;
        if (const int rc = try_publish(place, &levels); rc != kNoLevel) return rc;
        if (const int rc = wait_for_level(levels, place.row_id, &deadline); rc != 0) return give_back(place), rc;
    }
}

int Writer::try_publish(const Place &place, uint32_t *levels) {
    switch (index_.insert(place.row_id, place.offset, levels)) {
    case Index::Insert::Won: count_row(*place.held); return 0;
    case Index::Insert::Present:
        meets_repeats_.store(true, std::memory_order_relaxed);
        give_back(place);
        return 1;
    case Index::Insert::NoRoom: break;
    }
    return kNoLevel;
}

void Writer::give_back(const Place &place) {
    std::lock_guard lock(mutex_);
    Held &held = *place.held;
    Extent &extent = *map_.extent(held.chunk);
    extent.bytes.store(extent.bytes.load(std::memory_order_relaxed) - place.column_bytes, std::memory_order_relaxed);
    const uint32_t at = static_cast<uint32_t>((place.offset - map_.chunk_offset(held.chunk)) / kUnitBytes);
    if (at + place.units == held.used) {
        uint64_t seen = extent.bump.load(std::memory_order_relaxed); // only `limit` may move under us
        // rel: whoever is lent the room above `used` comes after the bytes that were written there
        while (Bump::unpack(seen).used == held.used &&
               !extent.bump.compare_exchange_weak(seen, Bump{at, Bump::unpack(seen).limit}.pack(),
                                                  std::memory_order_release, std::memory_order_relaxed)) {
        }
        held.used = at;
    } else if (held.holes.size() < held.holes.capacity()) { // further holes stay dead rows
        held.holes.push_back({at, place.units});
    }
    settle(held);
}

bool Writer::builds(uint64_t term) const {
    // rlx: what is appended is decided under the mutex, which end_appends() holds
    if (term == 0 || term == ended_term_.load(std::memory_order_relaxed)) return false;
    // acq: what the last builder published before it ended is seen
    return header_->builder.load(std::memory_order_acquire) == Builder{slot_number_, term}.pack();
}

void Writer::end_appends(uint64_t term) {
    std::lock_guard lock(mutex_);
    ended_term_.store(term, std::memory_order_relaxed);
}

int64_t Writer::resume() {
    std::lock_guard lock(mutex_);
    uint64_t next = header_->next.load(std::memory_order_acquire); // [append]
    while (index_.find(static_cast<int64_t>(next)) != 0)
        next++;
    header_->next.store(next, std::memory_order_release); // [append]
    return static_cast<int64_t>(next);
}

// No stream gets that far: somebody has written there.
int Writer::no_id() const {
    return fail(CACHE_ECORRUPT,
                "the next id of the stream in cache %u of session %u is %lld: its region is damaged; destroy the cache "
                "and build it anew",
                header_->cache_id, header_->session_id,
                static_cast<long long>(header_->next.load(std::memory_order_relaxed)));
}

// One try, under the mutex: ids are given in the order of publishing, and none is left out.
Writer::Appended Writer::append_once(const Place &place, uint64_t term, bool promised, int64_t *row_id,
                                     uint32_t *levels) {
    std::lock_guard lock(mutex_);
    if (!builds(term)) return Appended::NotBuilder;
    if (!promised && promised_ != 0) return Appended::Behind;
    auto *const header = reinterpret_cast<RowHeader *>(place.address);
    for (;;) {
        *row_id = static_cast<int64_t>(header_->next.load(std::memory_order_relaxed)); // only the builder moves it
        if (*row_id < 0) return Appended::NoId;
        header->row_id = *row_id;
        header->check = row_check(header->layout, *row_id, header->bytes, header->n_columns);
        const Index::Insert result = index_.insert(*row_id, place.offset, levels);
        if (result == Index::Insert::NoRoom) return Appended::NoRoom;
        LIBCACHE_PAUSE("writer.append.1");
        // rel [append]: who reads this `next` finds every row below it. A death before it leaves `next` behind;
        // resume() brings it up. Present: somebody put this id; the row takes the next one.
        header_->next.store(static_cast<uint64_t>(*row_id) + 1, std::memory_order_release);
        if (result != Index::Insert::Won) continue;
        if (promised && promised_ != 0) promised_--;
        return Appended::Done;
    }
}

int64_t Writer::promise(uint64_t term) {
    std::lock_guard lock(mutex_);
    if (!builds(term)) return -1;
    return static_cast<int64_t>(header_->next.load(std::memory_order_relaxed) +
                                promised_++); // only the builder moves it
}

void Writer::break_promises() {
    std::lock_guard lock(mutex_);
    promised_ = 0;
}

int Writer::append(const Place &place, uint64_t term, int64_t *row_id, bool promised) {
    Deadline deadline{place.timeout_ns};
    for (;;) {
        uint32_t levels = 0;
        if (const int rc = try_append(place, term, row_id, promised, &levels); rc != kNoLevel) return rc;
        if (const int rc = wait_for_level(levels, *row_id, &deadline); rc != 0) return give_back(place), rc;
    }
}

int Writer::try_append(const Place &place, uint64_t term, int64_t *row_id, bool promised, uint32_t *levels) {
    switch (append_once(place, term, promised, row_id, levels)) {
    case Appended::Done: count_row(*place.held); return 0;
    case Appended::Behind: return kBehind;
    case Appended::NoRoom: return kNoLevel;
    case Appended::NoId: return give_back(place), no_id();
    case Appended::NotBuilder: break;
    }
    give_back(place);
    return fail(CACHE_EBUILDING,
                "this process is not, or no more, the builder of cache %u of session %u: call cache_build_begin",
                header_->cache_id, header_->session_id);
}

// A row's flight ends without counting in Extent::rows. Under the mutex.
void Writer::settle(Held &held) {
    held.settled++;
    if (held.open && !open_for_more(held) && in_flight(held) == 0) seal(held);
}

// Writes a column table, or the schema, as a row of its own and publishes it in `entry`. 0, or 1 if entry was taken.
int Writer::store_table(const Layout &layout, int64_t number, const char *data, int64_t timeout_ns, AtomicU64 &entry) {
    Place place;
    Row row{&layout, kLayoutRow, number, timeout_ns, data == nullptr};
    // In a cache that spills, rows go on when memory is full, and what they are made of with them.
    row.may_spill = header_->spill_segments != 0;
    int rc = this->place(row, &place);
    if (rc == CACHE_EFULL && std::exchange(row.may_spill, false)) {
        row.from_share = true;
        rc = place_in(&Writer::stubs_, row, &place);
    }
    if (rc != 0) return rc;
    memcpy(place.address + sizeof(RowHeader), layout.table(), layout.table_bytes());
    if (data != nullptr)
        memcpy(place.address + layout.column_offset_in_line(residue_of(place.offset), 0), data, layout.column_bytes());
    uint64_t seen = 0;
    LIBCACHE_PAUSE("writer.table.1");
    // rel [publish] pairs with Layouts::offset(): the table's bytes before the entry
    const bool won = entry.compare_exchange_strong(seen, IndexEntry::pack(0, place.offset), std::memory_order_release,
                                                   std::memory_order_relaxed);
    if (!won) return give_back(place), 1;
    std::lock_guard lock(mutex_);
    settle(*place.held);
    return 0;
}

int Writer::store_layout(const Layout &layout, int64_t timeout_ns, uint32_t *number) {
    for (;;) {
        *number = layouts_.stored();
        if (*number == kMaxLayouts) {
            *number = kInlineLayout;
            return 0;
        }
        const int rc = store_table(layout, *number, nullptr, timeout_ns, header_->layout[*number]);
        if (rc <= 0) return rc;
        const Layout *const theirs = layouts_.get(*number);
        if (theirs != nullptr && *theirs == layout) return 0; // somebody else has the same columns
        if (layouts_.offset(*number) == 0)                    // neither free nor a layout: it would be tried for ever
            return fail(CACHE_ECORRUPT, "the entry of layout %u of cache %u of session %u is damaged", *number,
                        header_->cache_id, header_->session_id);
    }
}

int Writer::store_schema(const Layout &layout, const char *data, int64_t timeout_ns) {
    return store_table(layout, kMaxLayouts, data, timeout_ns, header_->schema);
}

} // namespace libcache
