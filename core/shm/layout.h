// SPDX-License-Identifier: Apache-2.0
// Every byte of a cache region is described here and nowhere else. Used by the store (clients), the server and the
// checker; pure declarations, so anyone may include it. Another process writes what stands here: take a field once
// into a local, check it, then use the local.
//
//   offset 0        RegionHeader      8 KiB   constants, hot words, index levels, layout table
//   slots_offset    Slot[slots]               one per writing process: rings and wait words
//   table_offset    Extent[chunks]            one entry per 64 KiB chunk of the data area
//   spill_offset    SpillSegment[segments]    one entry per 8 MiB of the spill file; none in a cache without spill
//   data_offset     data (2 MiB aligned)      extents: runs of chunks holding rows or an index level
//
// Header and the pages of slots and table in use are populated and charged before anyone may touch them; data only
// below RegionHeader::top_bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace libcache {

inline constexpr uint64_t kCacheLine = 64; // a format constant: not what this compiler was tuned for
inline constexpr uint64_t kRegionMagic = 0x31306568'6361636cULL; // "lcache01"
inline constexpr uint32_t kFormatVersion = 1;
inline constexpr uint64_t kChunkBytes = 64 << 10;
inline constexpr uint64_t kHugeBytes = 2 << 20;
inline constexpr uint64_t kUnitBytes = 16; // rows are counted in units
inline constexpr uint32_t kRingTokens = 64;
inline constexpr uint32_t kMaxSlots = 8191; // slot 8191 of 13 bits means none
inline constexpr uint32_t kNoSlot = 8191;
inline constexpr uint32_t kMaxLevels = 64;
inline constexpr uint32_t kMaxLayouts = 256;
inline constexpr uint64_t kMaxExtentChunks = (uint64_t{1} << 20) - 1; // < 64 GiB, so that `used` fits 32 bits of units
inline constexpr uint64_t kMaxRunChunks = (uint64_t{1} << 21) - 1;    // of FREE and EMPTY runs
inline constexpr uint64_t kMinLimitBytes = 1 << 20;
inline constexpr uint64_t kSegmentBytes = 8 << 20; // the spill file is lent in runs of these
inline constexpr uint64_t kStubShare = 16;         // with spill, 1/16 of the limit is kept for stubs and index levels
inline constexpr uint64_t kMostStubShare = 4; // or more for many writers, kStubBytesOfWriter each, up to this share
inline constexpr uint64_t kLevelShare = 4;    // of what is kept: stubs leave it to index levels
inline constexpr uint64_t kStubBytesOfWriter = 2 * kChunkBytes;

using AtomicU64 = std::atomic<uint64_t>;
using AtomicU32 = std::atomic<uint32_t>;
static_assert(AtomicU64::is_always_lock_free && AtomicU32::is_always_lock_free);

// ---- the extent's word: {state:3 | slot:13 | len:21 chunks | seq:27} ------------------------------------------------

enum class ExtentState : uint32_t { Empty = 0, Busy = 1, Free = 2, Granted = 3, Held = 4, Sealed = 5, Index = 6 };

struct ExtentWord {
    ExtentState state;
    uint32_t slot; // of Granted and Held; level number of Index; else kNoSlot or stale, meaningless
    uint32_t len;  // chunks
    uint32_t seq;  // +1 at each grant

    static constexpr uint32_t kSeqMask = (1u << 27) - 1;
    constexpr uint64_t pack() const {
        return uint64_t(state) << 61 | uint64_t(slot & 0x1fff) << 48 | uint64_t(len & 0x1fffff) << 27 |
               (seq & kSeqMask);
    }
    static constexpr ExtentWord unpack(uint64_t w) {
        return {ExtentState(w >> 61), uint32_t(w >> 48) & 0x1fff, uint32_t(w >> 27) & 0x1fffff, uint32_t(w) & kSeqMask};
    }
};

// {used:32 | limit:32} in units of 16 bytes from the start of the extent
struct Bump {
    uint32_t used, limit;
    constexpr uint64_t pack() const { return uint64_t(used) << 32 | limit; }
    static constexpr Bump unpack(uint64_t w) { return {uint32_t(w >> 32), uint32_t(w)}; }
};

// {chunk:37 | seq:27}: an offer of an extent, a hint only; 0 is no token (chunk is stored plus one)
struct Token {
    uint64_t chunk;
    uint32_t seq;
    constexpr uint64_t pack() const { return (chunk + 1) << 27 | (seq & ExtentWord::kSeqMask); }
    static constexpr bool valid(uint64_t w) { return w >> 27 != 0; }
    static constexpr Token unpack(uint64_t w) { return {(w >> 27) - 1, uint32_t(w) & ExtentWord::kSeqMask}; }
};

// One per chunk; only the entry of an extent's first chunk means anything, `huge` apart. Writers: see core/README.md.
struct alignas(kCacheLine) Extent {
    AtomicU64 own;   // ExtentWord: the truth. B and C by the rules of the state table
    AtomicU64 bump;  // Bump. `used` by the holder, `limit` lowered by B
    AtomicU64 rows;  // rows published. fetch_add by the holder's threads; also what "nothing in flight" is read from
    AtomicU64 bytes; // column bytes of rows reserved. Plain stores by the holder, under its private mutex
    AtomicU64 dead;  // units of dead rows below used, as recovery counted them. B
    AtomicU64 huge;  // in the entry of a 2 MiB unit's first chunk, head or not: 1, the kernel made it a huge page. B
    uint64_t reserved[2];
};
static_assert(sizeof(Extent) == 64);

// ---- slots ----------------------------------------------------------------------------------------------------------
//
// Single producer, single consumer. Each side keeps its own index privately and only mirrors it here; whatever a peer
// writes, the worst is a token that fails at the extent's word.
struct TokenRing {
    alignas(kCacheLine) AtomicU64 head; // tokens ever written, by the producer, rel [ring]
    alignas(kCacheLine) AtomicU64 tail; // tokens ever consumed, by the consumer, rel
    alignas(kCacheLine) AtomicU64 token[kRingTokens];
};
static_assert(sizeof(TokenRing) == 128 + 8 * kRingTokens);

enum class SlotState : uint32_t { Vacant = 0, Active = 1, Dead = 2 };
struct SlotWord { // {state:2 | epoch:62}
    SlotState state;
    uint64_t epoch;
    constexpr uint64_t pack() const { return uint64_t(state) << 62 | (epoch & ~(3ULL << 62)); }
    static constexpr SlotWord unpack(uint64_t w) { return {SlotState(w >> 62), w & ~(3ULL << 62)}; }
};

// What a client waits for: {kind bits:8 | levels passed:8 | chunks:32}; 0 = nothing
struct Want {
    bool extent; // an extent of at least `chunks`
    bool grow;   // a level beyond the first `levels`, for a row id near Slot::want_id
    uint32_t levels;
    uint32_t chunks;
    bool stub = false; // the extent is for stubs of spilled rows: the share kept for them may be used
    constexpr uint64_t pack() const {
        return uint64_t(extent) << 48 | uint64_t(grow) << 49 | uint64_t(stub) << 50 | uint64_t(levels & 0xff) << 32 |
               chunks;
    }
    static constexpr Want unpack(uint64_t w) {
        return {(w >> 48 & 1) != 0, (w >> 49 & 1) != 0, uint32_t(w >> 32) & 0xff, uint32_t(w), (w >> 50 & 1) != 0};
    }
};

// The broker's answer to a want: {code:32 | stub:1 | chunks:31}. code 0: look again. Else a negative CACHE_E* and, for
// an extent, the size refused: needs of at least that size are refused too. It may be the answer to another thread's
// want, or to one that came a moment before: it says what it refuses.
struct Answer {
    int32_t code;
    uint32_t chunks;
    bool stub = false; // what was refused may use the share that is kept for stubs; else stubs may still have memory
    constexpr uint64_t pack() const {
        return uint64_t(uint32_t(code)) << 32 | uint64_t(stub) << 31 | (chunks & 0x7fffffff);
    }
    static constexpr Answer unpack(uint64_t w) {
        return {int32_t(w >> 32), uint32_t(w) & 0x7fffffff, (w >> 31 & 1) != 0};
    }
    // Whether it is the end of this want, too.
    constexpr bool refuses(const Want &want) const {
        if (code == 0 || want.extent != (chunks != 0)) return false;
        return !want.extent || (chunks <= want.chunks && (stub || !want.stub));
    }
};

struct alignas(kCacheLine) Slot {
    // written by B
    AtomicU64 owner;                     // SlotWord; ACTIVE is stored rel after all else
    AtomicU64 conn_id;                   // the connection that owns it; means nothing in a VACANT slot
    AtomicU64 pid;                       // as B sees it; for messages and for R4 after a restart
    AtomicU64 start_time;                // of that pid, clock ticks since boot, from /proc
    AtomicU64 answer;                    // Answer, written rlx before futex
    AtomicU64 full_cause;                // of an answer CACHE_EFULL: enum cache_cause, written rlx before futex
    alignas(kCacheLine) AtomicU32 futex; // +1 rel by B, then wake; C waits on it
    // written by C
    alignas(kCacheLine) AtomicU64 want; // Want; set rel by C under its mutex, cleared to 0 by B when answered
    AtomicU64 want_id;                  // the row id of want.grow, written before want
    TokenRing grant;                    // B -> C: extents to take
    TokenRing back;                     // C -> B: extents sealed, a hint that there may be room to trim
};
static_assert(sizeof(Slot) == 3 * 64 + 2 * sizeof(TokenRing));

// ---- index ----------------------------------------------------------------------------------------------------------
//
// An entry: {tag:16 | ref:48}, ref = offset/16 from the start of the region; 0 = empty. Changes once, from 0, by CAS.
struct IndexEntry {
    static constexpr uint64_t kRefMask = (uint64_t{1} << 48) - 1;
    static constexpr uint64_t pack(uint64_t hash, uint64_t offset) {
        return (hash & 0xffff) << 48 | offset / kUnitBytes;
    }
    static constexpr uint64_t offset(uint64_t e) { return (e & kRefMask) * kUnitBytes; }
    static constexpr uint64_t tag(uint64_t e) { return e >> 48; }
};
enum class LevelKind : uint32_t { Dense = 1, Hash = 2 };
struct Level {        // immutable once RegionHeader::levels counts it
    AtomicU64 kind;   // LevelKind
    AtomicU64 first;  // Dense: the first id
    AtomicU64 slots;  // entries; Hash: a multiple of kWindow
    AtomicU64 offset; // of the entries, from the start of the region
};
inline constexpr uint64_t kWindow = 16; // slots a hashed id may stand in: one aligned bucket of 128 bytes

// splitmix64's finalizer over id and level: each level spreads ids anew
constexpr uint64_t index_hash(int64_t id, uint32_t level) {
    uint64_t x = uint64_t(id) + 0x9e3779b97f4a7c15ULL * (level + 1);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
    return x ^ x >> 31;
}
// first slot of the window of `hash` in a level of `slots` entries (at most 2^36)
constexpr uint64_t index_window(uint64_t hash, uint64_t slots) {
    return uint64_t(static_cast<unsigned __int128>(hash) * (slots / kWindow) >> 64) * kWindow;
}

// ---- rows -----------------------------------------------------------------------------------------------------------
//
// RowHeader | (column table, if layout is kInlineLayout) | columns. Starts on 16 bytes; `stride` units lead to the next
// header, so that [0, used) of an extent is always a chain of whole headers.
struct RowHeader {
    uint32_t stride; // units, header included; never changes while the extent holds it
    uint32_t layout; // index into RegionHeader::layout, kInlineLayout, or kLayoutRow
    int64_t row_id;  // a layout row: its index in RegionHeader::layout
    uint64_t bytes;  // from the start of the header to the end of the last column
    uint32_t n_columns;
    uint32_t check; // row_check() of the fields above: a header never read by mistake for one
};
static_assert(sizeof(RowHeader) == 32);
inline constexpr uint32_t kInlineLayout = 0xffffffff; // the row carries its own column table
inline constexpr uint32_t kLayoutRow = 0xfffffffe;    // the "row" is a column table, for others to refer to

constexpr uint32_t row_check(uint32_t layout, int64_t row_id, uint64_t bytes, uint32_t n_columns) {
    uint64_t x =
        (uint64_t(layout) << 32 | n_columns) ^ uint64_t(row_id) * 0x9e3779b97f4a7c15ULL ^ bytes * 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 32;
    return uint32_t(x * 0x94d049bbu) ^ 0x6c696263u;
}

// A spilled row's stub: a RowHeader, two units long, that names a place in the spill file. There the row stands as it
// would in an extent at residue 0: header, column table if it carries one, columns, then zeros to a multiple of 16.
inline constexpr uint32_t kSpilledRow = 0x80000000; // in RowHeader::layout, its upper 8 bits: 0x80
struct SpillStub {
    uint64_t offset; // in the spill file, a multiple of 16
    uint64_t bytes;  // of the image there, a multiple of 16
    uint32_t crc;    // CRC-32C of the image

    static constexpr bool is(uint32_t layout) { return layout >> 24 == kSpilledRow >> 24; }
    // {layout: 0x80 | offset units, upper 24 bits}, {bytes: offset units, lower 32 bits | image units}, {n_columns:
    // crc}
    constexpr uint32_t layout_word() const { return kSpilledRow | uint32_t(offset / kUnitBytes >> 32 & 0xffffff); }
    constexpr uint64_t bytes_word() const { return offset / kUnitBytes << 32 | (bytes / kUnitBytes & 0xffffffff); }
    static constexpr SpillStub unpack(uint32_t layout, uint64_t bytes, uint32_t n_columns) {
        return {((uint64_t{layout} & 0xffffff) << 32 | bytes >> 32) * kUnitBytes, (bytes & 0xffffffff) * kUnitBytes,
                n_columns};
    }
};

// A column table: ColumnEntry[n_columns], then the shapes (int64) one after the other, then padding to 16 bytes.
struct ColumnEntry {
    uint64_t bytes;
    uint8_t dtype; // enum cache_dtype
    uint8_t ndim;
    uint16_t reserved;
    uint32_t reserved2;
};
static_assert(sizeof(ColumnEntry) == 16);
inline constexpr uint64_t kBigColumnBytes = 256; // columns from here on start on 64 bytes, smaller ones on 16
inline constexpr uint64_t column_alignment(uint64_t bytes) {
    return bytes >= kBigColumnBytes ? 64 : 16;
}

// ---- spill
// The word is an Extent's, with len in segments; only a run's head means anything. States as in memory: EMPTY no file
// space | BUSY being allocated or punched | FREE | GRANTED(s) by SpillGrant | HELD(s) by the client's CAS | SEALED.
// INDEX does not occur. Places are handed out from the start of a run by its holder.
struct alignas(kCacheLine) SpillSegment {
    AtomicU64 own;   // ExtentWord: the truth
    AtomicU64 used;  // bytes handed out, a multiple of 16; the holder, under its mutex; B once the holder is dead
    AtomicU64 rows;  // published stubs that point here; fetch_add by the holder; recovery counts
    AtomicU64 bytes; // column bytes of these rows
    uint64_t reserved[4];
};
static_assert(sizeof(SpillSegment) == 64);

// ---- header ---------------------------------------------------------------------------------------------------------
//
// Who builds a stream: {slot:13 | term:51}, term > 0 grows at each change
struct Builder {
    uint32_t slot;
    uint64_t term;
    constexpr uint64_t pack() const { return uint64_t{slot} << 51 | (term & ((uint64_t{1} << 51) - 1)); }
    static constexpr Builder unpack(uint64_t w) {
        return {static_cast<uint32_t>(w >> 51), w & ((uint64_t{1} << 51) - 1)};
    }
};

enum class CacheState : uint64_t { Live = 1, Dying = 2 };

struct RegionHeader {
    // line 0: what an opener checks first. magic is stored last, rel
    AtomicU64 magic;
    uint32_t version; // kFormatVersion
    uint32_t flags;   // RegionFlags
    uint64_t stamp;   // kLayoutStamp
    uint64_t region_bytes;
    uint64_t slots_offset, slots;
    uint64_t table_offset, chunks;
    // line 1: constants
    uint64_t data_offset;
    uint64_t huge_chunks; // the first so many chunks are mapped MADV_HUGEPAGE, the rest MADV_NOHUGEPAGE, by everybody
    uint64_t limit_bytes; // charged bytes never exceed it
    uint64_t region_id;
    uint32_t session_id, cache_id;
    uint64_t expected_rows;
    uint64_t created_ns; // CLOCK_REALTIME
    uint64_t reserved1;
    // line 2: written by B, rarely
    alignas(kCacheLine) AtomicU64 state; // CacheState; Dying rel, read acq once a call
    AtomicU64 top_bytes;                 // end of what may be touched, from the start of the region; only grows; rel
    AtomicU64 levels;                    // levels in use; rel [level]
    AtomicU64 refused_chunks;            // Refused (refused.h), a hint: what is refused just now; 0 = nothing known
    AtomicU64 slots_top;                 // slots [0, slots_top) have pages
    AtomicU64 table_top;                 // extent entries [0, table_top) have pages and mean something
    AtomicU64 generation;                // brokers that have served this region
    AtomicU64 charged_bytes;             // B's private sum mirrored for statistics; recomputed by a walk at start
    // line 3: written by C
    alignas(kCacheLine) AtomicU64 schema; // ref of the schema row {ref:48}, CAS from 0 [publish]
    uint64_t reserved3[7];
    // line 4: streams
    alignas(kCacheLine) AtomicU64 next; // next id of cache_append; the builder, under its mutex, rel
    AtomicU64 builder;                  // Builder: who may append; 0 = nobody. B alone
    AtomicU64 built;                    // 1: the build is done. B, rel [built]
    AtomicU32 build_futex;              // +1 rel by B at each change of builder and built, then wake
    uint32_t reserved4;
    uint64_t reserved5[4];
    // line 5: spill; the first two are constants, 0 in a cache without
    alignas(kCacheLine) uint64_t spill_offset;
    uint64_t spill_segments;       // entries of the table
    AtomicU64 spill_top;           // entries [0, spill_top) have pages; B, rel
    AtomicU64 spill_refused;       // hint: runs of so many segments and more are refused just now; 0 = none known. B
    AtomicU64 refused_cause;       // enum cache_cause of refused_chunks; B
    AtomicU64 spill_refused_cause; // the same of spill_refused; B
    uint64_t reserved6[2];
    // tables
    Level level[kMaxLevels];       // B
    AtomicU64 layout[kMaxLayouts]; // IndexEntry of a layout row, CAS from 0 [publish]; C
    char tag[72];                  // ended by 0; written before magic
    char label[256];
};
enum RegionFlags : uint32_t {
    kRegionHuge = 1,
    kRegionBuild = 2, // rows are appended, not put
    kRegionSpill = 4  // rows that memory refuses go to a file
};
inline constexpr uint64_t kHeaderBytes = 8192;
static_assert(sizeof(RegionHeader) <= kHeaderBytes);
static_assert(std::is_standard_layout_v<RegionHeader> && std::is_standard_layout_v<Slot> &&
              std::is_standard_layout_v<Extent>);
static_assert(offsetof(RegionHeader, data_offset) == 64 && offsetof(RegionHeader, state) == 128 &&
              offsetof(RegionHeader, schema) == 192 && offsetof(RegionHeader, next) == 256 &&
              offsetof(RegionHeader, spill_offset) == 320 && offsetof(RegionHeader, level) == 384 &&
              offsetof(RegionHeader, layout) == 384 + 32 * kMaxLevels);
static_assert(offsetof(Slot, futex) == 64 && offsetof(Slot, want) == 128 && offsetof(Slot, grant) == 192);
static_assert(offsetof(Extent, bump) == 8 && offsetof(Extent, rows) == 16 && offsetof(Extent, bytes) == 24);

// A number that differs as soon as anything above does: two builds that disagree refuse each other.
constexpr uint64_t layout_stamp() {
    const uint64_t facts[] = {kFormatVersion,
                              sizeof(RegionHeader),
                              sizeof(Slot),
                              sizeof(Extent),
                              sizeof(RowHeader),
                              sizeof(ColumnEntry),
                              sizeof(SpillSegment),
                              kSegmentBytes,
                              kSpilledRow,
                              sizeof(Level),
                              kChunkBytes,
                              kHugeBytes,
                              kUnitBytes,
                              kRingTokens,
                              kMaxSlots,
                              kMaxLevels,
                              kMaxLayouts,
                              kWindow,
                              kBigColumnBytes,
                              kHeaderBytes,
                              offsetof(RegionHeader, state),
                              offsetof(RegionHeader, level),
                              offsetof(RegionHeader, layout),
                              offsetof(RegionHeader, tag),
                              offsetof(Slot, grant),
                              offsetof(Slot, back),
                              index_hash(42, 3),
                              row_check(1, 2, 3, 4),
                              ExtentWord{ExtentState::Held, 3, 5, 7}.pack(),
                              Bump{3, 5}.pack(),
                              Token{3, 5}.pack()};
    uint64_t stamp = 0xcbf29ce484222325ULL;
    for (uint64_t fact : facts)
        stamp = (stamp ^ fact) * 0x100000001b3ULL ^ stamp >> 29;
    return stamp;
}
inline constexpr uint64_t kLayoutStamp = layout_stamp();

constexpr uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}
constexpr uint64_t round_down(uint64_t n, uint64_t to) {
    return n / to * to;
}

} // namespace libcache
