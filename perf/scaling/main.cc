// SPDX-License-Identifier: Apache-2.0
// scaling [--rows N] [--processes N] [--caches N] [--sessions N] FILE: how cost grows with rows, processes, caches and
// sessions, up to these counts, as JSON; against a server of its own. perf/peers/report makes tables and a picture of
// it.
#include "perf/scaling/scaling.h"
#include "perf/support/in_child.h"
#include "perf/support/machine.h"
#include "perf/support/own_server.h"

#include <CLI/CLI.hpp>
#include <fstream>

namespace {

struct Counts {
    size_t rows = 50'000'000;
    unsigned processes = 64, caches = 1'000, sessions = 10'000;
};

int run(const Counts &most, const std::string &path) {
    scaling::Json results = scaling::Json::array();
    scaling::rows(most.rows, results);
    scaling::processes(most.processes, results);
    scaling::caches(most.caches, results);
    scaling::sessions(most.sessions, results);
    const perf::Machine machine = perf::this_machine();
    const scaling::Json about = {{"processor", machine.processor},       {"cpus", machine.cpus},
                                 {"memory_bytes", machine.memory_bytes}, {"kernel", machine.kernel},
                                 {"libcache", machine.library},          {"build", machine.build}};
    std::ofstream file(path);
    file << scaling::Json{{"machine", about}, {"results", results}}.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    CLI::App app("Measures how cost grows with rows, processes, caches and sessions.");
    Counts most;
    std::string path;
    app.add_option("--rows", most.rows, "most rows")->check(CLI::Range(10'000, 1'000'000'000));
    app.add_option("--processes", most.processes, "most processes")->check(CLI::Range(1, 1024));
    app.add_option("--caches", most.caches, "most caches")->check(CLI::Range(1, 4'000));
    app.add_option("--sessions", most.sessions, "most sessions")->check(CLI::Range(10, 16'000));
    app.add_option("file", path, "the figures, as JSON")->required();
    CLI11_PARSE(app, argc, argv);
    try {
        perf::InChild child;
        const perf::OwnServer server;
        return child.run([&] { return run(most, path); });
    } catch (const std::exception &error) {
        fprintf(stderr, "scaling: %s\n", error.what());
        return 1;
    }
}
