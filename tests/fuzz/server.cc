// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/server.h"

#include "capi/libcache.h"
#include "core/common/error.h"
#include "core/control/paths.h"
#include "core/server/broker.h"
#include "tests/support/server.h"

#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/socket.h>
#include <unistd.h>

namespace fuzz {

using namespace libcache;

namespace {

constexpr uint32_t kPort = 40404; // a name in a folder of our own
constexpr uint64_t kMemory = 24 << 20;

} // namespace

Server::Server() {
    char folder[] = "/tmp/lcf-XXXXXX";
    if (mkdtemp(folder) == nullptr) test_die("mkdtemp failed: %s", strerror(errno));
    folder_ = folder;
    socket_path_ = socket_path(folder_, kPort);
    setenv("LIBCACHE_DIR", folder, 1);
    setenv("LIBCACHE_PORT", std::to_string(kPort).c_str(), 1);
    ServerConfig config{};
    config.port = kPort; // keeper_pid stays 0: who stops the server must not wait for a process to end
    config.server_id = 1;
    config.memory_limit_bytes = kMemory;
    strncpy(config.folder, folder, sizeof config.folder - 1);
    Fd file;
    if (region_.make(config, &file) != 0) test_die("server region: %s", last_error());
    hold(HeldKind::ServerRegion, 0, file.get());
    ServerSocket made;
    if (listen_in_folder(folder_, kPort, &made) != 0) test_die("listening: %s", last_error());
    hold(HeldKind::Listener, 0, made.listener.get());
}

Server::~Server() {
    stop();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
}

void Server::hold(HeldKind kind, uint64_t id, int fd) {
    std::vector<Fd> &fds = held_[{kind, id}];
    fds.clear();
    fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 3));
}

int Server::held(HeldKind kind) const {
    const auto at = held_.lower_bound({kind, 0});
    return at == held_.end() || at->first.first != kind ? -1 : at->second[0].get();
}

void Server::start() {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) test_die("socketpair: %s", strerror(errno));
    Fd ours(pair[0]), theirs(pair[1]);
    keeper_ = std::thread([this, link = std::move(ours)]() mutable { keep(std::move(link)); });
    broker_ = std::thread([link = std::move(theirs)]() mutable {
        Broker broker(std::move(link));
        if (broker.run() != 0) test_die("the broker ended with an error: %s", last_error());
    });
}

// What Keeper::handle() does, without processes.
void Server::keep(Fd link) {
    for (;;) {
        LinkMessage message;
        Fd fds[2];
        int n_fds = 2;
        if (receive_packet(link.get(), &message, sizeof message, fds, &n_fds) != Io::Done) break;
        const Key key{message.entry[0].kind, message.entry[0].id};
        if (message.type == LinkType::Serving) continue;
        if (message.type == LinkType::Next) {
            hand_over(link, message.entry[0].id);
            continue;
        }
        held_.erase(key);
        if (message.type == LinkType::Deposit)
            for (int i = 0; i < n_fds; i++)
                held_[key].push_back(std::move(fds[i]));
        LinkMessage answer;
        answer.type = LinkType::Ack;
        (void)send_packet(link.get(), &answer, sizeof answer);
    }
    std::erase_if(held_, [](const auto &entry) { return entry.first.first == HeldKind::Connection; });
}

void Server::hand_over(const Fd &link, uint64_t position) {
    LinkMessage message;
    message.type = LinkType::Batch;
    int fds[2 * kLinkEntries], n_fds = 0;
    uint64_t at = 0;
    for (const auto &[key, held] : held_) {
        if (at++ < position || message.count == kLinkEntries) continue;
        message.entry[message.count++] = {key.first, static_cast<uint32_t>(held.size()), key.second};
        for (const Fd &fd : held)
            fds[n_fds++] = fd.get();
    }
    (void)send_packet(link.get(), &message, sizeof message, fds, n_fds);
}

void Server::join() {
    broker_.join();
    keeper_.join();
}

void Server::stop() {
    if (!broker_.joinable()) return;
    cache_client *client = nullptr;
    if (cache_connect(nullptr, &client) != 0 || cache_server_stop(client) != 0)
        test_die("the broker does not stop: %s", cache_last_error());
    cache_disconnect(client);
    join();
}

} // namespace fuzz
