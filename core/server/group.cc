// SPDX-License-Identifier: Apache-2.0
// --group: processes of other users, members of one group, may speak to the server: read what is there and, with
// --group_write, put rows and make sessions. Destroying and stopping stay the owner's.
#include "core/common/error.h"
#include "core/server/broker.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

namespace libcache {
namespace {

constexpr socklen_t kMostGroups = 65536; // NGROUPS_MAX

// As the kernel noted it when the peer connected.
bool is_member(int socket, const ucred &peer, gid_t group) {
    if (peer.gid == group) return true;
    std::vector<gid_t> groups(64);
    for (;;) {
        socklen_t bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
        if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) == 0) {
            groups.resize(bytes / sizeof(gid_t));
            return std::find(groups.begin(), groups.end(), group) != groups.end();
        }
        if (errno != ERANGE || groups.size() >= kMostGroups) return false;
        groups.resize(2 * groups.size());
    }
}

const char *refused_to_members(wire::Type type, bool may_write) {
    switch (type) {
    case wire::Type::SessionDestroy: return "end a session";
    case wire::Type::Destroy: return "drop a cache";
    case wire::Type::Stop: return "stop it";
    default: break;
    }
    if (may_write) return nullptr;
    switch (type) {
    case wire::Type::SessionCreate: return "make a session";
    case wire::Type::Attach:
    case wire::Type::SpillGrant: return "write rows";
    case wire::Type::BuildBegin:
    case wire::Type::BuildDone:
    case wire::Type::BuildLeave: return "build a cache";
    default: return nullptr;
    }
}

} // namespace

// May this peer speak at all?
bool Broker::admits(const Connection &connection, const ucred &peer) const {
    const ServerConfig &config = server_.config();
    return peer.uid == geteuid() ||
           (config.group_access != kGroupNone && is_member(connection.socket.get(), peer, config.group_id));
}

// 0, or why a member of the group is refused. A read-only member never makes what it names: *request says so.
int Broker::check_member(const Connection &connection, wire::Message *request) const {
    const ServerConfig &config = server_.config();
    ucred peer{};
    socklen_t size = sizeof peer;
    if (config.group_access == kGroupNone) return 0;
    if (getsockopt(connection.socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return fail(CACHE_EPERM, "the server cannot tell who is asking: %s", strerror(errno));
    if (peer.uid == geteuid()) return 0;
    const bool may_write = config.group_access == kGroupWrite;
    const auto type = wire::Type(request->header.type);
    if (const char *what = refused_to_members(type, may_write))
        return fail(CACHE_EPERM, "this server belongs to user %u; user %u may not %s: %s", geteuid(), peer.uid, what,
                    may_write ? "that is for its owner to do" : "its group reads only (--group_write admits more)");
    if (may_write) return 0;
    if (type == wire::Type::Open) request->u.open.flags |= CACHE_NO_CREATE;
    const wire::Session &session = request->u.session;
    if (type == wire::Type::SessionOpen && memchr(session.name, 0, sizeof session.name) &&
        !caches_->has_session(session.name))
        return fail(CACHE_EPERM,
                    "no session is named '%s', and user %u may not make one: the group of this server reads "
                    "only (--group_write admits more)",
                    session.name, peer.uid);
    return 0;
}

} // namespace libcache
