// SPDX-License-Identifier: Apache-2.0
// peers [--scale X] [--only NAME] FILE: writes, looks up and copies the rows of three workloads with libcache and with
// what a user could take in its place, in 1, 2 and 8 processes, and writes the figures to FILE as JSON.
// perf/peers/report makes the table and the picture of it.
//
// Written rows are shared out among the processes; of reads each process does all rows, in an order of its own, after a
// pass that is not timed. ns is the time from the first one's start to the last one's end, for a row of all of theirs.
#include "perf/peers/folder.h"
#include "perf/peers/store.h"
#include "perf/support/crew.h"
#include "perf/support/in_child.h"
#include "perf/support/machine.h"
#include "perf/support/own_server.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

namespace {

using namespace peers;
using Json = nlohmann::ordered_json;

constexpr unsigned kProcesses[] = {1, 2, 8};
constexpr double kSeconds = 0.3; // that a measurement of reads takes at least, in passes over all rows
constexpr int kMostPasses = 50;

std::vector<int64_t> ids_of(const Workload &w, bool shuffled, unsigned member) {
    std::vector<int64_t> ids(w.rows);
    for (size_t i = 0; i < w.rows; ++i)
        ids[i] = static_cast<int64_t>(i);
    if (shuffled) std::shuffle(ids.begin(), ids.end(), std::mt19937_64(member + 1));
    return ids;
}

// The member's share of all rows, shuffled: as a data loader's workers write them.
std::vector<int64_t> share_of(const Workload &w, unsigned member, unsigned members) {
    const std::vector<int64_t> all = ids_of(w, true, 0);
    std::vector<int64_t> share;
    for (size_t i = member; i < all.size(); i += members)
        share.push_back(all[i]);
    return share;
}

double write_rows(Store &store, unsigned members) {
    std::vector<int64_t> ids;
    std::unique_ptr<Source> source;
    const auto prepare = [&](unsigned member) {
        store.attach();
        ids = share_of(store.workload, member, members);
        source = std::make_unique<Source>(store.workload);
    };
    const auto work = [&](unsigned) { store.put(ids, *source); };
    return perf::run_crew(members, {prepare, work}) / static_cast<double>(store.workload.rows);
}

// Every row is there and right; by a single process, untimed.
void verify(Store &store) {
    const auto check = [&](unsigned) {
        store.attach();
        std::vector<char> to(kBatch * store.workload.row_bytes);
        const std::vector<int64_t> ids = ids_of(store.workload, true, 0);
        in_batches(ids, [&](Ids batch) {
            store.copy(batch, to.data());
            for (size_t i = 0; i < batch.size(); ++i)
                Source::check(to.data() + i * store.workload.row_bytes, batch[i]);
        });
    };
    perf::run_crew(1, {check, [](unsigned) {}});
}

// One pass of each member over all rows, `passes` times, after one for the page tables.
double read_rows(Store &store, unsigned members, bool copy, bool shuffled, int passes) {
    std::vector<int64_t> ids;
    std::vector<char> to(kBatch * store.workload.row_bytes);
    unsigned sum = 0;
    const auto pass = [&] {
        if (copy)
            store.copy(ids, to.data());
        else
            sum += store.look_up(ids);
    };
    const auto prepare = [&](unsigned member) {
        store.attach();
        ids = ids_of(store.workload, shuffled, member);
        pass();
    };
    const auto work = [&](unsigned) {
        for (int i = 0; i < passes; ++i)
            pass();
        asm volatile("" : : "r"(sum), "r"(to.data()) : "memory"); // what was read counts as used
    };
    return perf::run_crew(members, {prepare, work}) / passes / members / static_cast<double>(store.workload.rows);
}

double read_long_enough(Store &store, unsigned members, bool copy, bool shuffled) {
    const double once = read_rows(store, members, copy, shuffled, 1);
    const double rows = static_cast<double>(store.workload.rows) * members;
    const double passes = kSeconds / (once * rows);
    if (passes <= 1) return once;
    return read_rows(store, members, copy, shuffled, static_cast<int>(std::min<double>(passes + 1, kMostPasses)));
}

void add(Json &results, const Peer &peer, const Store &store, const char *what, const char *order, unsigned processes,
         double seconds_a_row) {
    results.push_back({{"peer", peer.name},
                       {"workload", store.workload.name},
                       {"what", what},
                       {"order", order},
                       {"processes", processes},
                       {"ns", seconds_a_row * 1e9}});
}

// A store for each number of writers, as a second write of the same rows would be another thing. The last one is read.
void measure(const Peer &peer, const Workload &w, Json &results) {
    std::unique_ptr<Store> store;
    for (const unsigned processes : kProcesses) {
        store.reset(); // its memory is free before the next one's is taken
        store = peer.make(w);
        add(results, peer, *store, "write", "shuffled", processes, write_rows(*store, processes));
    }
    verify(*store);
    results.push_back({{"peer", peer.name},
                       {"workload", w.name},
                       {"what", "memory"},
                       {"bytes", store->memory_bytes()},
                       {"row_bytes", w.bytes()}});
    for (const bool copy : {false, true})
        for (const bool shuffled : {false, true})
            for (const unsigned processes : kProcesses)
                add(results, peer, *store, copy ? "copy" : "look-up", shuffled ? "shuffled" : "sequential", processes,
                    read_long_enough(*store, processes, copy, shuffled));
}

Json describe() {
    const perf::Machine machine = perf::this_machine();
    Json peers = Json::object();
    for (const Peer &peer : all_peers())
        peers[peer.name] = peer.how;
    return {{"processor", machine.processor},
            {"cpus", machine.cpus},
            {"memory_bytes", machine.memory_bytes},
            {"kernel", machine.kernel},
            {"libcache", machine.library},
            {"build", machine.build},
            {"peers", peers}};
}

int run(double scale, const std::string &only, const std::string &path) {
    Json results = Json::array();
    for (Workload w : bench::training_sets()) {
        w.rows = std::max(static_cast<size_t>(static_cast<double>(w.rows) * scale), 2 * kBatch);
        for (const Peer &peer : all_peers()) {
            if (!only.empty() && peer.name != only) continue;
            fprintf(stderr, "%s, %zu rows of %zu bytes\n", peer.name.c_str(), w.rows, w.row_bytes);
            measure(peer, w, results);
        }
    }
    std::ofstream file(path);
    file << Json{{"scale", scale}, {"machine", describe()}, {"results", results}}.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    CLI::App app("Measures libcache beside what a user could take in its place.");
    double scale = 1;
    std::string only, path;
    app.add_option("--scale", scale, "share of each workload's rows, to try it out")->check(CLI::Range(0.0, 1.0));
    app.add_option("--only", only, "one of libcache, LMDB, files, Redis, memcached");
    app.add_option("file", path, "the figures, as JSON")->required();
    CLI11_PARSE(app, argc, argv);
    try {
        perf::InChild child;
        const peers::Folder on_tmpfs("/dev/shm"), for_sockets("/tmp"); // short: a socket's path has 107 bytes
        peers::folders() = {on_tmpfs.path(), for_sockets.path()};
        const perf::OwnServer server;
        return child.run([&] { return run(scale, only, path); });
    } catch (const std::exception &error) {
        fprintf(stderr, "peers: %s\n", error.what());
        return 1;
    }
}
