// SPDX-License-Identifier: Apache-2.0
// peers --peer NAME --workload M|C|I [--scale X] [--repetitions N] [--seconds S] FILE: one workload with libcache, its
// floor or something that a user could take in its place; the figures go to FILE as JSON. perf/results/measure runs it
// for all of them.
#include "perf/peers/folder.h"
#include "perf/peers/measure.h"
#include "perf/support/arguments.h"
#include "perf/support/in_child.h"
#include "perf/support/machine_json.h"
#include "perf/support/own_server.h"

#include <algorithm>
#include <fstream>

namespace {

using namespace peers;

struct Options {
    std::string peer, workload, path;
    double scale = 1;
    Effort effort;
};

template <class List> std::vector<std::string> names_of(const List &list) {
    std::vector<std::string> names;
    for (const auto &each : list)
        names.push_back(each.name);
    return names;
}

template <class List> const auto &named(const List &list, const std::string &name) {
    return *std::find_if(list.begin(), list.end(), [&](const auto &each) { return each.name == name; });
}

Options read_options(int argc, char **argv) {
    CLI::App app("Measures libcache, its floor, or what a user could take in its place.");
    Options options;
    app.add_option("--peer", options.peer, "who keeps the rows")
        ->required()
        ->check(CLI::IsMember(names_of(all_peers())));
    app.add_option("--workload", options.workload, "MNIST, CIFAR-10 or ImageNet crops")
        ->required()
        ->check(CLI::IsMember(names_of(bench::training_sets())));
    app.add_option("--scale", options.scale, "share of the workload's rows, to try it out")
        ->check(CLI::Range(0.0, 1.0));
    app.add_option("--repetitions", options.effort.repetitions, "of each measurement")->check(CLI::Range(1, 1000));
    app.add_option("--seconds", options.effort.seconds, "that a repetition of reads takes")
        ->check(CLI::Range(1e-4, 60.0));
    app.add_option("file", options.path, "the figures, as JSON")->required();
    perf::read_arguments(app, "peers", argc, argv);
    return options;
}

int run(const Options &options) {
    const Peer &peer = named(all_peers(), options.peer);
    Workload w = named(bench::training_sets(), options.workload);
    w.rows = std::max(static_cast<size_t>(static_cast<double>(w.rows) * options.scale), 2 * kBatch);
    const Json results = measure(peer, w, options.effort);
    const std::string version = peer.version();
    std::ofstream file(options.path);
    file << Json{{"machine", perf::machine_as_json()},
                 {"peer", {{"name", peer.name}, {"version", version}, {"how", peer.how}}},
                 {"results", results}}
                .dump(1)
         << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + options.path);
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    const Options options = read_options(argc, argv);
    try {
        perf::InChild child;
        const char *const temporary = getenv("TMPDIR");
        const peers::Folder on_tmpfs("/dev/shm"), for_sockets(temporary ? temporary : "/tmp");
        peers::folders() = {on_tmpfs.path(), for_sockets.path()};
        const perf::OwnServer server;
        return child.run([&] { return run(options); });
    } catch (const std::exception &error) {
        fprintf(stderr, "peers: %s\n", error.what());
        return 1;
    }
}
