// SPDX-License-Identifier: Apache-2.0
// One process's writing side of one cache: takes extents that the broker lends, places rows in them, publishes them
// (PROTOCOL: extents). Used by the client library; all calls may be made by several threads at once. Blocking only
// where a place or a level must come from the broker, with a deadline; the mutex is private to the process and is held
// for about 10 ns a row, never while copying.
#pragma once

#include "core/shm/region.h"
#include "core/shm/ring.h"
#include "core/store/index.h"
#include "core/store/layouts.h"

#include <deque>
#include <mutex>
#include <vector>

namespace libcache {

// The control connection, as the writer sees it. A test can fake it.
class BrokerLink {
  public:
    virtual ~BrokerLink() = default;
    // Tells the broker what this slot needs (nothing in `want`: look after the ring). Never blocks; a message that does
    // not fit into the socket is dropped, the writer asks again. False: the server has gone.
    virtual bool send_want(uint64_t region_id, uint32_t slot, uint64_t epoch, Want want, int64_t row_id) = 0;
    virtual bool alive() = 0;
    virtual unsigned port() const = 0; // for sentences
};

class Writer {
  private:
    struct Held;

  public:
    // Room for one row, header written, not visible to anybody. Ends with publish() or give_back().
    struct Place {
        char *address = nullptr; // of the row header, in the writing mapping
        uint64_t offset = 0;     // of the same, in the region
        int64_t row_id = 0;
        Held *held = nullptr;
        uint32_t units = 0;
        uint64_t column_bytes = 0;
        int64_t timeout_ns = 0;
    };
    // What is to be placed: a row, a stub, or a column table (kLayoutRow) that rows will refer to.
    struct Row {
        const Layout *layout; // null: a stub
        uint32_t number;      // of the layout, kInlineLayout or kLayoutRow; of a stub kSpilledRow
        int64_t row_id;
        int64_t timeout_ns; // for what must come from the broker

        bool table_only = false; // a table that ends there: the schema's is followed by a column, its bytes
        bool may_spill = false;  // the caller puts it elsewhere when memory is full: CACHE_EFULL with no sentence made
        bool from_share = false; // may use the share of the limit that a spilling cache keeps for stubs, as stubs do

        bool stub() const { return SpillStub::is(number); }
        bool has_share() const { return stub() || from_share; }
        // Bytes from the start of the header to the end, for a row that starts at `residue`.
        uint64_t bytes(uint32_t residue) const {
            if (stub()) return sizeof(RowHeader);
            return table_only ? sizeof(RowHeader) + layout->table_bytes()
                              : layout->row_bytes(residue, number >= kLayoutRow);
        }
    };

    // Both mappings outlive the writer. `slot` is ACTIVE for this process with `epoch`.
    Writer(const RegionMap &writing, const RegionMap &reading, uint32_t slot, uint64_t epoch, BrokerLink &link,
           Layouts &layouts);
    ~Writer();
    Writer(const Writer &) = delete;
    Writer &operator=(const Writer &) = delete;

    int place(const Row &row, Place *place);
    // The usual case of place(), in few instructions: a stored layout, and room in the extent at hand whose pages are
    // there. False: nothing that counts was done; ask place().
    bool place_usual(const Layout &layout, uint32_t number, int64_t row_id, Place *place);
    // 0: stored. 1: the id was there already, the place is given back. Errors give the place back, too.
    int publish(const Place &place);
    // The same without waiting for the broker. kNoLevel: the index has no place for it in its first *levels levels, and
    // the row's place stays: wait_for_level(), and again.
    static constexpr int kNoLevel = 3;
    int try_publish(const Place &place, uint32_t *levels);
    // The index's first level as it is to be written.
    Index::DenseStart dense_start() const { return index_.dense_start(); }
    // True if the row that was published last was there already: a hint to look before the next one is copied.
    bool meets_repeats() const { return meets_repeats_.load(std::memory_order_relaxed); }
    void give_back(const Place &place);
    // Room for the stub of a row that is to be spilled, in extents that rows do not use up. Before publish() or
    // append() it gets its words by fill_stub().
    int place_stub(int64_t row_id, int64_t timeout_ns, Place *place);
    static void fill_stub(const Place &place, const SpillStub &stub);
    // Publishes under the stream's next id, if this slot is still the builder of `term`. 0 and the id, or an error; the
    // place ends either way. kBehind: rows that were promised an id come first, and the place stays.
    static constexpr int kBehind = 2;
    int append(const Place &place, uint64_t term, int64_t *row_id, bool promised = false);
    int try_append(const Place &place, uint64_t term, int64_t *row_id, bool promised, uint32_t *levels); // or kNoLevel
    struct Deadline {
        int64_t timeout_ns;
        int64_t at_ns = 0; // set by the first wait
    };
    // 0: look again, there may be more than `levels` by now. An error: there will not be.
    int wait_for_level(uint32_t levels, int64_t row_id, Deadline *deadline);
    // The id under which a row will be appended that is not published yet: a spilled one, being written. -1: this slot
    // is not the builder of `term`. Rows are published, or given up for good, in the order of their promises.
    int64_t promise(uint64_t term);
    void break_promises();
    // The stream's next id, after passing those that a builder published without counting them. Called before the first
    // append of a builder.
    int64_t resume();
    bool builds(uint64_t term) const;
    // Nothing is appended in this term any more, also not by a thread that has begun to. Before the broker is told:
    // from then on another builder may follow, and the two must not meet at `next`.
    void end_appends(uint64_t term);
    bool has(int64_t row_id) { return index_.find(row_id) != 0; } // published by now

    // The number under which these columns are stored from now on; kInlineLayout when the table is full.
    int store_layout(const Layout &layout, int64_t timeout_ns, uint32_t *number);
    // Stores `bytes` at `data` as the region's schema. 0, 1 if there was one.
    int store_schema(const Layout &layout, const char *data, int64_t timeout_ns);

    // Seals every extent without rows in flight: before closing. Rows in flight keep theirs until the process ends.
    void seal_all();

  private:
    struct Hole {
        uint32_t at, units; // a row given back below others: from the start of the extent, and its stride
    };
    // An extent this process holds. Objects are reused, never freed while the writer lives: a publisher may look at
    // `current` after another thread has sealed the extent.
    struct Held {
        uint64_t chunk = 0;
        uint32_t seq = 0;
        uint32_t units = 0;   // of the whole extent as taken
        uint32_t used = 0;    // our own copy: what stands in `bump` is only compared
        uint64_t started = 0; // rows placed since it was taken, under the mutex
        uint64_t settled = 0; // of these, ended without counting in Extent::rows: given back, tables; under the mutex
        uint64_t rows_at_take = 0;
        uint64_t populated = 0;           // bytes of our mapping made present so far
        std::atomic<bool> current{false}; // rows are still placed here: [inflight] in core/README.md
        bool open = false;                // not sealed yet
        std::vector<Hole> holes;
    };

    const RegionMap &map_, &reading_;
    RegionHeader *const header_;
    Slot *const slot_;
    const uint32_t slot_number_;
    const uint64_t epoch_;
    BrokerLink &link_;
    Layouts &layouts_;
    Index index_;
    std::atomic<bool> meets_repeats_{false};

    std::mutex mutex_; // guards all below and every Held but its `current`
    RingConsumer grants_;
    std::vector<uint64_t> aside_; // tokens of extents that were too small for the row at hand
    RingProducer returns_;
    Held *current_ = nullptr;   // the lane of rows: the extent where new ones go
    Held *stubs_ = nullptr;     // the lane of stubs
    bool stub_ordered_ = false; // the next extent that comes is for stubs: rows must not take it
    AtomicU64 ended_term_{0};   // set under the mutex
    uint64_t promised_ = 0;     // ids after `next` that are promised
    std::deque<Held> pool_;
    std::vector<Held *> spare_, open_;

    int place_in(Held *Writer::*lane, const Row &row, Place *place);
    bool place_in_hole(Held &held, const Row &row, Place *place);
    int use(Held &held, const Row &row, Place *place, bool *fits);
    void finish_place(Held &held, const Row &row, uint32_t at, uint32_t units, Place *place);
    static void prefetch_ahead(const Place &place, uint64_t populated);
    void populate_to(std::unique_lock<std::mutex> &lock, Held &held, uint64_t end);
    uint64_t window_end(const Held &held, uint64_t end) const;
    uint32_t room(const Held &held) const;

    Held *take(const Row &row);
    Held *try_token(uint64_t raw, const Row &row, bool *stale);
    static uint32_t units_of(const Row &row, uint32_t at);
    void retire(Held &held);
    void seal(Held &held);
    void seal_if_done(Held &held);
    uint64_t in_flight(const Held &held) const;
    void settle(Held &held);
    void count_row(Held &held);
    bool open_for_more(const Held &held) const { return &held == current_ || &held == stubs_; }
    enum class Appended { Done, NoRoom, NotBuilder, Behind, NoId };
    Appended append_once(const Place &place, uint64_t term, bool promised, int64_t *row_id, uint32_t *levels);
    int store_table(const Layout &layout, int64_t number, const char *data, int64_t timeout_ns, AtomicU64 &entry);

    int wait_for_extent(std::unique_lock<std::mutex> &lock, uint32_t seen, const Row &row, Deadline *deadline);
    // What is asked of the broker, and for which row.
    struct Need {
        Want want;
        int64_t row_id;
        uint64_t row_bytes; // 0: a level
    };
    int wait_answer(std::unique_lock<std::mutex> &lock, uint32_t seen, const Need &need, Deadline *deadline);
    int full_but_for_stubs(const Row &row) const;
    int refused(const Need &need, Answer answer, uint32_t cause) const;
    int still_ours(int64_t row_id) const;
    int no_id() const;
    long long named(int64_t row_id) const;
};

} // namespace libcache
