// SPDX-License-Identifier: Apache-2.0
// The packed words of the region: each field keeps its own bits at both ends of its range.
#include "core/shm/layout.h"

#include <criterion/criterion.h>
#include <set>

using namespace libcache;

Test(extent_word, fields_keep_their_bits) {
    const ExtentState states[] = {ExtentState::Empty, ExtentState::Busy,   ExtentState::Free, ExtentState::Granted,
                                  ExtentState::Held,  ExtentState::Sealed, ExtentState::Index};
    const uint32_t slots[] = {0, 1, kMaxSlots - 1, kNoSlot};
    const uint32_t lengths[] = {0, 1, uint32_t(kMaxExtentChunks), uint32_t(kMaxRunChunks)};
    const uint32_t seqs[] = {0, 1, ExtentWord::kSeqMask};
    std::set<uint64_t> words;
    for (ExtentState state : states)
        for (uint32_t slot : slots)
            for (uint32_t len : lengths)
                for (uint32_t seq : seqs) {
                    const uint64_t packed = ExtentWord{state, slot, len, seq}.pack();
                    const ExtentWord w = ExtentWord::unpack(packed);
                    cr_assert(w.state == state && w.slot == slot && w.len == len && w.seq == seq);
                    words.insert(packed);
                }
    cr_assert_eq(words.size(), std::size(states) * std::size(slots) * std::size(lengths) * std::size(seqs));
}

Test(extent_word, a_sequence_that_overflows_touches_no_other_field) {
    const ExtentWord w = ExtentWord::unpack(ExtentWord{ExtentState::Granted, 3, 5, ExtentWord::kSeqMask + 1}.pack());
    cr_assert(w.state == ExtentState::Granted && w.slot == 3 && w.len == 5 && w.seq == 0);
}

Test(extent_word, zero_is_empty) {
    cr_assert(ExtentWord::unpack(0).state == ExtentState::Empty);
}

Test(bump, fields_keep_their_bits) {
    for (uint32_t used : {0u, 1u, 0xffffffffu})
        for (uint32_t limit : {0u, 1u, 0xffffffffu}) {
            const Bump b = Bump::unpack(Bump{used, limit}.pack());
            cr_assert(b.used == used && b.limit == limit);
        }
}

Test(bump, the_longest_extent_fits) {
    cr_assert_leq(kMaxExtentChunks * kChunkBytes / kUnitBytes, uint64_t{0xffffffff});
}

Test(token, fields_keep_their_bits_and_zero_is_none) {
    cr_assert_not(Token::valid(0));
    for (uint64_t chunk : {uint64_t{0}, uint64_t{1}, (uint64_t{1} << 36) - 1})
        for (uint32_t seq : {0u, 1u, ExtentWord::kSeqMask}) {
            const uint64_t packed = Token{chunk, seq}.pack();
            cr_assert(Token::valid(packed));
            cr_assert(Token::unpack(packed).chunk == chunk && Token::unpack(packed).seq == seq);
        }
}

Test(slot_word, fields_keep_their_bits) {
    for (SlotState state : {SlotState::Vacant, SlotState::Active, SlotState::Dead})
        for (uint64_t epoch : {uint64_t{0}, uint64_t{1}, (uint64_t{1} << 62) - 1}) {
            const SlotWord w = SlotWord::unpack(SlotWord{state, epoch}.pack());
            cr_assert(w.state == state && w.epoch == epoch);
        }
}

Test(want, fields_keep_their_bits_and_nothing_wanted_is_zero) {
    cr_assert_eq((Want{false, false, 0, 0}.pack()), 0);
    for (int kinds = 1; kinds < 4; kinds++)
        for (uint32_t levels : {0u, 1u, kMaxLevels})
            for (uint32_t chunks : {0u, 1u, uint32_t(kMaxExtentChunks), 0xffffffffu}) {
                const Want w = Want::unpack(Want{(kinds & 1) != 0, (kinds & 2) != 0, levels, chunks}.pack());
                cr_assert(w.extent == ((kinds & 1) != 0) && w.grow == ((kinds & 2) != 0) && w.levels == levels &&
                          w.chunks == chunks);
            }
}

Test(answer, codes_stay_negative) {
    for (int32_t code : {0, -1003, INT32_MIN})
        for (uint32_t chunks : {0u, 1u, uint32_t(kMaxExtentChunks), 0x7fffffffu})
            for (bool stub : {false, true}) {
                const Answer a = Answer::unpack(Answer{code, chunks, stub}.pack());
                cr_assert(a.code == code && a.chunks == chunks && a.stub == stub);
            }
}

Test(index_entry, tag_and_offset_keep_their_bits) {
    for (uint64_t hash : {uint64_t{0}, uint64_t{0xffff}, ~uint64_t{0}})
        for (uint64_t offset : {kUnitBytes, uint64_t{2} << 20, (uint64_t{1} << 52) - kUnitBytes}) {
            const uint64_t e = IndexEntry::pack(hash, offset);
            cr_assert_eq(IndexEntry::offset(e), offset);
            cr_assert_eq(IndexEntry::tag(e), hash & 0xffff);
            cr_assert_neq(e, 0);
        }
}

Test(index_hash, windows_lie_inside_their_level_and_are_aligned) {
    for (uint64_t slots : {kWindow, uint64_t{4096}, uint64_t{1} << 36})
        for (int64_t id : {int64_t{0}, int64_t{1}, INT64_MAX, int64_t{123456789}})
            for (uint32_t level : {0u, 1u, kMaxLevels - 1}) {
                const uint64_t window = index_window(index_hash(id, level), slots);
                cr_assert_eq(window % kWindow, 0);
                cr_assert_leq(window + kWindow, slots);
            }
    cr_assert_leq(index_window(~uint64_t{0}, 4096) + kWindow, 4096);
}

Test(index_hash, levels_spread_ids_anew) {
    int same = 0;
    for (int64_t id = 0; id < 1000; id++)
        same += index_window(index_hash(id, 0), 1 << 20) == index_window(index_hash(id, 1), 1 << 20);
    cr_assert_lt(same, 10); // 65,536 windows: 0.015 expected
}

Test(row_check, every_field_matters) {
    const uint32_t check = row_check(1, 2, 3, 4);
    cr_assert_neq(check, row_check(2, 2, 3, 4));
    cr_assert_neq(check, row_check(1, 3, 3, 4));
    cr_assert_neq(check, row_check(1, 2, 4, 4));
    cr_assert_neq(check, row_check(1, 2, 3, 5));
    cr_assert_neq(row_check(0, 0, 0, 0), 0, "zeroed memory must not look like a row");
}
