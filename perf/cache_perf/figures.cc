// SPDX-License-Identifier: Apache-2.0
#include "perf/cache_perf/figures.h"

#include <algorithm>
#include <cmath>

namespace perf {
namespace {

// The smallest time that a share of the calls did not exceed.
double quantile(const std::vector<Sample> &sorted, double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
    return static_cast<double>(sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1]);
}

} // namespace

Spread spread_of(std::vector<Sample> times) {
    if (times.empty()) return {};
    std::sort(times.begin(), times.end());
    double sum = 0;
    for (const Sample time : times)
        sum += static_cast<double>(time);
    return {times.size(),
            static_cast<double>(times.front()),
            static_cast<double>(times.back()),
            sum / static_cast<double>(times.size()),
            quantile(times, 0.50),
            quantile(times, 0.90),
            quantile(times, 0.99),
            quantile(times, 0.999)};
}

EpochFigures figures_of(const Options &options, const Board &board, unsigned number, bool writing) {
    EpochFigures epoch;
    epoch.number = number;
    epoch.writing = writing;
    std::vector<Sample> warm, cold;
    int64_t first = INT64_MAX, last = 0;
    for (unsigned p = 0; p < options.pipelines; ++p) {
        for (unsigned w = 0; w < options.workers; ++w) {
            const Tally &tally = board.part(p, w).tally;
            const Sample *const samples = board.samples(p, w);
            std::vector<Sample> own;
            for (uint64_t i = 0; i < tally.calls; ++i) {
                own.push_back(samples[i] & ~kCold);
                ((samples[i] & kCold) != 0 ? cold : warm).push_back(own.back());
            }
            epoch.workers.push_back(
                {p, w, spread_of(std::move(own)), static_cast<double>(tally.end_ns - tally.start_ns) / 1e9});
            first = std::min(first, tally.start_ns);
            last = std::max(last, tally.end_ns);
            epoch.calls += tally.calls;
            epoch.rows += tally.rows;
            epoch.bytes += tally.bytes;
            epoch.missing += tally.missing;
            epoch.refused += tally.refused;
            epoch.present += tally.present;
            epoch.wrong += tally.wrong;
            epoch.failed = epoch.failed || tally.error != 0;
            if (epoch.failure.empty()) epoch.failure = tally.message;
        }
    }
    epoch.seconds = static_cast<double>(last - first) / 1e9;
    epoch.warm = spread_of(warm);
    epoch.cold = spread_of(cold);
    warm.insert(warm.end(), cold.begin(), cold.end());
    epoch.all = spread_of(std::move(warm));
    return epoch;
}

} // namespace perf
