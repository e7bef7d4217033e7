// SPDX-License-Identifier: Apache-2.0
// More and more processes that read all rows of one cache, or write their shares of one. Totals come from a pass
// without clocks, percentiles from one in which each call is timed: they hold the clock's own cost, some 20 ns.
#include "perf/bench/workload.h"
#include "perf/scaling/scaling.h"
#include "perf/support/crew.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sys/mman.h>

namespace scaling {
namespace {

constexpr size_t kRows = 60'000;
constexpr int kPasses = 10;

// A figure of each member, written by it and read by the parent after its end.
class Shared {
  public:
    explicit Shared(unsigned members) : bytes_(members * sizeof(int64_t)), n_(members) {
        void *const made = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED) throw std::runtime_error(std::string("mmap: ") + strerror(errno));
        data_ = static_cast<int64_t *>(made);
    }
    ~Shared() { munmap(data_, bytes_); }
    Shared(const Shared &) = delete;
    Shared &operator=(const Shared &) = delete;
    int64_t &operator[](unsigned i) { return data_[i]; }
    int64_t worst() const { return *std::max_element(data_, data_ + n_); }

  private:
    size_t bytes_;
    unsigned n_;
    int64_t *data_;
};

template <class Call> int64_t p999_of(const std::vector<int64_t> &ids, Call call) {
    std::vector<int64_t> times;
    times.reserve(ids.size());
    for (const int64_t id : ids) {
        const int64_t start = now_ns();
        call(id);
        times.push_back(now_ns() - start);
    }
    const auto at = times.begin() + static_cast<ptrdiff_t>((times.size() - 1) * 999 / 1000);
    std::nth_element(times.begin(), at, times.end());
    return *at;
}

// Seconds a row of all members together, and the worst member's 99.9th percentile.
std::pair<double, int64_t> read_all(cache *handle, unsigned members) {
    const std::vector<int64_t> ids = bench::shuffled_ids({"rows", kRows, kRowBytes});
    Shared p999(members);
    unsigned sum = 0;
    const auto pass = [&] {
        for (const int64_t id : ids)
            sum += get(handle, id);
    };
    const auto passes = [&](unsigned) {
        for (int i = 0; i < kPasses; ++i)
            pass();
        asm volatile("" : : "r"(sum)); // what was read counts as used
    };
    const double seconds = perf::run_crew(members, {[&](unsigned) { pass(); }, passes});
    const auto timed = [&](unsigned i) { p999[i] = p999_of(ids, [&](int64_t id) { sum += get(handle, id); }); };
    perf::run_crew(members, {[&](unsigned) { pass(); }, timed});
    return {seconds / kPasses / members / kRows, p999.worst()};
}

// The same for rows that are shared out; each member is attached by a row of its own before.
std::pair<double, int64_t> write_all(const Session &session, uint32_t cache_id, unsigned members) {
    std::array<char, kRowBytes> row{};
    Shared p999(members);
    std::vector<int64_t> share;
    double seconds[2];
    for (const bool timed : {false, true}) {
        cache *const handle = session.open(cache_id, kRows + members);
        const auto prepare = [&](unsigned member) {
            for (size_t i = member; i < kRows; i += members)
                share.push_back(static_cast<int64_t>(i));
            put(handle, static_cast<int64_t>(kRows + member), row.data());
        };
        const auto work = [&](unsigned member) {
            if (timed) {
                p999[member] = p999_of(share, [&](int64_t id) { put(handle, id, row.data()); });
                return;
            }
            for (const int64_t id : share)
                put(handle, id, row.data());
        };
        seconds[timed] = perf::run_crew(members, {prepare, work});
        cache_close(handle);
        must(cache_destroy(session.client, session.id, cache_id), "cache_destroy");
    }
    return {seconds[0] / kRows, p999.worst()};
}

} // namespace

void processes(unsigned most, Json &results) {
    const Session session;
    const std::array<char, kRowBytes> row{};
    cache *const handle = session.open(1, kRows);
    for (size_t i = 0; i < kRows; ++i)
        put(handle, static_cast<int64_t>(i), row.data());
    for (unsigned members = 1; members <= most; members *= 2) {
        fprintf(stderr, "%u processes\n", members);
        const auto [get_seconds, get_p999] = read_all(handle, members);
        const auto [put_seconds, put_p999] = write_all(session, 2, members);
        results.push_back({{"part", "processes"},
                           {"processes", members},
                           {"get_ns", get_seconds * 1e9},
                           {"get_p999_ns", get_p999},
                           {"put_ns", put_seconds * 1e9},
                           {"put_p999_ns", put_p999}});
    }
    cache_close(handle);
}

} // namespace scaling
