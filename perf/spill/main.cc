// SPDX-License-Identifier: Apache-2.0
// bench_spill: takes the options of Google Benchmark, --folder=DIR, on the disk to be measured, and --cold: the page
// cache is dropped before each read (by root). The work is done by
// a child, so that whatever ends it leaves no server and no folder behind.
#include "perf/bench/cache_store.h"
#include "perf/spill/bench.h"
#include "perf/support/in_child.h"
#include "perf/support/machine.h"
#include "perf/support/own_server.h"

#include <benchmark/benchmark.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <unistd.h>

namespace bench {
namespace {

std::string folder; // set before anything runs, as the next one
bool cold = false;

} // namespace

const std::string &spill_folder() {
    return folder;
}

void before_reading() {
    if (!cold) return;
    sync(); // what is not on the disk cannot be dropped
    std::ofstream file("/proc/sys/vm/drop_caches");
    file << "1" << std::flush;
    if (!file) throw std::runtime_error("--cold: writing to /proc/sys/vm/drop_caches is not allowed; that takes root");
}

} // namespace bench

namespace {

// A folder of this run that goes with it.
class OwnFolder {
  public:
    explicit OwnFolder(const std::string &where) {
        std::string made = where + "/libcache-bench-XXXXXX";
        if (mkdtemp(made.data()) == nullptr) throw std::runtime_error("mkdtemp " + made + ": " + strerror(errno));
        bench::folder = made;
    }
    ~OwnFolder() {
        std::error_code ignored; // it is said to be temporary
        std::filesystem::remove_all(bench::folder, ignored);
    }
    OwnFolder(const OwnFolder &) = delete;
    OwnFolder &operator=(const OwnFolder &) = delete;
};

// Takes --folder and --cold out of the arguments.
std::string own_options(int *argc, char **argv) {
    std::string folder = "/var/tmp";
    int kept = 1;
    for (int i = 1; i < *argc; ++i)
        if (strncmp(argv[i], "--folder=", 9) == 0)
            folder = argv[i] + 9;
        else if (strcmp(argv[i], "--cold") == 0)
            bench::cold = true;
        else
            argv[kept++] = argv[i];
    argv[ *argc = kept] = nullptr;
    return folder;
}

int run_benchmarks() {
    const perf::Machine machine = perf::this_machine();
    benchmark::AddCustomContext("processor", machine.processor);
    benchmark::AddCustomContext("memory", std::to_string(machine.memory_bytes >> 20) + " MiB");
    benchmark::AddCustomContext("kernel", machine.kernel);
    benchmark::AddCustomContext("libcache", machine.library);
    benchmark::AddCustomContext("build", machine.build);
    bench::register_rows();
    bench::register_transfers();
    const size_t ran = benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return ran == 0;
}

} // namespace

int main(int argc, char **argv) {
    const std::string where = own_options(&argc, argv);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    try {
        perf::InChild child;
        const OwnFolder folder(where);
        const perf::OwnServer server({"--spilldir", bench::spill_folder()});
        return child.run(run_benchmarks);
    } catch (const std::exception &error) {
        fprintf(stderr, "bench_spill: %s\n", error.what());
        return 1;
    }
}
