// SPDX-License-Identifier: Apache-2.0
// Several processes and many threads put and get the same rows: each id is stored exactly once.
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <set>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

constexpr int kProcesses = 3, kThreads = 4;
constexpr int64_t kIds = 3000;

// In memory that all processes share: who won which id.
struct Tally {
    std::atomic<int> wins[kIds];
    std::atomic<int> ready;
    static Tally *make() {
        void *memory = mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(memory, MAP_FAILED);
        return new (memory) Tally{};
    }
};

int64_t spread(int64_t n, bool dense) {
    return dense ? n : int64_t(rows::mix(uint64_t(n)) >> 1);
}

// One thread's work: every id, in an order of its own; reads each row that anybody put.
std::string put_all(cache *handle, Tally &tally, unsigned seed, bool dense) {
    std::vector<int64_t> order(kIds);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    for (int64_t n : order) {
        const int64_t id = spread(n, dense);
        const int result = rows::put(handle, id, 500);
        if (result < 0) return "put: " + std::string(cache_last_error());
        if (result == 0) tally.wins[n].fetch_add(1);
        if (std::string wrong = rows::check(handle, id, 500); !wrong.empty()) return wrong;
    }
    return "";
}

// `threads` of them at once. Returns the first complaint.
std::string run_threads(cache *handle, Tally &tally, unsigned seed, bool dense) {
    std::vector<std::string> wrong(kThreads);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; t++)
        threads.emplace_back([&, t] { wrong[t] = put_all(handle, tally, seed * 100 + t, dense); });
    for (std::thread &thread : threads)
        thread.join();
    for (const std::string &text : wrong)
        if (!text.empty()) return text;
    return "";
}

// A process that opens the cache by itself, not through fork.
[[noreturn]] void other_process(uint32_t session_id, Tally &tally, unsigned seed, bool dense) {
    alarm(100);
    cache_client *client;
    cache *handle;
    std::string wrong;
    if (cache_connect(nullptr, &client) || cache_open(client, session_id, 1, nullptr, &handle))
        wrong = cache_last_error();
    else {
        for (tally.ready.fetch_add(1); tally.ready.load() < kProcesses;)
            usleep(100);
        wrong = run_threads(handle, tally, seed, dense);
        cache_close(handle);
        cache_disconnect(client);
    }
    if (!wrong.empty()) fprintf(stderr, "process %d: %s\n", getpid(), wrong.c_str());
    _exit(wrong.empty() ? 0 : 1);
}

void everybody_puts_everything(bool dense) {
    Session s(256 << 20);
    Tally *tally = Tally::make();
    std::vector<pid_t> children;
    for (unsigned child = 0; child < kProcesses; child++) {
        const pid_t pid = fork();
        if (pid == 0) other_process(s.id, *tally, child, dense);
        children.push_back(pid);
    }
    for (pid_t pid : children) {
        int status = 0;
        waitpid(pid, &status, 0);
        cr_assert_eq(status, 0, "a process ended with wait status %d", status);
    }
    for (int64_t n = 0; n < kIds; n++) {
        cr_assert_eq(tally->wins[n].load(), 1, "row %ld was stored %d times", spread(n, dense), tally->wins[n].load());
        RIGHT(rows::check(s.rows, spread(n, dense), 500));
    }
    cr_assert_eq(s.stat().rows_in_memory, kIds);
}

} // namespace

Test(sharing, dense_ids_put_by_3_processes_of_4_threads_are_stored_once) {
    everybody_puts_everything(true);
}
Test(sharing, any_ids_put_by_3_processes_of_4_threads_are_stored_once) {
    everybody_puts_everything(false);
}

Test(sharing, handles_of_one_process_are_one_writer) {
    Session s;
    cache *second = s.open(1, options_with_limit(0));
    for (int64_t id = 0; id < 1000; id++)
        OK(rows::put(id % 2 ? s.rows : second, id));
    for (int64_t id = 0; id < 1000; id++)
        RIGHT(rows::check(id % 2 ? second : s.rows, id));
    cr_assert_eq(s.stat().writers, 1);
    OK(cache_close(second));
    OK(rows::put(s.rows, 1000));
}

Test(sharing, a_process_that_only_reads_is_no_writer) {
    Session s;
    cr_assert_eq(s.stat().writers, 0);
    cache_view view;
    FAILS(cache_get(s.rows, 1, &view), CACHE_ENOTFOUND);
    cr_assert_eq(s.stat().writers, 0);
    OK(rows::put(s.rows, 1));
    cr_assert_eq(s.stat().writers, 1);
}

Test(sharing, threads_that_connect_open_and_close_at_once_do_not_disturb_each_other) {
    Session s;
    std::vector<std::string> wrong(6);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < wrong.size(); t++)
        threads.emplace_back([&, t] {
            for (int64_t round = 0; round < 30 && wrong[t].empty(); round++) {
                cache_client *client;
                cache *handle;
                const int64_t id = int64_t(t) * 1000 + round;
                if (cache_connect(nullptr, &client) || cache_open(client, s.id, 1, nullptr, &handle) ||
                    rows::put(handle, id))
                    wrong[t] = cache_last_error();
                else if ((wrong[t] = rows::check(handle, id)).empty() &&
                         (cache_close(handle) || cache_disconnect(client)))
                    wrong[t] = cache_last_error();
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    for (const std::string &text : wrong)
        RIGHT(text);
    cr_assert_eq(s.stat().rows_in_memory, 6 * 30);
}

// C26 of the original's client tests, without spilling.
Test(sharing, ten_threads_of_500_writes_give_5000_rows) {
    Session s;
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    for (int64_t t = 0; t < 10; t++)
        threads.emplace_back([&, t] {
            for (int64_t n = 0; n < 500; n++)
                failures += rows::put(s.rows, n * 10 + t) != 0;
        });
    for (std::thread &thread : threads)
        thread.join();
    cr_assert_eq(failures.load(), 0);
    cr_assert_eq(s.stat().rows_in_memory, 5000);
    std::set<int64_t> ids;
    int64_t page[512], n;
    for (uint64_t cursor = 0; (n = cache_scan(s.rows, &cursor, page, 512)) > 0;)
        ids.insert(page, page + n);
    cr_assert_eq(*ids.rbegin() - *ids.begin() + 1, 5000);
    cr_assert_eq(ids.size(), 5000);
    for (int64_t id : ids)
        RIGHT(rows::check(s.rows, id));
    OK(cache_destroy(s.client, s.id, 1));
}

Test(sharing, failures_of_one_thread_are_not_those_of_another) {
    Session s;
    FAILS(rows::put(s.rows, -5), CACHE_EINVAL, "-5");
    std::string other = "?";
    std::thread([&] { other = cache_last_error(); }).join();
    cr_assert_str_eq(other.c_str(), "");
    cr_assert(strstr(cache_last_error(), "-5"));
}

Test(sharing, a_session_destroyed_under_many_threads_ends_all_of_them_in_egone) {
    Session s;
    std::atomic<int64_t> written{0};
    std::atomic<int> other_ends{0};
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            int result = 0;
            for (int64_t n = 0; result == 0; n++, written++)
                result = rows::put(s.rows, n * 4 + t, 200);
            if (result != CACHE_EGONE && result != CACHE_EFULL) other_ends++;
            cache_view view;
            for (int64_t n = 0; (result = cache_get(s.rows, n % 100, &view)) == 0 || result == CACHE_ENOTFOUND; n++)
                if (result == 0) cache_view_release(&view);
            if (result != CACHE_EGONE) other_ends++;
        });
    while (written.load() < 1000)
        std::this_thread::yield();
    OK(cache_session_destroy(s.client, s.id));
    for (std::thread &thread : threads)
        thread.join();
    cr_assert_eq(other_ends.load(), 0);
}
