// SPDX-License-Identifier: Apache-2.0
// Rows into buffers, buffers into the file, stubs into the index. Segments: segments.cc.
#include "core/spill/spiller.h"

#include "core/common/error.h"
#include "core/common/pause.h"
#include "core/spill/checksum.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>

namespace libcache {
namespace {

constexpr unsigned kBuffers = 8;
constexpr unsigned long long kBufferBytes = 1 << 20; // a row larger than this is written by the call itself
constexpr unsigned long long kStagingBytes = kBuffers * kBufferBytes;
constexpr uint64_t kLargePiece = 1 << 20; // of such a row: small enough to be in the cache when its CRC was made
constexpr size_t kLargePieces = 256;
constexpr size_t kMostFailures = 64; // whose sentences are kept; the others are counted

int code_of(int error) {
    return error == ENOSPC || error == EDQUOT || error == EFBIG ? CACHE_EFULL : CACHE_EIO;
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
    std::lock_guard lock(mutex_);
    wait_all();
    if (current_ != nullptr) retire(*std::exchange(current_, nullptr));
    ring_.reset();
    if (staging_ != nullptr) munmap(staging_, kStagingBytes);
}

// Ring and buffers, at the first row.
int Spiller::start() {
    if (staging_ != nullptr) return 0;
    void *const memory = mmap(nullptr, kStagingBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return fail(CACHE_ENOMEM, "this process has no memory for %llu bytes of staging buffers", kStagingBytes);
    // A child's copy on write would move pages that the kernel writes from.
    madvise(memory, kStagingBytes, MADV_DONTFORK);
    staging_ = static_cast<char *>(memory);
    buffers_.resize(kBuffers);
    free_.reserve(kBuffers);
    iovec pieces[kBuffers];
    for (unsigned i = 0; i < kBuffers; i++) {
        buffers_[i].memory = staging_ + i * kBufferBytes;
        pieces[i] = {buffers_[i].memory, kBufferBytes};
        free_.push_back(&buffers_[i]);
    }
    ring_.emplace(kBuffers);
    const bool pinned = ring_->register_buffers(pieces, kBuffers);
    for (unsigned i = 0; i < kBuffers; i++) {
        buffers_[i].fd = file_;
        buffers_[i].write = true;
        buffers_[i].buffer = pinned ? static_cast<int>(i) : -1;
    }
    return 0;
}

// ---- one row
// ------------------------------------------------------------------------------------------------------------

// All that may fail comes before the bytes are written: the stub's place and room in the file.
int Spiller::reserve(int64_t row_id, const SpillRow &row, uint64_t bytes, Flight *flight) {
    if (int rc = start(); rc != 0) return rc;
    if (int rc = writer_.place_stub(row_id, row.timeout_ns, &flight->stub); rc != 0) return rc;
    LIBCACHE_PAUSE("spill.reserve.1");
    flight->row_id = row_id;
    flight->where.bytes = bytes;
    flight->column_bytes = row.layout->column_bytes();
    flight->term = 0;
    const int rc = take_room(bytes, row.timeout_ns, &flight->run, &flight->where.offset);
    if (rc != 0) writer_.give_back(flight->stub);
    return rc;
}

void Spiller::begin(const Flight &flight) {
    // What an earlier write of this id failed of is history: it is neither this one's result nor a lost row.
    lost_ -= std::erase_if(failures_, [&](const Failure &failure) { return failure.row_id == flight.row_id; });
    under_way_.insert(flight.row_id);
    rows_under_way_.fetch_add(1, std::memory_order_relaxed);
    if (flight.term != 0) appends_under_way_.fetch_add(1, std::memory_order_relaxed);
}

int Spiller::put(int64_t row_id, const SpillRow &row) {
    std::unique_lock lock(mutex_);
    (void)collect(false);
    if (under_way_.count(row_id) != 0) return 1;
    const RowImage image(row, row_id);
    Flight flight{};
    if (int rc = reserve(row_id, row, image.bytes(), &flight); rc != 0) return rc;
    begin(flight);
    if (image.bytes() <= kBufferBytes) {
        stage(image, flight);
        return result_of(row_id);
    }
    lock.unlock(); // others go on meanwhile
    const int error = write_large(image, flight, &flight.where.crc);
    lock.lock();
    const int rc = finish(flight, error);
    if (rc < 0) (void)result_of(row_id);
    return rc;
}

int Spiller::append(const SpillRow &row, uint64_t term, int64_t *row_id) {
    std::lock_guard lock(mutex_);
    (void)collect(false);
    if (stream_failure_) return fail(stream_failure_->code, "%s", stream_failure_->text.c_str());
    const uint64_t bytes = RowImage(row, 0).bytes();
    if (bytes > kBufferBytes) wait_all(); // it is published as soon as it is written
    Flight flight{};
    if (int rc = reserve(0, row, bytes, &flight); rc != 0) return rc;
    flight.term = term;
    flight.row_id = flight.stub.row_id = *row_id = writer_.promise(term);
    if (*row_id < 0) {
        writer_.give_back(flight.stub);
        if (--flight.run->flights == 0 && flight.run != current_) seal(*flight.run);
        return fail(CACHE_EBUILDING,
                    "this process is no more the builder of cache %u of session %u: call "
                    "cache_build_begin",
                    map_.header()->cache_id, map_.header()->session_id);
    }
    const RowImage image(row, *row_id);
    begin(flight);
    if (bytes <= kBufferBytes) {
        stage(image, flight);
        return result_of(*row_id);
    }
    const int error = write_large(image, flight, &flight.where.crc);
    const int rc = finish(flight, error);
    if (rc < 0) (void)result_of(*row_id);
    return rc;
}

// What is known of a row by now.
int Spiller::result_of(int64_t row_id) {
    const auto mine = std::find_if(failures_.begin(), failures_.end(),
                                   [&](const Failure &failure) { return failure.row_id == row_id; });
    if (mine == failures_.end()) return 0;
    const int rc = fail(mine->code, "%s", mine->text.c_str());
    failures_.erase(mine);
    lost_--;
    return rc;
}

int Spiller::write_large(const RowImage &image, const Flight &flight, uint32_t *crc) const {
    PieceWriter writer(file_, flight.where.offset);
    image.for_each_piece([&](const void *data, uint64_t bytes) { writer.add(data, bytes); });
    return writer.end(crc);
}

// ---- buffers
// ------------------------------------------------------------------------------------------------------------

// The open buffer if it goes on at `offset` and has room, else another.
Spiller::Buffer &Spiller::buffer_at(uint64_t offset, uint64_t bytes) {
    if (open_ != nullptr && (open_->start + open_->filled != offset || kBufferBytes - open_->filled < bytes))
        submit_open();
    if (open_ == nullptr) {
        while (free_.empty())
            (void)collect(true);
        open_ = free_.back();
        free_.pop_back();
        open_->start = offset;
        open_->filled = 0;
        open_->done = false;
    }
    return *open_;
}

// While nothing is being written a row goes to the disk at once; else it waits for others, until the buffer is full or
// a write has ended.
void Spiller::stage(const RowImage &image, Flight flight) {
    Buffer &buffer = buffer_at(flight.where.offset, flight.where.bytes);
    char *const start = buffer.memory + buffer.filled;
    char *to = start;
    image.for_each_piece([&](const void *data, uint64_t bytes) {
        memcpy(to, data, bytes);
        to += bytes;
    });
    flight.where.crc = crc32c(start, flight.where.bytes);
    buffer.filled += flight.where.bytes;
    buffer.rows.push_back(flight);
    if (flying_.empty() || buffer.filled == kBufferBytes) submit_open();
    (void)collect(false);
}

void Spiller::submit_open() {
    Buffer &buffer = *std::exchange(open_, nullptr);
    buffer.piece = {buffer.memory, buffer.filled};
    buffer.pieces = &buffer.piece;
    buffer.n_pieces = 1;
    buffer.offset = buffer.start;
    flying_.push_back(&buffer);
    LIBCACHE_PAUSE("spill.submit.1");
    ring_->start(buffer);
    ring_->submit();
}

// Takes note of writes that are done and publishes their rows, in the order of submission: a stream needs it. `wait`:
// for at least the oldest one. False: nothing is under way any more.
bool Spiller::collect(bool wait) {
    if (flying_.empty()) return false;
    while (Transfer *done = ring_->next_done(wait && !flying_.front()->done))
        static_cast<Buffer *>(done)->done = true;
    while (!flying_.empty() && flying_.front()->done) {
        Buffer &buffer = *flying_.front();
        flying_.pop_front();
        finish(buffer);
    }
    if (flying_.empty() && open_ != nullptr) submit_open();
    return !flying_.empty();
}

void Spiller::wait_all() {
    if (open_ != nullptr) submit_open();
    while (collect(true)) {
    }
}

void Spiller::finish(Buffer &buffer) {
    LIBCACHE_PAUSE("spill.written");
    for (const Flight &flight : buffer.rows)
        (void)finish(flight, buffer.error);
    buffer.rows.clear();
    free_.push_back(&buffer);
}

// A row's flight ends: its stub is published, or given back. What publishing gave, or the code of the failure.
int Spiller::finish(const Flight &flight, int error) {
    int rc = 0;
    if (error != 0)
        rc = fail(code_of(error), "writing row %lld of cache %u of session %u, %llu bytes, to the spill file: %s",
                  static_cast<long long>(flight.row_id), map_.header()->cache_id, map_.header()->session_id,
                  static_cast<unsigned long long>(flight.where.bytes), strerror(error));
    else if (flight.term != 0 && stream_failure_)
        rc = fail(stream_failure_->code, "%s", stream_failure_->text.c_str()); // it would leave a hole before it
    if (rc != 0)
        writer_.give_back(flight.stub);
    else
        rc = publish(flight);
    if (rc < 0) fail_row(flight, rc);
    under_way_.erase(flight.row_id);
    rows_under_way_.fetch_sub(1, std::memory_order_relaxed);
    if (flight.term != 0) appends_under_way_.fetch_sub(1, std::memory_order_relaxed);
    if (--flight.run->flights == 0 && flight.run != current_) seal(*flight.run);
    return rc;
}

int Spiller::publish(const Flight &flight) {
    Writer::fill_stub(flight.stub, flight.where);
    LIBCACHE_PAUSE("spill.publish.1");
    int64_t id = flight.row_id;
    const int rc =
        flight.term != 0 ? writer_.append(flight.stub, flight.term, &id, true) : writer_.publish(flight.stub);
    if (rc != 0) return rc;
    LIBCACHE_PAUSE("spill.publish.2");
    SpillSegment &counts = segment(*flight.run);
    // rlx: sums; whoever relies on them has seen the run sealed
    counts.rows.fetch_add(1, std::memory_order_relaxed);
    counts.bytes.fetch_add(flight.column_bytes, std::memory_order_relaxed);
    return 0;
}

// Keeps the sentence that was just made, for whoever asks first.
void Spiller::fail_row(const Flight &flight, int code) {
    const Failure failure{code, last_error(), flight.row_id};
    lost_++;
    if (failures_.size() < kMostFailures) failures_.push_back(failure);
    if (flight.term == 0 || stream_failure_) return;
    stream_failure_ = failure;
    stream_failed_.store(true, std::memory_order_relaxed);
    writer_.break_promises();
}

// ---- what later calls do
// ---------------------------------------------------------------------------------------------------------------

bool Spiller::writes(int64_t row_id) {
    const KeepError keep; // failures are flush()'s to tell
    std::lock_guard lock(mutex_);
    (void)collect(false);
    return under_way_.count(row_id) != 0;
}

void Spiller::wait_for(int64_t row_id) {
    const KeepError keep;
    std::lock_guard lock(mutex_);
    under_way_.count(row_id) != 0 ? wait_all() : static_cast<void>(collect(false));
}

void Spiller::drain() {
    const KeepError keep;
    std::lock_guard lock(mutex_);
    wait_all();
}

int Spiller::flush() {
    std::lock_guard lock(mutex_);
    wait_all();
    if (lost_ == 0) return 0;
    const unsigned long long lost = std::exchange(lost_, 0);
    const std::vector<Failure> failures = std::exchange(failures_, {});
    if (failures.empty()) return fail(CACHE_EIO, "%llu more rows could not be spilled", lost);
    const Failure &first = failures.front();
    if (lost == 1) return fail(first.code, "%s", first.text.c_str());
    return fail(first.code, "%s; and %llu more rows", first.text.c_str(), lost - 1);
}

void Spiller::begin_stream() {
    std::lock_guard lock(mutex_);
    wait_all();
    // The appends that failed are done again, under the ids that follow: nothing is left to be told.
    failures_.clear();
    lost_ = 0;
    stream_failure_.reset();
    stream_failed_.store(false, std::memory_order_relaxed);
    writer_.break_promises();
}

} // namespace libcache
