// SPDX-License-Identifier: Apache-2.0
#include "perf/cache_perf/worker.h"

#include "perf/cache_perf/call_timer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace perf {
namespace {

// Keeps a worker's books: the tally of this epoch and the row count that people watch.
class Books {
  public:
    explicit Books(const WorkerPlace &place)
        : part_(place.board.part(place.pipeline, place.worker)), board_(place.board),
          timer(place.board.samples(place.pipeline, place.worker)) {
        part_.tally = {};
        tally.start_ns = now_ns();
    }
    ~Books() {
        tally.end_ns = now_ns();
        tally.calls = timer.calls();
        part_.tally = tally;
    }
    Books(const Books &) = delete;
    Books &operator=(const Books &) = delete;

    bool go_on() const { return tally.error == 0 && !board_.stopped(); }
    void done(uint64_t rows) {
        seen_ += rows;
        part_.done.store(seen_, std::memory_order_relaxed); // only this thread writes it
    }
    void fail(int code) {
        tally.error = code;
        snprintf(tally.message, sizeof tally.message, "%s", cache_last_error());
    }

  private:
    WorkerPart &part_;
    const Board &board_;
    uint64_t seen_ = 0;

  public:
    CallTimer timer;
    Tally tally; // private until the end, so that workers do not meet in a cache line
};

// A row as one column: int64 like the original's, or bytes where the size is no multiple of 8.
struct Column {
    void set(char *data, size_t bytes) {
        const bool words = bytes % sizeof(int64_t) == 0;
        shape = static_cast<int64_t>(words ? bytes / sizeof(int64_t) : bytes);
        column = {data, bytes, &shape, static_cast<uint32_t>(words ? CACHE_INT64 : CACHE_UINT8), 1, {0, 0, 0, 0}};
    }
    int64_t shape = 0;
    cache_column column{};
};

// What one reading call brings, and what it should have brought.
class Reader {
  public:
    Reader(const WorkerPlace &place, Books &books)
        : place_(place), books_(books), views_(place.options.batch), found_(place.options.batch),
          ids_(place.options.batch), data_(place.options.batch) {
        if (place.options.copy) buffer_.resize(place.plan.largest() * place.options.batch);
    }

    void read(const uint64_t *rows, size_t n) {
        for (size_t i = 0; i < n; ++i)
            ids_[i] = place_.plan.id(rows[i]);
        books_.timer.begin();
        const int64_t result = place_.options.copy         ? copy(rows, n)
                               : place_.options.batch == 1 ? view_one()
                                                           : view_many(n);
        books_.timer.end();
        if (result < 0) return books_.fail(static_cast<int>(result));
        for (size_t i = 0; i < n; ++i)
            check(rows[i], i);
        books_.done(n);
    }

  private:
    const WorkerPlace &place_;
    Books &books_;
    std::vector<cache_view> views_;
    std::vector<uint8_t> found_;
    std::vector<int64_t> ids_;
    struct Data {
        const char *bytes; // null: a miss
        uint64_t size;
        unsigned char first;
    };
    std::vector<Data> data_;
    std::vector<char> buffer_;

    // Takes a view's bytes, touches the first and releases it: rows in memory stay where they are.
    int take(cache_view &view, Data *data) {
        cache_column column;
        if (const int rc = cache_view_column(&view, 0, &column); rc != 0) return rc;
        *data = {static_cast<const char *>(column.data), column.bytes, 0};
        data->first = static_cast<unsigned char>(*data->bytes);
        return cache_view_release(&view);
    }

    int64_t view_one() {
        const int rc = cache_get(place_.handle, ids_[0], &views_[0]);
        if (rc == CACHE_ENOTFOUND) return data_[0] = {}, 0;
        return rc != 0 ? rc : take(views_[0], &data_[0]);
    }

    int64_t view_many(size_t n) {
        const int64_t hits = cache_get_batch(place_.handle, ids_.data(), n, views_.data());
        if (hits < 0) return hits;
        for (size_t i = 0; i < n; ++i) {
            data_[i] = {};
            if (views_[i].cache == nullptr) continue;
            if (const int rc = take(views_[i], &data_[i]); rc != 0) return rc;
        }
        return hits;
    }

    int64_t copy(const uint64_t *rows, size_t n) {
        const size_t stride = place_.plan.largest();
        const int64_t hits = cache_gather(place_.handle, ids_.data(), n, 0, buffer_.data(), stride, found_.data());
        for (size_t i = 0; hits >= 0 && i < n; ++i) {
            const char *const row = buffer_.data() + i * stride;
            data_[i] = {found_[i] ? row : nullptr, place_.plan.bytes(rows[i]), 0};
        }
        return hits;
    }

    // Untimed. The first word is compared always, the rest if that was asked for.
    void check(uint64_t row, size_t i) {
        const Data &data = data_[i];
        if (data.bytes == nullptr) {
            books_.tally.missing++;
            return;
        }
        const size_t bytes = place_.plan.bytes(row);
        const uint64_t word = place_.plan.first_word(row);
        const bool right = data.size == bytes && memcmp(data.bytes, &word, std::min(bytes, sizeof word)) == 0 &&
                           (!place_.options.verify || place_.plan.first_difference(row, data.bytes) == bytes);
        books_.tally.rows++;
        books_.tally.bytes += data.size;
        if (!right && books_.tally.wrong++ == 0)
            snprintf(books_.tally.message, sizeof books_.tally.message,
                     "row %lld: %llu bytes where %zu were written, the first wrong one at %zu",
                     static_cast<long long>(ids_[i]), static_cast<unsigned long long>(data.size), bytes,
                     data.size == bytes ? place_.plan.first_difference(row, data.bytes) : size_t{0});
    }
};

} // namespace

void write_rows(const WorkerPlace &place) {
    const Board::Range range = place.board.worker_range(place.pipeline, place.worker);
    std::vector<char> row(place.plan.largest());
    Column column;
    Books books(place);
    for (uint64_t i = range.first; i < range.last && books.go_on(); ++i) {
        const size_t bytes = place.plan.bytes(i);
        if (place.options.verify)
            place.plan.make(i, row.data());
        else
            place.plan.stamp(i, row.data());
        column.set(row.data(), bytes);
        books.timer.begin();
        const int rc = cache_put(place.handle, place.plan.id(i), &column.column, 1);
        books.timer.end();
        if (rc == CACHE_EFULL) { // this worker stops sending, the run goes on
            books.tally.refused = range.last - i;
            return;
        }
        if (rc < 0) return books.fail(rc);
        books.tally.rows++;
        books.tally.bytes += bytes;
        books.tally.present += rc == 1;
        books.done(1);
    }
    // Spilled rows are written when this returns, and within the time of the epoch.
    if (place.options.spill && books.go_on())
        if (const int rc = cache_flush(place.handle); rc != 0) books.fail(rc);
}

void read_rows(const WorkerPlace &place, unsigned epoch) {
    const Board::Range range = place.board.worker_range(place.pipeline, place.worker);
    std::vector<uint64_t> order(range.rows());
    std::iota(order.begin(), order.end(), range.first);
    if (place.options.shuffle) {
        std::seed_seq seed{epoch, place.pipeline, place.worker};
        std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    }
    Books books(place);
    Reader reader(place, books);
    for (size_t at = 0; at < order.size() && books.go_on(); at += place.options.batch)
        reader.read(order.data() + at, std::min<size_t>(place.options.batch, order.size() - at));
}

} // namespace perf
