// SPDX-License-Identifier: Apache-2.0
// keeper_points: the keeper dies at each of its pause points. At those it passes while a broker serves, the broker goes
// on: nobody sees an error, nothing stays held, and the server says that it is unsupervised. At those it passes between
// two brokers both are gone: reads go on, puts end in CACHE_ESERVER, and no process of the server is left. Either way
// another server starts at once in the same place. The list of points is made from keeper.cc by the Makefile. Before
// them, the keeper dies while nobody asks for anything, and is asked for brokers that die early and late.
#include "tests/crash/doomed.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <sys/prctl.h>

namespace {

const char *const kPoints[] = {
#include "keeper_points.inc"
};
const std::set<std::string> kBetweenBrokers = {"keeper.died.1", "keeper.start.1", "keeper.batch.1"};
constexpr uint64_t kSmall = 200;
constexpr int64_t kRows = 500;

void put(cache *handle, int64_t id) {
    if (rows::put(handle, id, kSmall) < 0) crash::must(CACHE_EIO, "a put");
}

void check_rows(cache *handle) {
    for (int64_t id = 0; id < kRows; id++)
        if (const std::string wrong = rows::check(handle, id, kSmall); !wrong.empty()) test_die("%s", wrong.c_str());
}

// A process connects, a cache is made, filled and destroyed: descriptors are deposited and forgotten.
void round_of_work(crash::Doomed &doomed) {
    cache_client *client = doomed.arena->client;
    uint32_t session = 0;
    crash::must(cache_session_create(client, &session), "cache_session_create");
    const int status = crash::wait_for(crash::spawn([&] {
        cache_client *other = nullptr;
        crash::must(cache_connect(nullptr, &other), "cache_connect");
        cache *handle = crash::open_cache(other, session, 1, 8 << 20);
        for (int64_t id = 0; id < kRows; id++)
            put(handle, id);
        check_rows(handle);
        return 0; // without a word: its death is noticed
    }));
    if (status != 0) test_die("a writer ended with wait status %d", status);
    cache *handle = crash::open_cache(client, session, 1, 8 << 20);
    check_rows(handle);
    put(handle, kRows);
    cache_close(handle);
    crash::must(cache_destroy(client, session, 1), "cache_destroy");
    crash::must(cache_session_destroy(client, session), "cache_session_destroy");
}

void wait_for_keeper(const crash::Doomed &doomed, const char *point) {
    const int status = crash::wait_for(test_server_pid(doomed.arena->server));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        test_die("%s: the keeper ended with wait status %d", point, status);
}

// Orphans are ours (PR_SET_CHILD_SUBREAPER), so that nothing of the server can hide.
void wait_for_all(const char *point) {
    crash::until(
        [] {
            pid_t ended;
            while ((ended = waitpid(-1, nullptr, WNOHANG)) > 0) {
            }
            return ended < 0 && errno == ECHILD;
        },
        (std::string(point) + ": every process of the server has ended").c_str());
}

void start_again(crash::Doomed &doomed) {
    cache_disconnect(doomed.arena->client);
    test_server_start_again(doomed.arena->server, nullptr);
    crash::must(cache_connect(nullptr, &doomed.arena->client), "cache_connect to the next server");
    doomed.orders.take_back();
    round_of_work(doomed);
}

void dies_beside_a_broker(const char *point, uint64_t passage) {
    crash::Doomed doomed(nullptr);
    doomed.orders.give(point, passage);
    for (int rounds = 0; doomed.orders.obeyed() == 0; rounds++) {
        if (rounds == 20) test_die("no keeper came to %s: the test does not test it", point);
        round_of_work(doomed);
    }
    wait_for_keeper(doomed, point);
    round_of_work(doomed);
    crash::until(
        [&] {
            const cache_server_stats info = crash::server_info(doomed.arena->client);
            return info.supervised == 0 && info.keeper_pid == 0 && info.sessions == doomed.sessions &&
                   info.caches == 0 && info.memory_used_bytes == doomed.memory && info.clients == 1;
        },
        (std::string(point) + ": the server is unsupervised, and holds what it did before").c_str());
    crash::must(cache_server_stop(doomed.arena->client), "cache_server_stop without a keeper");
    wait_for_all(point);
    start_again(doomed);
}

// The broker has nothing to deposit or to forget: it must be looking at the link.
void dies_unasked() {
    crash::Doomed doomed(nullptr);
    kill(test_server_pid(doomed.arena->server), SIGKILL);
    wait_for_keeper(doomed, "unasked");
    crash::until([&] { return crash::server_info(doomed.arena->client).supervised == 0; },
                 "the broker notices by itself that its keeper is dead");
    crash::must(cache_server_stop(doomed.arena->client), "cache_server_stop without a keeper");
    wait_for_all("unasked");
    start_again(doomed);
}

// The last pause before a start of which the log tells, in ms; -1: of none.
int told_pause(const std::string &log_path) {
    std::ifstream log(log_path);
    int pause = -1;
    for (std::string line; std::getline(log, line);)
        if (const size_t at = line.find("the next starts in "); at != std::string::npos)
            pause = atoi(line.c_str() + at + strlen("the next starts in "));
    return pause;
}

void next_broker(crash::Doomed &doomed) {
    const int64_t generation = crash::server_info(doomed.arena->client).generation;
    doomed.kill_broker();
    crash::until([&] { return crash::server_info(doomed.arena->client).generation > generation; }, "the next broker");
}

// Brokers that die early are started later and later; one that lived for a while is followed at once.
void backs_off_and_forgets_it() {
    crash::Doomed doomed(nullptr);
    const std::string log = crash::server_info(doomed.arena->client).log_path;
    crash::until([&] { return next_broker(doomed), told_pause(log) > 0; }, "brokers that die early are started later");
    const auto since = std::chrono::steady_clock::now();
    crash::until([&] { return std::chrono::steady_clock::now() - since > std::chrono::milliseconds(600); },
                 "the broker has lived longer than kStableAfter of keeper.cc, with pause points");
    next_broker(doomed);
    if (told_pause(log) != 0) test_die("after a broker that lived, the next started in %d ms", told_pause(log));
}

void dies_between_brokers(const char *point, uint64_t passage) {
    crash::Doomed doomed(nullptr);
    cache *handle = crash::open_cache(doomed.arena->client, doomed.arena->session_id, 1, 8 << 20);
    for (int64_t id = 0; id < kRows; id++)
        put(handle, id);
    doomed.orders.give(point, passage);
    doomed.kill_broker();
    crash::until([&] { return doomed.orders.obeyed() == 1; },
                 (std::string(point) + ": the keeper dies there when its broker has died").c_str());
    wait_for_keeper(doomed, point);
    wait_for_all(point);
    int result = 0;
    for (int64_t id = kRows; result == 0; id++)
        result = rows::put(handle, id, kSmall);
    if (result != CACHE_ESERVER) test_die("%s: a put ended in %d: %s", point, result, cache_last_error());
    check_rows(handle);
    start_again(doomed);
    check_rows(handle); // of the dead server
    cache_close(handle);
}

} // namespace

int main() {
    test_watchdog(200);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    dies_unasked();
    backs_off_and_forgets_it();
    for (const char *point : kPoints) {
        const bool between = kBetweenBrokers.count(point) != 0;
        for (uint64_t passage : {1, 2, 3}) {
            if (between && passage > 1 && point != std::string("keeper.batch.1")) break; // passed once a broker
            if (between && passage > 2) break; // the second batch is the empty one
            (between ? dies_between_brokers : dies_beside_a_broker)(point, passage);
            printf("%s, passage %d\n", point, int(passage));
            fflush(stdout);
        }
    }
    return 0;
}
