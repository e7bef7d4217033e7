// SPDX-License-Identifier: Apache-2.0
// campaign [seconds [seed [scale [mixture...]]]]: kills of everybody, under load. Short waves, for rows to be missing
// still when their writers die, each with its own mixture of victims: readers, writers, builders, makers of sessions,
// brokers (at random moments and at pause points), the keeper, keeper and broker together. Every row proves itself; no
// reader and no waiting writer may see an error. After each wave the regions are walked, everything charged and counted
// is compared with what is there, and /proc is asked for what was left. `scale` is the number of writers, and of
// readers; the more there are, the more die. Numbers of mixtures: only these. SIGTERM ends it after its wave, with its
// counts. `make crash` runs it.
#include "tests/crash/orders.h"
#include "tests/crash/spilling.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <sys/stat.h>
#include <vector>

namespace {

constexpr uint32_t kRows = 1, kStream = 2, kSpilled = 3; // cache ids
constexpr int64_t kIds = 6000;
constexpr int64_t kWaveMs = 400;
constexpr int kMostSpillers = 6; // each needs a chunk for stubs, and so do the dead until they are seen: of 12 in all
constexpr int kServerGone = 42;  // exit status of a writer that ended as it should when the server had died
const char *const kPoints[] = {
#include "broker_points.inc"
};

struct Counts {                    // shared by all processes of the campaign
    std::atomic<int64_t> ready{0}; // workers of this wave that have opened what they need
    std::atomic<int64_t> rows_read{0}, spilled_read{0}, rows_put{0}, spilled_put{0}, appended{0}, sessions{0};
};
Counts &counts() {
    static Counts *shared = [] {
        void *page = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) test_die("mmap failed");
        return new (page) Counts;
    }();
    return *shared;
}
void count(std::atomic<int64_t> &what, int64_t n = 1) {
    what.fetch_add(n, std::memory_order_relaxed);
}

// ---- what the processes do
// -------------------------------------------------------------------------------------------

cache *open_to_read(cache_client *client, uint32_t session_id, uint32_t cache_id) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.flags = CACHE_READ_ONLY | CACHE_NO_CREATE;
    cache *handle = nullptr;
    const int result = cache_open(client, session_id, cache_id, &options, &handle);
    if (result != 0 && result != CACHE_ENOTFOUND) crash::must(result, "cache_open of a reader");
    return handle;
}

void check_view(const cache_view &view, int64_t id) {
    if (const std::string wrong = rows::Row(id, crash::kLargest).difference(view); !wrong.empty())
        test_die("reader: %s", wrong.c_str());
    count(counts().rows_read);
}

// Rows of which most are on disk: many at once, then one.
void read_spilled(cache *handle, std::mt19937 &random) {
    constexpr size_t kBatch = 8;
    int64_t ids[kBatch];
    for (int64_t &id : ids)
        id = int64_t(random() % uint64_t(crash::kSpillIds));
    cache_view views[kBatch + 1] = {};
    const int64_t hits = cache_get_batch(handle, ids, kBatch, views);
    if (hits < 0) crash::must(int(hits), "cache_get_batch of a cache that spills");
    const int result = cache_get(handle, ids[0], &views[kBatch]);
    if (result != 0 && result != CACHE_ENOTFOUND) crash::must(result, "cache_get of a cache that spills");
    for (cache_view &view : views) {
        if (!view.cache) continue;
        if (const std::string wrong = rows::Row(view.row_id, crash::kSpillLargest).difference(view); !wrong.empty())
            test_die("reader of a cache that spills: %s", wrong.c_str());
        cache_view_release(&view);
        count(counts().spilled_read);
    }
}

// Reads one by one, in batches and gathered, for ever.
int read_on(uint32_t session_id, unsigned seed) {
    std::mt19937 random(seed);
    cache_client *client = nullptr;
    crash::must(cache_connect(nullptr, &client), "cache_connect");
    cache *handle = nullptr;
    while (!(handle = open_to_read(client, session_id, kRows)))
        usleep(500);
    constexpr size_t kBatch = 16;
    cache *spilled = nullptr;
    for (int64_t round = 0;; round++) {
        if (round % 256 == 0 && !spilled) {
            spilled = open_to_read(client, session_id, kSpilled);
            if (spilled) count(counts().ready);
        }
        if (round % 16 == 0 && spilled) read_spilled(spilled, random);
        int64_t ids[kBatch];
        for (int64_t &id : ids)
            id = crash::id_of(int64_t(random() % uint64_t(kIds)));
        cache_view views[kBatch];
        const int64_t hits = cache_get_batch(handle, ids, kBatch, views);
        if (hits < 0) crash::must(int(hits), "cache_get_batch");
        for (size_t i = 0; i < kBatch; i++)
            if (views[i].cache) check_view(views[i], ids[i]);
        cache_view view;
        const int result = cache_get(handle, ids[0], &view);
        if (result == 0)
            check_view(view, ids[0]);
        else if (result != CACHE_ENOTFOUND)
            crash::must(result, "cache_get");
        unsigned char gathered[kBatch][8]; // column 1, a scalar
        uint8_t found[kBatch];
        const int64_t copied = cache_gather(handle, ids, kBatch, 1, gathered, 8, found);
        if (copied < 0) crash::must(int(copied), "cache_gather");
        for (size_t i = 0; i < kBatch; i++)
            if (found[i] && rows::first_wrong(gathered[i], 8, ids[i], 1) >= 0)
                test_die("reader: row %ld was gathered wrong", long(ids[i]));
    }
}

// The id of a row that nobody else puts. At most so many in a millisecond: on a busy machine it can take seconds until
// the servers are killed, and a cache that is full by then refuses the row before anybody is asked for room.
int64_t own_id(unsigned seed, int64_t n, int64_t most) {
    if (n % most == 0) usleep(1000);
    return (int64_t(seed) << 24) + n;
}

// Puts and reads until all is there or, `until_the_server_dies`, until a put fails.
int write_on(uint32_t session_id, unsigned seed, bool until_the_server_dies) {
    if (!until_the_server_dies) {
        const int result = crash::write_all(session_id, kRows, kIds, seed);
        count(counts().rows_put, kIds);
        return result;
    }
    cache_client *client = nullptr;
    crash::must(cache_connect(nullptr, &client), "cache_connect");
    cache *handle = crash::open_cache(client, session_id, kRows, 256 << 20);
    count(counts().ready);
    for (int64_t n = 0;; n++) { // rows that are read, then such of its own: it uses up what it was lent
        const int64_t id = n < kIds ? crash::id_of(n) : own_id(seed, n, 4);
        const int result = rows::put(handle, id, crash::kLargest);
        count(counts().rows_put);
        if (result == CACHE_ESERVER) return kServerGone;
        if (result < 0) crash::must(result, "the put of a writer");
    }
}

// The same in a cache that spills.
int spill_on(uint32_t session_id, unsigned seed, bool until_the_server_dies) {
    if (!until_the_server_dies) {
        const int result = crash::spill_all(session_id, kSpilled, seed);
        count(counts().spilled_put, crash::kSpillIds);
        return result;
    }
    cache_client *client = nullptr;
    crash::must(cache_connect(nullptr, &client), "cache_connect");
    cache *handle = crash::open_spilling(client, session_id, kSpilled);
    count(counts().ready);
    for (int64_t n = 0;; n++) { // as in write_on
        const int64_t id = n < crash::kSpillIds ? n : own_id(seed, n, 1);
        const int result = rows::put(handle, id, crash::kSpillLargest);
        count(counts().spilled_put);
        if (result == CACHE_ESERVER) return kServerGone;
        if (result < 0) crash::must(result, "a put that may spill");
    }
}

// Appends for ever. Whoever comes after a dead builder finds the stream whole.
int build_on(uint32_t session_id) {
    cache_client *client = nullptr;
    cache *handle = nullptr;
    cache_options options = CACHE_OPTIONS_INIT;
    options.flags = CACHE_BUILD;
    options.memory_limit_bytes = 16 << 20;
    crash::must(cache_connect(nullptr, &client), "cache_connect");
    crash::must(cache_open(client, session_id, kStream, &options, &handle), "cache_open of a stream");
    int64_t next = 0, id = -1;
    for (int result; (result = cache_build_begin(handle, &next)) != 0; usleep(500))
        if (result != CACHE_EBUILDING) crash::must(result, "cache_build_begin");
    if (next > 0)
        if (const std::string wrong = rows::check(handle, next - 1, crash::kLargest); !wrong.empty())
            test_die("builder: the last row before it: %s", wrong.c_str());
    for (;; next++) {
        const rows::Row row(next, crash::kLargest);
        const int result = cache_append(handle, row.columns(), row.n(), &id);
        if (result == CACHE_EFULL) pause(); // until it is killed
        crash::must(result, "cache_append");
        if (id != next) test_die("builder: row %ld was appended as %ld", long(next), long(id));
        count(counts().appended);
    }
}

// Makes a session with a cache and rows, and ends it; now and then it stays.
int make_sessions(unsigned seed) {
    std::mt19937 random(seed);
    for (;;) {
        cache_client *client = nullptr;
        uint32_t session = 0;
        crash::must(cache_connect(nullptr, &client), "cache_connect");
        crash::must(cache_session_create(client, &session), "cache_session_create");
        cache *handle = crash::open_cache(client, session, 7, 2 << 20);
        for (int64_t id = 0; id < 20; id++)
            if (rows::put(handle, id, crash::kLargest) < 0) crash::must(CACHE_EIO, "a put into a cache of one's own");
        if (random() % 2) crash::must(cache_destroy(client, session, 7), "cache_destroy");
        if (random() % 4) crash::must(cache_session_destroy(client, session), "cache_session_destroy");
        cache_close(handle);
        cache_disconnect(client);
        count(counts().sessions);
    }
}

// ---- the campaign
// ----------------------------------------------------------------------------------------------------

enum class Role { Reader, Writer, Spiller, Builder, Maker };
constexpr int kRoles = 5;
struct Worker {
    Role role;
    pid_t pid;
    bool killed = false; // and not seen to end yet
};
struct Mixture {
    const char *name;
    std::vector<Role> clients; // that may be killed
    bool broker, points, keeper, both;
};
const Mixture kMixtures[] = {
    {"readers and writers", {Role::Reader, Role::Writer, Role::Writer}, false, false, false, false},
    {"spillers", {Role::Spiller, Role::Spiller, Role::Reader}, false, false, false, false},
    {"the broker", {}, true, false, false, false},
    {"the broker at its points", {}, false, true, false, false},
    {"everybody", {Role::Reader, Role::Writer, Role::Spiller, Role::Builder, Role::Maker}, true, true, false, false},
    {"the keeper, then clients", {Role::Writer, Role::Spiller, Role::Builder, Role::Maker}, false, false, true, false},
    {"keeper and broker", {Role::Writer}, true, false, false, true},
};

// Processes that map or hold the file, this one left out.
std::set<pid_t> users_of(dev_t device, ino_t inode) {
    std::set<pid_t> found;
    std::error_code error;
    for (const auto &process : std::filesystem::directory_iterator("/proc")) {
        const pid_t pid = atoi(process.path().filename().c_str());
        if (pid <= 0 || pid == getpid()) continue;
        for (const char *folder : {"/fd", "/map_files"})
            for (const auto &file : std::filesystem::directory_iterator(process.path().string() + folder, error)) {
                struct stat status;
                if (stat(file.path().c_str(), &status) == 0 && status.st_dev == device && status.st_ino == inode)
                    found.insert(pid);
            }
    }
    return found;
}

class Campaign {
  public:
    Campaign(unsigned seed, int scale) : random_(seed), scale_(scale) {
        counts(); // shared from the first fork on
        orders_.begin();
        arena_ = std::make_unique<crash::Arena>(folder_.arguments);
        remember();
    }

    void wave(int number, int mixture_number) {
        const Mixture &mixture = kMixtures[mixture_number];
        what_ = "wave " + std::to_string(number) + " (" + mixture.name + ")";
        const int64_t before = counts().rows_read.load();
        start_workers(mixture.both);
        kill_for_a_while(mixture, before);
        if (mixture.both) {
            die_together();
        } else {
            end_workers(SIGKILL);
            orders_.take_back();
            judge(mixture.keeper);
            if (mixture.keeper) restart_after_keeper();
        }
        if (counts().rows_read.load() == before) test_die("%s: nobody read a row", what_.c_str());
        check_folder();
        waves_++;
    }

    void report() const {
        printf("%d waves: killed %d readers, %d writers, %d spilling writers, %d builders, %d makers of sessions, %d "
               "brokers at random moments and %llu at pause points, %d keepers\n",
               waves_, killed_[0], killed_[1], killed_[2], killed_[3], killed_[4], brokers_,
               static_cast<unsigned long long>(orders_.obeyed()), keepers_);
        printf("%lld rows read and right and %lld of a spilling cache, %lld and %lld put, %lld appended, %lld sessions "
               "made and ended\n",
               static_cast<long long>(counts().rows_read), static_cast<long long>(counts().spilled_read),
               static_cast<long long>(counts().rows_put), static_cast<long long>(counts().spilled_put),
               static_cast<long long>(counts().appended), static_cast<long long>(counts().sessions));
    }

  private:
    std::mt19937 random_;
    const int scale_;
    crash::Orders orders_;
    crash::SpillFolder folder_; // must be empty at the end
    std::unique_ptr<crash::Arena> arena_;
    std::vector<Worker> workers_;
    std::string what_;
    int64_t memory_ = 0, sessions_ = 0;
    int keeper_descriptors_ = 0, broker_descriptors_ = 0;
    int waves_ = 0, killed_[kRoles] = {}, brokers_ = 0, keepers_ = 0;

    // What the server is like with nothing in it.
    void remember() {
        const cache_server_stats info = crash::server_info(arena_->client);
        memory_ = info.memory_used_bytes;
        sessions_ = info.sessions;
        // The connection by which test_server saw that the server accepts some may not have been closed yet there.
        for (int same = 0; same < 20; usleep(2000)) {
            const int before = broker_descriptors_;
            broker_descriptors_ = crash::descriptors_of(info.broker_pid);
            same = before == broker_descriptors_ ? same + 1 : 0;
        }
        keeper_descriptors_ = crash::descriptors_of(info.keeper_pid);
    }

    pid_t start(Role role, bool until_the_server_dies = false) {
        const unsigned seed = unsigned(random_());
        const uint32_t session = arena_->session_id;
        return crash::spawn([=] {
            switch (role) {
            case Role::Reader: return read_on(session, seed);
            case Role::Writer: return write_on(session, seed, until_the_server_dies);
            case Role::Spiller: return spill_on(session, seed, until_the_server_dies);
            case Role::Builder: return build_on(session);
            default: return make_sessions(seed);
            }
        });
    }

    void start_workers(bool until_the_server_dies) {
        counts().ready.store(0);
        const auto add = [&](Role role) { workers_.push_back({role, start(role, until_the_server_dies), false}); };
        for (int i = 0; i < scale_; i++) {
            add(Role::Reader);
            add(Role::Writer);
            if (i < kMostSpillers) add(Role::Spiller);
        }
        if (until_the_server_dies) return;
        add(Role::Builder);
        add(Role::Builder); // waits until the first one dies
        add(Role::Maker);
    }

    // It was killed, or has done its work.
    void see_end(const Worker &worker, int status) {
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
            killed_[int(worker.role)]++;
        else if (status != 0)
            test_die("%s: process %d (role %d) ended with wait status %d", what_.c_str(), worker.pid, int(worker.role),
                     status);
    }

    // One of them, or some, or all, at once. Nobody waits for their end here: the others run meanwhile.
    void kill_clients(Role role) {
        std::vector<Worker *> candidates;
        for (Worker &worker : workers_)
            if (worker.role == role && !worker.killed) candidates.push_back(&worker);
        std::shuffle(candidates.begin(), candidates.end(), random_);
        if (!candidates.empty()) candidates.resize(1 + random_() % candidates.size());
        for (Worker *victim : candidates)
            victim->killed = kill(victim->pid, SIGKILL) == 0;
    }

    void kill_broker() {
        const pid_t broker = crash::broker_of(arena_->server);
        if (broker == 0 || kill(broker, SIGKILL) != 0) return; // none just now
        brokers_++;
    }

    void kill_keeper() {
        kill(test_server_pid(arena_->server), SIGKILL);
        waitpid(test_server_pid(arena_->server), nullptr, 0);
        keepers_++;
        crash::until([&] { return crash::server_info(arena_->client).supervised == 0; },
                     "the server says that it is unsupervised");
        if (crash::server_info(arena_->client).keeper_pid != 0) test_die("%s: a dead keeper is named", what_.c_str());
    }

    // The killed are replaced, and writers that have put everything.
    void replace_the_ended() {
        for (Worker &worker : workers_)
            if (int status; waitpid(worker.pid, &status, WNOHANG) == worker.pid) {
                see_end(worker, status);
                worker.pid = start(worker.role);
                worker.killed = false;
            }
    }

    void kill_somebody(const Mixture &mixture) {
        const size_t choice = random_() % (mixture.clients.size() + mixture.broker + mixture.points);
        if (choice < mixture.clients.size())
            kill_clients(mixture.clients[choice]);
        else if (mixture.broker && choice == mixture.clients.size())
            kill_broker();
        else
            orders_.give(kPoints[random_() % std::size(kPoints)], 1 + random_() % 5);
    }

    // However busy the machine is: somebody reads.
    void kill_for_a_while(const Mixture &mixture, int64_t rows_read_before) {
        if (mixture.keeper) kill_keeper();
        if (mixture.both) return;
        const auto start = std::chrono::steady_clock::now();
        const auto goes_on = [&] {
            const auto passed = std::chrono::steady_clock::now() - start;
            if (passed > std::chrono::minutes(1)) return false;
            return passed < std::chrono::milliseconds(kWaveMs) || counts().rows_read.load() == rows_read_before;
        };
        while (goes_on()) {
            usleep(useconds_t(random_() % 20'000)); // any moment is a good one
            kill_somebody(mixture);
            replace_the_ended();
        }
    }

    void end_workers(int signal) {
        for (const Worker &worker : workers_)
            kill(worker.pid, signal);
        for (const Worker &worker : workers_)
            see_end(worker, crash::wait_for(worker.pid));
        workers_.clear();
    }

    // Rows 0 to n-1, right, and none beyond.
    void judge_stream() {
        cache *handle = open_to_read(arena_->client, arena_->session_id, kStream);
        if (!handle) return; // no builder came so far
        cache_stats stats{};
        stats.size = sizeof stats;
        crash::until(
            [&] {
                crash::must(cache_stat(handle, &stats), "cache_stat");
                return stats.writers == 0 && stats.granted_bytes == 0;
            },
            "nothing of a stream is lent");
        int64_t n = 0;
        for (cache_view view; cache_get(handle, n, &view) == 0; n++)
            check_view(view, n);
        if (stats.rows_in_memory != n)
            test_die("%s: the stream has %ld rows, %ld of them without a gap", what_.c_str(),
                     long(stats.rows_in_memory), long(n));
        cache_close(handle);
    }

    static int note_session(const cache_list_entry *entry, void *sessions) {
        static_cast<std::set<uint32_t> *>(sessions)->insert(entry->session_id);
        return 0;
    }

    // The regions are right, the sessions that killed processes left are ended, and nothing is left of anything.
    void judge(bool unsupervised) {
        crash::judge(*arena_, kRows, kIds, what_);
        judge_stream();
        crash::judge_spilled(*arena_, kSpilled, what_);
        std::set<uint32_t> sessions;
        if (const int64_t n = cache_list(arena_->client, note_session, &sessions); n < 0)
            crash::must(int(n), "cache_list");
        for (uint32_t session : sessions)
            if (session != arena_->session_id)
                crash::must(cache_session_destroy(arena_->client, session), "cache_session_destroy");
        for (uint32_t id : {kRows, kStream, kSpilled})
            if (const int result = cache_destroy(arena_->client, arena_->session_id, id); result != CACHE_ENOTFOUND)
                crash::must(result, "cache_destroy");
        crash::until(
            [&] {
                const cache_server_stats info = crash::server_info(arena_->client);
                return info.memory_used_bytes == memory_ && info.sessions == sessions_ && info.caches == 0 &&
                       info.spill_used_bytes == 0 && info.clients == 1;
            },
            (what_ + ": memory, file space, sessions, caches and clients are as in the beginning").c_str());
        const cache_server_stats info = crash::server_info(arena_->client);
        const int fewer = unsupervised ? 1 : 0; // the link to the keeper
        crash::until([&] { return crash::descriptors_of(info.broker_pid) == broker_descriptors_ - fewer; },
                     (what_ + ": the broker has as many descriptors as in the beginning, " +
                      std::to_string(broker_descriptors_ - fewer))
                         .c_str());
        if (!unsupervised && crash::descriptors_of(info.keeper_pid) != keeper_descriptors_)
            test_die("%s: the keeper has %d descriptors, %d in the beginning", what_.c_str(),
                     crash::descriptors_of(info.keeper_pid), keeper_descriptors_);
    }

    void check_folder() const {
        if (!folder_.empty()) test_die("%s: the spill folder %s has a name in it", what_.c_str(), folder_.path.c_str());
    }

    // A new server in the place of the old one, and a client of it.
    void start_again() {
        cache_disconnect(arena_->client);
        orders_.begin();
        test_server_start_again(arena_->server, folder_.arguments);
        crash::must(cache_connect(nullptr, &arena_->client), "cache_connect to the next server");
        crash::must(cache_session_create(arena_->client, &arena_->session_id), "cache_session_create");
        remember();
    }

    void restart_after_keeper() {
        const pid_t broker = crash::server_info(arena_->client).broker_pid;
        crash::must(cache_server_stop(arena_->client), "cache_server_stop without a keeper");
        crash::until([&] { return kill(broker, 0) != 0; }, "the broker that was stopped has ended");
        start_again();
    }

    // Reads go on, puts end in "server gone", the next server starts at once, and the memory is free with the last
    // user.
    void die_together() {
        cache *handle = nullptr;
        crash::until([&] { return (handle = open_to_read(arena_->client, arena_->session_id, kRows)) != nullptr; },
                     "a writer opens the cache");
        crash::until([&] { return counts().ready.load() == int64_t(workers_.size()); }, "everybody has begun");
        struct stat region;
        if (!find_mapping(&region)) test_die("%s: no mapping of a cache is ours", what_.c_str());
        usleep(useconds_t(random_() % 100'000)); // any moment is a good one
        const pid_t broker = crash::broker_of(arena_->server), keeper = test_server_pid(arena_->server);
        kill(keeper, SIGKILL);
        kill(broker, SIGKILL);
        waitpid(keeper, nullptr, 0);
        keepers_++, brokers_++;
        std::vector<Worker> readers;
        for (const Worker &worker : workers_) {
            if (worker.role == Role::Reader) {
                readers.push_back(worker);
                continue;
            }
            const int status = crash::wait_for(worker.pid);
            if (!WIFEXITED(status) || WEXITSTATUS(status) != kServerGone)
                test_die("%s: a writer ended with wait status %d, not with CACHE_ESERVER", what_.c_str(), status);
        }
        workers_ = readers;
        const int64_t before = counts().rows_read.load();
        crash::until([&] { return counts().rows_read.load() > before + 10'000; }, "readers read on");
        cache_close(handle);
        start_again(); // while they read
        end_workers(SIGKILL);
        crash::until([&] { return users_of(region.st_dev, region.st_ino).empty(); },
                     "nobody holds or maps the dead server's region");
    }

    // Device and inode of the cache that this process has open: the only shared mapping of a deleted file it has.
    static bool find_mapping(struct stat *region) {
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);) {
            char range[64], rights[8];
            unsigned major = 0, minor = 0;
            unsigned long long inode = 0;
            if (sscanf(line.c_str(), "%63s %7s %*s %x:%x %llu", range, rights, &major, &minor, &inode) != 5) continue;
            if (rights[0] != 'r' || rights[1] != '-' || rights[3] != 's' || inode == 0) continue;
            if (stat((std::string("/proc/self/map_files/") + trimmed(range)).c_str(), region) == 0) return true;
        }
        return false;
    }
    // map_files has no leading zeros
    static std::string trimmed(const char *range) {
        unsigned long long from = 0, to = 0;
        char text[64];
        sscanf(range, "%llx-%llx", &from, &to);
        snprintf(text, sizeof text, "%llx-%llx", from, to);
        return text;
    }
};

} // namespace

volatile std::sig_atomic_t ended_early = 0;

int main(int argc, char **argv) {
    const int seconds = argc > 1 ? atoi(argv[1]) : 20;
    const unsigned seed = argc > 2 ? unsigned(atoll(argv[2])) : unsigned(time(nullptr));
    const int scale = argc > 3 ? atoi(argv[3]) : 2;
    std::vector<int> mixtures;
    for (int i = 4; i < argc; i++)
        mixtures.push_back(atoi(argv[i]));
    for (int i = 0; argc <= 4 && i < int(std::size(kMixtures)); i++)
        mixtures.push_back(i);
    for (int mixture : mixtures)
        if (mixture < 0 || mixture >= int(std::size(kMixtures))) test_die("there is no mixture %d", mixture);
    printf("campaign %d %u %d\n", seconds, seed, scale);
    fflush(stdout);
    test_watchdog(unsigned(seconds) + 250);
    Campaign campaign(seed, scale);
    signal(SIGTERM, [](int) { ended_early = 1; });
    const time_t end = time(nullptr) + seconds;
    // Each mixture at least once.
    for (size_t wave = 0; !ended_early && (wave < mixtures.size() || time(nullptr) < end); wave++)
        campaign.wave(int(wave), mixtures[wave % mixtures.size()]);
    campaign.report();
    return 0;
}
