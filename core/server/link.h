// SPDX-License-Identifier: Apache-2.0
// The messages between keeper and broker (a socket pair, one packet a message). The keeper holds copies of all
// descriptors under {kind, id}; the broker deposits one before anybody else learns of what it names.
#pragma once

#include <cstdint>

namespace libcache {

enum class HeldKind : uint32_t {
    Listener = 1, // the Unix socket
    TcpListener = 2,
    Mount = 3, // the tmpfs of the huge-page backing
    ServerRegion = 4,
    Region = 5,     // a cache: its region and, if it spills, the file of its spilled rows
    Connection = 6, // two descriptors: the socket and the process's pidfd or witness
};

enum class LinkType : uint32_t {
    Deposit = 1, // B: entry[0] and its descriptors -> Ack
    Forget = 2,  // B: entry[0] -> Ack, also when it is unknown
    Next = 3,    // B: hand over the entries from position entry[0].id on -> Batch
    Batch = 4,   // K: up to kLinkEntries entries with their descriptors; none: that was all
    Ack = 5,     // K
    Serving = 6, // B: clients can connect
};

inline constexpr uint32_t kLinkEntries = 32; // of at most two descriptors each: 64 in a packet
inline constexpr uint32_t kLinkMagic = 0x4b4c434c;

struct LinkEntry {
    HeldKind kind;
    uint32_t n_fds;
    uint64_t id;
};
struct LinkMessage {
    uint32_t magic = kLinkMagic;
    LinkType type{};
    uint32_t count = 0, reserved = 0;
    LinkEntry entry[kLinkEntries]{};
};
static_assert(sizeof(LinkMessage) == 16 + 16 * kLinkEntries);

} // namespace libcache
