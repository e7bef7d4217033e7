// SPDX-License-Identifier: Apache-2.0
// cache_check: silent while everybody works, loud when a word is wrong.
#include "tests/support/rows.h"
#include "tests/support/session.h"
#include "tests/support/spill.h"
#include "tests/support/writable_region.h"

#include <csignal>
#include <functional>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace libcache;

namespace {

void collect(const char *fault, void *faults) {
    static_cast<std::vector<std::string> *>(faults)->emplace_back(fault);
}

std::vector<std::string> faults_of(cache *handle) {
    std::vector<std::string> faults;
    const int64_t n = cache_check(handle, CACHE_CHECK_ROWS, collect, &faults);
    cr_assert_eq(n, int64_t(faults.size()), "cache_check gave %ld with %zu faults: %s", long(n), faults.size(),
                 cache_last_error());
    return faults;
}

// The check finds a fault while `word` has another value, and none before and after.
void expect_fault(cache *handle, AtomicU64 &word, uint64_t wrong, const char *sentence) {
    const uint64_t right = word.load(std::memory_order_acquire);
    cr_assert_eq(faults_of(handle).size(), 0, "%s, before: %s", sentence, faults_of(handle)[0].c_str());
    word.store(wrong, std::memory_order_release);
    const std::vector<std::string> faults = faults_of(handle);
    word.store(right, std::memory_order_release);
    cr_assert(!faults.empty(), "a wrong word is not found: %s", sentence);
    bool said = false;
    for (const std::string &fault : faults)
        said = said || fault.find(sentence) != std::string::npos;
    cr_assert(said, "'%s' instead of '%s'", faults[0].c_str(), sentence);
}

// A process that stands still as long as this lives.
struct Stopped {
    pid_t pid;
    explicit Stopped(pid_t which) : pid(which) { kill(pid, SIGSTOP); }
    Stopped(const Stopped &) = delete;
    Stopped &operator=(const Stopped &) = delete;
    ~Stopped() { kill(pid, SIGCONT); }
};

} // namespace

Test(check, finds_each_kind_of_wrong_word) {
    Session s(8 << 20);
    for (int64_t id = 0, result = 0; result == 0; id++)
        result = rows::put(s.rows, id, 500);
    // The broker must not set right what we set wrong: it stops when it has nothing more to do.
    for (int64_t same = 0, charged = 0; same < 50; usleep(2000)) {
        same = s.stat().charged_bytes == charged ? same + 1 : 0;
        charged = s.stat().charged_bytes;
    }
    cache_server_stats server{};
    server.size = sizeof server;
    OK(cache_server_info(s.client, &server));
    const Stopped stopped(server.broker_pid);
    char *base = writable_region();
    auto &header = *reinterpret_cast<RegionHeader *>(base);
    auto *extents = reinterpret_cast<Extent *>(base + header.table_offset);
    expect_fault(s.rows, header.charged_bytes, header.charged_bytes.load(std::memory_order_acquire) + 65536,
                 "charged:");
    expect_fault(s.rows, header.top_bytes, header.data_offset, "beyond top_bytes");
    uint64_t sealed = 0;
    while (ExtentWord::unpack(extents[sealed].own.load(std::memory_order_acquire)).state != ExtentState::Sealed) {
        sealed += ExtentWord::unpack(extents[sealed].own.load(std::memory_order_acquire)).len;
        cr_assert_lt(sealed, header.table_top.load(std::memory_order_acquire), "a full cache has no sealed extent");
    }
    const ExtentWord own = ExtentWord::unpack(extents[sealed].own.load(std::memory_order_acquire));
    expect_fault(s.rows, extents[sealed].rows, extents[sealed].rows.load(std::memory_order_acquire) + 1, "rows stated");
    expect_fault(s.rows, extents[sealed].bump, Bump{0xffffffff, 0xffffffff}.pack(), "used");
    expect_fault(s.rows, extents[sealed].own, ExtentWord{ExtentState::Free, own.slot, own.len, own.seq}.pack(),
                 "names no row");
    expect_fault(s.rows, extents[sealed].own, ExtentWord{ExtentState::Held, 77, own.len, own.seq}.pack(), "slot 77");
    expect_fault(s.rows, extents[sealed].own, ExtentWord{ExtentState::Index, 0, own.len, own.seq}.pack(),
                 "levels name");
    const auto entries = reinterpret_cast<AtomicU64 *>(base + header.level[0].offset.load(std::memory_order_acquire));
    expect_fault(s.rows, entries[5], entries[6].load(std::memory_order_acquire), "stands twice");
    expect_fault(s.rows, entries[5], 0, "rows stated");
    // A row's header, last: the word behind its check.
    auto &row =
        *reinterpret_cast<AtomicU64 *>(base + IndexEntry::offset(entries[5].load(std::memory_order_acquire)) + 24);
    expect_fault(s.rows, row, row.load(std::memory_order_acquire) ^ 1ULL << 40, "damaged");
}

Test(check, finds_nothing_while_writers_and_builders_work_and_die) {
    Session s(16 << 20);
    const auto write = [&](unsigned seed) {
        const pid_t pid = fork();
        if (pid != 0) return pid;
        alarm(60);
        for (int64_t n = 0;; n++) {
            cache_reservation *reservation = nullptr;
            const int64_t id = int64_t(rows::mix(seed + uint64_t(n) * 64) >> 1);
            const rows::Row row(id, 300);
            std::vector<cache_column> columns(row.columns(), row.columns() + row.n());
            if (n % 3 == 0 && cache_reserve(s.rows, id, columns.data(), row.n(), &reservation) == 0)
                cache_abort(reservation);
            const int result = rows::put(s.rows, id, 300);
            if (result < 0 && result != CACHE_EFULL) _exit(1);
        }
    };
    pid_t writers[] = {write(1), write(2), write(3)};
    for (int i = 0; i < 24; i++) {
        std::vector<std::string> faults;
        const int64_t n = cache_check(s.rows, 0, collect, &faults);
        cr_assert_eq(n, 0, "look %d: %s", i, faults.empty() ? cache_last_error() : faults[0].c_str());
        if (i % 4 != 0) continue;
        pid_t &victim = writers[i / 4 % 3];
        int status = 0;
        kill(victim, SIGKILL);
        waitpid(victim, &status, 0);
        cr_assert(WIFSIGNALED(status), "a writer ended with wait status %d", status);
        victim = write(unsigned(i) + 4);
    }
    for (pid_t writer : writers) {
        kill(writer, SIGKILL);
        waitpid(writer, nullptr, 0);
    }
}

namespace {

// A process that does this until it is killed. It must not outlive the test.
pid_t busy(const std::function<void(int64_t round)> &work) {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    alarm(100);
    for (int64_t round = 0;; round++)
        work(round);
}

void must(bool good) {
    if (good) return;
    fprintf(stderr, "a writer: %s\n", cache_last_error());
    _exit(1);
}

// The other caches of a session in which everything goes on at once, as its processes see them.
struct Caches {
    cache_client *client = nullptr;
    cache *handle = nullptr;

    int open(uint32_t session, uint32_t cache_id, const cache_options &options) {
        must(client != nullptr || cache_connect(nullptr, &client) == 0);
        return cache_open(client, session, cache_id, &options, &handle);
    }
    void close() {
        cache_close(handle);
        handle = nullptr;
    }
};

cache_options stream_options(uint64_t limit_bytes) {
    cache_options options = spilling(limit_bytes);
    options.flags = CACHE_BUILD;
    return options;
}

// Appends rows to cache 2, as whoever builds it.
void build_on(uint32_t session) {
    Caches mine;
    must(mine.open(session, 2, stream_options(2 << 20)) >= 0);
    int64_t at = 0, id = 0;
    if (cache_build_begin(mine.handle, &at) == 0)
        for (int i = 0; i < 300; i++) {
            const rows::Row row(at + i, 700);
            const int result = cache_append(mine.handle, row.columns(), row.n(), &id);
            must(result == 0 || result == CACHE_EFULL);
        }
    mine.close();
    cache_disconnect(mine.client);
}

// Makes cache 3, fills it a little, destroys it.
void make_and_destroy(uint32_t session) {
    Caches mine;
    if (mine.open(session, 3, options_with_limit(4 << 20)) >= 0)
        for (int64_t id = 0; id < 200; id++)
            (void)rows::put(mine.handle, id, 300);
    (void)cache_destroy(mine.client, session, 3);
    mine.close();
    cache_disconnect(mine.client);
}

// Opens a cache of the session and checks it; it may have been destroyed, or not be there yet.
void look_at(cache_client *client, uint32_t session, uint32_t cache_id, int look) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.flags = CACHE_NO_CREATE | CACHE_READ_ONLY;
    cache *handle = nullptr;
    std::vector<std::string> faults;
    if (cache_open(client, session, cache_id, &options, &handle) < 0) return;
    const int64_t n = cache_check(handle, 0, collect, &faults);
    cr_assert(n == 0 || n == CACHE_EGONE, "look %d at cache %u: %s", look, cache_id,
              faults.empty() ? cache_last_error() : faults[0].c_str());
    cache_close(handle);
}

} // namespace

// $CHECK_LOOKS: for how many looks, 16 unless told.
Test(check, finds_nothing_while_rows_are_spilled_and_streams_built_and_caches_destroyed) {
    SpillSession s(4 << 20);
    const auto spill = [&](int64_t from) {
        return busy([&s, from](int64_t n) {
            const int64_t id = n % 3 != 0 ? (from << 32) + n : int64_t(rows::mix(uint64_t(from + n * 64)) >> 1);
            const int result = rows::put(s.rows, id, 900);
            must(result >= 0 || result == CACHE_EFULL);
        });
    };
    const auto build = [&](int64_t) { return busy([&](int64_t) { build_on(s.id); }); };
    const auto destroy = [&](int64_t) { return busy([&](int64_t) { make_and_destroy(s.id); }); };
    const std::function<pid_t(int64_t)> kinds[] = {spill, spill, build, build, destroy};
    pid_t pids[std::size(kinds)];
    for (size_t i = 0; i < std::size(kinds); i++)
        pids[i] = kinds[i](int64_t(i));
    const char *const told = getenv("CHECK_LOOKS");
    const int looks = told != nullptr ? atoi(told) : 16;
    for (int look = 0; look < looks; look++) {
        for (uint32_t cache_id : {1u, 2u, 3u})
            look_at(s.client, s.id, cache_id, look);
        if (look % 3 != 2) continue;
        const size_t victim = size_t(look) / 3 % std::size(kinds);
        int status = 0;
        kill(pids[victim], SIGKILL);
        waitpid(pids[victim], &status, 0);
        cr_assert(WIFSIGNALED(status), "process %zu ended with wait status %d", victim, status);
        pids[victim] = kinds[victim](1000 + look);
    }
    for (pid_t pid : pids) {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
    }
}

// Sums of what others write: two such words would overflow.
Test(check, statistics_stay_possible_whatever_the_words_say) {
    Session s(8 << 20);
    for (int64_t id = 0, result = 0; result == 0; id++)
        result = rows::put(s.rows, id, 500);
    cache_server_stats server{};
    server.size = sizeof server;
    OK(cache_server_info(s.client, &server));
    const Stopped stopped(server.broker_pid);
    char *base = writable_region();
    auto &header = *reinterpret_cast<RegionHeader *>(base);
    auto *extents = reinterpret_cast<Extent *>(base + header.table_offset);
    std::vector<std::pair<AtomicU64 *, uint64_t>> words = {
        {&header.charged_bytes, header.charged_bytes.load(std::memory_order_acquire)}};
    for (uint64_t chunk = 0; chunk < header.table_top.load(std::memory_order_acquire);) {
        Extent &extent = extents[chunk];
        for (AtomicU64 *word : {&extent.rows, &extent.bytes, &extent.dead})
            words.emplace_back(word, word->load());
        chunk += std::max(1u, ExtentWord::unpack(extent.own.load(std::memory_order_acquire)).len);
    }
    cr_assert_gt(words.size(), 6, "a full cache has but one extent");
    for (const uint64_t wrong : {uint64_t(INT64_MAX), uint64_t(INT64_MIN), UINT64_MAX}) {
        for (const auto &[word, right] : words)
            word->store(wrong);
        const cache_stats stats = s.stat();
        const auto span = int64_t(header.region_bytes);
        for (int64_t sum : {stats.rows_in_memory, stats.row_bytes, stats.dead_bytes, stats.charged_bytes})
            cr_assert(sum >= 0 && sum <= span, "%ld in a region of %ld bytes", long(sum), long(span));
    }
    for (const auto &[word, right] : words)
        word->store(right);
}

Test(check, refuses_unknown_flags_and_a_destroyed_cache) {
    Session s;
    OK(rows::put(s.rows, 1));
    FAILS(cache_check(s.rows, 2, nullptr, nullptr), CACHE_EINVAL, "0x2");
    FAILS(cache_check(nullptr, 0, nullptr, nullptr), CACHE_EINVAL, "handle");
    OK(cache_check(s.rows, 0, nullptr, nullptr));
    OK(cache_destroy(s.client, s.id, 1));
    FAILS(cache_check(s.rows, 0, nullptr, nullptr), CACHE_EGONE);
}
