// SPDX-License-Identifier: Apache-2.0
// Rows with one wrong word each, as another writer of the cache may have left them: every way of reading says so, or
// serves the right row, and none looks outside. Words that the check word covers are changed with it.
#include "tests/support/row_words.h"
#include "tests/support/session.h"
#include "tests/support/spill.h"

#include <fcntl.h>
#include <functional>
#include <unistd.h>
#include <vector>

using namespace libcache;

namespace {

constexpr int64_t kFar = int64_t{1} << 50; // of a hashed level
constexpr int64_t kBytes = 1000;           // of a row
constexpr size_t kStride = kBytes;

int put_bytes(cache *handle, int64_t id, int64_t bytes = kBytes) {
    std::vector<unsigned char> data(static_cast<size_t>(bytes));
    rows::fill(data.data(), data.size(), id, 0);
    const Bytes column(data.data(), data.size());
    return cache_put(handle, id, &column.column, 1);
}

// A row of this id is served by no way of reading, and each says what is wrong.
void must_fail(cache *handle, int64_t id, const char *what) {
    cache_view view{}, views[3] = {};
    const int got = cache_get(handle, id, &view);
    cr_assert_eq(got, CACHE_ECORRUPT, "%s: cache_get of row %ld gives %d", what, long(id), got);
    const int64_t ids[] = {id, id, id};
    for (const size_t n : {size_t{1}, size_t{3}}) {
        const int64_t hits = cache_get_batch(handle, ids, n, views);
        cr_assert_eq(hits, CACHE_ECORRUPT, "%s: cache_get_batch of row %ld gives %ld", what, long(id), long(hits));
        cr_assert_null(views[0].cache, "%s", what);
        std::vector<unsigned char> to(n * kStride); // so that ASan sees a byte beyond it
        uint8_t found[3] = {1, 1, 1};
        const int64_t copied = cache_gather(handle, ids, n, 0, to.data(), kStride, found);
        cr_assert_eq(copied, CACHE_ECORRUPT, "%s: cache_gather of row %ld gives %ld", what, long(id), long(copied));
        cr_assert_eq(found[0], 0, "%s", what);
        uint8_t there[3];
        cr_assert_geq(cache_contains(handle, ids, n, there), 0, "%s", what);
    }
}

// The rest of what looks at the cache comes back.
void look_around(cache *handle) {
    cache_stats stats{};
    stats.size = sizeof stats;
    OK(cache_stat(handle, &stats));
    int64_t ids[64];
    uint64_t cursor = 0;
    while (cache_scan(handle, &cursor, ids, std::size(ids)) > 0) {
    }
    const auto ignore = [](const char *, void *) {};
    (void)cache_check(handle, CACHE_CHECK_ROWS, ignore, nullptr);
}

// A row at `words` is changed, is wrong, and as it was again.
class Damage {
  public:
    Damage(cache *handle, int64_t id, void *words, size_t bytes)
        : handle_(handle), id_(id), words_(words),
          before_(static_cast<char *>(words), static_cast<char *>(words) + bytes) {}
    Damage(const Damage &) = delete;
    Damage &operator=(const Damage &) = delete;
    ~Damage() { undo(); }

    // Of the header; its check word goes with it.
    void operator()(const char *what, const std::function<void(RowHeader &)> &change) {
        auto &row = *static_cast<RowHeader *>(words_);
        change(row);
        make_check_right(row);
        wrong(what);
    }
    void wrong(const char *what) {
        must_fail(handle_, id_, what);
        undo();
        cache_view view{};
        OK(cache_get(handle_, id_, &view));
        OK(cache_view_release(&view));
    }

  private:
    cache *handle_;
    int64_t id_;
    void *words_;
    const std::vector<char> before_;
    void undo() { memcpy(words_, before_.data(), before_.size()); }
};

void wrong_headers(cache *handle, int64_t id) {
    RowHeader &row = row_of(writable_region(), id);
    Damage damage(handle, id, &row, sizeof row);
    for (const uint64_t by : {uint64_t{16}, uint64_t{0} - 16, uint64_t{1}, uint64_t{1} << 20, uint64_t{1} << 63})
        damage("another length", [&](RowHeader &r) { r.bytes += by; });
    for (const uint64_t bytes : {uint64_t{0}, uint64_t{31}, uint64_t{32}, UINT64_MAX})
        damage("a length that no row has", [&](RowHeader &r) { r.bytes = bytes; });
    for (const uint32_t n : {0u, 2u, CACHE_MAX_COLUMNS, CACHE_MAX_COLUMNS + 1, UINT32_MAX})
        damage("other columns", [&](RowHeader &r) { r.n_columns = n; });
    for (const uint32_t layout : {200u, kMaxLayouts - 1, kMaxLayouts, kMaxLayouts + 44, 1u << 20, 0x7fffffffu,
                                  kSpilledRow, kLayoutRow, kInlineLayout})
        if (layout != row.layout)
            damage("a layout that is none, or not its own", [&](RowHeader &r) { r.layout = layout; });
}

// The layout table is filled up: the rows that follow carry their own.
void fill_layouts(cache *handle) {
    for (int64_t n = 1; n <= int64_t(kMaxLayouts) + 1; n++)
        OK(put_bytes(handle, 100'000 + n, n));
}

} // namespace

Test(wrong_rows, a_header_that_does_not_fit_its_layout_is_refused) {
    Session s;
    OK(put_bytes(s.rows, 1, 64)); // another layout
    for (const int64_t id : {int64_t{3}, kFar}) {
        OK(put_bytes(s.rows, id));
        wrong_headers(s.rows, id);
        RowHeader &row = row_of(writable_region(), id);
        Damage damage(s.rows, id, &row, sizeof row);
        damage("another row's layout", [&](RowHeader &r) { r.layout = row_of(writable_region(), 1).layout; });
    }
    look_around(s.rows);
}

Test(wrong_rows, a_row_that_carries_its_table_is_refused_whatever_is_wrong_with_it) {
    Session s;
    fill_layouts(s.rows);
    for (const int64_t id : {int64_t{3}, kFar}) {
        OK(put_bytes(s.rows, id));
        RowHeader &row = row_of(writable_region(), id);
        cr_assert_eq(row.layout, kInlineLayout);
        wrong_headers(s.rows, id);
        struct Table {
            RowHeader header;
            ColumnEntry entry;
            int64_t shape[2];
        } &table = *reinterpret_cast<Table *>(&row);
        Damage damage(s.rows, id, &table, sizeof table);
        const auto wrong = [&](const char *what, const std::function<void()> &change) {
            change();
            damage.wrong(what);
        };
        wrong("another check word", [&] { table.header.check++; });
        damage("no bytes, as cache_check must tell too", [&](RowHeader &r) {
            r.bytes = 0;
            make_check_right(r);
            cr_assert_gt(cache_check(
                             s.rows, CACHE_CHECK_ROWS, [](const char *, void *) {}, nullptr),
                         0);
        });
        wrong("a column with other bytes", [&] { table.entry.bytes--; });
        wrong("a column of no dtype", [&] { table.entry.dtype = 0; });
        wrong("a column of other dimensions", [&] { table.entry.ndim = 2; });
        wrong("a column of far too many", [&] { table.entry.ndim = 255; });
        wrong("a column of another shape", [&] { table.shape[0]++; });
        wrong("a shorter column", [&] { table.shape[0] = int64_t(--table.entry.bytes); });
        // Everything agrees; but it leads out of the region.
        wrong("a column as large as the region", [&] {
            const uint64_t first = table.header.bytes - table.entry.bytes;
            table.entry.bytes = reinterpret_cast<RegionHeader *>(writable_region())->region_bytes;
            table.shape[0] = int64_t(table.entry.bytes);
            table.header.bytes = first + table.entry.bytes;
            make_check_right(table.header);
        });
    }
    look_around(s.rows);
}

Test(wrong_rows, a_table_that_changes_under_a_view_is_told) {
    Session s;
    fill_layouts(s.rows);
    OK(put_bytes(s.rows, 3));
    cache_view view{};
    OK(cache_get(s.rows, 3, &view));
    auto &entry = *reinterpret_cast<ColumnEntry *>(&row_of(writable_region(), 3) + 1);
    const ColumnEntry before = entry;
    cache_column column{};
    for (const uint64_t bytes : {uint64_t{kBytes} + 1, uint64_t{1} << 40, UINT64_MAX}) {
        entry.bytes = bytes;
        FAILS(cache_view_column(&view, 0, &column), CACHE_ECORRUPT, "row 3", "changed");
    }
    entry = before;
    OK(cache_view_column(&view, 0, &column));
    cr_assert_eq(rows::first_wrong(column.data, kBytes, 3, 0), -1);
    OK(cache_view_release(&view));
}

// A whole row, forged with its layout and its id, where rows cannot be.
Test(wrong_rows, a_row_where_none_may_be_is_none) {
    Session s;
    for (const int64_t id : {int64_t{3}, kFar})
        OK(put_bytes(s.rows, id, 100));
    char *const region = writable_region();
    auto &header = *reinterpret_cast<RegionHeader *>(region);
    const auto is_none = [&](int64_t id, uint64_t place) {
        cache_view view{};
        OK(cache_get(s.rows, id, &view)); // its layout is known
        OK(cache_view_release(&view));
        AtomicU64 &entry = entry_of(region, id);
        const uint64_t right = entry.load(), bytes = std::min(row_of(region, id).bytes, header.region_bytes - place);
        const std::vector<char> before(region + place, region + place + bytes);
        memcpy(region + place, region + IndexEntry::offset(right), bytes);
        entry.store((right & ~IndexEntry::kRefMask) | place / kUnitBytes);
        const int got = cache_get(s.rows, id, &view);
        cr_assert(got == CACHE_ENOTFOUND || got == CACHE_ECORRUPT, "place %lu: cache_get gives %d", place, got);
        const int64_t hits = cache_get_batch(s.rows, &id, 1, &view);
        cr_assert(hits == 0 || hits == CACHE_ECORRUPT, "place %lu: cache_get_batch gives %ld", place, long(hits));
        unsigned char to[100];
        uint8_t found = 1;
        (void)cache_gather(s.rows, &id, 1, 0, to, sizeof to, &found);
        cr_assert_eq(found, 0, "place %lu: cache_gather copies it", place);
        int64_t ids[8];
        uint64_t cursor = 0;
        for (int64_t n; (n = cache_scan(s.rows, &cursor, ids, std::size(ids))) != 0;)
            for (int64_t i = 0; i < n; i++)
                cr_assert(ids[i] == 3 || ids[i] == kFar, "place %lu: cache_scan tells of row %ld", place, long(ids[i]));
        memcpy(region + place, before.data(), bytes);
        entry.store(right);
    };
    const uint64_t end = header.region_bytes;
    for (const int64_t id : {int64_t{3}, kFar})
        for (const uint64_t place : {round_up(offsetof(RegionHeader, label), kUnitBytes),
                                     header.data_offset - sizeof(RowHeader), end - kChunkBytes})
            is_none(id, place);
    header.top_bytes.store(UINT64_MAX); // rows may lie anywhere, but they must end
    for (const int64_t id : {int64_t{3}, kFar})
        for (const uint64_t place : {end - sizeof(RowHeader), end - sizeof(RowHeader) - kUnitBytes})
            is_none(id, place);
    look_around(s.rows);
    OK(cache_session_destroy(s.client, s.id)); // so that nobody checks its end
}

Test(wrong_rows, a_cache_that_does_not_spill_has_no_stubs) {
    Session s;
    OK(put_bytes(s.rows, 3));
    RowHeader &row = row_of(writable_region(), 3);
    Damage damage(s.rows, 3, &row, sizeof row);
    damage("a stub", [](RowHeader &r) {
        const SpillStub stub{0, 4096, 0};
        r.layout = stub.layout_word();
        r.bytes = stub.bytes_word();
        r.n_columns = stub.crc;
    });
}

namespace {

uint32_t crc32c_of(const std::vector<char> &bytes) {
    uint32_t crc = ~0u;
    for (const char byte : bytes) {
        crc ^= static_cast<unsigned char>(byte);
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

// Two rows on disk of one layout, and this process's way to the file.
struct OnDisk {
    SpillSession s;
    int64_t id = 0;
    int fd = -1;

    OnDisk() {
        for (int64_t full = 10'000; s.stat().rows_spilled == 0; full++) {
            OK(put_bytes(s.rows, full, 30'000));
            OK(cache_flush(s.rows));
        }
        // There may be room for small ones still: the first that are stubs.
        for (id = 0; !SpillStub::is(put(id).layout) || !SpillStub::is(put(id + 1).layout); id++) {
        }
        for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
            std::error_code gone; // the directory itself
            const std::string path = std::filesystem::read_symlink(entry.path(), gone);
            const int open = atoi(entry.path().filename().c_str());
            if (path.starts_with(s.folder.path()) && (fcntl(open, F_GETFL) & O_ACCMODE) == O_RDWR) fd = open;
        }
        cr_assert_geq(fd, 0, "this process has the spill file not open for writing");
    }
    RowHeader &put(int64_t row_id) const {
        const int result = put_bytes(s.rows, row_id);
        cr_assert_geq(result, 0, "%s", cache_last_error());
        OK(cache_flush(s.rows));
        return row_of(writable_region(), row_id);
    }
    RowHeader &stub_row() const { return row_of(writable_region(), id); }
    static SpillStub stub_in(const RowHeader &row) { return SpillStub::unpack(row.layout, row.bytes, row.n_columns); }
    static void say(RowHeader &row, const SpillStub &stub) {
        row.layout = stub.layout_word();
        row.bytes = stub.bytes_word();
        row.n_columns = stub.crc;
    }
    std::vector<char> image(const SpillStub &stub) const {
        std::vector<char> bytes(stub.bytes);
        cr_assert_eq(pread(fd, bytes.data(), bytes.size(), off_t(stub.offset)), ssize_t(bytes.size()));
        return bytes;
    }
};

} // namespace

Test(wrong_rows, a_stub_that_leads_elsewhere_is_refused) {
    const OnDisk d;
    RowHeader &row = d.stub_row();
    const SpillStub right = OnDisk::stub_in(row);
    Damage damage(d.s.rows, d.id, &row, sizeof row);
    const auto wrong = [&](const char *what, const SpillStub &stub) {
        damage(what, [&](RowHeader &r) { OnDisk::say(r, stub); });
    };
    const auto first_bytes = [&](uint64_t bytes) { // with their right sum
        return SpillStub{right.offset, bytes, crc32c_of(d.image({right.offset, bytes, 0}))};
    };
    cr_assert_eq(right.crc, crc32c_of(d.image(right)));
    wrong("another sum", {right.offset, right.bytes, right.crc + 1});
    wrong("outside of the file", {(uint64_t{1} << 60) - 16, right.bytes, right.crc});
    wrong("no bytes", {right.offset, 0, 0});
    wrong("fewer than a header", first_bytes(16));
    wrong("fewer than the row says", first_bytes(right.bytes - 16));
    wrong("its header alone", first_bytes(32));
    wrong("another row", OnDisk::stub_in(row_of(writable_region(), d.id + 1)));
    row.check++;
    damage.wrong("another check word");
    look_around(d.s.rows);
}

// Whoever can write to the file can write its sum into the stub.
Test(wrong_rows, an_image_that_is_not_the_row_is_refused) {
    const OnDisk d;
    RowHeader &row = d.stub_row();
    const SpillStub stub = OnDisk::stub_in(row);
    const std::vector<char> right = d.image(stub);
    Damage damage(d.s.rows, d.id, &row, sizeof row);
    const auto wrong = [&](const char *what, bool check, const std::function<void(RowHeader &)> &change) {
        std::vector<char> image = right;
        auto &header = *reinterpret_cast<RowHeader *>(image.data());
        change(header);
        if (check) make_check_right(header);
        cr_assert_eq(pwrite(d.fd, image.data(), image.size(), off_t(stub.offset)), ssize_t(image.size()));
        OnDisk::say(row, {stub.offset, stub.bytes, crc32c_of(image)});
        make_check_right(row);
        must_fail(d.s.rows, d.id, what);
        cr_assert_eq(pwrite(d.fd, right.data(), right.size(), off_t(stub.offset)), ssize_t(right.size()));
        OnDisk::say(row, stub);
        make_check_right(row);
        cache_view view{};
        OK(cache_get(d.s.rows, d.id, &view));
        OK(cache_view_release(&view));
    };
    wrong("another id", true, [](RowHeader &h) { h.row_id++; });
    wrong("another check word", false, [](RowHeader &h) { h.check++; });
    wrong("another length", true, [](RowHeader &h) { h.bytes -= 16; });
    wrong("a length beyond the image", true, [](RowHeader &h) { h.bytes = uint64_t{1} << 30; });
    wrong("other columns", true, [](RowHeader &h) { h.n_columns++; });
    wrong("another layout", true, [](RowHeader &h) { h.layout++; });
    wrong("a layout that is none", true, [](RowHeader &h) { h.layout = kMaxLayouts + 44; });
    wrong("a table of its own", true, [](RowHeader &h) { h.layout = kInlineLayout; });
}
