// SPDX-License-Identifier: Apache-2.0
// One process's spilling side of one cache: writes rows that memory refuses to the cache's file, many in one transfer
// and several transfers at once, and publishes a stub for each when its bytes are written (PROTOCOL "Spilled row").
// There is no thread: what is done is taken note of by later calls, by flush() and at the end. Any thread may call; the
// mutex is private to the process. Rows are copied into staging buffers without it (a stream's with it: their order is
// that of the calls), and nobody holds it while he waits for the broker, but for the builder of a stream whose row is
// larger than a buffer and needs an index level. It is held while all buffers are being written. Who only asks whether
// a row is under way must not wait for that either: the ids have a mutex of their own, which is held for a look-up or a
// change alone, and taken last.
#pragma once

#include "core/common/error.h"
#include "core/spill/image.h"
#include "core/spill/ring.h"
#include "core/store/writer.h"

#include <boost/circular_buffer.hpp>
#include <boost/unordered/unordered_flat_set.hpp>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace libcache {

// Where file space comes from: the broker. A test can fake it.
class SpillLink {
  public:
    struct Run {
        uint64_t segment, len;
        uint32_t seq;
    };
    virtual ~SpillLink() = default;
    // A run of segments with room for `bytes`, now GRANTED to this slot. `refusal`: errno with which io_uring was
    // refused, for the server's log, or 0.
    virtual int grant(uint64_t bytes, int refusal, int64_t timeout_ns, Run *run) = 0;
};

class Spiller {
  public:
    // All outlive it. `file`: the spill file, for writing.
    Spiller(const RegionMap &map, uint32_t slot, int file, Writer &writer, SpillLink &link);
    ~Spiller(); // waits for what is being written
    Spiller(const Spiller &) = delete;
    Spiller &operator=(const Spiller &) = delete;

    // 0: the row is written or being written. 1: it is there, or being written, already. An error: what is known to
    // have failed. A write that fails after this has returned is told by flush().
    int put(int64_t row_id, const SpillRow &row);
    // The same for the builder of a stream; the id is told at once. An append that fails for good fails all later ones,
    // until begin_stream().
    int append(const SpillRow &row, uint64_t term, int64_t *row_id);
    void begin_stream();

    // Rows are being written. acq [landed]: if none is, what was put before is found.
    bool busy() const { return rows_under_way_.load(std::memory_order_acquire) != 0; }
    // The next append must be this object's: rows of the stream are being written, or one has failed. A hint: who comes
    // too late finds ids promised (Writer::kBehind) and asks again.
    bool has_stream() const {
        return appends_under_way_.load(std::memory_order_relaxed) != 0 ||
               stream_failed_.load(std::memory_order_relaxed);
    }
    // This row is being written. Takes note of what is done, if no other thread is at work here.
    bool writes(int64_t row_id);
    // The same, and waits for this row if it is being written.
    void wait_for(int64_t row_id);
    void drain();
    // drain(), and the first failure that no call has returned yet.
    int flush();
    // The same for a stream that is to end: rows of it that are lost are told until begin_stream().
    int flush_stream();

  private:
    struct Run { // of segments that this process HOLDs
        uint64_t segment, len;
        uint32_t seq;
        uint64_t used;        // bytes; our own copy
        uint64_t flights = 0; // rows being written
        uint64_t start() const { return segment * kSegmentBytes; }
        uint64_t room() const { return len * kSegmentBytes - used; }
    };
    struct Flight { // one row
        Writer::Place stub;
        SpillStub where;
        Run *run;
        uint64_t column_bytes;
        uint64_t term; // of a stream, else 0
        int64_t row_id() const { return stub.row_id; }
    };
    // Filled while it is open_; then in flying_, handed to the ring once nobody copies into it any more.
    struct Buffer : Transfer {
        char *memory = nullptr;
        uint64_t start = 0, filled = 0; // place in the file, bytes
        unsigned copying = 0;           // rows whose bytes other threads are copying into it
        size_t ended = 0;               // rows whose flight has ended: the first ones
        bool done = false;
        iovec piece{};
        std::vector<Flight> rows;
    };
    struct Failure {
        int code;
        std::string text;
        int64_t row_id;
        uint32_t cause; // of CACHE_EFULL
        int tell() const {
            return full_of(
                cause, fail(code, "%s",
                            text.empty() ? "a row could not be spilled, nor memory be had to say why" : text.c_str()));
        }
    };

    // A row that is written and whose stub has no place in the index: the first one of the oldest buffer.
    struct Stuck {
        uint64_t number; // tells it from the one before and the next
        uint32_t levels; // that have no place for it
        Writer::Deadline deadline;
        std::optional<Failure> failure{}; // there will be no other level
    };

    const RegionMap &map_;
    const uint32_t slot_number_;
    const int file_;
    Writer &writer_;
    SpillLink &link_;
    AtomicU64 rows_under_way_{0}, appends_under_way_{0}; // changed under the mutex
    std::atomic<bool> stream_failed_{false};             // the same

    std::mutex stub_mutex_; // one thread at a time orders memory for stubs; taken first, and not with the other
    std::mutex mutex_;      // guards all below
    std::optional<TransferRing> ring_;
    char *staging_ = nullptr;
    std::vector<Buffer> buffers_;
    std::vector<Buffer *> free_;
    boost::circular_buffer<Buffer *> flying_; // in the order of closing, which is that of publication
    Buffer *open_ = nullptr;                  // being filled
    uint64_t closed_ = 0, landed_ = 0;        // buffers, since the beginning
    int64_t sent_ns_ = 0;                     // when a buffer was last handed to the ring
    std::condition_variable changed_; // a closed buffer was handed to the ring, a large row or a request has ended
    bool asking_ = false;             // a thread asks the broker for a run: others wait, and share it
    std::optional<Stuck> stuck_;
    uint64_t times_stuck_ = 0;
    std::list<Run> runs_;
    Run *current_ = nullptr;
    std::vector<Failure> failures_;      // not told yet: the first ones
    uint64_t lost_ = 0;                  // rows not told yet
    int64_t own_ = -1;                   // the row that the call at work has brought
    std::optional<Failure> own_failure_; // of that row
    std::optional<Failure> stream_failure_;

    std::mutex ids_mutex_; // guards changes of the following, besides mutex_: either is enough to read it
    boost::unordered_flat_set<int64_t> under_way_; // ids

    int start();
    enum class Kind { Put, Append };
    int reserve(std::unique_lock<std::mutex> &lock, Kind kind, int64_t row_id, const SpillRow &row, Flight *flight);
    int prepare(std::unique_lock<std::mutex> &lock, Kind kind, int64_t timeout_ns, Flight *flight);
    int needless(Kind kind, int64_t row_id);
    void give_back(const Flight &flight);
    bool has_room(uint64_t bytes) const { return current_ != nullptr && current_->room() >= bytes; }
    void keep(Run *taken, uint64_t bytes);
    void use_room(Flight *flight);
    int take_run(std::unique_lock<std::mutex> &lock, uint64_t bytes, int64_t timeout_ns, Run **run);
    bool try_run(const SpillLink::Run &granted, uint64_t bytes, Run **run);
    void retire(Run &run);
    void seal(Run &run);
    SpillSegment &segment(const Run &run) const { return *map_.segment(run.segment); }

    Buffer &buffer_at(uint64_t offset, uint64_t bytes);
    void make_room(std::unique_lock<std::mutex> &lock);
    void close_open();
    void send(Buffer &buffer);
    void copied(Buffer &buffer);
    void collect();
    void land();
    void help();
    void wait_for_oldest(std::unique_lock<std::mutex> &lock);
    void wait_all(std::unique_lock<std::mutex> &lock);
    void wait_for_level(std::unique_lock<std::mutex> &lock);
    bool finish(Buffer &buffer);
    bool finish_run(Buffer &buffer);
    int end(const Flight &flight, int error);
    int lose(const Flight &flight, int error);
    int give_up(const Flight &flight, const Failure &why);
    int publish(const Flight &flight);
    int try_publish(const Flight &flight);
    void count(Run &run, uint64_t rows, uint64_t column_bytes);
    void ended(const Flight *flights, size_t n);
    void leave(Run &run, uint64_t flights);
    void fail_row(const Flight &flight, int code);
    int write_large(std::unique_lock<std::mutex> &lock, const RowImage &image, Flight flight);
    void begin(const Flight &flight);
    int outcome(int64_t row_id);
};

} // namespace libcache
