// SPDX-License-Identifier: Apache-2.0
// What a reader on small pages maps: what it reads and the kernel's 64 KiB around it, no more. Each reader is a process
// of its own, which has mapped nothing yet.
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <functional>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr int64_t kRows = 40'000;
constexpr uint64_t kRowBytes = 788, kAround = 64 << 10; // fault_around_bytes of the kernel
const char *const kMemfd[] = {"--backing", "memfd", nullptr};

struct Measured {
    int64_t faults, page_table_bytes, wrong;
};

int64_t minor_faults() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

// What reading costs a process that has only just opened the cache. `read` returns how many rows were wrong.
Measured in_fresh_process(const Session &s, const std::function<int64_t(cache *)> &read) {
    auto *const result = static_cast<Measured *>(
        mmap(nullptr, sizeof(Measured), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(100);
        cache_client *client = nullptr;
        cache *handle = nullptr;
        if (cache_connect(nullptr, &client) != 0 || cache_open(client, s.id, 1, nullptr, &handle) != 0) _exit(1);
        const int64_t before = minor_faults();
        result->wrong = read(handle);
        const int64_t first = minor_faults() - before;
        read(handle); // what is the test's own: its buffers are there by now, the cache is mapped
        result->faults = first - (minor_faults() - before - first);
        cache_stats stats{};
        stats.size = sizeof stats;
        if (cache_stat(handle, &stats) != 0) _exit(2);
        result->page_table_bytes = stats.page_table_bytes;
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    cr_assert_eq(status, 0, "the reader ended with wait status %d", status);
    const Measured measured = *result;
    munmap(result, sizeof(Measured));
    return measured;
}

struct Filled : Session {
    Filled() : Session(64 << 20, kMemfd) {
        std::vector<unsigned char> bytes(kRowBytes);
        const Bytes column(bytes.data(), bytes.size());
        for (int64_t row = 0; row < kRows; row++) {
            rows::fill(bytes.data(), bytes.size(), row, 0);
            OK(cache_put(this->rows, row, &column.column, 1));
        }
    }
};

int64_t get_each(cache *handle, int64_t first, int64_t step, int64_t n) {
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t id = (first + i * step) % kRows;
        cache_view view{};
        cache_column column{};
        if (cache_get(handle, id, &view) != 0 || cache_view_column(&view, 0, &column) != 0 ||
            rows::first_wrong(column.data, column.bytes, id, 0) >= 0)
            wrong++;
        (void)cache_view_release(&view);
    }
    return wrong;
}

int64_t gather_all(cache *handle) {
    constexpr size_t kBatch = 500;
    static std::vector<char> batch(kBatch * kRowBytes);
    int64_t wrong = 0;
    for (int64_t from = 0; from < kRows; from += kBatch) {
        int64_t ids[kBatch];
        for (size_t i = 0; i < kBatch; i++)
            ids[i] = from + int64_t(i);
        if (cache_gather(handle, ids, kBatch, 0, batch.data(), kRowBytes, nullptr) != kBatch) return kRows;
        for (size_t i = 0; i < kBatch; i++)
            wrong += rows::first_wrong(batch.data() + i * kRowBytes, kRowBytes, ids[i], 0) >= 0;
    }
    return wrong;
}

} // namespace

// A page a fault would be some 200 in 1,000 rows.
Test(faults, in_a_run_of_rows_are_one_in_64_kib, .timeout = 100) {
    Filled s;
    const int64_t runs = int64_t(kRows * (kRowBytes + 64) / kAround + 1);
    const auto check = [&](const char *what, const Measured &m) {
        fprintf(stderr, "%s: %.1f minor faults in 1,000 rows, %lld bytes of page tables\n", what,
                1000.0 * double(m.faults) / kRows, (long long)m.page_table_bytes);
        cr_assert_eq(m.wrong, 0, "%s: %lld rows are wrong", what, (long long)m.wrong);
        cr_assert_gt(m.faults, 0);
        cr_assert_lt(m.faults, 2 * runs + 50, "%s: %lld faults for %lld runs", what, (long long)m.faults,
                     (long long)runs);
    };
    check("cache_get", in_fresh_process(s, [](cache *handle) { return get_each(handle, 0, 1, kRows); }));
    check("cache_gather", in_fresh_process(s, gather_all));
}

Test(faults, of_a_shuffled_reader_of_a_few_rows_do_not_map_the_cache, .timeout = 100) {
    Filled s;
    const Measured few = in_fresh_process(s, [](cache *handle) { return get_each(handle, 5, 7919, 20); });
    cr_assert_eq(few.wrong, 0);
    cr_assert_leq(few.faults, 3 * 20 + 50); // a row, its entry, where it crosses into the next 64 KiB
    const Measured all = in_fresh_process(s, [](cache *handle) { return get_each(handle, 0, 1, kRows); });
    if (sysconf(_SC_PAGESIZE) > 4096) return; // one table spans the whole cache
    cr_assert_gt(all.page_table_bytes, few.page_table_bytes, "%lld bytes of page tables for all, %lld for 20 rows",
                 (long long)all.page_table_bytes, (long long)few.page_table_bytes);
}
