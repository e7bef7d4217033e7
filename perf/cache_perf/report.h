// SPDX-License-Identifier: Apache-2.0
// What cache_perf says: the tables of the original tool and, below them, what goes beyond it; the same as JSON.
#pragma once

#include "capi/libcache.h"
#include "perf/cache_perf/figures.h"
#include "perf/cache_perf/floors.h"
#include "perf/support/machine.h"

namespace perf {

struct RunFacts {
    Options options;
    Machine machine;
    cache_server_stats server{};
    Floors floors;
    uint32_t session_id = 0, cache_id = 0;
    std::vector<EpochFigures> epochs;
    cache_stats after_writing{};
    std::vector<std::string> hindrances; // sentences
};

void print_settings(const RunFacts &facts);
void print_epoch(const RunFacts &facts, const EpochFigures &epoch);
void print_statistics(const cache_stats &stats);
void write_json(const RunFacts &facts); // to options.json; throws std::runtime_error

// What may hold the figures back, each in a sentence.
std::vector<std::string> hindrances_of(const RunFacts &facts);

} // namespace perf
