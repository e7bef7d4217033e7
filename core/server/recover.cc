// SPDX-License-Identifier: Apache-2.0
// What dead processes leave: a dead writer's extents, row by row (PROTOCOL section 1, "A client is dead"), and a dead
// broker's regions (section 3, R3 to R5). Every step can be done again with the same result.
#include "core/server/cache_region.h"

#include "core/common/error.h"
#include "core/common/log.h"
#include "core/common/pause.h"
#include "core/store/audit.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace libcache {
// The process behind the slot is gone for certain. Dies anywhere: the slot is still DEAD, all is done again.
void CacheRegion::recover_slot(uint32_t slot) {
    Client &client = clients_.at(slot);
    client.hung_up = true;
    client.want = {};
    // rel: nobody may take the slot for a living one any more
    map_.slot(slot)->owner.store(SlotWord{SlotState::Dead, client.epoch}.pack(), std::memory_order_release);
    LIBCACHE_PAUSE("broker.recover.1");
    end_building(slot);
    take_back_granted(slot);
    int rc = recover_extents(slot);
    if (rc == 0) rc = recover_spill(slot);
    if (rc != 0) {
        log_line(LogLevel::Error, "cache %u/%u: the extents of dead slot %u (process %d) stay: %s", names_.session_id,
                 names_.cache_id, slot, client.person.pid, last_error());
        return;
    }
    log_line(LogLevel::Info, "cache %u/%u: slot %u of process %d recovered", names_.session_id, names_.cache_id, slot,
             client.person.pid);
    vacate(slot, client);
}

// By the geometry that was checked when this broker began: what the header says now the dead process may have changed,
// and heads found by the one must not be looked for by the other.
int CacheRegion::map_whole(RegionMap *whole) const {
    return whole->map_as(file_.get(), map_.geometry(), RegionAccess::Read);
}

int CacheRegion::recover_extents(uint32_t slot) {
    std::vector<Extents::Head> held;
    for (const Extents::Head &head : extents_->heads())
        if (head.word.state == ExtentState::Held && head.word.slot == slot) held.push_back(head);
    if (held.empty()) return 0;
    RegionMap whole; // rows and index levels, wherever they lie
    if (int rc = map_whole(&whole); rc != 0) return rc;
    const auto index = std::make_unique<Index>();
    index->attach(whole.base(), whole.base(), whole.geometry().data_offset, whole.geometry().region_bytes);
    for (const Extents::Head &head : held) {
        const uint64_t most = head.word.len * (kChunkBytes / kUnitBytes);
        const uint32_t used = static_cast<uint32_t>(std::min<uint64_t>(extents_->bump(head.chunk).used, most));
        ExtentAudit found = audit_extent(*index, *whole.header(), whole.chunk_address(head.chunk),
                                         whole.chunk_offset(head.chunk), used);
        if (!found.clear) {
            log_line(LogLevel::Error,
                     "cache %u/%u: extent %llu of dead slot %u has a row header that makes no sense; "
                     "all of it is kept",
                     names_.session_id, names_.cache_id, static_cast<unsigned long long>(head.chunk), slot);
            // The counts as the writer left them: the best there is.
            const Extent &e = *map_.extent(head.chunk);
            found.rows = e.rows.load(std::memory_order_relaxed);
            found.bytes = e.bytes.load(std::memory_order_relaxed);
        }
        extents_->seal_recovered(head.chunk, found.used, found.rows, found.bytes, found.dead_units);
    }
    allow_share();
    look_for_room();
    return 0;
}

// ---- a new broker

int CacheRegion::restore() {
    if (int rc = map_.open(file_.get(), RegionAccess::Control); rc != 0) return rc;
    extents_ = std::make_unique<Extents>(map_, limit_, shop_.ledger);
    if (int rc = extents_->load(); rc != 0) return rc;
    if (int rc = load_levels(); rc != 0) return rc;
    if (int rc = load_spill(); rc != 0) return rc;
    const RegionHeader &h = *header();
    tag_.assign(h.tag, strnlen(h.tag, sizeof h.tag));
    label_.assign(h.label, strnlen(h.label, sizeof h.label));
    header()->generation.store(shop_.generation, std::memory_order_relaxed); // for statistics
    refused_ = Refused::unpack(h.refused_chunks.load(std::memory_order_relaxed));
    state_ = State::Live;
    restore_extents();
    restore_slots();
    return 0;
}

// BUSY and INDEX leftovers, and cuts that were not finished.
void CacheRegion::restore_extents() {
    const auto named = [&](uint64_t chunk) {
        return std::any_of(level_.begin(), level_.end(), [&](const LevelFact &l) { return l.chunk == chunk; });
    };
    for (const Extents::Head &head : extents_->heads()) {
        switch (head.word.state) {
        // Being made or given back: its pages may be there or not. Given back they are for certain not.
        case ExtentState::Busy: submit(Work::Punch, head.chunk, head.word.len, kNoSlot, 0, 0); break;
        case ExtentState::Index:
            if (!named(head.chunk)) extents_->free_index(head.chunk);
            break;
        case ExtentState::Held: {
            const Bump b = extents_->bump(head.chunk);
            if (b.limit < head.word.len * (kChunkBytes / kUnitBytes)) extents_->cut_held(head.chunk);
            break;
        }
        default: break;
        }
        LIBCACHE_PAUSE("restart.extent");
    }
}

void CacheRegion::restore_slots() {
    std::vector<uint32_t> dead;
    for (uint32_t i = 0; i < extents_->slots_top(); ++i) {
        Slot &s = *map_.slot(i);
        const SlotWord owner = SlotWord::unpack(s.owner.load(std::memory_order_acquire));
        if (owner.state == SlotState::Vacant) continue;
        Client &client = clients_[i];
        client.person = {s.conn_id.load(std::memory_order_relaxed),
                         static_cast<int32_t>(s.pid.load(std::memory_order_relaxed)),
                         s.start_time.load(std::memory_order_relaxed)};
        client.epoch = owner.epoch;
        client.busy = true;
        client.attached_ns = quiet_since_ns_ = now_ns();
        client.grant = RingProducer(&s.grant); // goes on at the mirrored index
        client.back = RingConsumer(&s.back);
        client.want = Want::unpack(s.want.load(std::memory_order_acquire)); // in place of its message
        client.row_id = static_cast<int64_t>(s.want_id.load(std::memory_order_relaxed));
        client.want_since_ns = now_ns();
        if (owner.state == SlotState::Dead) dead.push_back(i);
    }
    for (const Extents::Head &head : extents_->heads()) {
        if (head.word.state != ExtentState::Granted) continue;
        if (Client *client = client_of(head.word.slot))
            client->offers.push_back({head.chunk, head.word.seq});
        else
            extents_->revoke_granted(head.chunk); // granted to nobody
    }
    restore_spill();
    for (uint32_t slot : dead)
        recover_slot(slot);
}

// R5, R6: every GRANTED extent is offered again, what clients wait for is looked after, and everybody wakes once.
void CacheRegion::reconnect_all() {
    if (state_ != State::Live) return;
    for (auto &[slot, client] : clients_) {
        refresh_offers(slot, client);
        for (const Offer &o : client.offers)
            push(client, o);
    }
    trim_all(); // hints that were on their way are lost
    look_for_room();
    review();
    wake_all();
}

} // namespace libcache
