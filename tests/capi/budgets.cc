// SPDX-License-Identifier: Apache-2.0
// Limits: what a cache may hold, what joining one says, who makes room for whom, and what happens when nobody does.
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

constexpr uint64_t MiB = 1 << 20;

// The row sizes of the demonstration: 28 x 28 bytes and a label.
constexpr uint64_t kSmallRow = 788;

void pause_a_moment() {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// A row of exactly so many bytes.
int put_exactly(cache *handle, int64_t id, uint64_t bytes) {
    static const std::vector<char> zeros(64 * MiB);
    const Bytes column(zeros.data(), bytes);
    return cache_put(handle, id, &column.column, 1);
}

// Puts rows from `first` on until the cache is full. How many.
int64_t fill(cache *handle, int64_t first, uint64_t bytes, int64_t most = INT64_MAX) {
    int64_t count = 0;
    for (; count < most; ++count) {
        const int result = put_exactly(handle, first + count, bytes);
        if (result == CACHE_EFULL) break;
        cr_assert_eq(result, 0, "row %lld: %s", (long long)(first + count), cache_last_error());
    }
    return count;
}

bool exists(const Session &s, uint32_t session, uint32_t cache_id) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.flags = CACHE_NO_CREATE;
    cache *handle = nullptr;
    const int result = cache_open(s.client, session, cache_id, &options, &handle);
    if (result == 0) OK(cache_close(handle));
    cr_assert(result == 0 || result == CACHE_ENOTFOUND, "%s", cache_last_error());
    return result == 0;
}

cache_server_stats info_of(const Session &s) {
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    return info;
}

// Arguments of a server that may use about `bytes` and leaves nothing to others but the margin.
struct SmallServer {
    std::string ratio;
    std::vector<const char *> words;
    explicit SmallServer(uint64_t bytes, std::vector<const char *> more = {}) {
        std::ifstream meminfo("/proc/meminfo");
        std::string name;
        uint64_t kib = 0;
        meminfo >> name >> kib;
        char text[32];
        snprintf(text, sizeof text, "%.9f", double(bytes) / double(kib * 1024));
        ratio = text;
        words = {"--memory_cap_ratio", ratio.c_str(), "--headroom", "0"};
        words.insert(words.end(), more.begin(), more.end());
        words.push_back(nullptr);
    }
};

std::string log_of(const Session &s) {
    std::ifstream file(std::string(test_server_socket(s.server)) + ".log");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

// What the kernel holds in the file that this row lies in: the broker has it open, and we have it mapped.
int64_t pages_of_file(const Session &s, cache *handle, int64_t id) {
    cache_view view{};
    cache_column column{};
    OK(cache_get(handle, id, &view));
    OK(cache_view_column(&view, 0, &column));
    ino_t inode = 0;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        uintptr_t first = 0, end = 0;
        unsigned long number = 0;
        const int fields = sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %lu", &first, &end, &number);
        const auto address = reinterpret_cast<uintptr_t>(column.data);
        if (fields == 3 && first <= address && address < end) inode = number;
    }
    OK(cache_view_release(&view));
    cr_assert_neq(inode, 0);
    for (const auto &entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(info_of(s).broker_pid) + "/fd"))
        if (struct stat file{}; stat(entry.path().c_str(), &file) == 0 && file.st_ino == inode && S_ISREG(file.st_mode))
            return int64_t(file.st_blocks) * 512;
    cr_assert_fail("the broker does not have the file of inode %lu", (unsigned long)inode);
    return -1;
}

struct SmallSession : SmallServer, Session {
    explicit SmallSession(uint64_t bytes, std::vector<const char *> more = {})
        : SmallServer(bytes, more), Session(2 * MiB, words.data()) {}
};

} // namespace

// ---- limits
// -------------------------------------------------------------------------------------------------------------

Test(budgets, no_limit_is_too_odd_for_a_sentence, .timeout = 60) {
    Session s;
    for (uint64_t limit : {uint64_t{1}, uint64_t{4096}, MiB - 1}) {
        const cache_options options = options_with_limit(limit);
        cache *handle = nullptr;
        FAILS(cache_open(s.client, s.id, 2, &options, &handle), CACHE_EINVAL, "too small", std::to_string(limit));
        cr_assert_null(handle);
    }
    cache *all = s.open(3, options_with_limit(0));
    cr_assert_gt(s.stat(all).limit_bytes, int64_t(64 * MiB), "0: what the server may use");
    OK(rows::put(all, 0, 100));
    OK(cache_close(all));
}

Test(budgets, zero_is_what_the_others_leave, .timeout = 60) {
    SmallSession s(60 * MiB);
    const int64_t all = info_of(s).memory_limit_bytes;
    cr_assert_eq(fill(s.rows, 0, 100'000, 10), 10);
    cache *first = s.open(2, options_with_limit(0));
    cr_assert_eq(fill(first, 0, 100'000, 300), 300);
    const int64_t before = info_of(s).memory_used_bytes;
    cache *second = s.open(3, options_with_limit(0));
    const int64_t limit = s.stat(second).limit_bytes;
    cr_assert_leq(limit, all - 310 * 100'000, "the others' rows alone leave less");
    cr_assert_geq(limit, all - before - int64_t(4 * MiB), "%lld of %lld bytes are used, the limit is %lld",
                  (long long)before, (long long)all, (long long)limit);
    (void)fill(second, 0, 100'000);
    cr_assert_leq(info_of(s).memory_used_bytes, all);
    OK(cache_close(second));
    OK(cache_close(first));
}

// On both backings, also where the limit is no multiple of a huge page or of a chunk.
Test(budgets, a_full_cache_has_no_more_pages_than_its_limit, .timeout = 60) {
    NEEDS_MADVISE("pages that the server makes");
    for (const char *backing : {"memfd", "auto"}) {
        const char *const arguments[] = {"--backing", backing, nullptr};
        Session s(2 * MiB, arguments);
        for (uint64_t limit : {MiB, MiB + 1, 2 * MiB - 1, 2 * MiB, 2 * MiB + 1, 3 * MiB + 65'537, 16 * MiB + 4'095}) {
            cache *handle = s.open(2, options_with_limit(limit));
            cr_assert_gt(fill(handle, 0, kSmallRow), 0);
            const cache_stats stats = s.stat(handle);
            const int64_t pages = pages_of_file(s, handle, 0);
            cr_assert_leq(stats.charged_bytes, int64_t(limit));
            cr_assert_leq(pages, stats.charged_bytes, "limit %llu on %s: pages nobody counts",
                          (unsigned long long)limit, backing);
            cr_assert_geq(pages, stats.used_bytes + stats.index_bytes);
            OK(cache_close(handle));
            OK(cache_destroy(s.client, s.id, 2));
        }
    }
}

Test(budgets, full_names_the_row_its_bytes_the_limit_and_what_helps, .timeout = 60) {
    Session s;
    cache *small = s.open(2, options_with_limit(MiB));
    const int64_t rows = fill(small, 0, 3000);
    for (int hinted = 0; hinted < 2; hinted++) { // by the server, then by the hint in the region
        long long row = -1, bytes = 0;
        FAILS(put_exactly(small, rows, 3000), CACHE_EFULL, "limit of 1048576 bytes", "a larger memory limit",
              "or spilling");
        cr_assert_eq(sscanf(cache_last_error(), "row %lld of %lld bytes", &row, &bytes), 2, "%s", cache_last_error());
        cr_assert_eq(row, rows);
        cr_assert(bytes >= 3000 && bytes < 3200, "a header and 3000 bytes: %s", cache_last_error());
    }
    OK(cache_close(small));
}

Test(budgets, full_names_an_appended_row_by_the_id_it_would_have_had, .timeout = 60) {
    Session s;
    cache_options options = options_with_limit(MiB);
    options.flags = CACHE_BUILD;
    cache *stream = s.open(2, options);
    int64_t next = 0, id = 0;
    OK(cache_build_begin(stream, &next));
    const std::vector<char> zeros(3000);
    const Bytes column(zeros.data(), zeros.size());
    int result;
    while ((result = cache_append(stream, &column.column, 1, &id)) == 0)
        next = id + 1;
    cr_assert_eq(result, CACHE_EFULL);
    FAILS(cache_append(stream, &column.column, 1, &id), CACHE_EFULL, "row " + std::to_string(next) + " of ");
    OK(cache_close(stream));
}

// The largest row that fits, and one unit more.
Test(budgets, one_row_less_one_byte_is_full_and_the_row_before_fits, .timeout = 60) {
    Session s;
    cache *small = s.open(2, options_with_limit(MiB));
    const int64_t most = s.stat(small).largest_free_bytes;
    uint64_t fits = 0, refused = uint64_t(most) + 1;
    cr_assert_eq(put_exactly(small, 1, refused), CACHE_EFULL);
    cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_SIZE});
    cr_assert_eq(put_exactly(small, 1, refused), CACHE_EFULL, "now by the hint in the region");
    cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_SIZE});
    while (refused - fits > 1) { // rows go, so each try is a cache of its own
        const uint64_t size = (fits + refused) / 2;
        cache *fresh = s.open(9, options_with_limit(MiB));
        const int result = put_exactly(fresh, 0, size);
        cr_assert(result == 0 || result == CACHE_EFULL, "%s", cache_last_error());
        cr_assert_leq(s.stat(fresh).charged_bytes, int64_t(MiB));
        (result == 0 ? fits : refused) = size;
        if (result == CACHE_EFULL) OK(rows::put(fresh, 1, 100)); // the others go on
        OK(cache_close(fresh));
        OK(cache_destroy(s.client, s.id, 9));
    }
    cr_assert_geq(fits, MiB / 2, "a row of %llu bytes is all that fits in 1 MiB", (unsigned long long)fits);
    OK(cache_close(small));
}

Test(budgets, eight_writers_of_small_rows_fill_the_limit, .timeout = 120) {
    Session s;
    constexpr int64_t kLimit = 100 * MiB;
    cache *handle = s.open(2, options_with_limit(kLimit));
    auto *ready = static_cast<std::atomic<int> *>(
        mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    std::vector<pid_t> children;
    for (int64_t w = 0; w < 8; ++w) {
        const pid_t child = fork();
        if (child == 0) {
            ready->fetch_add(1);
            while (ready->load() < 8)
                pause_a_moment();
            // Round after round, until all of them are refused at the same time.
            int64_t next = w;
            for (int result = 0; result != CACHE_EFULL; next += 8)
                if (result = put_exactly(handle, next, kSmallRow); result != 0 && result != CACHE_EFULL) _exit(1);
            _exit(0);
        }
        children.push_back(child);
    }
    for (pid_t child : children) {
        int status;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a writer failed: %x", status);
    }
    const cache_stats stats = s.stat(handle);
    cr_assert_leq(stats.charged_bytes, kLimit);
    // Rows with their headers; the rest is tables, index, and what is too short for a row.
    cr_assert_geq(stats.rows_in_memory * int64_t(kSmallRow + 32), kLimit / 10 * 9, "%lld rows in %lld bytes",
                  (long long)stats.rows_in_memory, (long long)kLimit);
    munmap(ready, sizeof *ready);
    OK(cache_close(handle));
}

// At the first refusal: nobody waits until those seven count as idle.
Test(budgets, what_others_do_not_use_goes_to_who_needs_it, .timeout = 60) {
    Session s;
    constexpr int64_t kLimit = 100 * MiB;
    cache *handle = s.open(2, options_with_limit(kLimit));
    int written[2], done[2];
    cr_assert(pipe(written) == 0 && pipe(done) == 0);
    std::vector<pid_t> children;
    for (int64_t w = 0; w < 7; ++w) {
        const pid_t child = fork();
        if (child == 0) {
            close(done[1]);
            if (put_exactly(handle, w, kSmallRow) != 0 || write(written[1], "w", 1) != 1) _exit(1);
            char byte;
            _exit(read(done[0], &byte, 1) == 0 ? 0 : 1); // until the test closes its end
        }
        children.push_back(child);
    }
    char byte;
    for (size_t w = 0; w < children.size(); ++w)
        cr_assert_eq(read(written[0], &byte, 1), 1);
    (void)fill(handle, 7, kSmallRow);
    const cache_stats stats = s.stat(handle);
    cr_assert_leq(stats.charged_bytes, kLimit);
    // Each of the seven keeps the pages that its next row may go to: on huge pages a whole one.
    const int64_t for_rows = kLimit - 7 * int64_t(stats.huge_pages != 0 ? 2 * MiB : 64 << 10);
    cr_assert_geq(stats.rows_in_memory * int64_t(kSmallRow + 32), for_rows / 10 * 9, "%lld rows in %lld bytes",
                  (long long)stats.rows_in_memory, (long long)kLimit);
    close(done[1]);
    for (pid_t child : children) {
        int status;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0, "a writer failed: %x", status);
    }
    for (int fd : {written[0], written[1], done[0]})
        close(fd);
    OK(cache_close(handle));
}

Test(budgets, what_is_lent_ahead_comes_back_when_its_writer_is_idle, .timeout = 60) {
    Session s(256 * MiB);
    OK(rows::put(s.rows, 0, 100));
    while (s.stat().charged_bytes > int64_t(8 * MiB)) // the test's deadline ends this
        pause_a_moment();
    OK(rows::put(s.rows, 1, 100));
    fill(s.rows, 2, 100'000, 500);
    RIGHT(rows::check(s.rows, 0, 100));
    RIGHT(rows::check(s.rows, 1, 100));
}

// Not only in the end: what was made at any time counts, so the cache is asked while it is written.
Test(budgets, no_more_is_lent_ahead_than_the_expected_rows_take, .timeout = 60) {
    Session s;
    constexpr int64_t kRows = 30'000, kRowBytes = 3'076;
    cache_options options = options_with_limit(1024 * MiB);
    options.expected_rows = kRows;
    cache *handle = s.open(2, options);
    int64_t most = 0;
    for (int64_t id = 0; id < kRows; ++id) {
        OK(put_exactly(handle, id, kRowBytes));
        if (id % 1'000 == 999) most = std::max(most, s.stat(handle).charged_bytes);
    }
    const int64_t used = s.stat(handle).used_bytes;
    cr_assert_leq(most, used + used / 8 + int64_t(4 * MiB), "%lld bytes were made for rows that take %lld",
                  (long long)most, (long long)used);
    // It is a hint: more rows come as before.
    for (int64_t id = kRows; id < 2 * kRows; ++id)
        OK(put_exactly(handle, id, kRowBytes));
    OK(cache_close(handle));
}

// LIBCACHE_BIG_ROW_ROUNDS=1000 makes the long run of it.
Test(budgets, big_rows_and_small_ones_in_any_order_waste_little, .timeout = 1200) {
    Session s;
    constexpr int64_t kLimit = 64 * MiB;
    const char *const wanted = getenv("LIBCACHE_BIG_ROW_ROUNDS");
    const int rounds = wanted != nullptr ? atoi(wanted) : 20;
    uint64_t seed = 7;
    for (int round = 0; round < rounds; ++round) {
        cache *handle = s.open(2, options_with_limit(kLimit));
        int64_t id = 0;
        int full = 0;
        uint64_t stored = 0;
        while (full < 40) { // big rows stop fitting long before small ones do
            seed = rows::mix(seed);
            const uint64_t bytes = seed % 8 == 0 ? seed % (6 * MiB) + 1 : seed % 3000 + 1;
            const int result = put_exactly(handle, id++, bytes);
            cr_assert(result == 0 || result == CACHE_EFULL, "%s", cache_last_error());
            result == 0 ? stored += bytes : uint64_t(full += bytes < 3000 ? 1 : 0);
        }
        const cache_stats stats = s.stat(handle);
        cr_assert_leq(stats.charged_bytes, kLimit);
        cr_assert_geq(stats.used_bytes, kLimit / 10 * 9, "round %d: %lld of %lld bytes hold rows, longest free %lld",
                      round, (long long)stats.used_bytes, (long long)kLimit, (long long)stats.largest_free_bytes);
        OK(cache_close(handle));
        OK(cache_destroy(s.client, s.id, 2));
    }
}

// ---- joining
// ------------------------------------------------------------------------------------------------------------

Test(budgets, joining_says_how_the_cache_differs, .timeout = 60) {
    const char *const arguments[] = {"--spilldir", "/var/tmp", nullptr};
    Session s(32 * MiB, arguments);
    cache *same = nullptr, *other = nullptr, *any = nullptr, *spilling = nullptr;
    cache_options options = options_with_limit(32 * MiB);
    OK(cache_open(s.client, s.id, 1, &options, &same));
    options = options_with_limit(0);
    OK(cache_open(s.client, s.id, 1, &options, &any));
    options = options_with_limit(48 * MiB);
    FAILS(cache_open(s.client, s.id, 1, &options, &other), 1, "33554432", "50331648");
    OK(rows::put(other, 7, 100));
    RIGHT(rows::check(any, 7, 100));
    options = options_with_limit(0);
    options.spill = 1;
    FAILS(cache_open(s.client, s.id, 1, &options, &spilling), 1, "without spilling");
    for (cache *handle : {same, other, any, spilling})
        OK(cache_close(handle));
}

// ---- room
// ---------------------------------------------------------------------------------------------------------------

// What one process is refused is said to all of them by the hint in the region: of its size and more.
Test(budgets, a_refusal_of_one_process_is_not_the_others, .timeout = 60) {
    Session s(16 * MiB);
    OK(put_exactly(s.rows, 0, kSmallRow));
    const pid_t child = fork();
    if (child == 0) {
        const bool refused = put_exactly(s.rows, 1, 16 * MiB) == CACHE_EFULL;
        _exit(refused && put_exactly(s.rows, 2, kSmallRow) == 0 ? 0 : 1);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "the writer that is refused a row: %x", status);
    cr_assert_gt(fill(s.rows, 3, kSmallRow), int64_t(16 * MiB / (kSmallRow + 64) / 10 * 9));
    cr_assert_eq(fill(s.rows, 1, 16 * MiB, 1), 0);
}

Test(budgets, full_ends_when_another_session_ends, .timeout = 60) {
    SmallSession s(40 * MiB);
    uint32_t second = 0;
    OK(cache_session_create(s.client, &second));
    cache *hog = nullptr, *victim = nullptr;
    OK(cache_open(s.client, second, 1, nullptr, &hog));
    cr_assert_gt(fill(hog, 0, 100'000), 350);
    const cache_options options = options_with_limit(20 * MiB);
    const int opened = cache_open(s.client, s.id, 2, &options, &victim);
    if (opened == 0) cr_assert_eq(put_exactly(victim, 0, 3 * MiB), CACHE_EFULL);
    FAILS(put_exactly(hog, 999'999, 3 * MiB), CACHE_EFULL, "row 999999", "limit");
    const cache_options too_much = options_with_limit(200 * MiB);
    cache *none = nullptr;
    FAILS(cache_open(s.client, s.id, 3, &too_much, &none), CACHE_EFULL, "209715200");
    cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_SERVER});
    cache_view view{};
    OK(cache_get(hog, 0, &view));
    OK(cache_view_release(&view));
    OK(cache_session_destroy(s.client, second));
    OK(cache_close(hog));
    if (opened != 0) OK(cache_open(s.client, s.id, 2, &options, &victim));
    int result;
    while ((result = put_exactly(victim, 0, 3 * MiB)) == CACHE_EFULL) // its memory is free a moment later
        pause_a_moment();
    OK(result);
    OK(cache_close(victim));
}

Test(budgets, full_tells_the_caches_own_limit_from_the_servers, .timeout = 60) {
    SmallSession s(40 * MiB);
    cache *first = s.open(2, options_with_limit(24 * MiB)), *second = s.open(3, options_with_limit(24 * MiB));
    cr_assert_gt(fill(first, 0, 100'000), 200);
    cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_SIZE}, "%s", cache_last_error());
    cr_assert_gt(fill(second, 0, 100'000), 50);
    cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_SERVER}, "%s", cache_last_error());
    FAILS(put_exactly(second, 999'999, 100'000), CACHE_EFULL, "row 999999", "--memory_cap_ratio", "or spilling");
    OK(cache_close(first));
    OK(cache_close(second));
}

Test(budgets, old_caches_make_room_least_recently_used_first, .timeout = 60) {
    SmallSession s(60 * MiB);
    uint32_t kept = 0;
    cache_session_options keep = CACHE_SESSION_OPTIONS_INIT;
    keep.flags = CACHE_SESSION_KEEP;
    OK(cache_session_create_with(s.client, &keep, &kept));
    const auto leave = [&](uint32_t session, uint32_t cache_id) {
        cache *handle = nullptr;
        const cache_options options = options_with_limit(14 * MiB);
        OK(cache_open(s.client, session, cache_id, &options, &handle));
        cr_assert_eq(fill(handle, 0, 100'000, 110), 110);
        OK(cache_close(handle));
        pause_a_moment();
    };
    leave(kept, 1);
    leave(s.id, 11);
    leave(s.id, 12);
    cr_assert(exists(s, s.id, 11)); // used once more: 12 is the older one now
    cr_assert_eq(log_of(s).find("is dropped"), std::string::npos, "nothing was short so far");
    cache *fresh = nullptr;
    OK(cache_open(s.client, s.id, 13, nullptr, &fresh));
    cr_assert_eq(fill(fresh, 0, 100'000, 300), 300, "it fits when one of them goes");
    cr_assert_not(exists(s, s.id, 12), "the least recently used one:\n%s", log_of(s).c_str());
    cr_assert(exists(s, s.id, 11));
    // 44 of some 48.9 MB: what is lent while room comes in pieces leaves ends too short for such a row.
    cr_assert_eq(fill(fresh, 300, 100'000, 140), 140, "and when the other one goes too");
    cr_assert_not(exists(s, s.id, 11));
    cr_assert(exists(s, kept, 1), "a kept session's caches stay");
    cr_assert(exists(s, s.id, 1), "what is open stays");
    const std::string log = log_of(s);
    size_t lines = 0;
    for (size_t at = 0; (at = log.find("is dropped", at)) != std::string::npos; ++at)
        ++lines;
    cr_assert_eq(lines, 2, "one line each:\n%s", log.c_str());
    OK(cache_close(fresh));
}

Test(budgets, idle_caches_go_after_their_time_and_kept_ones_stay, .timeout = 60) {
    const char *const arguments[] = {"--idle_ttl", "1", nullptr};
    Session s(8 * MiB, arguments);
    uint32_t kept = 0;
    cache_session_options keep = CACHE_SESSION_OPTIONS_INIT;
    keep.flags = CACHE_SESSION_KEEP;
    keep.name = "a kept one";
    OK(cache_session_create_with(s.client, &keep, &kept));
    cache *handle = nullptr;
    OK(cache_open(s.client, kept, 1, nullptr, &handle));
    OK(cache_close(handle));
    cache *idle = s.open(2, options_with_limit(4 * MiB));
    OK(rows::put(idle, 1, 100));
    OK(cache_close(idle));
    while (info_of(s).caches != 2) // not asked by opening it: that would be a use
        pause_a_moment();
    cr_assert_not(exists(s, s.id, 2));
    cr_assert(exists(s, kept, 1));
    RIGHT(rows::put(s.rows, 5, 100) == 0 ? "" : cache_last_error());
}

// ---- headroom
// -----------------------------------------------------------------------------------------------------------

Test(budgets, nothing_is_lent_out_of_the_headroom, .timeout = 60) {
    const std::string more = std::to_string(test_memory_available() / MiB + 4096);
    const char *const arguments[] = {"--headroom", more.c_str(), nullptr};
    test_server *server = test_server_start(arguments);
    cache_client *client = nullptr;
    OK(cache_connect(nullptr, &client));
    uint32_t session = 0;
    OK(cache_session_create(client, &session));
    cache *handle = nullptr;
    FAILS(cache_open(client, session, 1, nullptr, &handle), CACHE_EFULL, "--headroom");
    cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_MEMORY});
    FAILS(cache_session_destroy(client, session + 1), CACHE_ENOSESSION);
    cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_UNKNOWN}, "of a failure that is another one");
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(client, &info));
    cr_assert_eq(info.headroom_bytes >> 20, std::stoll(more));
    cr_assert_lt(info.available_bytes, info.headroom_bytes);
    cr_assert_gt(info.available_bytes, 0);
    OK(cache_disconnect(client));
    test_server_stop(server);
}
