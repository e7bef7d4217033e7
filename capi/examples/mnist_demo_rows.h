// SPDX-License-Identifier: Apache-2.0
// The heart of the demo: rows into the cache and out of it. Every call into libcache that touches a row is in this
// pair.
#pragma once

#include "capi/examples/mnist_demo_crew.h"
#include "capi/examples/mnist_demo_source.h"

#include <cstdint>
#include <memory>

namespace demo {

// What a worker needs to find the cache, and its own share of the work.
struct Job {
    const Dataset &data; // inherited by fork: the source that rows come from and are compared with
    unsigned port;
    uint32_t session;
    uint32_t cache_id;
    int64_t batch; // rows read at a time
    int rank;      // of
    int size;      // workers
};

// Column 0: the image, uint8 of height x width. Column 1: the label, a uint32 scalar.
inline constexpr const char *kColumnNames[] = {"image", "label"};

// The calls for reading that there are; epochs take them in turn.
const char *read_call(int32_t epoch);

std::unique_ptr<Worker> make_loader(const Job &job); // puts rows [rank/size, (rank+1)/size) of the whole
std::unique_ptr<Worker> make_reader(const Job &job); // reads every size-th row of the order that the epoch's seed gives

} // namespace demo
