// SPDX-License-Identifier: Apache-2.0
// cache_perf: measures a cache server as its users would use it, by processes through libcache.h.
#include "perf/cache_perf/options.h"
#include "perf/cache_perf/run.h"

int main(int argc, char **argv) {
    perf::Options options;
    int status = 0;
    return perf::parse_options(argc, argv, &options, &status) ? perf::run(options) : status;
}
