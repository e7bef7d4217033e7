// SPDX-License-Identifier: Apache-2.0
#include "core/client/read_spilled.h"

#include "core/common/error.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace libcache {
namespace {

constexpr uint64_t kGatheredBytes = 64 << 20; // images in memory at once, where they are only copied from

// Images at [reads, reads + n) are read.
void read_all(const Region &region, SpillRead *reads, size_t n) {
    if (region.spill_file() < 0) { // no such row can be: the cache does not spill
        for (size_t i = 0; i < n; i++)
            reads[i].code = CACHE_ECORRUPT, reads[i].error = ENODATA;
        return;
    }
    read_images(region.spill_file(), region.spill_file_bytes(), reads, n);
    const auto failed = [](const SpillRead &read) { return read.code == CACHE_ECORRUPT || read.code == CACHE_EIO; };
    if (std::none_of(reads, reads + n, failed) || region.still_has_spill_file()) return;
    for (SpillRead *read = reads; read != reads + n; read++)
        if (failed(*read)) read->code = CACHE_EIO, read->error = EBADF;
}

void show(cache &handle, SpillRead &read, const FoundRow &found, cache_view *view) {
    fill_view(handle, read.row_id, found, view);
    view->reserved[5] = reinterpret_cast<uintptr_t>(handle.images().add(std::move(read.image)));
}

} // namespace

uint64_t find_written(cache &handle, int64_t row_id) {
    WriterUse *const use = handle.writer_if_any();
    if (use == nullptr || !use->spiller) return 0;
    if (use->spiller->busy()) use->spiller->wait_for(row_id);
    return handle.region->index.find(row_id); // it may have been published since the caller looked
}

int check_image(cache &handle, const SpillRead &read, FoundRow *found) {
    if (read.code != 0) return read_failed(read);
    const char *const row = read.image->data();
    RowHeader header;
    memcpy(&header, row, sizeof header); // nobody else changes it
    const bool is_it = header.row_id == read.row_id && header.bytes <= read.stub.bytes &&
                       header.check == row_check(header.layout, header.row_id, header.bytes, header.n_columns);
    *found = {row, nullptr, header.bytes, header.n_columns, 0};
    const char *const fault = is_it ? layout_fault(*handle.region, header.layout, found) : "another row stands there";
    if (fault == nullptr) return 0;
    return fail(CACHE_ECORRUPT, "row %lld of cache %u of session %u, at %llu of its spill file: %s",
                static_cast<long long>(read.row_id), handle.open->id.cache_id, handle.open->id.session_id,
                static_cast<unsigned long long>(read.stub.offset), fault);
}

int get_spilled(cache &handle, int64_t row_id, const SpillStub &stub, cache_view *view) {
    SpillRead read{stub, row_id, nullptr};
    read_all(*handle.region, &read, 1);
    FoundRow found;
    if (int rc = check_image(handle, read, &found); rc != 0) return rc;
    show(handle, read, found, view);
    return 0;
}

size_t read_some(const Region &region, std::vector<SpilledRow> &rows, size_t from) {
    std::vector<SpillRead> reads;
    uint64_t bytes = 0;
    size_t end = from;
    for (; end < rows.size() && (end == from || bytes + rows[end].read.stub.bytes <= kGatheredBytes); end++) {
        bytes += rows[end].read.stub.bytes;
        reads.push_back(std::move(rows[end].read));
    }
    read_all(region, reads.data(), reads.size());
    for (size_t i = from; i < end; i++)
        rows[i].read = std::move(reads[i - from]);
    return end;
}

int64_t get_spilled_rows(cache &handle, std::vector<SpilledRow> &rows, size_t n, cache_view *views) {
    std::vector<SpillRead> reads;
    reads.reserve(rows.size());
    for (SpilledRow &row : rows)
        reads.push_back(std::move(row.read));
    read_all(*handle.region, reads.data(), reads.size());
    for (size_t i = 0; i < reads.size(); i++) {
        FoundRow found;
        const size_t at = rows[i].at;
        if (int rc = check_image(handle, reads[i], &found); rc != 0) {
            for (size_t rest = at; rest < n; rest++)
                views[rest].cache = nullptr;
            return rc;
        }
        show(handle, reads[i], found, &views[at]);
    }
    return static_cast<int64_t>(reads.size());
}

int release_image(cache &handle, const cache_view &view) {
    auto *const image = reinterpret_cast<SpilledImage *>(view.reserved[5]);
    // A parent's image in a forked child stays: it goes with the process.
    SpilledImages &images = handle.images();
    if (image->list == &images) images.release(image);
    return 0;
}

} // namespace libcache
