// SPDX-License-Identifier: Apache-2.0
// One cache as the broker sees it: its region, the writers that are attached, what they are lent and what they wait
// for. Used by the broker's control thread alone; never waits. Work on pages goes to the populating thread, work on the
// disk to the disk's; both come back through job_done().
//
// Parts: cache_region.cc making, attaching, closing. build.cc who builds a stream. stock.cc keeping rings stocked,
// wants, revoking, refusing. grow.cc index levels. spill.cc lending file space. recover.cc dead writers and a new
// broker's start.
#pragma once

#include "core/common/page.h"
#include "core/control/socket.h"
#include "core/control/wire.h"
#include "core/server/extents.h"
#include "core/server/populate.h"
#include "core/server/spill_segments.h"
#include "core/shm/refused.h"
#include "core/shm/region.h"
#include "core/shm/ring.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace libcache {

// What all regions of a broker share.
struct Shop {
    Ledger &ledger;
    SpillLedger &spill;
    Populator &populator, &disk; // disk: another thread, so that a slow one keeps nobody from memory
    uint64_t generation = 0;
    // Gives back pages of other caches that nobody uses, about so many bytes. False: there are none.
    // Old caches go if that is not enough.
    std::function<bool(uint64_t bytes, uint64_t except_region)> reclaim_elsewhere;
    uint64_t punching = 0; // jobs in flight that give pages back
};

struct CacheNames {
    uint64_t region_id;
    uint32_t session_id, cache_id;
};

struct CacheWish {
    uint64_t limit_bytes, expected_rows;
    bool huge, build;
    uint64_t spill_segments; // 0: no spilling
    std::string tag, label;
};

struct SpillRun { // lent to a slot
    uint64_t segment;
    uint32_t len, seq;
};
inline constexpr int kSpillWait = 1; // it is being made: ask again when a job has come back

class CacheRegion {
  public:
    enum class State { Making, Live, Dying };

    // `spill_file`: none if the cache does not spill.
    CacheRegion(Shop &shop, CacheNames names, uint64_t limit_bytes, Fd file, Fd spill_file);
    ~CacheRegion();

    // A fresh file becomes a region and its first index level is asked for: Making until that has come, see ready().
    [[nodiscard]] int make(const CacheWish &wish);
    // An old region in the hands of a new broker (PROTOCOL R3, R4 up to the connections). Writers stay attached.
    [[nodiscard]] int restore();

    const CacheNames &names() const { return names_; }
    uint64_t limit_bytes() const { return limit_; }
    const RegionMap &map() const { return map_; }
    int file() const { return file_.get(); }
    int spill_file() const { return spill_file_.get(); } // -1: none
    bool spills() const { return static_cast<bool>(spill_file_); }
    State state() const { return state_; }
    bool ready() const { return state_ == State::Making && !level_.empty(); }
    bool failed() const { return failed_; } // the first level found no room
    void publish();                         // Making -> Live: openers may see it
    uint64_t charged() const { return extents_ ? extents_->charged() : 0; }
    const char *tag() const { return tag_.c_str(); }
    const char *label() const { return label_.c_str(); }

    // ---- writers
    struct Person {
        uint64_t conn_id;
        int32_t pid;
        uint64_t start_time;
    };
    // A slot for this connection; the one it has, if it has one.
    [[nodiscard]] int attach(const Person &person, uint32_t *slot, uint64_t *epoch);
    bool owns(uint64_t conn_id) const { return find(conn_id) != nullptr; }
    int64_t writers() const { return static_cast<int64_t>(clients_.size()); }
    // A doorbell, with what the slot waits for.
    void message(uint64_t conn_id, uint32_t slot, uint64_t epoch, Want want, int64_t row_id);
    void close(uint64_t conn_id);   // its last handle is closed
    void hung_up(uint64_t conn_id); // its socket: nothing more is granted
    void died(uint64_t conn_id);    // its process
    // File space for a spilled row. 0, kSpillWait or CACHE_E*.
    [[nodiscard]] int lend_spill(uint64_t conn_id, const wire::Spill &wish, SpillRun *run);
    // ---- streams: one builder at a time
    struct Build {
        uint64_t term;
        bool built;
    };
    [[nodiscard]] int begin_build(uint64_t conn_id, Build *build);
    [[nodiscard]] int end_build(uint64_t conn_id, uint64_t term);
    void leave_build(uint64_t conn_id, uint64_t term);
    // Slots that a new broker found: whose connection it must look for.
    std::vector<Person> found_writers() const;
    void reconnect_all(); // after RESUME: offers again what is GRANTED, wakes every slot

    // ---- life
    void job_done(const Job &job);
    void tick();
    bool restless() const; // wants, refusals or growth that time alone may decide
    // Begins to give back pages that nobody uses; with `stock` also those that writers were lent ahead.
    bool reclaim(uint64_t bytes, bool stock);
    void die();    // destroyed: everybody is told, nothing more is lent
    bool can_go(); // dying, no jobs: unmapped; true once nobody else has the file
    void wake_all();

  private:
    struct Offer {
        uint64_t chunk;
        uint32_t seq;
    };
    struct Client { // a slot in use
        Person person{};
        uint64_t epoch = 0;
        RingProducer grant;
        RingConsumer back;
        std::vector<Offer> offers; // GRANTED, as far as we know
        uint32_t next_chunks = 0;  // size of the next extent stocked ahead
        int64_t last_taken_ns = 0, attached_ns = 0;
        Want want{};
        int64_t row_id = 0;
        int64_t want_since_ns = 0;
        int64_t hungry_until_ns = 0;        // it was just given what it waited for: not taken away before
        uint32_t jobs = 0, largest_job = 0; // stock being made for it
        uint64_t jobs_chunks = 0;           // all of that
        uint32_t regrants_failed = 0;       // SEALED extents lent again in which its row did not fit
        Offer last_regrant{};
        uint32_t last_regrant_used = 0;
        bool busy = false; // has sent a message: worth stocking further ahead
        bool closing = false, hung_up = false;
        bool spill_making = false; // file space is being made for it
        uint32_t spill_len = 0;    // segments, as it was lent last
        int64_t spill_lent_ns = 0;
    };
    struct LevelFact {
        LevelKind kind;
        uint64_t first, slots, chunk;
    };
    struct Growth {
        bool active = false, zeroing = false;
        LevelKind kind{};
        uint64_t first = 0, slots = 0, chunks = 0;
        uint32_t jobs = 0, largest_job = 0;
        uint64_t fresh = 0, fresh_chunks = 0; // made for this level just now: zero still
    };
    enum class Room { Have, Wait, None };
    enum class For { Row, Stub, Level }; // what memory is for: in a cache that spills each leaves some to the next

    Shop &shop_;
    const CacheNames names_;
    const uint64_t limit_;
    Fd file_, spill_file_;
    RegionMap map_;
    std::unique_ptr<Extents> extents_;
    std::unique_ptr<SpillSegments> spill_; // null: the cache does not spill
    State state_ = State::Making;
    bool failed_ = false;
    std::string tag_, label_;
    std::map<uint32_t, Client> clients_;
    std::vector<LevelFact> level_;
    Growth growth_;
    std::optional<WindowMap> sample_; // first chunk of the newest level, if it is hashed
    Refused refused_;                 // what is refused; mirrored in the header
    uint64_t jobs_ = 0, builders_ = 0;
    static constexpr uint64_t kUnknown = ~uint64_t{0};
    bool holes_are_holes_ = true;    // no punch has failed: pages that are made anew are zero
    uint64_t to_come_ = kUnknown;    // chunks of rows that are expected and not lent for
    int64_t quiet_since_ns_ = 0;     // when a writer was last heard of
    int64_t no_memory_until_ns_ = 0; // the kernel refused pages just now
    uint64_t spill_refused_ = 0;     // shortest run refused; mirrored in the header
    uint64_t spill_full_ = 0;        // so many segments were too many for the disk, until then
    int64_t spill_full_until_ns_ = 0, spill_lent_ns_ = 0;
    int spill_error_ = 0; // errno of the disk's last refusal
    uint32_t spill_giving_back_ = 0;
    bool spill_told_ = false, ring_told_ = false, spill_can_punch_ = true;
    std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);

    RegionHeader *header() const { return map_.header(); }
    bool huge() const { return map_.geometry().huge_chunks != 0; }
    const Client *find(uint64_t conn_id) const;
    std::map<uint32_t, Client>::iterator slot_of(uint64_t conn_id);
    Client *client_of(uint32_t slot);

    void describe(const CacheWish &wish);
    static void merge_want(Client &client, Want want);
    bool released(uint32_t slot, Client &client);
    void vacate(uint32_t slot, Client &client);
    void take_back_granted(uint32_t slot);
    void end_building(uint32_t slot);
    void set_builder(uint64_t builder);
    void submit(Work work, uint64_t chunk, uint64_t chunks, uint32_t slot, uint64_t epoch, uint32_t wish);
    void stocked(const Job &job);

    // stock.cc
    void drain_returns(Client &client);
    void refresh_offers(uint32_t slot, Client &client);
    void adapt(Client &client);
    uint32_t first_chunks() const;
    void retire_idle();
    void review();
    void serve_extent(uint32_t slot, Client &client);
    void satisfied(uint32_t slot, Client &client);
    void serve_level(uint32_t slot, Client &client);
    Room find_room(uint64_t chunks, uint32_t slot, For what, uint64_t *chunk);
    bool stock(uint64_t chunks, uint32_t slot);
    uint64_t ahead(const Client &client) const;
    void stock_ahead(uint32_t slot, Client &client);
    uint64_t share(const Client &client) const;
    void estimate_what_comes();
    void stock_first_writer();
    bool offer(uint32_t slot, Client &client, uint64_t chunk, uint64_t chunks);
    void push(Client &client, Offer offer);
    bool offer_again(Client &client, uint64_t chunks);
    bool offer_sealed(uint32_t slot, Client &client);
    void trim_all();
    bool may_have(uint64_t chunks, For what) const;
    bool revoke(uint64_t chunks, uint32_t slot, For what);
    bool make_contiguous(uint64_t chunks);
    void answer(uint32_t slot, Client &client, int code, uint64_t chunks, uint32_t cause = 0);
    uint32_t full_cause_of(uint64_t chunks) const;
    uint64_t bytes_to_make(uint64_t chunks) const;
    void wake(uint32_t slot);
    void refuse(uint32_t slot, Client &client, uint64_t chunks);
    void look_for_room();
    void publish_refusals(uint32_t cause);
    void allow_share();
    bool somebody_waits() const;
    uint64_t kept_from_rows() const;
    uint64_t room_but(uint64_t kept) const;
    uint64_t row_room() const { return room_but(kept_from_rows()); }
    // At least one level's chunk, and a page of the extent table to name it.
    uint64_t kept_from_stubs() const { return std::max(kept_from_rows() / kLevelShare, kChunkBytes + page_bytes()); }
    uint64_t stub_room() const { return room_but(kept_from_stubs()); }

    // grow.cc
    void begin_growth(LevelKind kind, uint64_t first, uint64_t slots);
    void pump_growth();
    bool smaller_growth();
    void zeroed(const Job &job);
    void publish_level(uint64_t chunk);
    void fail_growth();
    void grow_for(int64_t row_id);
    void grow_ahead();
    uint64_t all_slots() const;
    uint64_t largest_level() const;
    uint64_t dense_end() const;
    uint64_t rows() const;
    uint64_t hashed_rows() const;
    bool newest_half_full();
    int load_levels();

    // spill.cc
    uint64_t spill_ahead(Client &client) const;
    void trim_spill();
    bool lend_what_is_there(Client &client, const wire::Spill &wish, uint64_t needed, uint64_t worth, SpillRun *run);
    bool make_spill(Client &client, uint32_t slot, uint64_t segments);
    void stock_spill(Client &client, uint32_t slot);
    bool give_back_spill();
    int refuse_spill(uint64_t needed);
    void spill_done(const Job &job);
    void tick_spill();
    bool holds_spill(uint32_t slot);
    void take_back_spill(uint32_t slot);
    int recover_spill(uint32_t slot);
    int load_spill();
    void restore_spill();

    // recover.cc
    void recover_slot(uint32_t slot);
    int map_whole(RegionMap *whole) const; // for reading, by the geometry that was checked
    int recover_extents(uint32_t slot);
    void restore_extents();
    void restore_slots();
};

uint64_t process_start_time(int pid); // clock ticks since boot, 0: no such process

} // namespace libcache
