// SPDX-License-Identifier: Apache-2.0
// Writing rows. Begin at put_row. The story of a put: known columns, not there yet, a writer, a place, the bytes, one
// CAS that makes it visible; put_usual() is the short way through it.
#include "core/client/cache.h"

#include "core/common/error.h"
#include "core/common/pause.h"

#include <cstring>

namespace libcache {
namespace {

// The columns of the row at hand: a stored layout's number, or a layout of the row's own.
struct RowLayout {
    const Layout *layout = nullptr;
    uint32_t number = kInlineLayout;
    std::unique_ptr<const Layout> own;
};

bool has_data(const cache_column *columns, uint32_t n_columns) {
    for (uint32_t i = 0; i < n_columns; i++)
        if (columns[i].data == nullptr && columns[i].bytes != 0) return false;
    return true;
}

int find_layout(cache &handle, const cache_column *columns, uint32_t n_columns, bool reserving, RowLayout *found) {
    Region &region = *handle.region;
    const int number = columns != nullptr ? region.layouts.find(columns, n_columns) : -1;
    if (number < 0 || !(reserving || has_data(columns, n_columns))) {
        // Columns that match a stored layout are right; others may be anything.
        if (int rc = check_columns(columns, n_columns, reserving); rc != 0) return rc;
        found->own = Layout::of(columns, n_columns);
        found->layout = found->own.get();
        return 0;
    }
    found->number = static_cast<uint32_t>(number);
    found->layout = region.layouts.get(found->number);
    return found->layout != nullptr ? 0 : fail(CACHE_ECORRUPT, "layout %d of the cache is damaged", number);
}

// Stores a layout that is new to the cache, so that rows can name it. When the table is full, rows carry their own.
int store_layout(cache &handle, WriterUse &use, RowLayout *row) {
    if (row->number != kInlineLayout) return 0;
    if (int rc = use.writer->store_layout(*row->own, handle.config.timeout_ns, &row->number); rc != 0) {
        row->number = kInlineLayout;
        return rc == CACHE_EFULL && use.spiller ? 0 : rc; // what is spilled may carry its own
    }
    if (row->number == kInlineLayout) return 0;
    row->layout = handle.region->layouts.get(row->number);
    // Another than ours: somebody has cleared the entry of a layout that this process knew.
    return row->layout != nullptr && *row->layout == *row->own
               ? 0
               : fail(CACHE_ECORRUPT, "layout %u of the cache is damaged", row->number);
}

char *column_address(const Writer::Place &place, const RowLayout &row, uint32_t i) {
    const uint32_t residue = residue_of(place.offset);
    return place.address + (row.number == kInlineLayout ? row.layout->column_offset_in_line(residue, i)
                                                        : row.layout->column_offset(residue, i));
}

// A place for a row of these columns, its column table written if it carries one.
int place_columns(cache &handle, int64_t row_id, RowLayout *row, WriterUse **use, Writer::Place *place) {
    if (int rc = handle.writer(use); rc != 0) return rc;
    if (int rc = store_layout(handle, **use, row); rc != 0) return rc;
    Writer::Row wanted{row->layout, row->number, row_id, handle.config.timeout_ns};
    wanted.may_spill = (*use)->spiller.has_value();
    if (int rc = (*use)->writer->place(wanted, place); rc != 0) return rc;
    if (row->number == kInlineLayout)
        memcpy(place->address + sizeof(RowHeader), row->layout->table(), row->layout->table_bytes());
    return 0;
}

int may_write(const cache &handle, bool appending) {
    if (!handle.live()) return handle.gone();
    if ((handle.flags & CACHE_READ_ONLY) != 0)
        return fail(CACHE_EPERM, "cache %u of session %u was opened read-only", handle.open->id.cache_id,
                    handle.open->id.session_id);
    if (!appending && (handle.header()->flags & kRegionBuild) != 0)
        return fail(CACHE_EINVAL, "the rows of cache %u of session %u are appended (CACHE_BUILD): use cache_append",
                    handle.open->id.cache_id, handle.open->id.session_id);
    return 0;
}

// A row that memory has refused goes to disk, if the cache does that.
bool spills(int rc, const WriterUse *use) {
    return rc == CACHE_EFULL && use != nullptr && use->spiller;
}

SpillRow spill_row(const cache &handle, const RowLayout &row, const cache_column *columns) {
    return {row.layout, row.number, columns, handle.config.timeout_ns};
}

// There is memory again for a row that this process is writing to disk: the first one wins all the same.
bool is_being_spilled(const cache &handle, int64_t row_id) {
    WriterUse *const use = handle.writer_if_any();
    return use != nullptr && use->spiller && use->spiller->busy() && use->spiller->writes(row_id);
}

// Everything up to the place: 0, 1 (the row is there), or an error. The columns are copied by the caller.
int place_row(cache &handle, int64_t row_id, const cache_column *columns, uint32_t n_columns, bool reserving,
              RowLayout *row, WriterUse **use, Writer::Place *place) {
    if (int rc = may_write(handle, false); rc != 0) return rc;
    if (row_id < 0) return fail(CACHE_EINVAL, "row id %lld is negative", static_cast<long long>(row_id));
    if (int rc = find_layout(handle, columns, n_columns, reserving, row); rc != 0) return rc;
    if (handle.region->index.find(row_id) != 0) return 1;
    const int rc = place_columns(handle, row_id, row, use, place);
    // Not before the place is there: a put that finds no memory asks the spiller anyway.
    if ((rc != 0 && !reserving) || !is_being_spilled(handle, row_id)) return rc;
    if (rc == 0) (*use)->writer->give_back(*place);
    return 1;
}

void copy_columns(const Writer::Place &place, const RowLayout &row, const cache_column *columns, uint32_t n_columns) {
    for (uint32_t i = 0; i < n_columns; i++)
        if (columns[i].bytes != 0) memcpy(column_address(place, row, i), columns[i].data, columns[i].bytes);
}

// The usual put by itself, in few instructions: a new row with a dense id, of the layout that came last, with room at
// hand. False: nothing that another one could see was done, and put_row() takes the long way, which words every error.
bool put_usual(cache &handle, int64_t row_id, const cache_column *columns, uint32_t n_columns, int *result) {
    Region &region = *handle.region;
    WriterUse *const use = handle.writer_if_any();
    if (use == nullptr) return false;
    const Index::DenseStart start = use->writer->dense_start();
    if (!start.covers(row_id)) return false;
    start.prefetch_for_insert(row_id); // of shuffled ids, a line in memory: it comes while all else is done
    if ((use->spiller && use->spiller->busy()) || columns == nullptr || !handle.live() ||
        (handle.flags & CACHE_READ_ONLY) != 0 || (handle.header()->flags & kRegionBuild) != 0)
        return false;
    uint32_t number = 0;
    const Layout *const layout = region.layouts.last_found(&number);
    if (layout == nullptr || !layout->matches(columns, n_columns) || !has_data(columns, n_columns)) return false;
    // Mostly the row is new, and publishing it finds out if it is not: to look would be to wait for that line now.
    // After a repeat look all the same: the next one is likely a repeat too, and would be copied in vain.
    if (use->writer->meets_repeats() && Index::offset_in(start.entries[row_id]) != 0) return false;
    Writer::Place place;
    place.timeout_ns = handle.config.timeout_ns;
    if (!use->writer->place_usual(*layout, number, row_id, &place)) return false;
    const uint32_t residue = residue_of(place.offset); // big columns begin on 64 bytes, rows on 16
    for (uint32_t i = 0; i < n_columns; i++)
        if (columns[i].bytes != 0)
            memcpy(place.address + layout->column_offset(residue, i), columns[i].data, columns[i].bytes);
    LIBCACHE_PAUSE("put.copied");
    *result = use->writer->publish(place);
    return true;
}

} // namespace

int put_row(cache &handle, int64_t row_id, const cache_column *columns, uint32_t n_columns) {
    if (int result = 0; put_usual(handle, row_id, columns, n_columns, &result)) return result;
    RowLayout row;
    WriterUse *use = nullptr;
    Writer::Place place;
    const int rc = place_row(handle, row_id, columns, n_columns, false, &row, &use, &place);
    if (spills(rc, use)) return use->spiller->put(row_id, spill_row(handle, row, columns));
    if (rc != 0) return rc;
    copy_columns(place, row, columns, n_columns);
    LIBCACHE_PAUSE("put.copied");
    return use->writer->publish(place);
}

int append_row(cache &handle, const cache_column *columns, uint32_t n_columns, int64_t *row_id) {
    if (int rc = may_write(handle, true); rc != 0) return rc;
    RowLayout row;
    WriterUse *use = nullptr;
    Writer::Place place;
    if (int rc = find_layout(handle, columns, n_columns, false, &row); rc != 0) return rc;
    if (int rc = handle.writer(&use); rc != 0) return rc;
    const uint64_t term = use->build_term.load(std::memory_order_relaxed);
    if (!use->writer->builds(term))
        return fail(CACHE_EBUILDING,
                    "this process is not the builder of cache %u of session %u: call cache_build_begin first",
                    handle.open->id.cache_id, handle.open->id.session_id);
    if (use->spiller && use->spiller->has_stream()) // rows come in order: after those that are being written
        return use->spiller->append(spill_row(handle, row, columns), term, row_id);
    const int rc = place_columns(handle, 0, &row, &use, &place); // the id comes with publishing
    if (spills(rc, use)) return use->spiller->append(spill_row(handle, row, columns), term, row_id);
    if (rc != 0) return rc;
    copy_columns(place, row, columns, n_columns);
    for (;;) {
        const int appended = use->writer->append(place, term, row_id);
        if (appended != Writer::kBehind) return appended;
        use->spiller->drain(); // another thread's rows, which were promised ids
        if (!use->spiller->has_stream()) continue;
        use->writer->give_back(place); // one of them has failed, or more have come
        return use->spiller->append(spill_row(handle, row, columns), term, row_id);
    }
}

namespace {

// The row is built in memory of this process alone; its columns lie there as they will in the file.
int reserve_spilled(const RowLayout &row, std::unique_ptr<const Layout> own, cache_column *columns,
                    std::unique_ptr<SpilledReservation> *made) {
    const bool in_line = row.number == kInlineLayout;
    auto spilled = std::make_unique<SpilledReservation>();
    spilled->memory = SpilledImage::make(row.layout->row_bytes(0, in_line));
    if (!spilled->memory)
        return fail(CACHE_ENOMEM, "this process has no memory for a row of %llu bytes that is to be spilled",
                    static_cast<unsigned long long>(row.layout->column_bytes()));
    spilled->own = std::move(own);
    spilled->layout = row.layout;
    spilled->number = row.number;
    uint64_t at = sizeof(RowHeader) + (in_line ? row.layout->table_bytes() : 0);
    for (uint32_t i = 0; i < row.layout->n_columns(); i++) {
        at = round_up(at, column_alignment(row.layout->column_bytes_of(i)));
        columns[i].data = spilled->memory->data() + at;
        at += row.layout->column_bytes_of(i);
    }
    *made = std::move(spilled);
    return 0;
}

int commit_spilled(const cache_reservation &reservation) {
    const SpilledReservation &spilled = *reservation.spilled;
    std::vector<cache_column> columns(spilled.layout->n_columns());
    uint64_t at = sizeof(RowHeader) + (spilled.number == kInlineLayout ? spilled.layout->table_bytes() : 0);
    for (uint32_t i = 0; i < columns.size(); i++) {
        at = round_up(at, column_alignment(spilled.layout->column_bytes_of(i)));
        columns[i].data = spilled.memory->data() + at;
        at += spilled.layout->column_bytes_of(i);
    }
    const SpillRow row{spilled.layout, spilled.number, columns.data(), reservation.handle->config.timeout_ns};
    return reservation.use->spiller->put(reservation.place.row_id, row);
}

} // namespace

int reserve_row(cache &handle, int64_t row_id, cache_column *columns, uint32_t n_columns,
                cache_reservation **reservation) {
    *reservation = nullptr;
    RowLayout row;
    WriterUse *use = nullptr;
    auto made = std::make_unique<cache_reservation>();
    int rc = place_row(handle, row_id, columns, n_columns, true, &row, &use, &made->place);
    if (spills(rc, use)) {
        made->place.row_id = row_id;
        rc = reserve_spilled(row, std::move(row.own), columns, &made->spilled);
    }
    if (rc != 0) return rc;
    for (uint32_t i = 0; i < n_columns && !made->spilled; i++)
        columns[i].data = column_address(made->place, row, i);
    made->handle = &handle;
    made->use = use;
    std::lock_guard lock(use->reservations_mutex);
    made->next = use->reservations;
    if (made->next != nullptr) made->next->previous = made.get();
    use->reservations = made.get();
    *reservation = made.release();
    return 0;
}

int end_reservation(cache_reservation *reservation, bool commit) {
    WriterUse &use = *reservation->use;
    if (use.process != &this_process())
        return fail(CACHE_EINVAL, "the reservation of row %lld belongs to the parent process: a child cannot end it",
                    static_cast<long long>(reservation->place.row_id));
    {
        std::lock_guard lock(use.reservations_mutex);
        (reservation->previous != nullptr ? reservation->previous->next : use.reservations) = reservation->next;
        if (reservation->next != nullptr) reservation->next->previous = reservation->previous;
    }
    const std::unique_ptr<cache_reservation> ended(reservation);
    const bool live = ended->handle->live();
    if (ended->spilled) return !commit ? 0 : live ? commit_spilled(*ended) : ended->handle->gone();
    if (!commit) return use.writer->give_back(ended->place), 0;
    if (!live) {
        use.writer->give_back(ended->place);
        return ended->handle->gone();
    }
    return use.writer->publish(ended->place);
}

int flush_rows(cache &handle) {
    WriterUse *const use = handle.writer_if_any();
    const int rc = use != nullptr && use->spiller ? use->spiller->flush() : 0;
    return handle.live() ? rc : handle.gone();
}

} // namespace libcache
