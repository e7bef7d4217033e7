// SPDX-License-Identifier: Apache-2.0
// hostile [seconds [seed]]: a process scribbles over a cache without a pause: header, slots, extents' heads, spill
// table, index, rows and stubs; while others read it in every way, write to it, check it, and the broker lends its
// memory. What was looked at once may be different at the next look. They may get any rows and any errors; nobody may
// crash, hang, or see memory that is not the cache's. Under ASan too, with a server that is built so.
#include "core/client/internal.h"
#include "tests/support/rows.h"
#include "tests/support/server.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace libcache;

namespace {

constexpr uint32_t kMemory = 1, kSpilling = 2; // cache ids
constexpr int64_t kIds = 4000, kTimeoutMs = 300;
constexpr uint64_t kLargest = 2000, kLimit = 3 << 20;

struct Counts { // shared by all
    std::atomic<int64_t> scribbled{0}, rows{0}, misses{0}, errors{0}, puts{0}, faults{0};
    std::atomic<bool> stop{false};
};
Counts *counts;

void count(std::atomic<int64_t> &what, int64_t n = 1) {
    what.fetch_add(n, std::memory_order_relaxed);
}
void count_result(int64_t result) {
    if (result == CACHE_ENOTFOUND)
        count(counts->misses);
    else if (result < 0)
        count(counts->errors);
}
bool stopped() {
    return counts->stop.load(std::memory_order_relaxed);
}

pid_t spawn(const std::function<void()> &body) {
    fflush(nullptr);
    const pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    _exit(0);
}

cache_client *connect() {
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.timeout_ms = kTimeoutMs; // words that others wait for are scribbled over as well
    cache_client *client = nullptr;
    int result = 0;
    for (const time_t deadline = time(nullptr) + 60; (result = cache_connect(&options, &client)) != 0;)
        if (result != CACHE_ETIMEOUT || time(nullptr) > deadline) test_die("cache_connect: %s", cache_last_error());
    return client;
}

// Null: the region is too damaged to be opened.
cache *open(cache_client *client, uint32_t session, uint32_t id, uint32_t flags = 0) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.flags = flags;
    options.memory_limit_bytes = flags == 0 ? kLimit : 0;
    options.spill = flags == 0 && id == kSpilling;
    cache *handle = nullptr;
    const int result = cache_open(client, session, id, &options, &handle);
    count_result(result);
    return result < 0 ? nullptr : handle;
}

// ---- the hostile process

struct Target {
    uint64_t from, bytes;
};

// What there is to scribble over, as the undamaged header says.
std::vector<Target> targets_of(const RegionMap &map) {
    const Geometry &g = map.geometry();
    const uint64_t top = map.header()->top_bytes.load(std::memory_order_acquire);
    const uint64_t table = map.header()->table_top.load(std::memory_order_acquire) * sizeof(Extent);
    std::vector<Target> targets = {{0, kHeaderBytes},
                                   {g.slots_offset, 4 * sizeof(Slot)},
                                   {g.table_offset, table},
                                   {g.data_offset, top - g.data_offset},
                                   {g.data_offset, 4 * kChunkBytes}};
    if (g.spill_segments != 0) targets.push_back({g.spill_offset, 4 * sizeof(SpillSegment)});
    for (uint32_t k = 0; k < map.header()->levels.load(std::memory_order_acquire); k++)
        targets.push_back({map.header()->level[k].offset.load(), map.header()->level[k].slots.load() * 8});
    return targets;
}

// A byte or a word is changed, and mostly changed back a moment later: damage that stays would soon leave nothing to
// read.
void scribble(char *base, const Target &target, std::mt19937_64 &random) {
    const uint64_t at = target.from + random() % target.bytes / 8 * 8;
    auto &word = *reinterpret_cast<AtomicU64 *>(base + at);
    const uint64_t kind = random() % 4;
    const uint64_t change = kind == 0   ? random()
                            : kind == 1 ? uint64_t{1} << random() % 64
                            : kind == 2 ? random() % 256 << random() % 8 * 8
                                        : random() % 4096;
    word.fetch_xor(change, std::memory_order_relaxed);
    for (uint64_t n = random() % 300; n > 0; n--)
        std::atomic_signal_fence(std::memory_order_seq_cst);
    if (random() % 64 != 0) word.fetch_xor(change, std::memory_order_relaxed);
    count(counts->scribbled);
}

void be_hostile(uint32_t session, unsigned seed, const std::function<void()> &ready) {
    cache_client *client = connect();
    std::mt19937_64 random(seed);
    std::vector<std::pair<char *, std::vector<Target>>> regions;
    for (uint32_t id : {kMemory, kSpilling}) {
        cache *handle = open(client, session, id);
        if (!handle) test_die("the hostile process opens cache %u: %s", id, cache_last_error());
        const RegionMap &map = region_of(handle);
        // The library's own way to a mapping for writing; it is what every client has.
        (void)rows::put(handle, kIds + id, kLargest);
        FILE *maps = fopen("/proc/self/maps", "re");
        char line[512], rights[8];
        unsigned long long from = 0, inode = 0;
        std::vector<char *> found;
        while (maps && fgets(line, sizeof line, maps))
            if (sscanf(line, "%llx-%*x %7s %*x %*s %llu", &from, rights, &inode) == 3 && !strcmp(rights, "rw-s") &&
                inode != 0 && reinterpret_cast<RegionHeader *>(from)->magic.load() == kRegionMagic &&
                memcmp(reinterpret_cast<char *>(from), map.base(), 64) == 0)
                found.push_back(reinterpret_cast<char *>(from));
        if (maps) fclose(maps);
        if (found.empty()) test_die("the hostile process has no mapping for writing of cache %u", id);
        regions.emplace_back(found.back(), targets_of(map));
    }
    ready();
    for (;;) {
        const auto &[base, targets] = regions[random() % regions.size()];
        scribble(base, targets[random() % targets.size()], random);
    }
}

// ---- the others

// Every byte of a view is memory of the cache, or of the view's own.
void read_view(cache *handle, cache_view *view) {
    if (!view->cache) return;
    const RegionMap &map = region_of(handle);
    const int n = cache_view_columns(view);
    for (int i = 0; i < n; i++) {
        cache_column column{};
        if (cache_view_column(view, uint32_t(i), &column) != 0) continue;
        const auto *at = static_cast<const char *>(column.data);
        const bool inside = column.bytes <= map.mapped_bytes() && at >= map.base() &&
                            at <= map.base() + map.mapped_bytes() - column.bytes;
        if (column.bytes != 0 && !inside && view->reserved[5] == 0)
            test_die("row %ld: column %d is %llu bytes at %p, outside of the cache", long(view->row_id), i,
                     static_cast<unsigned long long>(column.bytes), column.data);
        volatile char sum = 0;
        for (uint64_t byte = 0; byte < column.bytes; byte += 16)
            sum = static_cast<char>(sum + at[byte]);
        for (uint32_t d = 0; d < column.ndim; d++)
            sum = static_cast<char>(sum + char(column.shape[d]));
    }
    count(counts->rows);
    (void)cache_view_release(view);
}

void note_fault(const char *, void *) {
    count(counts->faults);
}
int note_entry(const cache_list_entry *, void *) {
    return 0;
}

void read_in_every_way(cache_client *client, cache *handle, std::mt19937 &random) {
    constexpr size_t kBatch = 40;
    int64_t ids[kBatch];
    for (int64_t &id : ids)
        id = int64_t(random() % uint64_t(kIds));
    cache_view views[kBatch] = {};
    count_result(cache_get_batch(handle, ids, kBatch, views));
    for (cache_view &view : views)
        read_view(handle, &view);
    for (size_t i = 0; i < kBatch; i++) {
        cache_view view{};
        count_result(cache_get(handle, ids[i], &view));
        read_view(handle, &view);
    }
    const uint32_t column = random() % 4;
    const size_t stride = column == 0 ? kLargest : 8 * (1 + random() % 60);
    std::vector<unsigned char> gathered(kBatch * stride); // ASan sees a byte beyond it
    std::vector<uint8_t> found(kBatch);
    count_result(cache_gather(handle, ids, kBatch, column, gathered.data(), stride, found.data()));
    count_result(cache_contains(handle, ids, kBatch, found.data()));
    if (random() % 16 != 0) return;
    cache_stats stats{};
    stats.size = sizeof stats;
    count_result(cache_stat(handle, &stats));
    uint64_t cursor = 0;
    for (int rounds = 0; rounds < 200; rounds++) {
        const int64_t n = cache_scan(handle, &cursor, ids, kBatch);
        count_result(n);
        if (n <= 0) break;
    }
    std::vector<char> names(20);
    size_t bytes = names.size();
    count_result(cache_schema_get(handle, names.data(), &bytes));
    if (random() % 8 == 0) count_result(cache_check(handle, random() % 2 ? CACHE_CHECK_ROWS : 0, note_fault, nullptr));
    if (random() % 4 == 0) count_result(cache_list(client, note_entry, nullptr));
}

void read_on(uint32_t session, unsigned seed) {
    std::mt19937 random(seed);
    cache_client *client = connect();
    while (!stopped())
        for (uint32_t id : {kMemory, kSpilling}) {
            cache *handle = open(client, session, id, CACHE_READ_ONLY | CACHE_NO_CREATE);
            for (int i = 0; handle && i < 40 && !stopped(); i++)
                read_in_every_way(client, handle, random);
            if (handle) (void)cache_close(handle);
        }
}

// A process that writes until it may not any more, and then another one: so slots and extents change hands.
void write_on(uint32_t session, unsigned seed) {
    std::mt19937 random(seed);
    cache_client *client = connect();
    for (int opened = 0; opened < 4 && !stopped(); opened++)
        for (uint32_t id : {kMemory, kSpilling}) {
            cache *handle = open(client, session, id);
            for (int i = 0; handle && i < 100 && !stopped(); i++) {
                const int result = rows::put(handle, int64_t(random() % uint64_t(kIds)), kLargest);
                count_result(result);
                count(counts->puts, result == 0);
                if (result == CACHE_ETIMEOUT) break; // each one would take as long
            }
            if (handle) (void)cache_flush(handle);
            if (handle && random() % 2) (void)cache_close(handle);
        }
}

// ---- the program

struct Server {
    std::string folder = std::string(getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp") + "/libcache-spill-XXXXXX";
    test_server *server;
    Server() {
        if (mkdtemp(folder.data()) == nullptr) test_die("mkdtemp %s", folder.c_str());
        const char *const arguments[] = {"--spilldir", folder.c_str(), nullptr};
        server = test_server_start(arguments);
    }
    Server(const Server &) = delete;
    Server &operator=(const Server &) = delete;
    ~Server() {
        test_server_stop(server);
        std::filesystem::remove_all(folder);
    }
};

cache_server_stats info_of(cache_client *client) {
    cache_server_stats info{};
    info.size = sizeof info;
    if (cache_server_info(client, &info) != 0) test_die("cache_server_info: %s", cache_last_error());
    return info;
}

void fill(cache_client *client, uint32_t session) {
    const char *const names[] = {"image", "label"};
    for (uint32_t id : {kMemory, kSpilling}) {
        cache *handle = open(client, session, id);
        if (!handle) test_die("cache_open: %s", cache_last_error());
        (void)cache_schema_set(handle, names, 2);
        for (int64_t row = 0; row < kIds; row += 2)
            if (const int result = rows::put(handle, row, kLargest); result < 0 && result != CACHE_EFULL)
                test_die("filling cache %u: %s", id, cache_last_error());
        if (cache_flush(handle) != 0) test_die("cache_flush: %s", cache_last_error());
        (void)cache_close(handle);
    }
}

void see_end(pid_t pid, const char *who) {
    int status = 0;
    for (const time_t deadline = time(nullptr) + 60; waitpid(pid, &status, WNOHANG) == 0; usleep(2000))
        if (time(nullptr) > deadline) test_die("the %s hangs", who);
    if (status != 0) test_die("the %s ended with wait status %d", who, status);
}

// A round of damage in a session of its own.
void round_of_damage(cache_client *client, unsigned seed, int64_t milliseconds) {
    uint32_t session = 0;
    if (cache_session_create(client, &session) != 0) test_die("cache_session_create: %s", cache_last_error());
    fill(client, session);
    counts->stop.store(false);
    int ready[2];
    if (pipe(ready) != 0) test_die("pipe failed");
    const pid_t hostile = spawn([&] { be_hostile(session, seed, [&] { (void)!write(ready[1], "", 1); }); });
    close(ready[1]);
    char byte;
    if (read(ready[0], &byte, 1) != 1) test_die("the hostile process has ended");
    close(ready[0]);
    const pid_t readers[] = {spawn([&] { read_on(session, seed + 1); }), spawn([&] { read_on(session, seed + 2); })};
    for (const auto start = std::chrono::steady_clock::now();
         std::chrono::steady_clock::now() - start < std::chrono::milliseconds(milliseconds);)
        see_end(spawn([&] { write_on(session, unsigned(seed + counts->puts.load())); }), "writer");
    counts->stop.store(true);
    for (pid_t reader : readers)
        see_end(reader, "reader");
    kill(hostile, SIGKILL);
    int status = 0;
    waitpid(hostile, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) test_die("the hostile process ended with %d", status);
    if (cache_session_destroy(client, session) != 0) test_die("cache_session_destroy: %s", cache_last_error());
}

// Other caches are as if nothing had been.
void judge(cache_client *client) {
    uint32_t session = 0;
    if (cache_session_create(client, &session) != 0) test_die("cache_session_create: %s", cache_last_error());
    for (uint32_t id : {kMemory, kSpilling}) {
        cache *handle = open(client, session, id);
        for (int64_t row = 0; row < 500; row++) {
            if (rows::put(handle, row, kLargest) != 0) test_die("a put afterwards: %s", cache_last_error());
            if (const std::string wrong = rows::check(handle, row, kLargest); !wrong.empty())
                test_die("afterwards: %s", wrong.c_str());
        }
        (void)cache_close(handle);
    }
}

} // namespace

int main(int argc, char **argv) {
    const int seconds = argc > 1 ? atoi(argv[1]) : 12;
    const unsigned seed = argc > 2 ? unsigned(atoll(argv[2])) : unsigned(time(nullptr));
    printf("hostile %d %u\n", seconds, seed);
    fflush(stdout);
    test_watchdog(unsigned(seconds) + 200);
    void *page = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) test_die("mmap failed");
    counts = new (page) Counts;
    Server server;
    cache_client *client = nullptr;
    if (cache_connect(nullptr, &client) != 0) test_die("cache_connect: %s", cache_last_error());
    const int32_t broker = info_of(client).broker_pid;
    int rounds = 0;
    for (const time_t end = time(nullptr) + seconds; time(nullptr) < end; rounds++) {
        round_of_damage(client, seed + 1000u * unsigned(rounds), 1500);
        if (info_of(client).broker_pid != broker) test_die("the broker died of the damage");
    }
    judge(client);
    (void)cache_disconnect(client);
    printf("%d rounds, %lld words scribbled over: %lld rows read, %lld misses, %lld errors, %lld rows put, %lld faults "
           "told by cache_check\n",
           rounds, static_cast<long long>(counts->scribbled), static_cast<long long>(counts->rows),
           static_cast<long long>(counts->misses), static_cast<long long>(counts->errors),
           static_cast<long long>(counts->puts), static_cast<long long>(counts->faults));
    if (counts->rows == 0 || counts->errors == 0) test_die("nobody read a row, or saw no damage");
    return 0;
}
