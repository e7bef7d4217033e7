// SPDX-License-Identifier: Apache-2.0
// soak [seconds [seed]]: 4 ranks of 2 workers each make and destroy sessions, caches and rows, again and again. In the
// pauses between, memory, descriptors and mappings of server and ranks must be what they were in the first pause.
// `make soak` runs it for an hour.
#include "tests/crash/crash.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <new>
#include <sys/mman.h>

namespace {

constexpr int kRanks = 4, kWorkers = 2, kProcesses = kRanks * (1 + kWorkers), kPauses = 5;

struct Shared {
    std::atomic<int> working{1}, resting{0};
    std::atomic<int64_t> sessions{0}, rows{0};
};

void one_session(cache_client *client, std::mt19937 &random, Shared &shared) {
    uint32_t session = 0;
    crash::must(cache_session_create(client, &session), "cache_session_create");
    cache *handle = crash::open_cache(client, session, 1, 4 << 20);
    const int64_t n = 1 + int64_t(random() % 800);
    for (int64_t id = 0; id < n; id++)
        if (rows::put(handle, crash::id_of(id), crash::kLargest) < 0) crash::must(CACHE_EIO, "a put");
    for (int64_t id = 0; id < n; id++)
        if (const std::string wrong = rows::check(handle, crash::id_of(id), crash::kLargest); !wrong.empty())
            test_die("%s", wrong.c_str());
    crash::must(cache_session_destroy(client, session), "cache_session_destroy");
    cache_close(handle);
    shared.sessions++;
    shared.rows += n;
}

[[noreturn]] void work(cache_client *client, unsigned seed, Shared &shared) {
    std::mt19937 random(seed);
    for (;;) {
        while (shared.working.load() != 0)
            one_session(client, random, shared);
        shared.resting++;
        while (shared.working.load() == 0)
            usleep(1000);
    }
}

struct Footprint {
    int64_t resident_kib = 0, descriptors = 0, mappings = 0;
};

Footprint footprint_of(pid_t pid) {
    Footprint found;
    const std::string folder = "/proc/" + std::to_string(pid);
    std::ifstream status(folder + "/status"), maps(folder + "/maps");
    for (std::string line; std::getline(status, line);)
        if (long long kib = 0; sscanf(line.c_str(), "VmRSS: %lld", &kib) == 1) found.resident_kib = kib;
    for (std::string line; std::getline(maps, line);)
        found.mappings++;
    const std::filesystem::directory_iterator descriptors(folder + "/fd");
    found.descriptors = std::distance(begin(descriptors), std::filesystem::directory_iterator{});
    return found;
}

// Everybody has done what it had begun, and the server has taken back what was theirs.
void rest(Shared &shared, cache_client *client, int64_t memory) {
    shared.working = 0;
    crash::until([&] { return shared.resting.load() == kProcesses; }, "all workers rest");
    shared.resting = 0;
    crash::until(
        [&] {
            const cache_server_stats info = crash::server_info(client);
            return info.memory_used_bytes == memory && info.caches == 0 && info.sessions == 1;
        },
        "sessions, caches and charged memory are what they were in the beginning");
}

void compare(const char *who, const Footprint &first, const Footprint &now) {
    printf("%s: %lld KiB, %lld descriptors, %lld mappings\n", who, static_cast<long long>(now.resident_kib),
           static_cast<long long>(now.descriptors), static_cast<long long>(now.mappings));
    // Of a few MiB a hundredth is less than what one mapping of the allocator takes.
    const int64_t slack = std::max<int64_t>(first.resident_kib / 100, 512);
    if (now.descriptors > first.descriptors || now.mappings > first.mappings + first.mappings / 100 + 4 ||
        now.resident_kib > first.resident_kib + slack)
        test_die("%s has grown: it had %lld KiB, %lld descriptors, %lld mappings", who,
                 static_cast<long long>(first.resident_kib), static_cast<long long>(first.descriptors),
                 static_cast<long long>(first.mappings));
}

} // namespace

int main(int argc, char **argv) {
    const int seconds = argc > 1 ? atoi(argv[1]) : 8;
    const unsigned seed = argc > 2 ? unsigned(atoll(argv[2])) : unsigned(time(nullptr));
    printf("soak %d %u\n", seconds, seed);
    fflush(stdout);
    test_watchdog(unsigned(seconds) + 250);
    void *page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) test_die("mmap failed");
    auto &shared = *new (page) Shared;
    crash::Arena arena;
    const int64_t memory = crash::server_info(arena.client).memory_used_bytes;
    std::vector<pid_t> ranks;
    for (unsigned rank = 0; rank < kRanks; rank++)
        ranks.push_back(crash::spawn([&]() -> int {
            alarm(unsigned(seconds) + 200);
            cache_client *client = nullptr;
            crash::must(cache_connect(nullptr, &client), "cache_connect");
            for (unsigned worker = 0; worker < kWorkers; worker++)
                if (fork() == 0) { // with the handle of its rank
                    alarm(unsigned(seconds) + 200);
                    work(client, seed + 100 * rank + worker + 1, shared);
                }
            work(client, seed + 100 * rank, shared);
        }));
    Footprint keeper, broker, first_rank;
    for (int i = 0; i < kPauses; i++) {
        usleep(useconds_t(int64_t(seconds) * 1'000'000 / kPauses)); // how long they work is what the caller asked for
        rest(shared, arena.client, memory);
        const cache_server_stats info = crash::server_info(arena.client);
        const Footprint now[] = {footprint_of(info.keeper_pid), footprint_of(info.broker_pid), footprint_of(ranks[0])};
        if (i == 0) keeper = now[0], broker = now[1], first_rank = now[2];
        compare("keeper", keeper, now[0]);
        compare("broker", broker, now[1]);
        compare("a rank", first_rank, now[2]);
        shared.working = 1;
    }
    std::vector<pid_t> all = ranks;
    for (pid_t rank : ranks) {
        const std::string pid = std::to_string(rank);
        std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
        for (pid_t worker; children >> worker;)
            all.push_back(worker);
    }
    for (pid_t pid : all)
        kill(pid, SIGKILL);
    for (pid_t rank : ranks)
        crash::wait_for(rank);
    printf("%lld sessions, %lld rows\n", static_cast<long long>(shared.sessions), static_cast<long long>(shared.rows));
    return shared.sessions.load() > kProcesses ? 0 : 1;
}
