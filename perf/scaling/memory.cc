// SPDX-License-Identifier: Apache-2.0
// Memory (rows M1 and M3 of the targets): of a full cache, how much are its rows; what an idle server has, and what a
// process that only reads has for itself.
#include "perf/bench/workload.h"
#include "perf/scaling/scaling.h"
#include "perf/support/crew.h"
#include "perf/support/resident.h"

#include <sys/mman.h>
#include <unistd.h>

namespace scaling {
namespace {

constexpr uint32_t kCache = 1;
constexpr size_t kReadRows = 60'000;

// One writer puts rows until the first is refused.
Json fill(const Session &session, const bench::Workload &w, uint64_t limit_bytes) {
    cache *const handle = session.open(kCache, 0, limit_bytes);
    const std::vector<char> row(w.row_bytes, 'x');
    const auto shape = static_cast<int64_t>(w.row_bytes);
    const cache_column column{const_cast<char *>(row.data()), w.row_bytes, &shape, CACHE_UINT8, 1, {}};
    int64_t rows = 0;
    int result = 0;
    while ((result = cache_put(handle, rows, &column, 1)) == 0)
        ++rows;
    if (result != CACHE_EFULL) must(result, "cache_put");
    session.end(handle, kCache);
    return {{"part", "full"},
            {"workload", w.name},
            {"rows", rows},
            {"limit_bytes", limit_bytes},
            {"row_bytes", rows * shape}};
}

// What a process that opens the cache and reads all of it has more than before, in pages of its own.
uint64_t reader_bytes(const Session &session) {
    void *const shared = mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) throw std::runtime_error("no page for a figure");
    uint64_t before = 0;
    const auto remember = [&](unsigned) { before = perf::resident_of(getpid()).own_bytes; };
    const auto read = [&](unsigned) {
        cache_client *own = nullptr; // a connection of its own, as any program has
        cache *handle = nullptr;
        must(cache_connect(nullptr, &own), "cache_connect");
        must(cache_open(own, session.id, kCache, nullptr, &handle), "cache_open");
        for (size_t id = 0; id < kReadRows; ++id)
            get(handle, static_cast<int64_t>(id));
        const uint64_t now = perf::resident_of(getpid()).own_bytes;
        *static_cast<uint64_t *>(shared) = now > before ? now - before : 0;
    };
    perf::run_crew(1, {remember, read});
    const uint64_t bytes = *static_cast<uint64_t *>(shared);
    munmap(shared, sizeof(uint64_t));
    return bytes;
}

} // namespace

Json memory(uint64_t limit_bytes) {
    const Session session;
    Json results = Json::array();
    const Json idle = {{"part", "own"}, {"server_bytes", perf::server_bytes(server_of(session.client))}};
    for (const bench::Workload &w : bench::training_sets())
        results.push_back(fill(session, w, limit_bytes));
    cache *const handle = session.open(kCache, kReadRows);
    const std::string row(kRowBytes, 'x');
    for (size_t id = 0; id < kReadRows; ++id)
        put(handle, static_cast<int64_t>(id), row.data());
    results.push_back(idle);
    results.back()["reader_bytes"] = reader_bytes(session);
    session.end(handle, kCache);
    return results;
}

} // namespace scaling
