// SPDX-License-Identifier: Apache-2.0
#include "perf/cache_perf/options.h"

#include "capi/libcache.h"
#include "perf/support/machine.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

namespace perf {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 40; // of one row: what the machine has is the server's to say
constexpr int kUsageError = 2;

struct Words { // as typed
    std::string row_size, ids = "dense", server;
};

std::string no_minus(std::string &word) {
    return word.starts_with('-') ? "'" + word + "' is negative" : std::string();
}

[[noreturn]] void refuse(const std::string &what) {
    throw CLI::ValidationError(what);
}

uint64_t row_bytes(const std::string &word, const std::string &given) {
    const bool digits = !word.empty() && word.size() < 19 &&
                        std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    const uint64_t bytes = digits ? std::stoull(word) : 0;
    if (bytes == 0 || bytes > kMostBytes)
        refuse("--row_size must be a positive number of bytes, or MIN-MAX, not '" + given + "'");
    return bytes;
}

void set_row_size(Options *options, const std::string &given) {
    const size_t dash = given.find('-');
    options->row_min = row_bytes(given.substr(0, dash), given);
    options->row_max = dash == std::string::npos ? options->row_min : row_bytes(given.substr(dash + 1), given);
    if (options->row_max < options->row_min) refuse("--row_size " + given + ": the smaller size comes first");
}

void describe_work(CLI::App &app, Options *options, Words *words) {
    app.add_option("-s,--num_rows", options->rows, "Rows in total")->required()->type_name("N");
    app.add_option("-r,--row_size", words->row_size, "Bytes of a row, or MIN-MAX")->required()->type_name("BYTES");
    app.add_option("-n,--pipeline", options->pipelines, "Processes that share the rows (default 8)")->type_name("N");
    app.add_option("-w,--workers,--threads", options->workers, "Threads of each process (default: CPUs, at most 8)")
        ->check(CLI::Range(1u, 4096u))
        ->type_name("N");
    app.add_option("-e,--epoch", options->epochs, "Epochs: the first one writes, the others read (default 10)")
        ->type_name("N");
    app.add_flag("--shuffle", options->shuffle, "Read in a new random order in each epoch");
    app.add_option("--ids", words->ids, "dense: 0, 1, 2, ...; random: 63-bit numbers (default dense)")
        ->check(CLI::IsMember({"dense", "random"}))
        ->type_name("KIND");
    app.add_option("--batch", options->batch, "Rows of one reading call (default 1)")
        ->check(CLI::Range(1u, 1u << 20))
        ->type_name("N");
    app.add_flag("--copy", options->copy, "Reading copies each row into a buffer of the reader (cache_gather)");
    app.add_flag("--verify", options->verify, "Make and check every byte of every row (outside of the timed calls)");
    app.add_option("--duration", options->duration, "Read for so many seconds, whatever the number of epochs")
        ->check(CLI::Range(0.001, 1e9))
        ->type_name("SECONDS");
}

void describe_server(CLI::App &app, Options *options, Words *words) {
    app.add_option("-a,--cache_size", options->cache_size_mb, "Limit of the cache in MB (default 0: the server's)")
        ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 40))
        ->type_name("MB");
    app.add_flag("--spill", options->spill, "Rows that memory refuses go to the server's spill folder");
    app.add_flag(
        "--drop_page_cache", options->drop_page_cache,
        "Before each reading epoch drop the machine's page cache, so that spilled rows come from the disk (root)");
    app.add_option("--server", words->server, "auto: start a server for this run and stop it at the end")
        ->check(CLI::IsMember({"auto"}))
        ->type_name("auto");
    app.add_option("--spilldir", options->spill_dir, "Spill folder of the server that --server auto starts")
        ->type_name("FOLDER");
    app.add_option("--port", options->port, "Of the server (default: LIBCACHE_PORT, MS_CACHE_PORT or 50052)")
        ->check(CLI::Range(1025u, 65535u))
        ->type_name("PORT");
    app.add_option("--hostname", options->hostname, "Only 127.0.0.1: a cache never leaves the machine")
        ->type_name("HOST");
    app.add_option("-p,--prefetch_size", options->prefetch,
                   "For old scripts, without effect: rows need no fetching ahead (default 20)")
        ->type_name("N");
    app.add_option("--connection", options->connections,
                   "For old scripts, without effect: no row travels over a connection (default 12)")
        ->type_name("N");
    app.add_option("--json", options->json, "Write every figure to this file, too")->type_name("FILE");
}

void check(Options *options, const Words &words) {
    if (options->rows == 0) refuse("--num_rows must be positive");
    set_row_size(options, words.row_size);
    if (options->pipelines == 0 || options->pipelines > 4096) refuse("--pipeline must be in 1..4096");
    if (options->epochs == 0) refuse("--epoch must be positive");
    if (options->prefetch == 0) refuse("--prefetch_size must be positive");
    if (options->connections == 0) refuse("--connection must be positive");
    if (options->rows < options->pipelines)
        refuse("--num_rows (" + std::to_string(options->rows) + ") must not be smaller than --pipeline (" +
               std::to_string(options->pipelines) + ")");
    if (options->hostname != "127.0.0.1")
        refuse("--hostname must be 127.0.0.1, not '" + options->hostname + "': a cache never leaves the machine");
    options->random_ids = words.ids == "random";
    options->own_server = words.server == "auto";
    if (options->own_server && options->port != 0) refuse("--server auto chooses a free port itself: leave --port out");
    if (!options->spill_dir.empty() && !options->own_server)
        refuse("--spilldir is for the server that --server auto starts");
    if (options->copy && options->row_max * options->batch > kMostBytes)
        refuse("--copy needs a buffer of --batch times --row_size bytes, which is too much");
    if (options->workers == 0) options->workers = std::min(8u, this_machine().cpus);
    if (uint64_t{options->pipelines} * options->workers > 65536) refuse("more than 65536 threads in all");
}

} // namespace

bool parse_options(int argc, char **argv, Options *options, int *status) {
    CLI::App app("Measures a cache server: in the first epoch processes write rows, in the others they read them.",
                 "cache_perf");
    app.set_help_flag("--help", "Show this help");
    app.set_version_flag("--version", std::string("cache_perf ") + cache_version());
    Words words;
    describe_work(app, options, &words);
    describe_server(app, options, &words);
    for (CLI::Option *option : app.get_options()) {
        option->multi_option_policy(CLI::MultiOptionPolicy::Throw);
        if (option->get_items_expected_min() > 0) option->check(CLI::Validator(no_minus, "")); // else -1 is 2^64 - 1
    }
    *status = 0;
    if (argc == 1) {
        fputs(app.help().c_str(), stdout);
        return false;
    }
    try {
        app.parse(argc, argv);
        check(options, words);
        return true;
    } catch (const CLI::CallForHelp &asked) {
        app.exit(asked);
    } catch (const CLI::CallForVersion &asked) {
        app.exit(asked);
    } catch (const CLI::Error &error) {
        fprintf(stderr, "cache_perf: %s\nRun cache_perf --help for the options.\n", error.what());
        *status = kUsageError;
    }
    return false;
}

} // namespace perf
