// SPDX-License-Identifier: Apache-2.0
// What cache_perf is asked to measure.
#pragma once

#include <cstdint>
#include <string>

namespace perf {

struct Options {
    uint64_t rows = 0;
    uint64_t row_min = 0, row_max = 0; // bytes
    unsigned pipelines = 8;            // processes
    unsigned workers = 0;              // threads of each
    unsigned epochs = 10;
    bool shuffle = false;
    bool random_ids = false;
    unsigned batch = 1; // rows of one reading call
    bool copy = false;
    bool verify = false;
    double duration = 0; // seconds; 0: as many epochs as asked for
    uint64_t cache_size_mb = 0;
    bool spill = false;
    bool drop_page_cache = false;
    unsigned prefetch = 20, connections = 12; // shown, and without effect
    bool own_server = false;
    std::string spill_dir;
    unsigned port = 0; // 0: as cache_connect() chooses
    std::string hostname = "127.0.0.1";
    std::string json; // path, "" for none
};

// False: nothing to run, *status is the exit status. Help goes to stdout (0), errors to stderr (2).
bool parse_options(int argc, char **argv, Options *options, int *status);

} // namespace perf
