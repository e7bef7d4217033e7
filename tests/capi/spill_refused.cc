// SPDX-License-Identifier: Apache-2.0
// Spilling where something is refused: io_uring, locked memory, room on the disk, memory for stubs.
#include "core/shm/layout.h"
#include "tests/support/refuse.h"
#include "tests/support/spill.h"

#include <cerrno>
#include <csignal>
#include <fstream>
#include <functional>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr int64_t kRows = 700; // of some 10 KB: a good part does not fit into memory
constexpr uint64_t kLargest = 40'000;

// In a process of its own, so that the server and the judge may do what they want.
void in_child(const std::function<void()> &body) {
    const pid_t child = fork();
    if (child == 0) {
        body();
        _exit(0);
    }
    int status = -1;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
}

void must(bool so, const char *what) {
    if (!so) test_die("%s: %s", what, cache_last_error());
}

void spill_and_read(cache *handle, int64_t from, int64_t to) {
    for (int64_t id = from; id < to; id++)
        must(rows::put(handle, id, kLargest) == 0, "put");
    must(cache_flush(handle) == 0, "flush");
    std::vector<int64_t> ids;
    for (int64_t id = from; id < to; id++)
        ids.push_back(id);
    std::vector<cache_view> views(ids.size());
    must(cache_get_batch(handle, ids.data(), ids.size(), views.data()) == to - from, "get_batch");
    for (cache_view &view : views)
        must(rows::Row(view.row_id, kLargest).difference(view).empty() && cache_view_release(&view) == 0, "a row");
}

void check_all(const SpillSession &s) {
    for (int64_t id = 0; id < kRows; id++)
        RIGHT(rows::check(s.rows, id, kLargest));
    cr_assert_gt(s.stat().rows_spilled, kRows / 4);
}

std::string log_of(const SpillSession &s) {
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    std::ifstream file(info.log_path);
    return {std::istreambuf_iterator<char>(file), {}};
}

int64_t said(const SpillSession &s, const char *words) {
    const std::string log = log_of(s);
    int64_t times = 0;
    for (size_t at = log.find(words); at != std::string::npos; at = log.find(words, at + 1))
        times++;
    return times;
}

void refused(std::initializer_list<int> calls, int error) {
    SpillSession s;
    in_child([&] {
        refuse_calls(calls, error);
        spill_and_read(s.rows, 0, kRows);
        must(cache_close(s.rows) == 0, "close");
    });
    check_all(s);
    const std::string log = log_of(s);
    const size_t said = log.find("io_uring");
    cr_assert_neq(said, std::string::npos, "the log does not name io_uring:\n%s", log.c_str());
    cr_assert_eq(log.find("io_uring", log.find('\n', said)), std::string::npos, "said twice:\n%s", log.c_str());
}

} // namespace

Test(spill_refused, io_uring_with_eperm) {
    NEEDS_SECCOMP();
    refused({SCMP_SYS(io_uring_setup)}, EPERM);
}
Test(spill_refused, io_uring_with_enosys) {
    NEEDS_SECCOMP();
    refused({SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_enter), SCMP_SYS(io_uring_register)}, ENOSYS);
}

Test(spill_refused, io_uring_once_rings_are_in_use) {
    NEEDS_SECCOMP();
    SpillSession s;
    in_child([&] {
        spill_and_read(s.rows, 0, kRows / 2);
        refuse_calls({SCMP_SYS(io_uring_enter)}, EPERM);
        spill_and_read(s.rows, kRows / 2, kRows);
        must(cache_close(s.rows) == 0, "close");
    });
    check_all(s);
}

namespace {

int64_t read_calls() {
    std::ifstream io("/proc/self/io");
    std::string name;
    for (int64_t number = 0; io >> name >> number;)
        if (name == "syscr:") return number;
    return -1;
}

} // namespace

// Without io_uring each transfer is a call that the kernel counts: neighbours are read together.
Test(spill_refused, many_rows_are_read_by_few_calls) {
    NEEDS_SECCOMP();
    if (read_calls() < 0) SKIP("this kernel does not count calls");
    SpillSession s;
    in_child([&] {
        constexpr int64_t kMany = 500;
        refuse_calls({SCMP_SYS(io_uring_setup)}, EPERM);
        const std::vector<unsigned char> bytes(30'000, 'x');
        const Bytes large(bytes.data(), bytes.size()), small(bytes.data(), 1000);
        int64_t first = 0;
        for (; s.stat().rows_spilled < 8; first++)
            must(cache_put(s.rows, first, &large.column, 1) == 0 && cache_flush(s.rows) == 0, "put");
        std::vector<int64_t> ids;
        do { // until there is no room between those rows either
            ids.clear();
            for (const int64_t end = first + kMany; first < end; first++) {
                must(cache_put(s.rows, first, &small.column, 1) == 0, "put");
                ids.push_back(first);
            }
            must(cache_flush(s.rows) == 0, "flush");
        } while (s.stat().rows_in_memory + s.stat().rows_spilled != first || s.stat().rows_spilled < 2 * kMany);
        std::vector<cache_view> views(kMany);
        std::vector<char> gathered(kMany * 1000);
        std::vector<uint8_t> found(kMany);
        int64_t before = read_calls();
        must(cache_get_batch(s.rows, ids.data(), kMany, views.data()) == kMany, "get_batch");
        if (const int64_t calls = read_calls() - before; calls > 50) test_die("get_batch: %ld calls", long(calls));
        before = read_calls();
        must(cache_gather(s.rows, ids.data(), kMany, 0, gathered.data(), 1000, found.data()) == kMany, "gather");
        if (const int64_t calls = read_calls() - before; calls > 50) test_die("gather: %ld calls", long(calls));
        must(cache_close(s.rows) == 0, "close");
    });
}

// A disk that cannot be read: an error of that row, said with its place. Rows in memory are not concerned.
Test(spill_refused, a_read_that_fails_is_that_rows_error_alone) {
    NEEDS_SECCOMP();
    SpillSession s;
    in_child([&] {
        spill_and_read(s.rows, 0, kRows);
        refuse_calls({SCMP_SYS(io_uring_enter)}, EPERM);
        refuse_calls({SCMP_SYS(pread64), SCMP_SYS(preadv)}, EIO);
        int64_t failed = 0;
        for (int64_t id = 0; id < kRows; id++) {
            cache_view view;
            const int rc = cache_get(s.rows, id, &view);
            must(rc == 0 || rc == CACHE_EIO, "get");
            failed += rc != 0;
            if (rc != 0 && (strstr(cache_last_error(), "of the spill file") == nullptr ||
                            strstr(cache_last_error(), strerror(EIO)) == nullptr))
                test_die("%s", cache_last_error());
            must(rc != 0 || (rows::Row(id, kLargest).difference(view).empty() && cache_view_release(&view) == 0),
                 "row");
        }
        if (failed == 0 || failed == kRows) test_die("%ld of %ld rows failed", long(failed), long(kRows));
        must(cache_close(s.rows) == 0, "close");
    });
    check_all(s);
}

Test(spill_refused, locked_memory) {
    SpillSession s;
    in_child([&] {
        const rlimit none{0, 0};
        must(setrlimit(RLIMIT_MEMLOCK, &none) == 0, "setrlimit");
        must(rows::put(s.rows, 0, kLargest) == 0, "put"); // this connects: the server admits its own user alone
        const bool root = geteuid() == 0;                 // root may lock memory all the same
        must(!root || seteuid(65534) == 0, "seteuid");
        spill_and_read(s.rows, 1, kRows);
        must(!root || seteuid(0) == 0, "seteuid");
        must(cache_close(s.rows) == 0, "close");
    });
    check_all(s);
}

// The kernel refuses writes beyond the limit for the size of a file: EFBIG, once the row is on its way.
Test(spill_refused, a_write_that_fails_is_that_rows_error_alone) {
    SpillSession s;
    in_child([&] {
        signal(SIGXFSZ, SIG_IGN);
        const rlimit small{2 << 20, RLIM_INFINITY};
        must(setrlimit(RLIMIT_FSIZE, &small) == 0, "setrlimit");
        int refused = 0, flushed = 0;
        for (int64_t id = 0; id < kRows; id++) {
            const int rc = rows::put(s.rows, id, kLargest);
            must(rc == 0 || rc == CACHE_EFULL, "put");
            refused += rc != 0;
            if (id % 50 == 49) flushed += cache_flush(s.rows) == CACHE_EFULL;
        }
        must(refused + flushed > 0, "nothing was refused");
        must(cache_flush(s.rows) == 0 || flushed > 0, "flush");
        must(cache_flush(s.rows) == 0, "a failure is told once");
        const rlimit large{RLIM_INFINITY, RLIM_INFINITY};
        must(setrlimit(RLIMIT_FSIZE, &large) == 0, "setrlimit");
        for (int64_t id = 0; id < kRows; id++)
            must(rows::put(s.rows, id, kLargest) >= 0, "put again");
        must(cache_flush(s.rows) == 0, "flush");
        must(cache_close(s.rows) == 0, "close");
    });
    check_all(s);
}

Test(spill_refused, a_write_that_fails_ends_the_stream_until_it_is_begun_again) {
    SpillSession s;
    in_child([&] {
        cache_options options = spilling(4 << 20);
        options.flags = CACHE_BUILD;
        cache *stream = s.open(2, options);
        int64_t next = -1;
        must(cache_build_begin(stream, &next) == 0, "begin");
        signal(SIGXFSZ, SIG_IGN);
        const rlimit small{1 << 20, RLIM_INFINITY};
        must(setrlimit(RLIMIT_FSIZE, &small) == 0, "setrlimit");
        int rc = 0;
        while (rc == 0 && next < kRows) {
            const rows::Row row(next, kLargest);
            rc = cache_append(stream, row.columns(), row.n(), &next);
            next++;
        }
        must(rc == CACHE_EFULL || cache_flush(stream) == CACHE_EFULL, "an append fails");
        const rows::Row another(0, kLargest);
        must(cache_append(stream, another.columns(), another.n(), nullptr) == CACHE_EFULL, "so do all later ones");
        (void)cache_flush(stream); // whoever asks first is told of the rows that are lost
        for (int i = 0; i < 2; i++)
            must(cache_build_done(stream) == CACHE_EFULL, "a build that lost rows is not done");
        const rlimit large{RLIM_INFINITY, RLIM_INFINITY};
        must(setrlimit(RLIMIT_FSIZE, &large) == 0, "setrlimit");
        must(cache_build_begin(stream, &next) == 0, "begin again");
        must(next > 0 && next < kRows, "resume");
        for (; next < kRows; next++) {
            const rows::Row row(next, kLargest);
            int64_t id = -1;
            must(cache_append(stream, row.columns(), row.n(), &id) == 0 && id == next, "append");
        }
        must(cache_build_done(stream) == 0, "done");
        for (int64_t id = 0; id < kRows; id++)
            must(rows::check(stream, id, kLargest).empty(), "a row");
        must(cache_close(stream) == 0 && cache_close(s.rows) == 0, "close");
    });
    in_child([&] {
        cache_options options = spilling(4 << 20);
        cache *stream = s.open(2, options);
        for (int64_t id = 0; id < kRows; id++)
            must(rows::check(stream, id, kLargest).empty(), "a row");
        must(cache_close(stream) == 0 && cache_close(s.rows) == 0, "close");
    });
}

// The share for stubs is used up. The server says in its debug log each time that it was asked and has refused; what is
// said without asking it must end when there is memory again.
Test(spill_refused, full_of_stubs_is_said_without_asking_for_each_row, .timeout = 120) {
    SpillSession s(4 << 20, {"--loglevel", "0"});
    cache_options options = spilling(2 << 20);
    options.expected_rows = 40'000; // no index level is made on the way
    cache *handle = s.open(2, options);
    // Memory that will come free: a row that is reserved and never published.
    std::vector<unsigned char> bytes(300'000);
    Bytes large(nullptr, bytes.size());
    cache_reservation *reservation = nullptr;
    OK(cache_reserve(handle, 39'999, &large.column, 1, &reservation));
    const Bytes small(bytes.data(), 500);
    int64_t id = 0;
    while (cache_put(handle, id, &small.column, 1) == 0)
        cr_assert_lt(++id, 39'999, "the share for stubs has no end");
    FAILS(cache_put(handle, id, &small.column, 1), CACHE_EFULL, "cannot be spilled", "name its place on disk");
    OK(cache_flush(handle));
    const auto asked = [&] { return said(s, "is refused"); };
    const int64_t before = asked();
    cr_assert_gt(before, 0, "the log does not say what is refused");
    // What is left of some extent may still be lent now and then, so not each of these need fail.
    for (int refused = 0; refused < 1000; id++)
        refused += cache_put(handle, id, &small.column, 1) == CACHE_EFULL;
    cr_assert_leq(asked() - before, 50, "the server was asked for most of 1000 rows");
    cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_SIZE});
    OK(cache_abort(reservation));
    while (cache_put(handle, id, &small.column, 1) != 0) // the test's deadline ends this
        usleep(1000);
    OK(cache_flush(handle));
    cache_view view;
    OK(cache_get(handle, id, &view));
    OK(cache_view_release(&view));
    OK(cache_close(handle));
}

// The same where it is the index that has no room: all memory is places of rows, reserved and not published yet, whose
// ids need a level.
Test(spill_refused, a_full_index_is_said_without_asking_for_each_row, .timeout = 120) {
    SpillSession s(4 << 20, {"--loglevel", "0"});
    cache *const handle = s.open(2, options_with_limit(2 << 20));
    constexpr int64_t kApart = 1'000'003;
    std::vector<unsigned char> bytes(200);
    std::vector<cache_reservation *> reserved;
    Bytes large(nullptr, (512 << 10) - 128); // memory that will come free: an extent of its own
    cache_reservation *last = nullptr;
    OK(cache_reserve(handle, 0, &large.column, 1, &last));
    int rc = 0;
    while (rc == 0) {
        Bytes small(nullptr, bytes.size());
        cache_reservation *reservation = nullptr;
        rc = cache_reserve(handle, int64_t(reserved.size() + 1) * kApart, &small.column, 1, &reservation);
        if (rc == 0) reserved.push_back(reservation);
    }
    cr_assert_eq(rc, CACHE_EFULL, "%s", cache_last_error());
    cr_assert_gt(reserved.size(), 2000);
    const auto asked = [&] { return said(s, "no room for index level"); };
    for (cache_reservation *reservation : reserved)
        FAILS(cache_commit(reservation), CACHE_EFULL, "no room for index level");
    cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_SIZE});
    cr_assert_gt(asked(), 0, "the log does not say what is refused");
    cr_assert_leq(asked(), 50, "the server was asked for most of %zu rows", reserved.size());
    OK(cache_abort(last));
    const Bytes small(bytes.data(), bytes.size());
    while (cache_put(handle, kApart, &small.column, 1) != 0) // the test's deadline ends this
        usleep(1000);
    cache_view view;
    OK(cache_get(handle, kApart, &view));
    OK(cache_view_release(&view));
    OK(cache_close(handle));
}

// 1 GiB into a folder of 64 MiB.
Test(spill_refused, a_folder_that_is_full, .timeout = 120) {
    if (unshare(geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0)
        SKIP("mounting a small tmpfs is not allowed here");
    SpillFolder folder;
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64m") != 0)
        SKIP("mounting a small tmpfs is not allowed here");
    {
        SpillSession s(4 << 20, folder);
        std::vector<unsigned char> bytes(1'000'000);
        const Bytes column(bytes.data(), bytes.size());
        int64_t stored = 0;
        for (int64_t id = 0; id < 1024; id++) {
            rows::fill(bytes.data(), bytes.size(), id, 0);
            const int rc = cache_put(s.rows, id, &column.column, 1);
            cr_assert(rc == 0 || rc == CACHE_EFULL, "%d: %s", rc, cache_last_error());
            if (rc != 0) cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_DISK}, "%s", cache_last_error());
            stored += rc == 0;
        }
        OK(cache_flush(s.rows));
        cr_assert_gt(stored, 40);
        cr_assert_lt(stored, 80);
        int64_t there = 0;
        for (int64_t id = 0; id < 1024; id++) {
            cache_view view;
            if (cache_get(s.rows, id, &view) != 0) continue;
            cache_column row{};
            OK(cache_view_column(&view, 0, &row));
            cr_assert_eq(rows::first_wrong(row.data, row.bytes, id, 0), -1);
            OK(cache_view_release(&view));
            there++;
        }
        cr_assert_eq(there, stored);
        cr_assert_eq(said(s, "the spill folder has no room"), 1, "%s", log_of(s).c_str());
    }
    umount(folder.path().c_str());
}
