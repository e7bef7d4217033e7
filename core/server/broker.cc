// SPDX-License-Identifier: Apache-2.0
// The broker's start from what the keeper holds, its loop and its end.
#include "core/server/broker.h"

#include "core/common/error.h"
#include "core/common/log.h"
#include "core/common/pause.h"
#include "core/control/paths.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace libcache {
namespace {

enum Event : uint64_t {
    kListener = 1,
    kKeeper,
    kSignals,
    kJobs,
    kDiskJobs,
    kSocket,
    kProcess
}; // the upper byte of a tag
constexpr int kEventShift = 56;

constexpr int kIdleMs = 1000, kRestlessMs = 50;
constexpr int64_t kCheckEvery = 2'000'000'000; // ns: the socket is back within 5 s

} // namespace

// ---- start

// R1 to R3: descriptors, server region, cache regions. The first broker finds none of the latter.
int Broker::take_over() {
    struct Found {
        uint64_t id;
        Fd file, spill_file;
    };
    std::vector<Found> regions;
    Fd server_file, mount;
    const bool all = keeper_.take_all([&](const LinkEntry &entry, Fd *fds) {
        switch (entry.kind) {
        case HeldKind::Listener:
            if (socket_.listener) keeper_old_listeners_.push_back(listener_id_); // replaced, and not forgotten in time
            socket_.listener = std::move(fds[0]);
            listener_id_ = entry.id;
            break;
        case HeldKind::TcpListener: tcp_ = std::move(fds[0]); break;
        case HeldKind::Mount: mount = std::move(fds[0]); break;
        case HeldKind::ServerRegion: server_file = std::move(fds[0]); break;
        case HeldKind::Region:
            regions.push_back({entry.id, std::move(fds[0]), entry.n_fds > 1 ? std::move(fds[1]) : Fd()});
            break;
        case HeldKind::Connection: {
            Connection &connection = connections_[entry.id];
            connection.id = entry.id;
            connection.socket = std::move(fds[0]);
            if (entry.n_fds > 1) (is_witness(fds[1]) ? connection.witness : connection.pidfd) = std::move(fds[1]);
            connection.stage = Stage::Up; // deposited after its handshake only
            break;
        }
        }
    });
    LIBCACHE_PAUSE("restart.1");
    if (!all) return fail(CACHE_ESERVER, "the keeper did not hand over what it holds");
    if (!server_file) return fail(CACHE_ESERVER, "the keeper holds no server region");
    if (int rc = server_.open(server_file.get()); rc != 0) return rc;
    const ServerConfig &config = server_.config();
    backing_.adopt(std::move(mount), config.backing_reason);
    // rel: a client's message of an older generation is dropped from now on
    generation_ = server_->header.generation.fetch_add(1, std::memory_order_release) + 1;
    LIBCACHE_PAUSE("restart.2");
    ledger_ = std::make_unique<Ledger>(config.memory_limit_bytes, config.headroom_bytes);
    spill_.limit = config.spill_limit_bytes;
    populator_ = std::make_unique<Populator>("populate");
    disk_ = std::make_unique<Populator>("spill_space");
    if (!populator_->ok() || !disk_->ok()) return fail(CACHE_EIO, "eventfd failed: %s", strerror(errno));
    shop_.emplace(Shop{*ledger_, spill_, *populator_, *disk_, generation_,
                       [this](uint64_t bytes, uint64_t except) { return reclaim(bytes, except); }, 0});
    caches_ = std::make_unique<Caches>(server_, keeper_, backing_, *shop_);
    caches_->on_made([this](CacheRegion &region, int result) { cache_made(region, result); });
    for (Found &found : regions)
        caches_->hold(found.id, std::move(found.file), std::move(found.spill_file));
    caches_->restore();
    LIBCACHE_PAUSE("restart.3");
    return 0;
}

int Broker::start_services() {
    for (uint64_t id : keeper_old_listeners_)
        keeper_.forget(HeldKind::Listener, id);
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    max_fds_ = limit.rlim_cur;
    sigset_t set;
    sigemptyset(&set);
    for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD})
        sigaddset(&set, signal);
    signals_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
    if (!signals_ || !epoll_) return fail(CACHE_EIO, "signalfd or epoll failed: %s", strerror(errno));
    find_socket(server_.config().folder, server_.config().port, &socket_.device, &socket_.inode);
    start_listening();
    if (keeper_.alive()) watch(keeper_.fd(), kKeeper, 0);
    watch(signals_.get(), kSignals, 0);
    watch(populator_->readable(), kJobs, 0);
    watch(disk_->readable(), kDiskJobs, 0);
    find_lost_writers();
    resume_all();
    LIBCACHE_PAUSE("restart.4");
    for (CacheRegion *region : caches_->all())
        region->reconnect_all();
    LIBCACHE_PAUSE("restart.5");
    return 0;
}

int Broker::run() {
    int rc = take_over();
    if (rc == 0) rc = start_services();
    if (rc != 0) {
        log_line(LogLevel::Exception, "broker: %s", last_error());
        return 1;
    }
    keeper_.serving();
    log_line(LogLevel::Info, "broker %d of generation %llu serves: %zu sessions, %zu caches, %zu connections", getpid(),
             static_cast<unsigned long long>(generation_), caches_->session_count(), caches_->cache_count(),
             connections_.size());
    loop();
    end();
    return 0;
}

// ---- loop

void Broker::watch(int fd, uint64_t what, uint64_t id) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = what << kEventShift | id;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
        log_line(LogLevel::Error, "epoll_ctl failed: %s", strerror(errno));
}

// Closing would not do: the keeper's copy keeps the description, and its epoll entry, alive.
void Broker::unwatch(int fd) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Broker::start_listening() {
    if (!listening_) watch(socket_.listener.get(), kListener, 0);
    listening_ = true;
}

void Broker::stop_listening() {
    if (listening_) unwatch(socket_.listener.get());
    listening_ = false;
}

void Broker::watch_socket(const Connection &connection) {
    watch(connection.socket.get(), kSocket, connection.id);
}
void Broker::watch_process(const Connection &connection) {
    if (connection.pidfd) watch(connection.pidfd.get(), kProcess, connection.id);
}

// The end of the link tells it, and not a signal at the parent's death: that one can be missed, by who was forked just
// before it, and the link's end cannot.
bool Broker::abandoned() const {
    if (keeper_.alive() || !server_.config().end_with_keeper) return false;
    log_line(LogLevel::Error, "broker: ending with its keeper (--end_with_keeper)");
    return true;
}

void Broker::loop() {
    int64_t next_tick_ns = 0;
    while (!ending_ && !abandoned()) {
        const int timeout_ms = caches_->restless() ? kRestlessMs : kIdleMs;
        epoll_event events[64];
        const int n = epoll_wait(epoll_.get(), events, 64, timeout_ms);
        if (n < 0 && errno != EINTR) log_line(LogLevel::Error, "epoll_wait failed: %s", strerror(errno));
        for (int i = 0; i < n && !ending_; ++i) {
            handle_event(events[i].data.u64);
            hang_up_on_the_deaf();
        }
        const int64_t now = now_ns();
        if (now >= next_tick_ns) {
            caches_->tick();
            mind_headroom();
            next_tick_ns = now + int64_t{kRestlessMs} * 1'000'000;
        }
        if (now >= next_check_ns_) housekeeping();
        hang_up_on_the_deaf();
    }
}

void Broker::handle_event(uint64_t tag) {
    const uint64_t id = tag & ((uint64_t{1} << kEventShift) - 1);
    switch (tag >> kEventShift) {
    case kListener: return accept_all();
    case kKeeper: return keeper_.lost(); // it never speaks first
    case kSignals: return read_signals();
    case kJobs: return collect_jobs(*populator_);
    case kDiskJobs: return collect_jobs(*disk_);
    case kSocket: return read_connection(id);
    case kProcess: return process_died(id);
    default: return;
    }
}

void Broker::read_signals() {
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info))
        if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT) ending_ = true;
}

void Broker::collect_jobs(Populator &populator) {
    // Bounded: connections get their turn too.
    for (int i = 0; i < 256; ++i) {
        const std::unique_ptr<Job> job = populator.take_finished();
        if (!job) return;
        caches_->job_done(*job);
        if (works_on_disk(job->work)) lend_spill_again(job->region_id);
    }
}

bool Broker::reclaim(uint64_t bytes, uint64_t except_region) {
    bool begun = false;
    for (CacheRegion *region : caches_->all())
        if (region->names().region_id != except_region) begun |= region->reclaim(bytes, false);
    return begun || caches_->drop_idle(bytes, "others need its memory");
}

// Others have taken what was to be left to them: unused stock goes back, then old caches.
void Broker::mind_headroom() {
    const uint64_t missing = ledger_->missing();
    if (missing == 0 || shop_->punching != 0) return;
    bool begun = false;
    for (CacheRegion *region : caches_->all())
        begun |= region->reclaim(missing, true);
    if (!begun && !caches_->drop_idle(missing, "the machine is short of memory (--headroom)")) return;
    if (!short_of_memory_)
        log_line(LogLevel::Warning, "%llu bytes are missing to the headroom of %llu: unused memory is given back",
                 static_cast<unsigned long long>(missing), static_cast<unsigned long long>(ledger_->headroom()));
    short_of_memory_ = true;
}

void Broker::housekeeping() {
    next_check_ns_ = now_ns() + kCheckEvery;
    look_at_witnesses();
    drop_idle();
    start_listening();
    if (!crowded(connections_.size() + 1)) crowd_told_ = false;
    if (const uint64_t ttl = server_.config().idle_ttl_ns; ttl != 0) caches_->drop_expired(static_cast<int64_t>(ttl));
    if (ledger_->missing() == 0) short_of_memory_ = false;
    check_socket();
    log_reopen();
}

// Cleaners of /tmp and people delete sockets: ours is made anew, and connections that stand are not touched.
void Broker::check_socket() {
    const ServerConfig &config = server_.config();
    dev_t device;
    ino_t inode;
    if (find_socket(config.folder, config.port, &device, &inode) && device == socket_.device && inode == socket_.inode)
        return;
    ServerSocket fresh;
    if (listen_in_folder(config.folder, config.port, &fresh) != 0 ||
        (config.group_access != kGroupNone && admit_group(config.folder, config.port, config.group_id) != 0)) {
        log_line(LogLevel::Error, "the server's socket was removed and cannot be made anew: %s", last_error());
        return;
    }
    log_reopen(); // it lay in the same folder
    accept_all(); // who had connected to the old one
    const uint64_t old_id = listener_id_;
    listener_id_ = server_->header.next_object_id.fetch_add(1, std::memory_order_relaxed); // one broker at a time
    keeper_.deposit(HeldKind::Listener, listener_id_, fresh.listener.get());
    keeper_.forget(HeldKind::Listener, old_id);
    stop_listening();
    socket_ = std::move(fresh);
    start_listening();
    log_line(LogLevel::Warning, "the server's socket was removed; it is made anew at %s",
             socket_path(config.folder, config.port).c_str());
}

// ---- end

// The name and the port go first, the connections last, with the keeper: who waits for its connection to end can
// start another server at once.
void Broker::end() {
    const ServerConfig &config = server_.config();
    log_line(LogLevel::Info, "broker: ending, %zu sessions and %zu caches are dropped", caches_->session_count(),
             caches_->cache_count());
    dev_t device;
    ino_t inode;
    if (find_socket(config.folder, config.port, &device, &inode) && device == socket_.device && inode == socket_.inode)
        unlink(socket_path(config.folder, config.port).c_str());
    keeper_.forget(HeldKind::Listener, listener_id_);
    keeper_.forget(HeldKind::TcpListener, 0);
    socket_.listener.reset();
    tcp_.reset();
    if (stop_request_)
        if (const auto at = connections_.find(stop_request_->first); at != connections_.end()) {
            wire::Message answer{};
            reply(at->second, stop_request_->second, &answer, 0);
        }
    populator_.reset(); // joins its thread
    disk_.reset();
}

} // namespace libcache
