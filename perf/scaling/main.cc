// SPDX-License-Identifier: Apache-2.0
// scaling PART [options] FILE: how cost grows with rows, processes, caches or sessions, as JSON; against a server of
// its own. perf/results/measure runs all of it.
#include "perf/scaling/scaling.h"
#include "perf/support/arguments.h"
#include "perf/support/in_child.h"
#include "perf/support/machine_json.h"
#include "perf/support/own_server.h"

#include <fstream>

namespace {

using scaling::Json;

struct Options {
    size_t rows = 1'000'000;
    std::string ids = "dense", path;
    unsigned processes = 64, caches = 1'000, sessions = 10'000, repetitions = 5;
    uint64_t limit_mib = 512;
    std::function<Json()> measure;
};

void read_options(int argc, char **argv, Options &options) {
    CLI::App app("Measures how cost grows with rows, processes, caches or sessions.");
    app.require_subcommand(1);
    const auto part = [&](const char *name, const char *what, std::function<Json()> measure) {
        CLI::App *const sub = app.add_subcommand(name, what);
        sub->add_option("--repetitions", options.repetitions, "of each measurement")->check(CLI::Range(1, 1000));
        sub->add_option("file", options.path, "the figures, as JSON")->required();
        sub->callback([&options, measure = std::move(measure)] { options.measure = measure; });
        return sub;
    };
    CLI::App *const rows = part("rows", "put and get, memory, opening: of one number of rows", [&] {
        return scaling::rows(options.rows, options.ids == "random", options.repetitions);
    });
    rows->add_option("--rows", options.rows, "so many")->check(CLI::Range(1'000, 1'000'000'000));
    rows->add_option("--ids", options.ids, "dense: 0..n-1; random: 63 bits")->check(CLI::IsMember({"dense", "random"}));
    part("processes", "1, 2, 4, ... processes",
         [&] { return scaling::processes(options.processes, options.repetitions); })
        ->add_option("--most", options.processes, "processes")
        ->check(CLI::Range(1, 1024));
    part("caches", "1, 10, 100, ... caches", [&] { return scaling::caches(options.caches, options.repetitions); })
        ->add_option("--most", options.caches, "caches")
        ->check(CLI::Range(1, 4'000));
    part("sessions", "10, 100, ... sessions", [&] { return scaling::sessions(options.sessions, options.repetitions); })
        ->add_option("--most", options.sessions, "sessions")
        ->check(CLI::Range(10, 16'000));
    part("memory", "of a full cache, an idle server, a reader",
         [&] { return scaling::memory(options.limit_mib << 20); })
        ->add_option("--limit", options.limit_mib, "of the full cache, in MiB")
        ->check(CLI::Range(1, 1 << 20));
    perf::read_arguments(app, "scaling", argc, argv);
}

int run(const Options &options) {
    const Json results = options.measure();
    std::ofstream file(options.path);
    file << Json{{"machine", perf::machine_as_json()}, {"results", results}}.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + options.path);
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    Options options;
    read_options(argc, argv, options);
    try {
        perf::InChild child;
        const perf::OwnServer server;
        return child.run([&] { return run(options); });
    } catch (const std::exception &error) {
        fprintf(stderr, "scaling: %s\n", error.what());
        return 1;
    }
}
