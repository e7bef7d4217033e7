// SPDX-License-Identifier: Apache-2.0
// More and more processes that read all rows of one cache, or write their shares of one. Totals come from rounds
// without clocks, percentiles from one in which each call is timed: they hold the clock's own cost, some 20 ns.
#include "perf/bench/workload.h"
#include "perf/scaling/scaling.h"
#include "perf/support/crew.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>

namespace scaling {
namespace {

constexpr size_t kReadRows = 60'000;
constexpr size_t kReads = 16'000'000;  // of all processes together, in a round
constexpr size_t kWriteRows = 640'000; // so that each of 64 writes 10,000
constexpr uint32_t kRead = 1, kWritten = 2;

struct Percentiles {
    double p50, p99, p999;
};

// Of each member, written by it and read by the parent after its end.
class Shared {
  public:
    explicit Shared(unsigned members) : bytes_(members * sizeof(Percentiles)), n_(members) {
        void *const made = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED) throw std::runtime_error(std::string("mmap: ") + strerror(errno));
        data_ = static_cast<Percentiles *>(made);
    }
    ~Shared() { munmap(data_, bytes_); }
    Shared(const Shared &) = delete;
    Shared &operator=(const Shared &) = delete;
    Percentiles &operator[](unsigned i) { return data_[i]; }
    double worst(double Percentiles::*which) const {
        double most = 0;
        for (unsigned i = 0; i < n_; ++i)
            most = std::max(most, data_[i].*which);
        return most;
    }

  private:
    size_t bytes_;
    unsigned n_;
    Percentiles *data_;
};

template <class Call> Percentiles time_each(const std::vector<int64_t> &ids, Call call) {
    std::vector<double> times;
    times.reserve(ids.size());
    for (const int64_t id : ids) {
        const int64_t start = now_ns();
        call(id);
        times.push_back(static_cast<double>(now_ns() - start));
    }
    return {percentile(times, 0.5), percentile(times, 0.99), percentile(times, 0.999)};
}

void add(Json &figures, const std::string &what, const std::vector<double> &ns, const Shared &times) {
    figures[what + "_ns"] = ns;
    figures[what + "_p50_ns"] = times.worst(&Percentiles::p50);
    figures[what + "_p99_ns"] = times.worst(&Percentiles::p99);
    figures[what + "_p999_ns"] = times.worst(&Percentiles::p999);
}

// One crew: `repetitions` rounds, then the one whose calls are timed.
void read_all(Json &figures, cache *handle, unsigned members, unsigned repetitions) {
    const std::vector<int64_t> ids = bench::shuffled_ids({"rows", kReadRows, kRowBytes});
    const size_t passes = std::max<size_t>(1, kReads / kReadRows / members);
    Shared times(members);
    unsigned sum = 0;
    const auto pass = [&](unsigned) {
        for (const int64_t id : ids)
            sum += get(handle, id);
    };
    const auto work = [&](unsigned member, unsigned round) {
        if (round == repetitions) times[member] = time_each(ids, [&](int64_t id) { sum += get(handle, id); });
        for (size_t i = 0; round < repetitions && i < passes; ++i)
            pass(member);
        asm volatile("" : : "r"(sum)); // what was read counts as used
    };
    std::vector<double> ns = perf::run_crew(members, repetitions + 1, {pass, work});
    ns.pop_back();
    for (double &each : ns)
        each *= 1e9 / static_cast<double>(passes * members * kReadRows);
    add(figures, "get", ns, times);
}

// Rows that are shared out, into a fresh cache each time; each member is attached by a row of its own before.
void write_all(Json &figures, const Session &session, unsigned members, unsigned repetitions) {
    const std::array<char, kRowBytes> row{};
    Shared times(members);
    std::vector<double> ns;
    for (unsigned round = 0; round <= repetitions; ++round) {
        cache *const handle = session.open(kWritten, kWriteRows + members);
        std::vector<int64_t> share;
        const auto prepare = [&](unsigned member) {
            for (size_t i = member; i < kWriteRows; i += members)
                share.push_back(static_cast<int64_t>(i));
            put(handle, static_cast<int64_t>(kWriteRows + member), row.data());
        };
        const auto put_one = [&](int64_t id) { put(handle, id, row.data()); };
        const auto work = [&](unsigned member) {
            if (round == repetitions)
                times[member] = time_each(share, put_one);
            else
                std::for_each(share.begin(), share.end(), put_one);
        };
        ns.push_back(perf::run_crew(members, {prepare, work}) * 1e9 / static_cast<double>(kWriteRows));
        cache_close(handle);
        must(cache_destroy(session.client, session.id, kWritten), "cache_destroy");
    }
    ns.pop_back();
    add(figures, "put", ns, times);
}

} // namespace

Json processes(unsigned most, unsigned repetitions) {
    const Session session;
    const std::array<char, kRowBytes> row{};
    cache *const handle = session.open(kRead, kReadRows);
    for (size_t i = 0; i < kReadRows; ++i)
        put(handle, static_cast<int64_t>(i), row.data());
    Json results = Json::array();
    for (unsigned members = 1; members <= most; members *= 2) {
        fprintf(stderr, "%u processes\n", members);
        Json figures = {{"part", "processes"}, {"processes", members}};
        read_all(figures, handle, members, repetitions);
        write_all(figures, session, members, repetitions);
        results.push_back(figures);
    }
    session.end(handle, kRead);
    return results;
}

} // namespace scaling
