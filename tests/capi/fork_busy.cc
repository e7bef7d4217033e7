// SPDX-License-Identifier: Apache-2.0
// Children of a process whose threads put, spill, append and read at the time of the fork.
#include "tests/support/child.h"
#include "tests/support/rows.h"
#include "tests/support/spilled_rows.h"

#include <atomic>
#include <thread>

namespace {

constexpr int64_t kChildren = 8, kRounds = 4, kRows = 12; // of each child, mostly on disk
constexpr int64_t kKept = 200;                            // the busy threads' ids come again after so many

// One spilling cache to put into, and one to append to.
struct TwoCaches : SpillSession {
    std::vector<int64_t> spilled;
    cache *stream = nullptr;
    TwoCaches() : SpillSession(8 << 20) {
        spilled = spill_rows(*this, 0);
        cache_options options = spilling(4 << 20);
        options.flags = CACHE_BUILD;
        stream = open(2, options);
    }
    ~TwoCaches() { OK(cache_close(stream)); }
};

std::string failure(const char *what, int64_t id, int code) {
    return std::string(what) + " of row " + std::to_string(id) + ": " + std::to_string(code) + " " + cache_last_error();
}

int append(cache *stream, int64_t expected) {
    const rows::Row row(expected, kSpilledLargest);
    int64_t id = -1;
    const int result = cache_append(stream, row.columns(), row.n(), &id);
    return result != 0 ? result : id == expected ? 0 : 1;
}

// What a child does: all that its parent's threads do, and not build.
std::string write_and_read(const TwoCaches &s, int64_t first) {
    if (const int code = append(s.stream, 0); code != CACHE_EBUILDING) return failure("append in a child", 0, code);
    for (int64_t id = first; id < first + kRows; id++)
        if (const int code = rows::put(s.rows, id, kSpilledLargest)) return failure("put", id, code);
    if (const int code = cache_flush(s.rows)) return failure("flush", first, code);
    for (int64_t id = first; id < first + kRows; id++)
        if (std::string wrong = rows::check(s.rows, id, kSpilledLargest); !wrong.empty()) return wrong;
    return read_batch(s.rows, s.spilled);
}

} // namespace

Test(fork_busy, children_of_a_process_that_spills_and_appends_do_so_by_themselves) {
    if (kSanitized)
        SKIP("a fork beside a thread that allocates: the sanitizer's own allocator lock stays held in the child");
    TwoCaches s;
    int64_t appended = 0;
    OK(cache_build_begin(s.stream, &appended));
    std::atomic<bool> stop{false};
    std::string put_wrong, append_wrong, read_wrong;
    std::atomic<int64_t> done[3] = {};
    std::vector<std::thread> busy;
    busy.emplace_back([&] {
        for (int64_t n = 0; !stop.load() && put_wrong.empty(); done[0] = ++n)
            if (const int code = rows::put(s.rows, 1'000'000 + n % kKept, kSpilledLargest); code < 0)
                put_wrong = failure("put", n, code);
    });
    busy.emplace_back([&] {
        for (; !stop.load() && appended < kKept && append_wrong.empty(); done[1] = appended)
            if (const int code = append(s.stream, appended++)) append_wrong = failure("append", appended, code);
    });
    busy.emplace_back([&] {
        for (int64_t n = 0; !stop.load() && read_wrong.empty(); done[2] = ++n)
            read_wrong = read_batch(s.rows, s.spilled);
    });
    while (done[0].load() == 0 || done[1].load() == 0 || done[2].load() == 0)
        std::this_thread::yield();
    std::string wrong;
    for (int64_t round = 0; round < kRounds; round++) {
        std::vector<pid_t> children;
        for (int64_t child = 0; child < kChildren; child++)
            children.push_back(spawn([&] { return write_and_read(s, (child + 1) << 40 | round << 20); }));
        for (const pid_t child : children)
            if (std::string bad = outcome(child); !bad.empty()) wrong = bad;
    }
    stop = true;
    for (std::thread &thread : busy)
        thread.join();
    for (const std::string &bad : {wrong, put_wrong, append_wrong, read_wrong})
        RIGHT(bad);
    OK(cache_build_done(s.stream));
    for (int64_t id = 0; id < appended; id++)
        RIGHT(rows::check(s.stream, id, kSpilledLargest));
    for (int64_t child = 0; child < kChildren; child++)
        for (int64_t round = 0; round < kRounds; round++)
            for (int64_t id = 0; id < kRows; id++)
                RIGHT(rows::check(s.rows, ((child + 1) << 40 | round << 20) + id, kSpilledLargest));
}
