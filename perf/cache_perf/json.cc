// SPDX-License-Identifier: Apache-2.0
#include "perf/cache_perf/report.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace perf {
namespace {

using Json = nlohmann::ordered_json;

Json times(const Spread &s) {
    Json json = {{"count", s.count}};
    if (s.count != 0)
        json.update({{"min_ns", s.min},
                     {"avg_ns", s.mean},
                     {"p50_ns", s.p50},
                     {"p90_ns", s.p90},
                     {"p99_ns", s.p99},
                     {"p999_ns", s.p999},
                     {"max_ns", s.max}});
    return json;
}

Json settings(const Options &o) {
    return {{"num_rows", o.rows},
            {"row_size_min", o.row_min},
            {"row_size_max", o.row_max},
            {"pipelines", o.pipelines},
            {"workers", o.workers},
            {"epochs", o.epochs},
            {"shuffle", o.shuffle},
            {"ids", o.random_ids ? "random" : "dense"},
            {"batch", o.batch},
            {"copy", o.copy},
            {"verify", o.verify},
            {"duration_s", o.duration},
            {"cache_size_mb", o.cache_size_mb},
            {"spill", o.spill},
            {"drop_page_cache", o.drop_page_cache}};
}

Json context(const RunFacts &facts) {
    const Machine &m = facts.machine;
    return {{"processor", m.processor},
            {"cpus", m.cpus},
            {"memory_bytes", m.memory_bytes},
            {"kernel", m.kernel},
            {"libcache", m.library},
            {"build", m.build},
            {"backing", backing_of(facts.server)},
            {"port", facts.server.port},
            {"clock_ns", facts.floors.clock.p50},
            {"hindrances", facts.hindrances}};
}

Json floor(const Floors &f, const Spread &s, double seconds) {
    return {{"rows_per_second", static_cast<double>(f.rows) / seconds},
            {"bytes_per_second", static_cast<double>(f.bytes) / seconds},
            {"times", times(s)}};
}

Json floors(const Floors &f) {
    return {{"rows", f.rows},
            {"bytes", f.bytes},
            {"copy_in", floor(f, f.copy_in, f.copy_in_seconds)},
            {"copy_out", floor(f, f.copy_out, f.copy_out_seconds)},
            {"populate", {{"ns_per_row", f.populate_seconds * 1e9 / static_cast<double>(f.rows)}}}};
}

Json epoch(const EpochFigures &e) {
    Json workers = Json::array();
    for (const WorkerFigures &w : e.workers)
        workers.push_back(
            {{"pipeline", w.pipeline}, {"worker", w.worker}, {"seconds", w.seconds}, {"times", times(w.calls)}});
    return {{"number", e.number},
            {"kind", e.writing ? "write" : "read"},
            {"interrupted", e.interrupted},
            {"seconds", e.seconds},
            {"rows", e.rows},
            {"bytes", e.bytes},
            {"rows_per_second", e.rows_per_second()},
            {"bytes_per_second", e.bytes_per_second()},
            {"missing", e.missing},
            {"refused", e.refused},
            {"present", e.present},
            {"wrong", e.wrong},
            {"times", times(e.all)},
            {"warm", times(e.warm)},
            {"cold", times(e.cold)},
            {"workers", workers}};
}

Json statistics(const cache_stats &s) {
    return {{"rows_in_memory", s.rows_in_memory}, {"rows_spilled", s.rows_spilled}, {"row_bytes", s.row_bytes},
            {"charged_bytes", s.charged_bytes},   {"index_bytes", s.index_bytes},   {"dead_bytes", s.dead_bytes}};
}

} // namespace

void write_json(const RunFacts &facts) {
    Json epochs = Json::array();
    for (const EpochFigures &e : facts.epochs)
        epochs.push_back(epoch(e));
    const Json all = {{"context", context(facts)},
                      {"settings", settings(facts.options)},
                      {"session_id", facts.session_id},
                      {"cache_id", facts.cache_id},
                      {"floors", floors(facts.floors)},
                      {"statistics", statistics(facts.after_writing)},
                      {"epochs", epochs}};
    std::ofstream file(facts.options.json);
    file << all.dump(2) << '\n';
    file.close();
    if (!file) throw std::runtime_error("cannot write " + facts.options.json);
}

} // namespace perf
