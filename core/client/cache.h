// SPDX-License-Identifier: Apache-2.0
// What the handles of libcache.h point to: a client, a cache opened for reading, and, from the first put on, the
// process's writing side of it. Used by capi/. Any thread may call; opening, attaching and closing are serialised per
// process, reading and writing are not.
#pragma once

#include "core/client/connection.h"
#include "core/client/page_tables.h"
#include "core/client/process.h"
#include "core/shm/region.h"
#include "core/spill/reader.h"
#include "core/spill/spiller.h"
#include "core/store/index.h"
#include "core/store/layouts.h"
#include "core/store/writer.h"

#include <atomic>
#include <memory>
#include <optional>
#include <sys/types.h>

namespace libcache {

// The reading side of one region: shared by all handles of a process, inherited by its children.
struct Region {
    Region() = default;
    Region(const Region &) = delete;
    Region &operator=(const Region &) = delete;
    ~Region();

    RegionMap map;
    Index index;
    Layouts layouts;
    PageTableBytes page_tables;

    // Of a cache that spills, read-only; -1: it does not.
    int spill_file() const { return spill_file_.load(std::memory_order_acquire); }
    uint64_t spill_file_bytes() const { return map.geometry().spill_segments * kSegmentBytes; }
    // False: this process has closed it unasked, as daemons do, and the number may be another file's by now.
    bool still_has_spill_file() const;
    // At each open, so that a lost one is there again. Under this_process().mutex; others may be reading.
    void set_spill_file(Fd file);

  private:
    std::atomic<int> spill_file_{-1};
    dev_t device_ = 0;
    ino_t inode_ = 0;
};

// One region open on one connection; its end sends CLOSE. Made and ended under this_process().mutex.
class OpenUse {
  public:
    OpenUse(std::shared_ptr<Connection> on, wire::Region which) : connection(std::move(on)), id(which) {}
    ~OpenUse();
    OpenUse(const OpenUse &) = delete;
    OpenUse &operator=(const OpenUse &) = delete;

    const std::shared_ptr<Connection> connection;
    const wire::Region id;
    std::shared_ptr<Region> region;
    std::weak_ptr<class WriterUse> writer;
};

// The writing side of one region in one process: its slot, its mapping. A forked child must never touch its parent's.
class WriterUse final : public SpillLink {
  public:
    explicit WriterUse(std::shared_ptr<OpenUse> open) : process(&this_process()), open_(std::move(open)) {}
    ~WriterUse() override;
    WriterUse(const WriterUse &) = delete;
    WriterUse &operator=(const WriterUse &) = delete;

    // Asks the broker for a slot and maps the region for writing.
    int attach(int64_t timeout_ns);
    // A request about the build of this region.
    int request(wire::Type type, int64_t timeout_ns, wire::Message &message);
    int grant(uint64_t bytes, int refusal, int64_t timeout_ns, Run *run) override;

    const Process *const process;
    std::optional<Writer> writer;
    std::optional<Spiller> spiller; // of a cache that spills
    AtomicU64 build_term{0}; // as the broker gave it; 0: not the builder. Relaxed: the region's builder word decides
    std::mutex reservations_mutex;
    cache_reservation *reservations = nullptr; // a doubly linked list

  private:
    const std::shared_ptr<OpenUse> open_; // keeps the reading side, through which headers are read
    RegionMap map_;
    Fd spill_file_;
    wire::Attached attached_{};
};

// The spilled rows that a handle's views show, in one process. A forked child inherits its parent's views, to be read;
// it never frees them, for it cannot know who held the list's mutex.
struct ViewImages {
    const Process *process;
    SpilledImages images;
};

// A reservation of a row that memory has refused: built in memory of one's own, written by commit.
struct SpilledReservation {
    OwnedImage memory;
    std::unique_ptr<const Layout> own;
    const Layout *layout;
    uint32_t number;
};

} // namespace libcache

struct cache_client {
    libcache::ClientConfig config;
    std::shared_ptr<libcache::Connection> connection; // of the process that connected

    // The connection of this process (a forked child makes its own). The caller holds this_process().mutex.
    int here(std::shared_ptr<libcache::Connection> *found);
    // Ends a handle in a forked child without touching what is its parent's.
    void forget();
    // One request on it.
    int request(libcache::wire::Type type, libcache::wire::Message &message);
};

struct cache {
    libcache::ClientConfig config;
    std::shared_ptr<libcache::OpenUse> open;
    std::shared_ptr<libcache::Region> region;
    uint32_t flags = 0;

    int writer(libcache::WriterUse **found) {
        // acq pairs with attach(): the writer was made before its pointer
        libcache::WriterUse *const known = writer_.load(std::memory_order_acquire);
        if (known != nullptr && known->process == &libcache::this_process()) return *found = known, 0;
        return attach(found);
    }
    // The same without attaching: null if this process has not written yet.
    libcache::WriterUse *writer_if_any() const {
        libcache::WriterUse *const known = writer_.load(std::memory_order_acquire);
        return known != nullptr && known->process == &libcache::this_process() ? known : nullptr;
    }
    libcache::RegionHeader *header() const { return region->map.header(); }
    bool live() const {
        // acq: a destroyed cache is seen by the first call after
        return header()->state.load(std::memory_order_acquire) == static_cast<uint64_t>(libcache::CacheState::Live);
    }
    libcache::SpilledImages &images(); // of this handle's views, in this process
    int gone() const;                  // CACHE_EGONE with its sentence
    // The connection of this process to the cache's server: in a forked child, one of its own.
    int here(std::shared_ptr<libcache::Connection> *found);

    ~cache(); // the caller holds this_process().mutex

  private:
    std::atomic<libcache::WriterUse *> writer_{nullptr};
    std::shared_ptr<libcache::WriterUse> writer_owner_; // guarded by this_process().mutex
    std::atomic<libcache::ViewImages *> images_{nullptr};
    int attach(libcache::WriterUse **found);
};

struct cache_reservation {
    cache *handle;
    libcache::WriterUse *use;
    libcache::Writer::Place place;
    std::unique_ptr<libcache::SpilledReservation> spilled;  // null: the row is in memory, at `place`
    cache_reservation *next = nullptr, *previous = nullptr; // in use->reservations, guarded by its mutex
};

namespace libcache {

int open_cache(cache_client &client, uint32_t session_id, uint32_t cache_id, const cache_options *options,
               cache **handle);
int close_cache(cache *handle);

int put_row(cache &handle, int64_t row_id, const cache_column *columns, uint32_t n_columns);
int reserve_row(cache &handle, int64_t row_id, cache_column *columns, uint32_t n_columns,
                cache_reservation **reservation);
int end_reservation(cache_reservation *reservation, bool commit);
int flush_rows(cache &handle);

int get_row(cache &handle, int64_t row_id, cache_view *view);
int64_t get_rows(cache &handle, const int64_t *row_ids, size_t n, cache_view *views);
int64_t gather_rows(cache &handle, const int64_t *row_ids, size_t n, uint32_t column, char *dst, size_t stride,
                    uint8_t *found);
int64_t contains_rows(cache &handle, const int64_t *row_ids, size_t n, uint8_t *found);
int64_t scan_rows(cache &handle, uint64_t *cursor, int64_t *ids, size_t n);
uint32_t view_columns(const cache_view &view);
int view_column(const cache_view &view, uint32_t i, cache_column *column);
// Frees what a view of a spilled row shows.
int release_image(cache &handle, const cache_view &view); // 0

int begin_build(cache &handle, int64_t *resume_at);
int append_row(cache &handle, const cache_column *columns, uint32_t n_columns, int64_t *row_id);
int end_build(cache &handle);
int leave_build(cache &handle);
int wait_build(cache &handle, int64_t timeout_ms);

int64_t check_cache(cache &handle, uint32_t flags, cache_check_callback report, void *argument);

int set_schema(cache &handle, const char *const *names, uint32_t n_names);
int get_schema(cache &handle, char *buffer, size_t *bytes);

} // namespace libcache
