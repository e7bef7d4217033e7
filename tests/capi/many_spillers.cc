// SPDX-License-Identifier: Apache-2.0
// Many processes that spill into one small cache: each needs a piece of memory of its own for the stubs of its rows.
#include "core/shm/layout.h"
#include "tests/support/spill.h"

#include <functional>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr uint64_t kLargest = 20'000; // bytes of a row's big column
constexpr int64_t kSomeRows = 400;    // of each writer

// Writers that stay until all of them have ended their part: none leaves its memory to another.
class Writers {
  public:
    Writers(int count, const std::function<void(int)> &part) {
        cr_assert(pipe(done_) == 0 && pipe(go_) == 0);
        for (int i = 0; i < count; i++) {
            const pid_t child = fork();
            if (child == 0) {
                close(go_[1]);
                part(i);
                (void)!write(done_[1], "", 1);
                close(done_[1]); // so that the parent sees if another one ends without
                char byte;
                (void)!read(go_[0], &byte, 1); // until the parent closes it, or ends
                _exit(0);
            }
            children_.push_back(child);
        }
        close(done_[1]);
        close(go_[0]);
        for (int i = 0; i < count; i++) {
            char byte;
            cr_assert_eq(read(done_[0], &byte, 1), 1, "a writer ended before its time");
        }
    }
    Writers(const Writers &) = delete;
    Writers &operator=(const Writers &) = delete;
    ~Writers() {
        close(go_[1]);
        for (const pid_t child : children_) {
            int status = -1;
            cr_assert_eq(waitpid(child, &status, 0), child);
            cr_assert_eq(status, 0);
        }
        close(done_[0]);
    }

  private:
    int done_[2], go_[2];
    std::vector<pid_t> children_;
};

int64_t id_of(int writer, int64_t row) {
    return writer * kSomeRows + row;
}

} // namespace

// What libcache(7) promises: 512 KiB of the limit for each, also when rows have filled it before the last of them came,
// and when the index grows.
Test(many_spillers, are_not_refused_with_512_kib_of_the_limit_each, .timeout = 120) {
    for (const int count : {6, 12, 24}) {
        SpillSession s;
        cache_options options = CACHE_OPTIONS_INIT;
        options.memory_limit_bytes = uint64_t(count) * (512 << 10);
        options.spill = 1;
        cache *handle = nullptr;
        OK(cache_open(s.client, s.id, 2, &options, &handle));
        {
            const Writers writers(count, [&](int i) {
                for (int64_t row = 0; row < kSomeRows; row++)
                    if (rows::put(handle, id_of(i, row), kLargest) != 0)
                        test_die("row %ld of writer %d of %d: %s", long(row), i, count, cache_last_error());
                if (cache_flush(handle) != 0) test_die("%s", cache_last_error());
            });
            cr_assert_eq(s.stat(handle).writers, count);
        }
        cr_assert_gt(s.stat(handle).rows_spilled, count * kSomeRows / 2);
        for (int i = 0; i < count; i++)
            for (int64_t row = 0; row < kSomeRows; row += 37)
                RIGHT(rows::check(handle, id_of(i, row), kLargest));
        OK(cache_close(handle));
    }
}

// Stubs leave room to the index: who is refused is refused before his row is written, for want of memory for its stub,
// and the limit has held a row for each 128 bytes of the quarter that it keeps for stubs and index.
Test(many_spillers, are_never_refused_for_want_of_an_index_level, .timeout = 120) {
    constexpr int64_t kFar = 1'000'003, kRefused = 200;
    for (const uint64_t limit : {1 << 20, 4 << 20})
        for (const int64_t apart : {int64_t{1}, kFar}) // dense levels, hashed ones
            for (const int count : {1, 3}) {
                SpillSession s;
                cache *const handle = s.open(2, spilling(limit));
                const std::vector<unsigned char> bytes(500);
                {
                    const Writers writers(count, [&](int i) {
                        const Bytes row(bytes.data(), bytes.size());
                        for (int64_t id = i, refused = 0; refused < kRefused; id += count) {
                            const bool full = cache_put(handle, id * apart, &row.column, 1) < 0;
                            if (full && strstr(cache_last_error(), "cannot be spilled") == nullptr)
                                test_die("put: %s", cache_last_error());
                            refused += full;
                        }
                        if (cache_flush(handle) != 0) test_die("flush: %s", cache_last_error());
                    });
                }
                cr_assert_geq(uint64_t(s.stat(handle).rows_spilled), limit / libcache::kMostStubShare / 128);
                OK(cache_close(handle));
            }
}

// Those that are refused are told how many they are and what would do, and each has its piece when others have gone.
Test(many_spillers, beyond_what_the_limit_has_for_them_are_told_what_would_do, .timeout = 120) {
    constexpr int kCount = 16;
    SpillSession s(3 << 20);
    const std::string enough = std::to_string(kCount * (512 << 10));
    {
        int told[2];
        cr_assert_eq(pipe(told), 0);
        const Writers writers(kCount, [&](int i) {
            int refused = 0;
            for (int64_t row = 0; row < kSomeRows; row++) {
                if (rows::put(s.rows, id_of(i, row), kLargest) >= 0) continue;
                const std::string sentence = cache_last_error();
                refused =
                    sentence.find(enough) != std::string::npos && sentence.find("16 processes") != std::string::npos;
                if (cache_full_cause() != CACHE_FULL_SIZE) test_die("%s", sentence.c_str());
            }
            (void)!write(told[1], refused ? "1" : "0", 1);
        });
        int refused = 0;
        for (int i = 0; i < kCount; i++) {
            char byte = 0;
            cr_assert_eq(read(told[0], &byte, 1), 1);
            refused += byte == '1';
        }
        cr_assert_gt(refused, 0, "9 pieces of 64 KiB are what 3 MiB keeps for stubs, and all %d writers have one",
                     kCount);
        cr_assert_lt(refused, kCount);
        close(told[0]);
        close(told[1]);
    }
    for (int i = 0; i < kCount; i++)
        for (int64_t row = 0; row < kSomeRows; row++)
            cr_assert_geq(rows::put(s.rows, id_of(i, row), kLargest), 0, "%s", cache_last_error());
    OK(cache_flush(s.rows));
}
