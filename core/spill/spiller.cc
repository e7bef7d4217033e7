// SPDX-License-Identifier: Apache-2.0
// Rows into buffers, buffers into the file, stubs into the index. Segments: segments.cc.
#include "core/spill/spiller.h"

#include "core/common/error.h"
#include "core/common/pause.h"
#include "core/spill/checksum.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <sys/mman.h>

namespace libcache {
namespace {

constexpr unsigned kBuffers = 8;
constexpr unsigned long long kBufferBytes = 1 << 20; // a row larger than this is written by the call itself
constexpr uint64_t kEnough = 512 << 10;              // a buffer goes to the disk then: still in the processor's cache
constexpr unsigned long long kStagingBytes = kBuffers * kBufferBytes;
constexpr int64_t kPatienceNs = 2'000'000; // for which rows wait for others while nothing is being written
constexpr uint64_t kLargePiece = 1 << 20;  // of a row larger than a buffer: in the cache still when its CRC was made
constexpr size_t kLargePieces = 256;
constexpr size_t kMostFailures = 64; // whose sentences are kept; the others are counted

int code_of(int error) {
    return error == ENOSPC || error == EDQUOT || error == EFBIG ? CACHE_EFULL : CACHE_EIO;
}

// In steps of the timer's tick, which is cheap to ask for.
int64_t coarse_now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// Collects small pieces and writes them together.
class PieceWriter {
  public:
    PieceWriter(int fd, uint64_t offset) : fd_(fd), offset_(offset) {}
    void add(const void *data, uint64_t bytes) {
        const char *at = static_cast<const char *>(data);
        while (bytes != 0 && error_ == 0) {
            const uint64_t n = std::min(bytes, kLargePiece);
            crc_.add(at, n);
            pieces_[n_++] = {const_cast<char *>(at), n};
            pending_ += n;
            if (n_ == kLargePieces || pending_ >= kLargePiece) write();
            at += n;
            bytes -= n;
        }
    }
    int end(uint32_t *crc) {
        write();
        *crc = crc_.value();
        return error_;
    }

  private:
    const int fd_;
    uint64_t offset_, pending_ = 0;
    iovec pieces_[kLargePieces];
    size_t n_ = 0;
    int error_ = 0;
    Crc32c crc_;

    void write() {
        Transfer t;
        t.pieces = pieces_;
        t.n_pieces = static_cast<unsigned>(n_);
        t.offset = offset_;
        while (t.n_pieces != 0 && error_ == 0) {
            const ssize_t bytes = pwritev(fd_, t.pieces, static_cast<int>(t.n_pieces), static_cast<off_t>(t.offset));
            if (bytes > 0)
                (void)t.advance(static_cast<uint64_t>(bytes));
            else if (bytes == 0 || errno != EINTR)
                error_ = bytes == 0 ? EIO : errno;
        }
        offset_ = t.offset;
        n_ = 0;
        pending_ = 0;
    }
};

} // namespace

Spiller::Spiller(const RegionMap &map, uint32_t slot, int file, Writer &writer, SpillLink &link)
    : map_(map), slot_number_(slot), file_(file), writer_(writer), link_(link) {}

Spiller::~Spiller() {
    const KeepError keep; // of the call that this ends
    std::unique_lock lock(mutex_);
    wait_all(lock);
    if (current_ != nullptr) retire(*std::exchange(current_, nullptr));
    ring_.reset();
    if (staging_ != nullptr) munmap(staging_, kStagingBytes);
}

// Ring and buffers, at the first row. What may throw comes first.
int Spiller::start() {
    if (staging_ != nullptr) return 0;
    ring_.emplace(kBuffers).expect(kBuffers);
    buffers_.resize(kBuffers);
    free_.reserve(kBuffers);
    flying_.set_capacity(kBuffers);
    void *const memory = mmap(nullptr, kStagingBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return fail(CACHE_ENOMEM, "this process has no memory for %llu bytes of staging buffers", kStagingBytes);
    // A child's copy on write would move pages that the kernel writes from.
    madvise(memory, kStagingBytes, MADV_DONTFORK);
    staging_ = static_cast<char *>(memory);
    for (unsigned i = 0; i < kBuffers; i++) {
        buffers_[i].memory = staging_ + i * kBufferBytes;
        buffers_[i].fd = file_;
        buffers_[i].write = true;
        free_.push_back(&buffers_[i]);
    }
    return 0;
}

// ---- one row

// The stub's place and room in the file come before the bytes are written: that they are not to be had is this call's
// error. (That the index has no room shows at publication only.) The mutex is taken here, and from then on until all is
// there it is let go of only to begin again: 0 means that nothing has come in between. 1: the row is there already.
int Spiller::reserve(std::unique_lock<std::mutex> &lock, Kind kind, int64_t row_id, const SpillRow &row,
                     Flight *flight) {
    int rc = 0;
    {
        std::lock_guard order(stub_mutex_);
        rc = writer_.place_stub(row_id, row.timeout_ns, &flight->stub);
    }
    lock.lock();
    if (rc != 0) { // whether memory was to be had decides only over a row that is new
        const int other = needless(kind, row_id);
        return other != 0 ? other : rc;
    }
    LIBCACHE_PAUSE("spill.reserve.1");
    flight->column_bytes = row.layout->column_bytes();
    try {
        rc = start();
        if (rc == 0) rc = prepare(lock, kind, row.timeout_ns, flight);
    } catch (...) {
        give_back(*flight);
        throw;
    }
    rc == 0 ? use_room(flight) : give_back(*flight);
    return rc;
}

// What reserve() has got so far, before the row has room in a run.
void Spiller::give_back(const Flight &flight) {
    writer_.give_back(flight.stub);
    if (flight.run != nullptr) keep(flight.run, 0);
}

// Why a row is not to be written: 1, it is there or under way; a stream that has lost rows takes no more.
int Spiller::needless(Kind kind, int64_t row_id) {
    if (kind == Kind::Append) return stream_failure_ ? stream_failure_->tell() : 0;
    return under_way_.contains(row_id) || writer_.has(row_id) ? 1 : 0;
}

int Spiller::prepare(std::unique_lock<std::mutex> &lock, Kind kind, int64_t timeout_ns, Flight *flight) {
    const uint64_t bytes = flight->where.bytes;
    for (;;) {
        make_room(lock);
        if (kind == Kind::Append && bytes > kBufferBytes && (open_ != nullptr || !flying_.empty())) {
            wait_all(lock); // such a row is published as soon as it is written
            continue;
        }
        // Memory may have had room for it since it was refused this one.
        int rc = needless(kind, flight->row_id());
        if (rc == 0 && (flight->run != nullptr || has_room(bytes))) return 0;
        if (rc == 0) rc = take_run(lock, bytes, timeout_ns, &flight->run);
        if (rc != 0) return rc;
    }
}

// make_room() has seen to the memory.
void Spiller::begin(const Flight &flight) {
    // What an earlier write of this id failed of is history: it is neither this one's result nor a lost row.
    lost_ -= std::erase_if(failures_, [&](const Failure &failure) { return failure.row_id == flight.row_id(); });
    {
        std::lock_guard ids(ids_mutex_);
        under_way_.insert(flight.row_id());
    }
    rows_under_way_.fetch_add(1, std::memory_order_relaxed);
    if (flight.term != 0) appends_under_way_.fetch_add(1, std::memory_order_relaxed);
}

int Spiller::put(int64_t row_id, const SpillRow &row) {
    const RowImage image(row, row_id);
    Flight flight{};
    flight.where.bytes = image.bytes();
    std::unique_lock lock(mutex_, std::defer_lock);
    if (int rc = reserve(lock, Kind::Put, row_id, row, &flight); rc != 0) return rc;
    begin(flight);
    if (image.bytes() > kBufferBytes) return write_large(lock, image, flight);
    Buffer &buffer = buffer_at(flight.where.offset, image.bytes());
    char *const to = buffer.memory + buffer.filled;
    const size_t number = buffer.rows.size();
    buffer.filled += image.bytes();
    buffer.rows.push_back(flight);
    buffer.copying++;
    lock.unlock(); // others go on meanwhile
    const uint32_t crc = image.copy_to(to);
    lock.lock();
    buffer.rows[number].where.crc = crc;
    copied(buffer);
    return outcome(row_id);
}

int Spiller::append(const SpillRow &row, uint64_t term, int64_t *row_id) {
    const uint64_t bytes = RowImage(row, 0).bytes();
    Flight flight{};
    flight.where.bytes = bytes;
    std::unique_lock lock(mutex_, std::defer_lock);
    if (int rc = reserve(lock, Kind::Append, 0, row, &flight); rc != 0) return rc;
    flight.term = term;
    flight.stub.row_id = *row_id = writer_.promise(term);
    if (*row_id < 0) {
        writer_.give_back(flight.stub);
        leave(*flight.run, 1);
        return fail(CACHE_EBUILDING,
                    "this process is no more the builder of cache %u of session %u: call "
                    "cache_build_begin",
                    map_.header()->cache_id, map_.header()->session_id);
    }
    const RowImage image(row, *row_id);
    begin(flight);
    if (bytes > kBufferBytes) return write_large(lock, image, flight);
    Buffer &buffer = buffer_at(flight.where.offset, bytes);
    flight.where.crc = image.copy_to(buffer.memory + buffer.filled);
    buffer.filled += bytes;
    buffer.rows.push_back(flight);
    return outcome(*row_id);
}

// collect(), and what is known by then of the row that this call has brought.
int Spiller::outcome(int64_t row_id) {
    own_ = row_id;
    collect();
    own_ = -1;
    return own_failure_ ? std::exchange(own_failure_, {})->tell() : 0;
}

// A row larger than a buffer is written by its own call: a stream's under the mutex, for it must be published next.
int Spiller::write_large(std::unique_lock<std::mutex> &lock, const RowImage &image, Flight flight) {
    if (flight.term == 0) lock.unlock();
    PieceWriter writer(file_, flight.where.offset);
    image.for_each_piece([&](const void *data, uint64_t bytes) { writer.add(data, bytes); });
    const int error = writer.end(&flight.where.crc);
    const int rc = error != 0 ? lose(flight, error) : publish(flight);
    if (flight.term == 0) lock.lock();
    if (rc < 0) {
        own_ = flight.row_id();
        fail_row(flight, rc);
        own_ = -1;
        own_failure_.reset(); // this thread's last error says it
    }
    if (rc == 0) count(*flight.run, 1, flight.column_bytes);
    leave(*flight.run, 1);
    ended(&flight, 1);
    changed_.notify_all();
    return rc;
}

// ---- buffers

// Until a buffer is free: what comes after it in a call need not let go of the mutex any more. And memory for one more
// row's books, so that none is left half begun.
void Spiller::make_room(std::unique_lock<std::mutex> &lock) {
    while (free_.empty())
        wait_for_oldest(lock);
    for (Buffer *buffer : {open_, free_.back()})
        if (buffer != nullptr && buffer->rows.size() == buffer->rows.capacity())
            buffer->rows.reserve(std::max<size_t>(64, 2 * buffer->rows.size()));
    if (under_way_.size() < under_way_.max_load()) return;
    std::lock_guard ids(ids_mutex_);
    under_way_.reserve(std::max<size_t>(64, 2 * under_way_.size()));
}

// The open buffer if it goes on at `offset` and has room, else another, which make_room() has seen to.
Spiller::Buffer &Spiller::buffer_at(uint64_t offset, uint64_t bytes) {
    if (open_ != nullptr && (open_->start + open_->filled != offset || kBufferBytes - open_->filled < bytes))
        close_open();
    if (open_ == nullptr) {
        open_ = free_.back();
        free_.pop_back();
        open_->start = offset;
        open_->filled = 0;
        open_->done = false;
    }
    return *open_;
}

void Spiller::close_open() {
    Buffer &buffer = *std::exchange(open_, nullptr);
    flying_.push_back(&buffer);
    closed_++;
    if (buffer.copying == 0) send(buffer);
}

void Spiller::send(Buffer &buffer) {
    buffer.piece = {buffer.memory, buffer.filled};
    buffer.pieces = &buffer.piece;
    buffer.n_pieces = 1;
    buffer.offset = buffer.start;
    sent_ns_ = coarse_now_ns();
    LIBCACHE_PAUSE("spill.submit.1");
    ring_->start(buffer);
    ring_->submit();
}

// A row's bytes are in the buffer.
void Spiller::copied(Buffer &buffer) {
    if (--buffer.copying != 0 || &buffer == open_) return;
    send(buffer);
    changed_.notify_all();
}

// Takes note of writes that are done, and publishes their rows in the order of closing: a stream needs it.
void Spiller::land() {
    while (!flying_.empty()) {
        while (Transfer *const done = ring_->next_done(false))
            static_cast<Buffer *>(done)->done = true;
        Buffer &oldest = *flying_.front();
        if (!oldest.done || !finish(oldest)) return;
        flying_.pop_front();
        free_.push_back(&oldest);
        landed_++;
    }
}

// What each call does once. Rows that come one by one go to the disk at once; those that come close together wait for
// each other, until there are enough or nothing has been written for a while.
void Spiller::collect() {
    land();
    if (open_ == nullptr || open_->copying != 0) return;
    if (open_->filled < kEnough && (!flying_.empty() || coarse_now_ns() - sent_ns_ < kPatienceNs)) return;
    close_open();
    land();
}

// For the oldest of the closed buffers.
void Spiller::wait_for_oldest(std::unique_lock<std::mutex> &lock) {
    Buffer &oldest = *flying_.front();
    if (oldest.copying != 0) return changed_.wait(lock); // that thread needs the mutex
    while (!oldest.done)
        static_cast<Buffer *>(ring_->next_done(true))->done = true;
    land();
    if (!flying_.empty() && flying_.front() == &oldest) wait_for_level(lock);
}

// For the broker, which is to make a level or to say that there will be none. Without the mutex: who gets it meanwhile
// may find that the level has come.
void Spiller::wait_for_level(std::unique_lock<std::mutex> &lock) {
    Stuck mine = *stuck_;
    const int64_t row_id = flying_.front()->rows[flying_.front()->ended].row_id();
    lock.unlock();
    const int rc = writer_.wait_for_level(mine.levels, row_id, &mine.deadline);
    lock.lock();
    if (!stuck_ || stuck_->number != mine.number) return;
    stuck_->deadline = mine.deadline;
    if (rc != 0) {
        stuck_->failure = Failure{rc, {}, row_id, full_cause()};
        try {
            stuck_->failure->text = last_error();
        } catch (const std::bad_alloc &) { // it has failed all the same
        }
    }
    land();
}

// For all rows that are under way now.
void Spiller::wait_all(std::unique_lock<std::mutex> &lock) {
    if (open_ != nullptr) close_open();
    for (const uint64_t last = closed_; landed_ < last;)
        wait_for_oldest(lock);
}

// Its rows become visible, in order. False: one of them waits for a level, and those behind it with it.
bool Spiller::finish(Buffer &buffer) {
    LIBCACHE_PAUSE("spill.written");
    while (buffer.ended < buffer.rows.size()) // of one run after the other: usually it is one
        if (!finish_run(buffer)) return false;
    buffer.rows.clear();
    buffer.ended = 0;
    return true;
}

bool Spiller::finish_run(Buffer &buffer) {
    const size_t first = buffer.ended;
    Run &run = *buffer.rows[first].run;
    uint64_t rows = 0, column_bytes = 0;
    bool stuck = false;
    for (; buffer.ended < buffer.rows.size() && buffer.rows[buffer.ended].run == &run; buffer.ended++) {
        const Flight &flight = buffer.rows[buffer.ended];
        const int rc = end(flight, buffer.error);
        if ((stuck = rc == Writer::kNoLevel)) break;
        stuck_.reset();
        if (rc != 0) continue;
        rows++;
        column_bytes += flight.column_bytes;
    }
    count(run, rows, column_bytes);
    leave(run, buffer.ended - first);
    ended(&buffer.rows[first], buffer.ended - first);
    return !stuck;
}

// A row's flight ends: its stub is published, or given back. What publishing gave, or the code of the failure.
// kNoLevel: it goes on.
int Spiller::end(const Flight &flight, int error) {
    int rc = 0;
    if (error != 0)
        rc = lose(flight, error);
    else if (flight.term != 0 && stream_failure_)
        rc = give_up(flight, *stream_failure_); // it would leave a hole before it
    else if (stuck_ && stuck_->failure)
        rc = give_up(flight, *stuck_->failure);
    else
        rc = try_publish(flight);
    if (rc < 0) fail_row(flight, rc);
    return rc;
}

// The disk has refused it.
int Spiller::lose(const Flight &flight, int error) {
    writer_.give_back(flight.stub);
    return full_of(CACHE_FULL_DISK,
                   fail(code_of(error), "writing row %lld of cache %u of session %u, %llu bytes, to the spill file: %s",
                        static_cast<long long>(flight.row_id()), map_.header()->cache_id, map_.header()->session_id,
                        static_cast<unsigned long long>(flight.where.bytes), strerror(error)));
}

int Spiller::give_up(const Flight &flight, const Failure &why) {
    writer_.give_back(flight.stub);
    return why.tell();
}

// Their flights have ended. After publication: who does not find a row here finds it in the index.
void Spiller::ended(const Flight *flights, size_t n) {
    {
        std::lock_guard ids(ids_mutex_);
        for (size_t i = 0; i < n; i++)
            under_way_.erase(flights[i].row_id());
    }
    // rel [landed] pairs with busy(): who sees that nothing is under way finds the rows
    rows_under_way_.fetch_sub(n, std::memory_order_release);
    const auto appends = std::count_if(flights, flights + n, [](const Flight &flight) { return flight.term != 0; });
    if (appends != 0) appends_under_way_.fetch_sub(static_cast<uint64_t>(appends), std::memory_order_relaxed);
}

// Waits for the broker if the index needs a level.
int Spiller::publish(const Flight &flight) {
    Writer::fill_stub(flight.stub, flight.where);
    LIBCACHE_PAUSE("spill.publish.1");
    int64_t id = flight.row_id();
    const int rc =
        flight.term != 0 ? writer_.append(flight.stub, flight.term, &id, true) : writer_.publish(flight.stub);
    LIBCACHE_PAUSE("spill.publish.2");
    return rc;
}

// Does not wait: kNoLevel, and the row is stuck_.
int Spiller::try_publish(const Flight &flight) {
    Writer::fill_stub(flight.stub, flight.where);
    LIBCACHE_PAUSE("spill.publish.1");
    uint32_t levels = 0;
    int64_t id = flight.row_id();
    const int rc = flight.term != 0 ? writer_.try_append(flight.stub, flight.term, &id, true, &levels)
                                    : writer_.try_publish(flight.stub, &levels);
    LIBCACHE_PAUSE("spill.publish.2");
    if (rc != Writer::kNoLevel) return rc;
    if (!stuck_) stuck_ = Stuck{++times_stuck_, levels, {flight.stub.timeout_ns}};
    stuck_->levels = levels;
    return rc;
}

// Published rows. rlx: sums; whoever relies on them has seen the run sealed.
void Spiller::count(Run &run, uint64_t rows, uint64_t column_bytes) {
    segment(run).rows.fetch_add(rows, std::memory_order_relaxed);
    segment(run).bytes.fetch_add(column_bytes, std::memory_order_relaxed);
}

// Rows of this run are no more being written.
void Spiller::leave(Run &run, uint64_t flights) {
    run.flights -= flights;
    if (run.flights == 0 && &run != current_) seal(run);
}

// Keeps the sentence that was just made: for the row's own call, if it is still here, else for whoever asks first. A
// stream's promises stay: no row of memory may take an id that was told to another row's caller.
void Spiller::fail_row(const Flight &flight, int code) {
    Failure failure{code, {}, flight.row_id(), full_cause()};
    if (flight.term != 0 && !stream_failure_) {
        stream_failure_ = failure;
        stream_failed_.store(true, std::memory_order_relaxed);
    }
    const bool own = flight.row_id() == own_;
    if (!own) lost_++;
    try {
        failure.text = last_error();
        if (stream_failure_ && stream_failure_->row_id == failure.row_id) stream_failure_->text = failure.text;
        if (own)
            own_failure_ = std::move(failure);
        else if (failures_.size() < kMostFailures)
            failures_.push_back(std::move(failure));
    } catch (const std::bad_alloc &) { // it is counted all the same
        if (own) own_failure_ = Failure{code, {}, flight.row_id(), full_cause()};
    }
}

// ---- what later calls do

// Who only asks does not wait: whoever has the mutex, be it to wait for the broker or the disk, collects by itself.
void Spiller::help() {
    const KeepError keep; // failures are flush()'s to tell
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) collect();
}

bool Spiller::writes(int64_t row_id) {
    help();
    std::lock_guard ids(ids_mutex_);
    return under_way_.contains(row_id);
}

void Spiller::wait_for(int64_t row_id) {
    if (!writes(row_id)) return;
    const KeepError keep;
    std::unique_lock lock(mutex_);
    while (under_way_.contains(row_id)) {
        if (open_ != nullptr) close_open();
        flying_.empty() ? changed_.wait(lock) : wait_for_oldest(lock); // a large row: it is written by another thread
    }
}

void Spiller::drain() {
    const KeepError keep;
    std::unique_lock lock(mutex_);
    wait_all(lock);
}

int Spiller::flush() {
    std::unique_lock lock(mutex_);
    wait_all(lock);
    if (lost_ == 0) return 0;
    const unsigned long long lost = std::exchange(lost_, 0);
    const std::vector<Failure> failures = std::exchange(failures_, {});
    if (failures.empty()) return fail(CACHE_EIO, "%llu more rows could not be spilled", lost);
    const Failure &first = failures.front();
    if (lost == 1) return first.tell();
    return full_of(first.cause, fail(first.code, "%s; and %llu more rows", first.text.c_str(), lost - 1));
}

int Spiller::flush_stream() {
    if (int rc = flush(); rc != 0) return rc;
    std::lock_guard lock(mutex_);
    return stream_failure_ ? stream_failure_->tell() : 0;
}

void Spiller::begin_stream() {
    std::unique_lock lock(mutex_);
    wait_all(lock);
    // The appends that failed are done again, under the ids that follow: nothing is left to be told.
    failures_.clear();
    lost_ = 0;
    stream_failure_.reset();
    stream_failed_.store(false, std::memory_order_relaxed);
    writer_.break_promises();
}

} // namespace libcache
