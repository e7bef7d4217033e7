// SPDX-License-Identifier: Apache-2.0
// cache_server: checks its options, makes what the server needs (socket, port, backing, log, server region), and
// becomes the keeper, which starts the broker.
#include "core/common/error.h"
#include "core/common/log.h"
#include "core/common/pause.h"
#include "core/control/paths.h"
#include "core/server/broker.h"
#include "core/server/daemon.h"
#include "core/server/folder.h"
#include "core/server/keeper.h"
#include "core/server/memory.h"
#include "core/server/options.h"
#include "core/server/server_region.h"
#include "core/server/spill_folder.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace libcache {
namespace {

template <size_t N> void copy_text(char (&to)[N], const std::string &from) {
    snprintf(to, N, "%.*s", static_cast<int>(N) - 1, from.c_str());
}

std::string own_path() {
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    return length > 0 ? std::string(path, static_cast<size_t>(length)) : "cache_server";
}

// What holds for all processes of the server, before any descriptor is made.
void settle_process() {
    umask(077);
    signal(SIGPIPE, SIG_IGN);
    sigset_t set;
    sigemptyset(&set);
    for (int number : {SIGTERM, SIGINT, SIGHUP, SIGCHLD})
        sigaddset(&set, number);
    sigprocmask(SIG_BLOCK, &set, nullptr); // read by signalfd
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

struct Parts { // what the keeper will hold
    ServerSocket socket;
    Fd tcp, server_file;
    Backing backing;
    ServerConfig config{};
};

int make_parts(const ServerOptions &options, const std::string &folder, Parts *parts) {
    // First of all the socket: it tells whether a server is up already.
    if (int rc = listen_in_folder(folder, options.port, &parts->socket); rc != 0) return rc;
    if (!options.group.empty())
        if (int rc = admit_group(folder, options.port, options.group_id); rc != 0) return rc;
    const std::string log_path = socket_path(folder, options.port) + ".log";
    if (int rc = log_open(log_path, options.log_level, options.foreground); rc != 0) return rc;
    if (int rc = listen_on_tcp(options.port, options.port_given, &parts->tcp); rc != 0) return rc;
    if (int rc = parts->backing.choose(options.backing); rc != 0) return rc;

    ServerConfig &config = parts->config;
    config.port = options.port;
    config.tcp_port = parts->tcp ? options.port : 0;
    config.workers = options.workers;
    config.log_level = static_cast<uint32_t>(options.log_level);
    config.keeper_pid = getpid();
    config.end_with_keeper = options.end_with_keeper;
    config.huge_pages = parts->backing.huge();
    config.group_access = options.group.empty() ? kGroupNone : options.group_write ? kGroupWrite : kGroupRead;
    config.group_id = options.group_id;
    const char *distrust = getenv("LIBCACHE_NO_PEERPIDFD"); // lets a test reach what kernels before 6.5 do
    config.distrust_peerpidfd = distrust && strcmp(distrust, "1") == 0;
    const char *no_pidfd = getenv("LIBCACHE_NO_PIDFD"); // and what they do before 5.3, or across pid namespaces
    config.no_pidfd = no_pidfd && strcmp(no_pidfd, "1") == 0;
    if (getrandom(&config.server_id, sizeof config.server_id, 0) != sizeof config.server_id)
        return fail(CACHE_EIO, "getrandom failed: %s", strerror(errno));
    config.memory_limit_bytes =
        static_cast<uint64_t>(static_cast<double>(Memory().total_bytes()) * options.memory_cap_ratio);
    config.headroom_bytes = options.headroom_bytes.value_or(default_headroom(config.memory_limit_bytes));
    config.spill_limit_bytes = options.spill_limit_bytes;
    config.idle_ttl_ns = options.idle_ttl_seconds * 1'000'000'000;
    copy_text(config.hostname, options.hostname);
    copy_text(config.spill_dir, options.spill_dir);
    copy_text(config.backing_reason, parts->backing.reason());
    copy_text(config.folder, folder);
    copy_text(config.log_path, log_path);
    copy_text(config.program, own_path());
    ServerRegion region;
    return region.make(config, &parts->server_file);
}

std::string success_text(const ServerOptions &options, const ServerConfig &config) {
    const std::string log = config.log_path, folder = config.folder;
    return "Cache server startup completed successfully!\n"
           "The cache server daemon has been created as process id " +
           std::to_string(config.keeper_pid) + " and listening on port " + std::to_string(options.port) + ".\n" +
           (options.warning.empty() ? "" : options.warning + "\n") +
           "\nRecommendation:\nWatch the server's log in the folder " + folder +
           " for what happens from now on: " + log;
}

void log_start(const ServerOptions &options, const ServerConfig &config) {
    log_line(LogLevel::Info,
             "cache_server %d.%d.%d: keeper %d, port %u, TCP port %u, workers %u, log level %u, spill "
             "folder '%s', %llu bytes for all caches (ratio %g), %s: %s",
             CACHE_VERSION_MAJOR, CACHE_VERSION_MINOR, CACHE_VERSION_PATCH, config.keeper_pid, config.port,
             config.tcp_port, config.workers, config.log_level, config.spill_dir,
             static_cast<unsigned long long>(config.memory_limit_bytes), options.memory_cap_ratio,
             config.huge_pages ? "huge pages" : "sealed memfd", config.backing_reason);
    if (!options.warning.empty()) log_line(LogLevel::Warning, "%s", options.warning.c_str());
    if (options.shared_memory_gb != 0)
        log_line(LogLevel::Warning,
                 "-m %u (--shared_memory_size) has no effect: clients reach the rows themselves, and no memory is set "
                 "aside for their way; all caches together may hold %llu bytes, see --memory_cap_ratio",
                 options.shared_memory_gb, static_cast<unsigned long long>(config.memory_limit_bytes));
    if (config.spill_dir[0] == 0) return;
    const std::string advice = spill_folder_advice(config.spill_dir);
    if (!advice.empty()) log_line(LogLevel::Warning, "%s", advice.c_str());
}

// In the process that stays. Returns its exit status.
int serve(const ServerOptions &options, StartReport start_report) {
    settle_process();
    auto report = std::make_shared<StartReport>(std::move(start_report));
    const std::string folder = server_folder(geteuid());
    if (folder[0] != '/')
        return report->failure("cache_server: LIBCACHE_DIR must be an absolute path, not '" + folder + "'."), 1;
    if (folder.size() >= sizeof ServerConfig::folder)
        return report->failure("cache_server: the path of the folder " + folder + " is too long."), 1;
    Parts parts;
    if (make_parts(options, folder, &parts) != 0) {
        if (parts.socket.listener) unlink(socket_path(folder, options.port).c_str());
        log_line(LogLevel::Error, "not started: %s", last_error());
        return report->failure(std::string(last_error()) + "."), 1;
    }
    LIBCACHE_PAUSE("server.start"); // also reads the pause settings, before the environment goes
    clearenv();
    if (chdir("/") != 0) return report->failure("cache_server: cannot change to /."), 1;
    log_start(options, parts.config);

    // The report's pipe lives in `told` alone, which the keeper drops when it has reported, and in a broker at once.
    const std::string success = success_text(options, parts.config);
    Keeper::Report told = [report, success](const std::string &failure) {
        failure.empty() ? report->success(success) : report->failure(failure + ".");
    };
    report.reset();
    // The process ends before the Broker does: a link that closed first would look like a broker that lives without
    // one.
    Keeper::RunBroker run_broker = [](Fd link) -> int {
        Broker broker(std::move(link));
        _exit(broker.run());
    };
    Keeper keeper(socket_path(folder, options.port), std::move(run_broker), std::move(told));
    keeper.hold(HeldKind::Listener, 0, std::move(parts.socket.listener));
    if (parts.tcp) keeper.hold(HeldKind::TcpListener, 0, std::move(parts.tcp));
    if (parts.backing.huge()) keeper.hold(HeldKind::Mount, 0, parts.backing.release_mount());
    keeper.hold(HeldKind::ServerRegion, 0, std::move(parts.server_file));
    return keeper.run();
}

} // namespace
} // namespace libcache

int main(int argc, char **argv) {
    using namespace libcache;
    // A start with closed standard streams must not give their numbers to a pipe or a socket.
    for (int fd = open("/dev/null", O_RDWR); fd >= 0; fd = open("/dev/null", O_RDWR))
        if (fd > 2) {
            close(fd);
            break;
        }
    ServerOptions options;
    int status = 0;
    if (!parse_options(argc, argv, &options, &status)) return status;
    if (options.foreground) return serve(options, StartReport());
    return run_as_daemon([&](StartReport report) { return serve(options, std::move(report)); });
}
