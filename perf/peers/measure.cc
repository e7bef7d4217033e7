// SPDX-License-Identifier: Apache-2.0
#include "perf/peers/measure.h"

#include "perf/support/crew.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <random>

namespace peers {
namespace {

constexpr unsigned kProcesses[] = {1, 2, 8};
constexpr unsigned kProcessors = 2; // of the reference machine: more processes than that share the rows of two

struct Kind {
    bool copy, shuffled;
    const char *what() const { return copy ? "copy" : "look-up"; }
};
constexpr Kind kKinds[] = {{false, false}, {false, true}, {true, false}, {true, true}};
constexpr unsigned kKindCount = std::size(kKinds);
using RowsOfKinds = std::array<size_t, kKindCount>;

const char *name_of(bool shuffled) {
    return shuffled ? "shuffled" : "sequential";
}

std::vector<int64_t> ids_of(const Workload &w, bool shuffled, unsigned member) {
    std::vector<int64_t> ids(w.rows);
    for (size_t i = 0; i < w.rows; ++i)
        ids[i] = static_cast<int64_t>(i);
    if (shuffled) std::shuffle(ids.begin(), ids.end(), std::mt19937_64(member + 1));
    return ids;
}

// The member's share of all rows. Shuffled, as a data loader's workers write them; in order, one row for each in turn.
std::vector<int64_t> share_of(const Workload &w, bool shuffled, Place place) {
    const std::vector<int64_t> all = ids_of(w, shuffled, 0);
    std::vector<int64_t> share;
    for (size_t i = place.member; i < all.size(); i += place.members)
        share.push_back(all[i]);
    return share;
}

// A member that walks through all rows again and again.
class Reader {
  public:
    Reader(Store &store, unsigned member)
        : store_(store), to_(kBatch * store.workload.row_bytes), orders_{ids_of(store.workload, false, member),
                                                                         ids_of(store.workload, true, member)} {}

    void read(const Kind &kind, size_t rows) {
        size_t &at = at_[kind.shuffled];
        const std::vector<int64_t> &order = orders_[kind.shuffled];
        while (rows > 0) {
            const Ids ids = Ids(order).subspan(at, std::min(rows, order.size() - at));
            if (kind.copy)
                store_.copy(ids, to_.data());
            else
                sum_ += store_.look_up(ids);
            rows -= ids.size();
            at = (at + ids.size()) % order.size();
        }
        asm volatile("" : : "r"(sum_), "r"(to_.data()) : "memory"); // what was read counts as used
    }

  private:
    Store &store_;
    std::vector<char> to_;
    std::vector<int64_t> orders_[2];
    size_t at_[2] = {0, 0};
    unsigned sum_ = 0;
};

// Seconds a row of each kind, `repetitions` times, when each of the members reads `rows` of it. The kinds take turns,
// so that a slow moment of the machine meets all of them.
std::array<std::vector<double>, kKindCount> read_rows(Store &store, unsigned members, const RowsOfKinds &rows,
                                                      unsigned repetitions) {
    std::unique_ptr<Reader> reader;
    const auto prepare = [&](unsigned member) {
        store.attach({member, members});
        reader = std::make_unique<Reader>(store, member);
        reader->read({true, true}, store.workload.rows);
    };
    const auto work = [&](unsigned, unsigned round) {
        reader->read(kKinds[round % kKindCount], rows[round % kKindCount]);
    };
    const std::vector<double> seconds = perf::run_crew(members, repetitions * kKindCount, {prepare, work});
    std::array<std::vector<double>, kKindCount> each;
    for (unsigned round = 0; round < seconds.size(); ++round)
        each[round % kKindCount].push_back(seconds[round] / members / static_cast<double>(rows[round % kKindCount]));
    return each;
}

// Rows that each of `members` reads in a repetition, from what one pass of a single one took.
RowsOfKinds rows_to_read(const std::array<std::vector<double>, kKindCount> &pass, unsigned members, double seconds) {
    RowsOfKinds rows;
    for (unsigned kind = 0; kind < kKindCount; ++kind) {
        const double share = std::min(1.0, static_cast<double>(kProcessors) / members);
        const double batches = std::ceil(seconds * share / pass[kind][0] / kBatch);
        rows[kind] = static_cast<size_t>(batches) * kBatch;
    }
    return rows;
}

double write_rows(Store &store, bool shuffled, unsigned members) {
    std::vector<int64_t> ids;
    std::unique_ptr<Source> source;
    const auto prepare = [&](unsigned member) {
        const Place place{member, members};
        store.attach(place);
        ids = share_of(store.workload, shuffled, place);
        source = std::make_unique<Source>(store.workload);
    };
    const auto work = [&](unsigned) { store.put(ids, *source); };
    return perf::run_crew(members, {prepare, work}) / static_cast<double>(store.workload.rows);
}

// Every row is there and right; by a single process, untimed.
void verify(Store &store) {
    const auto check = [&](unsigned) {
        store.attach({0, 1});
        Source source(store.workload);
        std::vector<char> to(kBatch * store.workload.row_bytes);
        const std::vector<int64_t> ids = ids_of(store.workload, true, 0);
        in_batches(ids, [&](Ids batch) {
            store.copy(batch, to.data());
            for (size_t i = 0; i < batch.size(); ++i)
                source.check(to.data() + i * store.workload.row_bytes, batch[i]);
        });
    };
    perf::run_crew(1, {check, [](unsigned) {}});
}

class Figures {
  public:
    Figures(const Peer &peer, const Workload &w) : peer_(peer.name), workload_(w) {}

    void add_time(const char *what, bool shuffled, unsigned processes, const std::vector<double> &seconds) {
        Json entry = {{"peer", peer_},
                      {"workload", workload_.name},
                      {"what", what},
                      {"order", name_of(shuffled)},
                      {"processes", processes}};
        for (const double each : seconds)
            entry["ns"].push_back(each * 1e9);
        results_.push_back(entry);
    }
    void add_memory(const char *what, unsigned processes, uint64_t bytes) {
        results_.push_back({{"peer", peer_},
                            {"workload", workload_.name},
                            {"what", what},
                            {"processes", processes},
                            {"bytes", bytes},
                            {"row_bytes", workload_.bytes()}});
    }
    Json take() { return std::move(results_); }

  private:
    std::string peer_;
    Workload workload_;
    Json results_ = Json::array();
};

// The last store made: all rows, shuffled, by the most processes.
std::unique_ptr<Store> measure_writes(const Peer &peer, const Workload &w, unsigned repetitions, Figures &figures) {
    std::unique_ptr<Store> store;
    for (const bool shuffled : {false, true})
        for (const unsigned processes : kProcesses) {
            std::vector<double> seconds;
            for (unsigned i = 0; i < repetitions; ++i) {
                store.reset(); // its memory is free before the next one's is taken
                store = peer.make(w);
                seconds.push_back(write_rows(*store, shuffled, processes));
            }
            figures.add_time("write", shuffled, processes, seconds);
            if (shuffled) figures.add_memory("memory", processes, store->memory_bytes());
            verify(*store);
        }
    return store;
}

} // namespace

Json measure(const Peer &peer, const Workload &w, const Effort &effort) {
    Figures figures(peer, w);
    const std::unique_ptr<Store> store = measure_writes(peer, w, effort.repetitions, figures);
    RowsOfKinds one_pass;
    one_pass.fill(w.rows);
    const auto pass = read_rows(*store, 1, one_pass, 1);
    for (const unsigned processes : kProcesses) {
        const auto seconds =
            read_rows(*store, processes, rows_to_read(pass, processes, effort.seconds), effort.repetitions);
        for (unsigned kind = 0; kind < kKindCount; ++kind)
            figures.add_time(kKinds[kind].what(), kKinds[kind].shuffled, processes, seconds[kind]);
    }
    figures.add_memory("memory later", kProcesses[std::size(kProcesses) - 1], store->memory_bytes());
    return figures.take();
}

} // namespace peers
