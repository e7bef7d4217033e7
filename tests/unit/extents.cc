// SPDX-License-Identifier: Apache-2.0
// The broker's transitions of extent words: after any sequence of them the words alone tell what is lent, free and
// charged, on both backings.
#include "core/server/extents.h"

#include "core/common/error.h"
#include "core/common/page.h"
#include "tests/support/fake_region.h"

#include <criterion/criterion.h>
#include <random>
#include <string>

using namespace libcache;

namespace {

constexpr uint64_t MiB = 1 << 20;
constexpr uint64_t kChunkUnits = kChunkBytes / kUnitBytes;

struct Broker {
    FakeRegion region;
    Ledger ledger;
    Extents extents;
    Broker(uint64_t limit, bool huge, uint64_t server_limit = UINT64_MAX)
        : region(limit, huge), ledger(server_limit), extents(region.map(), limit, ledger) {
        cr_assert_eq(extents.start(), 0, "%s", last_error());
    }
    Extent &at(uint64_t chunk) { return *region.map().extent(chunk); }
    ExtentState state(uint64_t chunk) { return extents.word(chunk).state; }
    // EMPTY to FREE.
    uint64_t stock(uint64_t chunks) {
        uint64_t making = 0;
        const uint64_t chunk = extents.begin_making(chunks, &making);
        return chunk == Extents::kNone ? chunk : extents.made(chunk);
    }
    // What a client does: take, fill up to `used` units, seal.
    void take(uint64_t chunk) { set_state(chunk, ExtentState::Held); }
    void seal(uint64_t chunk, uint32_t used) {
        at(chunk).bump.store(Bump{used, Bump::unpack(at(chunk).bump.load()).limit}.pack());
        set_state(chunk, ExtentState::Sealed);
    }
    void set_state(uint64_t chunk, ExtentState state) {
        ExtentWord w = extents.word(chunk);
        w.state = state;
        at(chunk).own.store(w.pack());
    }
    // Heads tile the table; what a restarted broker would compute from the words is what this one believes.
    void check(const std::string &after) {
        const Geometry &g = region.geometry();
        uint64_t chunk = 0, charged_chunks = 0, free_chunks = 0;
        const uint64_t top = region.header()->table_top.load();
        while (chunk < top) {
            const ExtentWord w = extents.word(chunk);
            cr_assert(w.len > 0 && w.len <= g.chunks - chunk, "%s: head %lu has length %u", after.c_str(), chunk,
                      w.len);
            if (w.state != ExtentState::Empty) charged_chunks += w.len;
            if (w.state == ExtentState::Free) free_chunks += w.len;
            if (w.state == ExtentState::Busy && chunk < g.huge_chunks)
                cr_assert(chunk % Extents::kUnitChunks == 0 && (chunk + w.len) % Extents::kUnitChunks == 0,
                          "%s: a part of a huge page is made or given back", after.c_str());
            chunk += w.len;
        }
        Ledger other(UINT64_MAX);
        Extents heir(region.map(), region.header()->limit_bytes, other);
        cr_assert_eq(heir.load(), 0, "%s: %s", after.c_str(), last_error());
        region.header()->charged_bytes.store(extents.charged());
        cr_assert_eq(heir.charged(), extents.charged(), "%s", after.c_str());
        cr_assert_eq(heir.free_chunks(), extents.free_chunks(), "%s", after.c_str());
        cr_assert_eq(free_chunks, extents.free_chunks(), "%s", after.c_str());
        cr_assert_gt(extents.charged(), charged_chunks * kChunkBytes, "%s: tables cost, too", after.c_str());
        cr_assert_leq(extents.charged(), region.header()->limit_bytes, "%s", after.c_str());
        cr_assert_eq(extents.charged() % page_bytes(), 0, "%s: a page is charged in part", after.c_str());
        cr_assert_eq(ledger.charged(), extents.charged(), "%s", after.c_str());
    }
};

// One random transition.
std::string step(Broker &b, std::mt19937 &random, uint64_t limit) {
    const std::vector<Extents::Head> heads = b.extents.heads();
    const Extents::Head head = heads.empty() ? Extents::Head{Extents::kNone, {}} : heads[random() % heads.size()];
    const uint64_t chunks = 1 + random() % (limit / kChunkBytes / 4);
    const auto is = [&](ExtentState state) { return head.chunk != Extents::kNone && head.word.state == state; };
    switch (random() % 12) {
    case 0:
    case 1: b.stock(chunks); return "stock";
    case 2:
    case 3:
        if (const uint64_t chunk = b.extents.find_free(chunks); chunk != Extents::kNone)
            b.extents.grant(chunk, chunks, uint32_t(random() % 5));
        return "grant";
    case 4:
        if (is(ExtentState::Granted)) b.take(head.chunk);
        return "take";
    case 5:
        if (is(ExtentState::Held)) {
            const Bump bump = b.extents.bump(head.chunk);
            b.seal(head.chunk, bump.used + uint32_t(random() % (bump.limit - bump.used + 1)));
        }
        return "seal";
    case 6:
        if (is(ExtentState::Sealed)) b.extents.trim(head.chunk);
        return "trim";
    case 7:
        if (is(ExtentState::Sealed)) b.extents.grant_sealed(head.chunk, 1);
        return "grant_sealed";
    case 8:
        if (is(ExtentState::Granted)) cr_assert(b.extents.revoke_granted(head.chunk));
        return "revoke_granted";
    case 9:
        if (is(ExtentState::Held)) b.extents.cut_held(head.chunk);
        return "cut_held";
    case 10: {
        uint64_t chunk, begun;
        if (b.extents.begin_giving_back(chunks, &chunk, &begun)) b.extents.gave_back(chunk);
        return "give back";
    }
    default:
        if (is(ExtentState::Held)) b.extents.seal_recovered(head.chunk, uint32_t(random() % 3 * 100), 1, 100, 0);
        return "seal_recovered";
    }
}

} // namespace

Test(extents, any_transitions_leave_words_that_a_new_broker_understands) {
    for (bool huge : {false, true})
        for (uint64_t limit : {MiB, 5 * MiB, 37 * MiB}) {
            Broker b(limit, huge);
            std::mt19937 random(unsigned(limit) + huge);
            for (int i = 0; i < 3000; i++)
                b.check(std::to_string(i) + " " + step(b, random, limit));
        }
}

Test(extents, what_is_lent_and_given_back_leaves_nothing) {
    for (bool huge : {false, true}) {
        Broker b(16 * MiB, huge);
        const uint64_t before = b.extents.charged();
        uint64_t chunk = b.stock(32);
        b.extents.grant(chunk, 20, 1);
        cr_assert(b.extents.revoke_granted(chunk));
        cr_assert_geq(b.extents.free_chunks(), 32);
        uint64_t begun;
        while (b.extents.begin_giving_back(1000, &chunk, &begun))
            b.extents.gave_back(chunk);
        cr_assert_eq(b.extents.free_chunks(), 0);
        cr_assert_leq(b.extents.charged(), before + 4096, "only the table may have grown");
        b.check("the end");
    }
}

Test(extents, nothing_is_made_beyond_the_limit_of_the_cache_or_the_server) {
    for (bool huge : {false, true}) {
        Broker small(8 * MiB, huge), server(64 * MiB, huge, 8 * MiB);
        for (Broker *b : {&small, &server}) {
            while (b->stock(1) != Extents::kNone) {
            }
            cr_assert_leq(b->extents.charged(), 8 * MiB);
            cr_assert_gt(b->extents.charged(), 8 * MiB - 3 * kHugeBytes / 2);
            b->check("full");
        }
    }
}

Test(extents, a_grant_has_a_new_sequence_number_and_no_rows) {
    Broker b(8 * MiB, false);
    const uint64_t chunk = b.stock(4);
    const uint32_t first = b.extents.grant(chunk, 2, 1);
    b.take(chunk);
    b.at(chunk).rows.store(5);
    b.seal(chunk, 0);
    b.extents.trim(chunk);
    cr_assert(b.state(chunk) == ExtentState::Free);
    const uint32_t second = b.extents.grant(chunk, 2, 1);
    cr_assert_neq(first, second);
    cr_assert_eq(b.at(chunk).rows.load(), 0);
    const Bump bump = b.extents.bump(chunk);
    cr_assert(bump.used == 0 && bump.limit == 2 * kChunkUnits);
}

Test(extents, a_grant_believes_nothing_that_stands_in_a_free_one) {
    Broker b(8 * MiB, false);
    const uint64_t chunk = b.stock(4);
    b.at(chunk).bump.store(Bump{100, 200}.pack());
    for (AtomicU64 *word : {&b.at(chunk).rows, &b.at(chunk).bytes, &b.at(chunk).dead})
        word->store(7);
    b.extents.grant(chunk, 2, 1);
    const Bump bump = b.extents.bump(chunk);
    cr_assert(bump.used == 0 && bump.limit == 2 * kChunkUnits);
    for (const AtomicU64 *word : {&b.at(chunk).rows, &b.at(chunk).bytes, &b.at(chunk).dead})
        cr_assert_eq(word->load(), 0);
}

Test(extents, a_sealed_one_lent_again_keeps_its_rows) {
    Broker b(8 * MiB, false);
    const uint64_t chunk = b.stock(4);
    b.extents.grant(chunk, 4, 1);
    b.take(chunk);
    b.at(chunk).rows.store(3);
    b.seal(chunk, 100);
    b.extents.grant_sealed(chunk, 2);
    cr_assert_eq(b.extents.bump(chunk).used, 100);
    cr_assert_eq(b.at(chunk).rows.load(), 3);
    cr_assert(b.extents.revoke_granted(chunk));
    cr_assert(b.state(chunk) == ExtentState::Sealed, "its rows would be lost");
    cr_assert_eq(b.extents.word(chunk).len, 1, "trimmed to what is used");
}

Test(extents, a_cut_leaves_the_page_in_which_the_next_header_is_written) {
    for (uint32_t used : {0u, 1u, uint32_t(kChunkUnits - 1), uint32_t(kChunkUnits - 255), uint32_t(kChunkUnits)}) {
        Broker b(8 * MiB, false);
        const uint64_t chunk = b.stock(8);
        b.extents.grant(chunk, 8, 1);
        b.take(chunk);
        b.at(chunk).bump.store(Bump{used, uint32_t(8 * kChunkUnits)}.pack());
        const uint64_t freed = b.extents.cut_held(chunk);
        const Bump bump = b.extents.bump(chunk);
        cr_assert_geq(bump.limit, used + 4096 / kUnitBytes);
        cr_assert_eq(bump.limit % kChunkUnits, 0);
        cr_assert_eq(b.extents.word(chunk).len + freed, 8);
        cr_assert_eq(b.extents.word(chunk).len * kChunkUnits, bump.limit);
        cr_assert(b.state(chunk) == ExtentState::Held);
        b.check("cut");
    }
}

Test(extents, numbers_that_a_client_scribbled_do_no_harm) {
    Broker b(8 * MiB, false);
    const uint64_t chunk = b.stock(4), other = b.stock(4);
    b.extents.grant(chunk, 4, 1);
    b.take(chunk);
    for (uint64_t bump : {UINT64_MAX, uint64_t{0xffffffff}, uint64_t{0xffffffff} << 32}) {
        b.at(chunk).bump.store(bump);
        b.extents.cut_held(chunk);
        b.set_state(chunk, ExtentState::Sealed);
        b.extents.trim(chunk);
        if (b.state(chunk) != ExtentState::Sealed) break;
        b.set_state(chunk, ExtentState::Held);
    }
    for (uint64_t word : {UINT64_MAX, uint64_t{0}, FakeRegion::word(ExtentState::Held, 1, kMaxRunChunks, 5)}) {
        b.at(other).own.store(word);
        b.extents.trim(other);
        b.extents.revoke_granted(other);
        b.extents.cut_held(other);
        (void)b.extents.heads();
        Ledger ledger(UINT64_MAX);
        Extents heir(b.region.map(), 8 * MiB, ledger);
        cr_assert_leq(heir.load(), 0);
    }
}
