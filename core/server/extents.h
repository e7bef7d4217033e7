// SPDX-License-Identifier: Apache-2.0
// The extent words of one region, as the broker changes them (PROTOCOL section 1). Every function is one transition,
// complete in itself; what happens when the broker dies inside is said there. Used by the broker's control thread
// alone. The maps of FREE and EMPTY runs and the charged sum are mirrors of the words, made anew by load().
#pragma once

#include "core/server/ledger.h"
#include "core/shm/region.h"

#include <cstdint>
#include <map>
#include <vector>

namespace libcache {

class Extents {
  public:
    static constexpr uint64_t kNone = ~uint64_t{0};
    static constexpr uint64_t kUnitChunks = kHugeBytes / kChunkBytes;
    struct Head {
        uint64_t chunk;
        ExtentWord word;
    };

    // `map` (RegionAccess::Control) outlives this.
    Extents(const RegionMap &map, uint64_t limit_bytes, Ledger &ledger)
        : map_(map), header_(map.header()), limit_(limit_bytes), ledger_(ledger) {}
    ~Extents() { ledger_.uncharge(charged_); }
    Extents(const Extents &) = delete;
    Extents &operator=(const Extents &) = delete;

    // A new region: header, the first slots and the first page of the table get their pages. 0 or CACHE_EFULL.
    [[nodiscard]] int start();
    // An old region: the mirrors from the words. 0 or CACHE_ECORRUPT.
    [[nodiscard]] int load();

    uint64_t charged() const { return charged_; }
    uint64_t free_chunks() const { return free_chunks_; }
    uint64_t room_bytes() const; // that may be made now: cache, server, machine
    uint64_t limit_left() const; // of the cache's limit alone
    uint32_t window(uint64_t chunk) const { return chunk < map_.geometry().huge_chunks ? kUnitChunks : 1; }

    // The word of a head; state Empty and len 0 if `chunk` cannot be one.
    ExtentWord word(uint64_t chunk) const;
    std::vector<Head> heads() const; // those that are not EMPTY, in order; stops at an impossible word
    Bump bump(uint64_t chunk) const {
        return Bump::unpack(extent(chunk).bump.load(std::memory_order_acquire)); // [walk]
    }

    uint64_t find_free(uint64_t chunks) const; // the smallest FREE run of at least so many, or kNone
    uint64_t largest_free() const;             // head, or kNone
    uint64_t free_run(uint64_t chunk) const;   // chunks of the FREE run at this head

    // EMPTY -> BUSY: at least `chunks`, charged; kNone: no room. On huge pages whole units.
    uint64_t begin_making(uint64_t chunks, uint64_t *made);
    uint64_t made(uint64_t chunk);  // BUSY -> FREE; the merged run's head
    void gave_back(uint64_t chunk); // BUSY -> EMPTY, uncharged
    // What pages the kernel gave for a run: huge ones, but for these units (their first chunks). Before made().
    void note_pages(uint64_t chunk, uint64_t chunks, const std::vector<uint64_t> &small_units);
    // FREE -> BUSY of up to `chunks`, whole units on huge pages, to be punched. False: no such run.
    bool begin_giving_back(uint64_t chunks, uint64_t *chunk, uint64_t *begun);
    uint64_t can_give_back() const; // chunks

    // FREE (its first `chunks`) -> GRANTED to the slot; returns the sequence number of the token.
    uint32_t grant(uint64_t chunk, uint64_t chunks, uint32_t slot);
    uint32_t grant_sealed(uint64_t chunk, uint32_t slot);             // SEALED -> GRANTED: the room above `used`
    void make_index(uint64_t chunk, uint64_t chunks, uint32_t level); // FREE -> INDEX
    void free_index(uint64_t chunk);                                  // INDEX that no level names -> FREE

    // SEALED: what lies above the last used chunk becomes FREE; all of it if nothing is used. Chunks freed.
    uint64_t trim(uint64_t chunk);
    bool revoke_granted(uint64_t chunk); // false: the client was faster
    uint64_t cut_held(uint64_t chunk);   // chunks freed
    // HELD of a dead slot -> SEALED with what recovery found.
    void seal_recovered(uint64_t chunk, uint32_t used, uint64_t rows, uint64_t bytes, uint64_t dead_units);

    // Pages of the slots up to and including this one. 0 or CACHE_EFULL.
    [[nodiscard]] int provide_slot(uint32_t slot);
    // Pages for the first `entries` of the spill table; then, when their heads stand, the telling of it.
    bool provide_spill_pages(uint64_t entries);
    void show_spill_pages(uint64_t entries);

    // Slots, and segments of the spill file, that have pages.
    uint64_t slots_top() const { return slots_top_; }
    uint64_t spill_top() const { return spill_top_; }

  private:
    const RegionMap &map_;
    RegionHeader *const header_;
    const uint64_t limit_; // not read from the region: clients write there
    Ledger &ledger_;
    std::map<uint64_t, uint64_t> free_, empty_; // head -> chunks
    uint64_t free_chunks_ = 0, charged_ = 0;
    uint64_t covered_ = 0; // end of the chain of heads; all beyond is EMPTY and has no head yet
    // What the header tells the others: entries that have pages. Not read there again: clients write there, too, and
    // an entry without a page is memory that nobody is charged for, or that there is not.
    uint64_t slots_top_ = 0, table_top_ = 0, spill_top_ = 0;

    Extent &extent(uint64_t chunk) const { return *map_.extent(chunk); }
    uint64_t own(uint64_t chunk) const { return extent(chunk).own.load(std::memory_order_acquire); } // [grant][seal]
    void store(uint64_t chunk, ExtentState state, uint64_t len, std::memory_order order, uint32_t slot = kNoSlot);
    void charge(uint64_t bytes);
    void uncharge(uint64_t bytes);
    bool provide_pages(uint64_t offset, uint64_t bytes);
    uint64_t table_bytes_for(uint64_t entries) const; // still to be made
    bool provide_table(uint64_t entries);
    bool choose_empty(uint64_t chunks, bool small, uint64_t *head, uint64_t *at, uint64_t *taken) const;
    void begin_busy(std::map<uint64_t, uint64_t> &runs, ExtentState state, uint64_t head, uint64_t at, uint64_t chunks);
    uint64_t set_run(uint64_t chunk, uint64_t chunks, ExtentState state);
    void take_from_free(uint64_t chunk, uint64_t chunks);
};

} // namespace libcache
