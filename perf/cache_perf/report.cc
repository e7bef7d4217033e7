// SPDX-License-Identifier: Apache-2.0
#include "perf/cache_perf/report.h"

#include <cinttypes>
#include <cstdio>

namespace perf {
namespace {

double micro(double ns) {
    return ns / 1e3;
}

// The original's table, in its widths (in characters; μ has two bytes, so printf needs one more).
void print_workers(const EpochFigures &epoch) {
    printf("%12s%10s%11s%11s%11s%14s%14s%18s\n", "Pipeline #", "worker id", "min (μs)", "max (μs)", "avg (μs)",
           "median (μs)", "buffer count", "Elapsed time (s)");
    for (const WorkerFigures &w : epoch.workers)
        printf("%12u%10u%10.3f%10.3f%10.3f%13.3f%14" PRIu64 "%18.3f\n", w.pipeline, w.worker, micro(w.calls.min),
               micro(w.calls.max), micro(w.calls.mean), micro(w.calls.p50), w.calls.count, w.seconds);
}

void print_spread_head(const char *what) {
    printf("%-22s%12s%14s%10s%12s%12s%12s%12s%12s%12s\n", what, "calls", "rows/s", "GB/s", "avg (μs)", "p50 (μs)",
           "p90 (μs)", "p99 (μs)", "p99.9 (μs)", "max (μs)");
}

void print_times(const Spread &s) {
    if (s.count == 0) {
        for (int i = 0; i < 6; ++i)
            printf("%11s", "n/a");
    } else {
        for (const double ns : {s.mean, s.p50, s.p90, s.p99, s.p999, s.max})
            printf("%11.3f", micro(ns));
    }
    printf("\n");
}

void print_rate(const char *what, const Spread &s, double rows, double bytes, double seconds) {
    if (seconds > 0)
        printf("%-22s%12" PRIu64 "%14.0f%10.3f", what, s.count, rows / seconds, bytes / seconds / 1e9);
    else
        printf("%-22s%12" PRIu64 "%14s%10s", what, s.count, "", "");
    print_times(s);
}

void print_floors(const Floors &f, bool writing) {
    const auto rows = static_cast<double>(f.rows), bytes = static_cast<double>(f.bytes);
    print_rate("memcpy, 1 thread", writing ? f.copy_in : f.copy_out, rows, bytes,
               writing ? f.copy_in_seconds : f.copy_out_seconds);
    if (!writing) return;
    Spread each; // populating is one call for all rows
    each.count = 1;
    each.mean = each.p50 = each.p90 = each.p99 = each.p999 = each.max = f.populate_seconds * 1e9 / rows;
    print_rate("populate, per row", each, rows, bytes, f.populate_seconds);
}

void print_counts(const EpochFigures &epoch) {
    if (epoch.present != 0) printf("%" PRIu64 " rows were there before.\n", epoch.present);
    if (epoch.refused != 0) printf("%" PRIu64 " rows were refused: the cache is full.\n", epoch.refused);
    if (epoch.missing != 0) printf("%" PRIu64 " rows were not in the cache.\n", epoch.missing);
    if (epoch.wrong != 0) printf("%" PRIu64 " rows are WRONG: %s\n", epoch.wrong, epoch.failure.c_str());
    if (epoch.interrupted) printf("Ended early: these are the rows so far.\n");
}

std::string number_or_none(int64_t n) {
    return n == 0 ? "n/a" : std::to_string(n);
}

} // namespace

void print_settings(const RunFacts &facts) {
    const Options &o = facts.options;
    printf("Number of pipelines: %u\nNumber of epochs: %u\nSample size: %" PRIu64 "\n", o.pipelines, o.epochs, o.rows);
    if (o.row_min == o.row_max)
        printf("Average row size: %" PRIu64 "\n", o.row_min);
    else
        printf("Average row size: %" PRIu64 " (%" PRIu64 " to %" PRIu64 ")\n", (o.row_min + o.row_max) / 2, o.row_min,
               o.row_max);
    printf("Shuffle: %s\n", o.shuffle ? "true" : "false");
    printf("Threads of each pipeline: %u\nRows of a reading call: %u%s\nRow ids: %s\nEvery byte checked: %s\n",
           o.workers, o.batch, o.copy ? ", copied out" : "", o.random_ids ? "random" : "dense",
           o.verify ? "yes" : "no");
    if (o.duration > 0) printf("Reading for: %g s\n", o.duration);
    printf("Machine: %u CPUs, %s, %" PRIu64 " MiB, Linux %s\n", facts.machine.cpus, facts.machine.processor.c_str(),
           facts.machine.memory_bytes >> 20, facts.machine.kernel.c_str());
    printf("Build: libcache %s, %s\n", facts.machine.library.c_str(), facts.machine.build.c_str());
    printf("Server: port %u, %s\n", facts.server.port, backing_of(facts.server).c_str());
    printf("Clock: one reading lies in each time, %.3f μs here\n", micro(facts.floors.clock.p50));
}

void print_epoch(const RunFacts &facts, const EpochFigures &epoch) {
    printf("\nEpoch %u: %s\nElapsed time: %.3f seconds\n", epoch.number, epoch.writing ? "write" : "read",
           epoch.seconds);
    print_workers(epoch);
    printf("\n");
    print_spread_head(epoch.writing ? "writing" : "reading");
    print_rate("all", epoch.all, static_cast<double>(epoch.rows), static_cast<double>(epoch.bytes), epoch.seconds);
    print_rate("  warm", epoch.warm, 0, 0, 0);
    print_rate("  cold", epoch.cold, 0, 0, 0);
    print_floors(facts.floors, epoch.writing);
    print_counts(epoch);
    fflush(stdout);
}

void print_statistics(const cache_stats &stats) {
    const int64_t rows = stats.rows_in_memory;
    printf("\n%12s%12s%16s%10s\n", "Mem cached", "Disk cached", "Avg cache size", "Numa hit");
    printf("%12s%12s%16s%10s\n", number_or_none(rows).c_str(), number_or_none(stats.rows_spilled).c_str(),
           number_or_none(rows != 0 ? stats.row_bytes / rows : 0).c_str(), number_or_none(0).c_str());
    fflush(stdout);
}

} // namespace perf
