// SPDX-License-Identifier: Apache-2.0
#include "perf/cache_perf/report.h"

#include <cerrno>
#include <cstring>
#include <linux/io_uring.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace perf {
namespace {

// errno of a trial, 0: it works
int io_uring_error() {
    io_uring_params params{};
    const long fd = syscall(SYS_io_uring_setup, 1, &params);
    if (fd < 0) return errno;
    close(static_cast<int>(fd));
    return 0;
}

void look_at_spilling(const RunFacts &facts, std::vector<std::string> *found) {
    struct statfs where {};
    if (facts.server.spill_dir[0] != 0 && statfs(facts.server.spill_dir, &where) == 0 && where.f_type == TMPFS_MAGIC)
        found->push_back(std::string("The spill folder ") + facts.server.spill_dir +
                         " is a tmpfs: spilled rows take memory again, and no disk is measured.");
    if (const int error = io_uring_error())
        found->push_back(std::string("io_uring is not to be had (") + strerror(error) +
                         "): spilled rows are read and written one call at a time.");
}

} // namespace

std::vector<std::string> hindrances_of(const RunFacts &facts) {
    std::vector<std::string> found;
    if (!facts.server.huge_pages)
        found.push_back(std::string("Rows lie on 4 KiB pages, so writing and first reads pay a page fault for each: ") +
                        facts.server.backing_reason);
    if (const unsigned threads = facts.options.pipelines * facts.options.workers; threads > facts.machine.cpus)
        found.push_back(std::to_string(threads) + " threads share " + std::to_string(facts.machine.cpus) +
                        " CPUs: the long times are those of threads that wait for their turn.");
    if (facts.options.spill) look_at_spilling(facts, &found);
    uint64_t refused = 0;
    for (const EpochFigures &epoch : facts.epochs)
        refused += epoch.refused;
    if (refused != 0)
        found.push_back(std::to_string(refused) + " rows were not written: the cache was full (--cache_size, or what " +
                        "the server may use).");
    return found;
}

} // namespace perf
