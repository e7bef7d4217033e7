// SPDX-License-Identifier: Apache-2.0
// The messages of the control socket (SOCK_SEQPACKET, one message a packet, fixed size). Used by the client library
// and the broker. Numbers are in host order: both ends are on one machine. Descriptors travel beside (SCM_RIGHTS).
//
// A request is repeated with the same number after RESUME; each is made so that doing it twice does no harm. The
// broker drops a request whose generation is not its own: it will come again. The client drops a reply whose number
// it does not wait for. It has one request under way: of two that wait for something the later one is answered.
//
// Within a major version types are only added. A request of a type that the broker does not know is answered with
// CACHE_ENOTSUP, a message with number 0 (a hint, without reply) is ignored, and the connection goes on. What a newer
// client cannot do without it asks for after HELLO, which tells it the server's version.
#pragma once

#include <cstdint>
#include <type_traits>

namespace libcache::wire {

inline constexpr uint32_t kMagic = 0x314d434c; // "LCM1"
inline constexpr uint32_t kMessageBytes = 2048;

enum class Type : uint32_t {
    Hello = 1,          // C: first message. Reply: Prove or, with status 0, Welcome
    Prove = 2,          // B: asks for Prove with SCM_CREDENTIALS (where SO_PEERPIDFD is missing); C: sends it. With a
                        // descriptor, of a witness: no pidfd is to be had. C maps it, closes it and says so: u.prove
    Welcome = 3,        // B: the connection stands, and is in the keeper's hands
    Resume = 4,         // B: a new broker serves; generation is new; repeat what is unanswered
    SessionCreate = 5,  // -> u.session
    SessionOpen = 6,    // u.session.name -> u.session
    SessionDestroy = 7, // u.session.session_id
    Open = 8,           // u.open -> u.opened + 1 descriptor, read-only; with spill 1 more, of the file, read-only
    Attach = 9,         // u.region -> u.attached + 1 descriptor, read-write; with spill 1 more, of the file, read-write
    Stock = 10,         // u.want: look after this slot. No reply
    Close = 11,         // u.region -> status. The process's last handle on this cache is closed
    Destroy = 12,       // u.region (session and cache id) -> status
    List = 13,          // u.list -> u.entry; status CACHE_ENOTFOUND ends
    ServerInfo = 14,    // -> u.info
    Stop = 15,          // -> status; then the server ends and the connection with it
    BuildBegin =
        16, // u.build (attached) -> u.build. CACHE_EBUILDING: another slot builds. The builder itself: same term
    BuildDone = 17,  // u.build -> status. Done already, by whomever: 0
    SpillGrant = 18, // u.spill (attached): file space -> u.spill, the segment run now GRANTED to this slot. A run that
                     // is GRANTED to it already and long enough is told again
    BuildLeave = 19, // u.build -> status. Not this slot's term (any more): 0
};

struct Header {
    uint32_t magic;
    uint16_t version_major, version_minor; // of the sender
    uint32_t type;                         // Type
    int32_t status;                        // replies: 0 or CACHE_E*, with text
    uint64_t number;                       // of the request; a reply repeats it
    uint64_t generation;                   // of the broker, as the sender last saw it
    uint32_t repeated;                     // 1: sent before, to a broker that has ended
    uint32_t full_cause;                   // replies with CACHE_EFULL: enum cache_cause
    uint32_t reserved[6];
};
static_assert(sizeof(Header) == 64);

struct Hello {
    char program[256], version[32];
}; // path of the executable, "1.0.0"
struct Prove {
    uint32_t witnessed, reserved; // 1: the witness is mapped and closed
};
struct Welcome {
    uint64_t conn_id, server_id;
    uint32_t port, reserved;
    char version[32], program[256];
};
struct Session {
    uint32_t session_id, flags; // flags: cache_session_flags, in SessionCreate and SessionOpen
    char name[64];
};
struct Open {
    uint32_t session_id, cache_id;
    uint32_t flags, spill;
    uint64_t limit_bytes, expected_rows;
    uint32_t has_tag, has_label;
    char tag[72], label[256];
};
struct Opened {
    uint64_t region_id, region_bytes, limit_bytes;
    uint32_t created, spill;    // spill: 1 if the cache spills
    uint32_t differs, reserved; // kDiffersLimit | kDiffersSpill: the cache has another than asked for
};
inline constexpr uint32_t kDiffersLimit = 1, kDiffersSpill = 2;
struct Region {
    uint64_t region_id;
    uint32_t session_id, cache_id;
};
struct Attached {
    uint64_t region_id, epoch;
    uint32_t slot, reserved;
};
struct Build {
    uint64_t region_id, term;
    uint32_t session_id, cache_id, built, reserved;
};
struct Spill {
    uint64_t region_id, epoch, bytes; // bytes: needed in one run
    uint64_t segment, len;            // reply: first segment of the run, its length in segments. Request: len is errno
                                      // with which io_uring was refused to the client, or 0
    uint32_t slot, seq;               // seq: of the grant
};
struct Want {
    uint64_t region_id, epoch, want;
    int64_t row_id;
    uint32_t slot, reserved;
}; // want: libcache::Want
struct List {
    uint32_t session_id, cache_id, started, reserved;
}; // the last entry seen; started 0: from the first; kListDestroyed: destroyed caches, `reserved` of which were told
inline constexpr uint32_t kListDestroyed = 2;
struct Entry {
    uint32_t session_id, cache_id, has_cache, reserved;
    char name[64];
    int64_t rows, rows_spilled, row_bytes, limit_bytes, charged_bytes, granted_bytes, used_bytes, dead_bytes;
    int64_t index_bytes, free_bytes, largest_free_bytes, index_levels, layouts, writers, generation, readers;
    uint32_t huge_pages, state, kept, n_pids; // state, kept: as in cache_stats; n_pids: of pids, at most kEntryPids
    int64_t populated_bytes, huge_page_bytes, spilled_bytes, spill_file_bytes, idle_ms, attached;
    char tag[72], label[256];
    int32_t pids[64]; // processes that have it open or mapped
};
struct Info {
    uint32_t port, tcp_port, workers, log_level, supervised, huge_pages;
    int32_t keeper_pid, broker_pid;
    uint32_t version_major, version_minor, version_patch, reserved;
    int64_t generation, memory_limit_bytes, memory_used_bytes, sessions, caches, clients, messages;
    int64_t headroom_bytes, available_bytes, spill_limit_bytes, spill_used_bytes;
    char hostname[64], spill_dir[512], backing_reason[256], log_path[384], program[376];
};

struct Message {
    Header header;
    union Body {
        Hello hello;
        Prove prove;
        Welcome welcome;
        Session session;
        Open open;
        Opened opened;
        Region region;
        Attached attached;
        Build build;
        Want want;
        Spill spill;
        List list;
        Entry entry;
        Info info;
        char bytes[kMessageBytes - sizeof(Header) - 256];
    } u;
    char text[256]; // replies with a status: the sentence, ended by 0
};
static_assert(sizeof(Message) == kMessageBytes);
static_assert(std::is_trivially_copyable_v<Message> && std::is_standard_layout_v<Message>);

} // namespace libcache::wire
