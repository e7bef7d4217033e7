// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/peer.h"

#include "capi/libcache.h"
#include "core/common/futex.h"
#include "core/shm/backing.h"
#include "tests/support/server.h"

#include <cstring>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace fuzz {

using namespace libcache;
using wire::Type;

namespace {

void fill_answer(const wire::Message &request, wire::Message &answer) {
    const RegionHeader &header = Image::get().header();
    wire::Message::Body &u = answer.u;
    switch (static_cast<Type>(request.header.type)) {
    case Type::SessionCreate:
    case Type::SessionOpen: u.session.session_id = header.session_id; break;
    case Type::Open: u.opened = {header.region_id, header.region_bytes, header.limit_bytes, 0, 0, 0, 0}; break;
    case Type::Attach: u.attached = {header.region_id, Image::get().epoch(), 0, 0}; break;
    case Type::List:
        if (request.u.list.started != 0) answer.header.status = CACHE_ENOTFOUND;
        u.entry.session_id = header.session_id;
        u.entry.cache_id = header.cache_id;
        u.entry.has_cache = 1;
        break;
    case Type::BuildBegin: u.build.term = 1; break;
    default: break;
    }
}

} // namespace

Peer::Peer(int region_file, const Mapping &region) : file_(region_file), region_(region) {
    char folder[] = "/tmp/lcf-XXXXXX";
    if (mkdtemp(folder) == nullptr) test_die("mkdtemp failed: %s", strerror(errno));
    folder_ = folder;
    path_ = folder_ + "/socket";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    listener_ = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (bind(listener_.get(), reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0 ||
        listen(listener_.get(), 5) != 0)
        test_die("listening on %s: %s", path_.c_str(), strerror(errno));
    thread_ = std::thread([this] {
        for (int socket; (socket = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)) >= 0; close(socket))
            serve(socket);
    });
}

Peer::~Peer() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    unlink(path_.c_str());
    rmdir(folder_.c_str());
}

void Peer::serve(int socket) {
    wire::Message request;
    while (receive_packet(socket, &request, sizeof request, nullptr, nullptr) == Io::Done) {
        const auto type = static_cast<Type>(request.header.type);
        if (type == Type::Stock) {
            if (Want::unpack(request.u.want.want).pack() != 0) refuse(request.u.want);
            continue;
        }
        wire::Message answer{};
        answer.header = request.header;
        answer.header.generation = 1;
        if (type == Type::Hello) answer.header.type = static_cast<uint32_t>(Type::Welcome);
        fill_answer(request, answer);
        const Fd file = type == Type::Open     ? open_again(file_, O_RDONLY)
                        : type == Type::Attach ? open_again(file_, O_RDWR)
                                               : Fd();
        int fd = file.get();
        if (answer_ && !answer_(socket, request, answer, fd)) return;
        if (send_packet(socket, &answer, sizeof answer, &fd, fd < 0 ? 0 : 1) != Io::Done) return;
    }
}

// Whoever waits for memory or a level hears at once that there is none.
void Peer::refuse(const wire::Want &want) {
    Slot &slot = region_.slot(0);
    const auto asked = libcache::Want::unpack(want.want);
    slot.answer.store(libcache::Answer{CACHE_EFULL, asked.chunks, asked.stub}.pack(), std::memory_order_relaxed);
    slot.futex.fetch_add(1, std::memory_order_release); // pairs with Writer::wait_answer
    futex_wake_all(&slot.futex);
}

} // namespace fuzz
