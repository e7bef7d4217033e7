// SPDX-License-Identifier: Apache-2.0
#include "core/server/keeper_link.h"

#include "core/common/log.h"

namespace libcache {
namespace {

constexpr int64_t kPatience = 10'000'000'000; // ns: the keeper does nothing that takes long

// Descriptors that a batch comes with, if all of them arrive.
uint64_t fds_of(const LinkMessage &batch) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < batch.count && i < kLinkEntries; ++i)
        sum += batch.entry[i].n_fds;
    return batch.count <= kLinkEntries ? sum : kMaxFds + 1;
}

} // namespace

void KeeperLink::lost() {
    if (!link_) return;
    log_line(LogLevel::Error, "the keeper has gone: the server goes on, unsupervised");
    link_.reset();
}

// Sends a message and waits for one of type `wanted`. False: no keeper (any more).
bool KeeperLink::exchange(LinkMessage *message, const int *fds, int n_fds, LinkType wanted, Fd *got, int *n_got) {
    if (!link_) return false;
    if (send_packet(link_.get(), message, sizeof *message, fds, n_fds) == Io::Done) {
        const int room = n_got ? *n_got : 0;
        const int64_t deadline = now_ns() + kPatience;
        while (wait_readable(link_.get(), deadline) == 1) {
            int n = room;
            const Io io = receive_packet(link_.get(), message, sizeof *message, got, &n, nullptr, false);
            if (n_got) *n_got = n;
            if (io == Io::Done && message->magic == kLinkMagic && message->type == wanted) return true;
            if (io != Io::Done && io != Io::WouldBlock) break;
        }
    }
    lost();
    return false;
}

void KeeperLink::deposit(HeldKind kind, uint64_t id, int fd, int second_fd) {
    LinkMessage message;
    message.type = LinkType::Deposit;
    message.count = 1;
    message.entry[0] = {kind, second_fd < 0 ? 1u : 2u, id};
    const int fds[2] = {fd, second_fd};
    exchange(&message, fds, second_fd < 0 ? 1 : 2, LinkType::Ack, nullptr, nullptr);
}

void KeeperLink::forget(HeldKind kind, uint64_t id) {
    LinkMessage message;
    message.type = LinkType::Forget;
    message.count = 1;
    message.entry[0] = {kind, 0, id};
    exchange(&message, nullptr, 0, LinkType::Ack, nullptr, nullptr);
}

bool KeeperLink::take_all(const Take &take) {
    constexpr int kTries = 5; // of one batch that arrived without all of its descriptors
    int tries = 0;
    for (uint64_t position = 0;;) {
        LinkMessage message;
        message.type = LinkType::Next;
        message.entry[0].id = position;
        Fd fds[kMaxFds];
        int n_fds = kMaxFds;
        if (!exchange(&message, nullptr, 0, LinkType::Batch, fds, &n_fds)) return false;
        if (message.count == 0) return true;
        if (const uint64_t wanted = fds_of(message); wanted != static_cast<uint64_t>(n_fds)) {
            log_line(LogLevel::Warning,
                     "of %llu descriptors %d arrived from the keeper: has this process numbers left for them (ulimit "
                     "-n)?; asked for again",
                     static_cast<unsigned long long>(wanted), n_fds);
            if (++tries == kTries) return false;
            continue;
        }
        Fd *next = fds;
        for (uint32_t i = 0; i < message.count; next += message.entry[i++].n_fds)
            take(message.entry[i], next);
        position += message.count;
        tries = 0;
    }
}

void KeeperLink::serving() {
    if (!link_) return;
    LinkMessage message;
    message.type = LinkType::Serving;
    if (send_packet(link_.get(), &message, sizeof message) != Io::Done) lost();
}

} // namespace libcache
