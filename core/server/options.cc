// SPDX-License-Identifier: Apache-2.0
#include "core/server/options.h"

#include "capi/libcache.h"
#include "core/server/spill_folder.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

namespace libcache {
namespace {

std::string version_text() {
    return "cache_server " + std::to_string(CACHE_VERSION_MAJOR) + "." + std::to_string(CACHE_VERSION_MINOR) + "." +
           std::to_string(CACHE_VERSION_PATCH);
}

long cpu_count() {
    return std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
}

struct Words { // as typed, before they are numbers
    std::string port, workers, log_level, shared_memory, ratio, backing = "auto";
    std::string spill_limit, headroom, idle_ttl;
};

void describe(CLI::App &app, ServerOptions *options, Words *words) {
    app.set_help_flag("--help", "Show this help");
    app.set_version_flag("--version", version_text());
    app.add_flag("--foreground", options->foreground, "Stay in the foreground and log to stderr too");
    app.add_flag("--end_with_keeper", options->end_with_keeper,
                 "End when the first of the server's two processes is killed: for who started it and watches that one");
    app.add_option("-p,--port", words->port, "1025..65535, the number that names the server (default 50052)");
    app.add_option("-h,--hostname", options->hostname, "Only 127.0.0.1: a cache never leaves the machine");
    app.add_option("-w,--workers", words->workers, "1..max(CPUs, 100), as shown by cache_admin --server_info");
    app.add_option("-s,--spilldir", options->spill_dir, "Absolute path of a writable folder for spilled rows");
    app.add_option("-l,--loglevel", words->log_level, "0..4: debug, info, warning, error, exception (default 1)");
    app.add_option("-r,--memory_cap_ratio", words->ratio,
                   "Share of the memory for all caches, 0 < r <= 1 (default 0.8)");
    app.add_option("-m,--shared_memory_size", words->shared_memory,
                   "GB, for old scripts and without effect, as the log says: rows need no memory to travel through");
    app.add_option("--spill_limit", words->spill_limit,
                   "MB that all spill files together may take (default: what the spill folder's disk has)");
    app.add_option("--headroom", words->headroom,
                   "MB of memory to leave to others (default: 10 % of what all caches may use, at least 2048, or a "
                   "quarter of it if that is less)");
    app.add_option("--idle_ttl", words->idle_ttl,
                   "Seconds after which a cache that nobody has open is dropped (default 0: never)");
    app.add_option("--backing", words->backing, "auto, huge or memfd: where the pages come from (default auto)");
    app.add_option("--group", options->group, "A group whose members may read too; the pages are a sealed memfd then");
    app.add_flag("--group_write", options->group_write,
                 "The members of the group may also put rows, and make sessions and caches");
    for (CLI::Option *option : app.get_options())
        option->multi_option_policy(CLI::MultiOptionPolicy::Throw);
}

[[noreturn]] void refuse(const std::string &what) {
    throw CLI::ValidationError("", what);
}

// The whole word must be a number in [low, high].
long long number(const std::string &word, const char *name, long long low, long long high) {
    errno = 0;
    char *end = nullptr;
    const long long value = strtoll(word.c_str(), &end, 10);
    const bool numeric = !word.empty() && *end == 0 && (isdigit(word[0]) || word[0] == '-');
    if (!numeric || errno != 0 || value < low || value > high)
        refuse(std::string(name) + " must be a number in [" + std::to_string(low) + ", " + std::to_string(high) +
               "], not '" + word + "'");
    return value;
}

uint64_t megabytes(const std::string &word, const char *name, long long least) {
    return static_cast<uint64_t>(number(word, name, least, 1LL << 40)) << 20;
}

void set_port(ServerOptions *options, const std::string &given) {
    std::string word = given;
    const char *name = "port";
    for (const char *variable : {"LIBCACHE_PORT", "MS_CACHE_PORT"})
        if (const char *value = getenv(variable); word.empty() && value && *value) word = value, name = variable;
    options->port_given = !word.empty();
    if (options->port_given) options->port = static_cast<unsigned>(number(word, name, 1025, 65535));
}

void set_workers(ServerOptions *options, const std::string &word) {
    const long cpus = cpu_count();
    options->workers = static_cast<unsigned>(cpus > 2 ? cpus / 2 : 1);
    if (word.empty()) return;
    const unsigned wish = static_cast<unsigned>(number(word, "workers", 1, std::max(cpus, 100L)));
    options->workers = std::min(wish, static_cast<unsigned>(2 * cpus));
    if (options->workers != wish)
        options->warning = "WARNING: The number of workers was adjusted from " + std::to_string(wish) + " to " +
                           std::to_string(options->workers) + ", twice the number of CPUs.";
}

void set_ratio(ServerOptions *options, const std::string &word) {
    if (word.empty()) return;
    char *end = nullptr;
    options->memory_cap_ratio = strtod(word.c_str(), &end);
    if (*end != 0 || !(options->memory_cap_ratio > 0 && options->memory_cap_ratio <= 1))
        refuse("memory_cap_ratio must be a number greater than 0 and at most 1, not '" + word + "'");
}

void set_log_level(ServerOptions *options, std::string word) {
    const char *name = "loglevel";
    if (const char *value = getenv("GLOG_v"); word.empty() && value && *value) word = value, name = "GLOG_v";
    if (!word.empty()) options->log_level = LogLevel(number(word, name, 0, 4));
}

void check_spill(ServerOptions *options, const Words &words) {
    if (!words.spill_limit.empty()) options->spill_limit_bytes = megabytes(words.spill_limit, "spill_limit", 1);
    if (options->spill_dir.empty()) {
        if (!words.spill_limit.empty()) refuse("spill_limit means nothing without --spilldir");
        return;
    }
    if (const std::string fault = spill_folder_fault(options->spill_dir); !fault.empty()) refuse(fault);
}

// Pages that other users map are sealed: nobody can truncate them.
void check_group(ServerOptions *options, const Words &words) {
    if (options->group.empty() && options->group_write) refuse("group_write means nothing without --group");
    if (options->group.empty()) return;
    const ::group *entry = getgrnam(options->group.c_str());
    if (!entry) refuse("group '" + options->group + "' does not exist");
    if (words.backing == "huge") refuse("--backing huge cannot be sealed: with --group it is memfd");
    options->group_id = entry->gr_gid;
    options->backing = BackingWish::Memfd;
}

void check(ServerOptions *options, const Words &words) {
    set_port(options, words.port);
    set_workers(options, words.workers);
    set_log_level(options, words.log_level);
    set_ratio(options, words.ratio);
    if (!words.shared_memory.empty())
        options->shared_memory_gb =
            static_cast<unsigned>(number(words.shared_memory, "shared_memory_size", 1, 1 << 20));
    if (options->hostname != "127.0.0.1")
        refuse("hostname must be 127.0.0.1, not '" + options->hostname + "': a cache never leaves the machine");
    if (words.backing == "huge")
        options->backing = BackingWish::Huge;
    else if (words.backing == "memfd")
        options->backing = BackingWish::Memfd;
    else if (words.backing != "auto")
        refuse("backing must be auto, huge or memfd, not '" + words.backing + "'");
    check_group(options, words);
    check_spill(options, words);
    if (!words.headroom.empty()) options->headroom_bytes = megabytes(words.headroom, "headroom", 0);
    if (!words.idle_ttl.empty())
        options->idle_ttl_seconds = static_cast<uint64_t>(number(words.idle_ttl, "idle_ttl", 0, 1LL << 32));
}

} // namespace

bool parse_options(int argc, char **argv, ServerOptions *options, int *status) {
    CLI::App app("The server of libcache: lends shared memory to the processes of one user. Usually started by "
                 "cache_admin --start.",
                 "cache_server");
    Words words;
    describe(app, options, &words);
    try {
        app.parse(argc, argv);
        check(options, words);
        return true;
    } catch (const CLI::CallForHelp &e) {
        *status = app.exit(e);
    } catch (const CLI::CallForVersion &e) {
        *status = app.exit(e);
    } catch (const CLI::Error &e) {
        const std::string text = e.what();
        fprintf(stderr, "cache_server: %s. See cache_admin --help, or cache_server --help, for the options.\n",
                text.compare(0, 2, ": ") == 0 ? text.c_str() + 2 : text.c_str());
        *status = 1;
    }
    return false;
}

} // namespace libcache
