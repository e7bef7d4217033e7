// SPDX-License-Identifier: Apache-2.0
// Rows that memory refuses: on disk and back, of every size, by put, reserve and append, alone and in batches.
#include "tests/support/spill.h"
#include "core/shm/layout.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

// Bytes that follow from the id alone.
std::vector<unsigned char> bytes_of(int64_t id, uint64_t size) {
    std::vector<unsigned char> bytes(size);
    rows::fill(bytes.data(), size, id, 0);
    return bytes;
}

int put_bytes(cache *handle, int64_t id, uint64_t size) {
    const std::vector<unsigned char> bytes = bytes_of(id, size);
    const Bytes column(bytes.data(), size);
    return cache_put(handle, id, &column.column, 1);
}

void check_bytes(cache *handle, int64_t id, uint64_t size) {
    cache_view view;
    OK(cache_get(handle, id, &view));
    cache_column column{};
    OK(cache_view_column(&view, 0, &column));
    cr_assert_eq(column.bytes, size);
    cr_assert_eq(rows::first_wrong(column.data, size, id, 0), -1, "row %ld of %lu bytes is wrong", long(id), size);
    OK(cache_view_release(&view));
}

int open_rings() {
    int n = 0;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone; // the directory itself
        n += std::filesystem::read_symlink(entry.path(), gone) == "anon_inode:[io_uring]";
    }
    return n;
}

// Memory is used up by rows from id `from` on, so that all others are spilled. Returns the next id.
int64_t fill_memory(const SpillSession &s, int64_t from) {
    while (s.stat().rows_spilled == 0) {
        OK(put_bytes(s.rows, from++, 30'000));
        if (from % 16 == 0) OK(cache_flush(s.rows));
    }
    return from;
}

void round_trip(const char *where) {
    SpillSession s(4 << 20, where);
    int64_t id = fill_memory(s, 0);
    const int64_t first = id;
    const uint64_t sizes[] = {1, 511, 512, 513, 4095, 4096, 4097, 0, 1 << 20, (1 << 20) - 32, (3 << 20) + 5};
    for (uint64_t size : sizes)
        OK(put_bytes(s.rows, id++, size));
    OK(cache_flush(s.rows));
    id = first;
    for (uint64_t size : sizes)
        check_bytes(s.rows, id++, size);
    for (int64_t small = 0; small < first; small++)
        check_bytes(s.rows, small, 30'000);
    const cache_stats stats = s.stat();
    cr_assert_eq(stats.rows_in_memory + stats.rows_spilled, id);
    cr_assert_geq(stats.rows_spilled, 2); // the large ones; there may be room for others between rows in memory
    cr_assert_geq(stats.spill_file_bytes, stats.spilled_bytes);
    cr_assert_leq(stats.charged_bytes, stats.limit_bytes);
}

} // namespace

Test(spill, rows_of_every_size_come_back_from_disk) {
    round_trip("/var/tmp");
}
Test(spill, rows_of_every_size_come_back_from_tmpfs) {
    round_trip("/dev/shm");
}

Test(spill, five_thousand_tiny_rows_and_one_of_three_thousand_columns) {
    SpillSession s;
    const int64_t first = fill_memory(s, 0);
    for (int64_t id = first; id < first + 5000; id++)
        OK(put_bytes(s.rows, id, uint64_t(id % 40)));
    std::vector<cache_column> columns(3000);
    std::vector<int32_t> numbers(3000);
    for (int i = 0; i < 3000; i++) {
        numbers[i] = i * 7;
        columns[i] = {&numbers[i], 4, nullptr, CACHE_INT32, 0, {}};
    }
    OK(cache_put(s.rows, 1'000'000, columns.data(), 3000));
    OK(cache_flush(s.rows));
    for (int64_t id = first; id < first + 5000; id++)
        check_bytes(s.rows, id, uint64_t(id % 40));
    cache_view view;
    OK(cache_get(s.rows, 1'000'000, &view));
    cr_assert_eq(cache_view_columns(&view), 3000);
    for (uint32_t i = 0; i < 3000; i++) {
        cache_column column{};
        OK(cache_view_column(&view, i, &column));
        cr_assert_eq(*static_cast<int32_t *>(column.data), int32_t(i) * 7);
    }
    OK(cache_view_release(&view));
    cr_assert_geq(s.stat().rows_spilled, 3000); // small ones may find room between large ones
}

// A look-up of a batch stops at the first entry with the id's tag. If that is another row's, whoever is writing the row
// must be asked all the same.
Test(spill, a_batch_finds_a_row_under_way_whose_tag_is_another_rows) {
    constexpr int64_t kFar = 1'000'000;  // beyond the dense first level
    constexpr uint64_t kSlots = 4096;    // of the first hashed one
    constexpr uint64_t kLarge = 900'000; // long enough to be under way still
    SpillSession s(8 << 20);
    int64_t next = fill_memory(s, 0), id = kFar;
    OK(put_bytes(s.rows, kFar, 16));
    OK(cache_flush(s.rows));
    const auto collides = [](int64_t other) {
        const uint64_t a = libcache::index_hash(kFar, 1), b = libcache::index_hash(other, 1);
        return (a & 0xffff) == (b & 0xffff) && libcache::index_window(a, kSlots) == libcache::index_window(b, kSlots);
    };
    for (int round = 0; round < 6; round++) {
        do
            id++;
        while (!collides(id));
        for (int i = 0; i < 4; i++)
            OK(put_bytes(s.rows, next++, kLarge));
        OK(put_bytes(s.rows, id, kLarge));
        uint8_t there = 0;
        cache_view view;
        if (round % 2)
            cr_assert_eq(cache_contains(s.rows, &id, 1, &there), 1);
        else
            cr_assert_eq(cache_get_batch(s.rows, &id, 1, &view), 1, "row %ld was put and is not found", long(id));
        if (round % 2 == 0) OK(cache_view_release(&view));
    }
    OK(cache_flush(s.rows));
}

Test(spill, a_batch_and_a_gather_mix_rows_of_memory_and_disk) {
    SpillSession s;
    const int64_t n = fill_memory(s, 0) + 300;
    std::vector<int64_t> ids;
    for (int64_t id = 0; id < n; id++) {
        cr_assert_geq(put_bytes(s.rows, id, 30'000), 0);
        ids.push_back((id * 7919) % n);
    }
    OK(cache_flush(s.rows));
    ids.push_back(n + 5);  // a miss
    ids.push_back(ids[3]); // twice
    std::vector<cache_view> views(ids.size());
    cr_assert_eq(cache_get_batch(s.rows, ids.data(), ids.size(), views.data()), int64_t(ids.size()) - 1);
    for (size_t i = 0; i < ids.size(); i++) {
        cr_assert_eq(views[i].cache != nullptr, ids[i] < n);
        if (views[i].cache == nullptr) continue;
        cache_column column{};
        OK(cache_view_column(&views[i], 0, &column));
        cr_assert_eq(rows::first_wrong(column.data, 30'000, ids[i], 0), -1);
        if (i % 3) OK(cache_view_release(&views[i])); // others end with the handle
    }
    std::vector<unsigned char> gathered(ids.size() * 30'000);
    std::vector<uint8_t> found(ids.size(), 7);
    cr_assert_eq(cache_gather(s.rows, ids.data(), ids.size(), 0, gathered.data(), 30'000, found.data()),
                 int64_t(ids.size()) - 1);
    for (size_t i = 0; i < ids.size(); i++) {
        cr_assert_eq(found[i], ids[i] < n);
        if (found[i]) cr_assert_eq(rows::first_wrong(&gathered[i * 30'000], 30'000, ids[i], 0), -1);
    }
    FAILS(cache_gather(s.rows, ids.data(), ids.size(), 0, gathered.data(), 29'999, found.data()), CACHE_EINVAL);
    cr_assert_eq(cache_contains(s.rows, ids.data(), ids.size(), found.data()), int64_t(ids.size()) - 1);
}

Test(spill, what_this_process_is_writing_it_finds) {
    SpillSession s;
    const int64_t first = fill_memory(s, 0);
    for (int64_t id = first; id < first + 200; id++) {
        OK(put_bytes(s.rows, id, 20'000));
        cr_assert_eq(put_bytes(s.rows, id, 20'000), 1);
        check_bytes(s.rows, id, 20'000); // no flush
    }
}

// Each has an image of its own, whoever comes first or goes first.
Test(spill, readers_of_one_row_do_not_disturb_each_other) {
    SpillSession s;
    const int64_t first = fill_memory(s, 0);
    for (int64_t id = first; id < first + 4; id++)
        OK(put_bytes(s.rows, id, 40'000));
    OK(cache_flush(s.rows));
    const auto right = [](const cache_view &view, int64_t id) {
        cache_column column{};
        return cache_view_column(&view, 0, &column) == 0 && rows::first_wrong(column.data, 40'000, id, 0) == -1;
    };
    cache_view kept;
    OK(cache_get(s.rows, first, &kept));
    std::vector<std::thread> readers;
    for (int t = 0; t < 4; t++)
        readers.emplace_back([&, t] {
            for (int round = 0; round < 100; round++) {
                const int64_t ids[] = {first, first + round % 4, first + 3 - t};
                cache_view one, some[3];
                if (cache_get(s.rows, first, &one) != 0 || cache_get_batch(s.rows, ids, 3, some) != 3)
                    test_die("%s", cache_last_error());
                for (int i = 0; i < 3; i++)
                    if (!right(some[i], ids[i]) || cache_view_release(&some[i]) != 0) test_die("row %ld", long(ids[i]));
                if (!right(one, first) || cache_view_release(&one) != 0) test_die("row %ld", long(first));
            }
        });
    for (std::thread &reader : readers)
        reader.join();
    cr_assert(right(kept, first));
    OK(cache_view_release(&kept));
}

char state_of_thread(pid_t thread) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string number, name;
    char state = 0;
    file >> number >> name >> state;
    return state;
}

// A broker that does not answer holds up the put that asks it for file space, and nobody else: no get of another row,
// nor of one that is being written. The deadline of this test ends before that of the put.
Test(spill, a_get_does_not_wait_for_a_put_that_asks_the_server, .timeout = 40) {
    SpillSession s;
    const int64_t first = fill_memory(s, 0);
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    cr_assert_eq(kill(info.broker_pid, SIGSTOP), 0);
    std::atomic<int64_t> put{0};
    std::atomic<pid_t> thread{0};
    std::thread putting([&] {
        thread.store(gettid());
        while (put.load() < 200) { // of 100 KB: two segments and more
            if (put_bytes(s.rows, first + put.load(), 100'000) != 0) test_die("put: %s", cache_last_error());
            put.fetch_add(1);
        }
    });
    cache_view view;
    int64_t before = -1;
    for (int asleep = 0; asleep < 50; before = put.load()) { // it waits for the server, and rows are under way
        FAILS(cache_get(s.rows, first + 1'000, &view), CACHE_ENOTFOUND);
        usleep(1000);
        asleep = put.load() == before && thread.load() != 0 && state_of_thread(thread.load()) == 'S' ? asleep + 1 : 0;
        cr_assert_lt(put.load(), 200, "nothing was asked of the server");
    }
    for (int64_t id = put.load(); id-- > 0;) // the last ones are in the open buffer still
        check_bytes(s.rows, first + id, 100'000);
    cr_assert_eq(kill(info.broker_pid, SIGCONT), 0);
    putting.join();
    OK(cache_flush(s.rows));
    check_bytes(s.rows, first + 199, 100'000);
}

// They are a few bytes, and rows go on.
Test(spill, column_names_find_room_in_full_memory) {
    SpillSession s;
    int64_t id = fill_memory(s, 0);
    const int64_t first = id, spilled = s.stat().rows_spilled;
    do // until there is none for a row of 8 bytes
        for (int i = 0; i < 64; i++)
            OK(put_bytes(s.rows, id++, 8));
    while (cache_flush(s.rows) == 0 && s.stat().rows_spilled < spilled + 64);
    const char *const names[] = {"image", "label", "a name that is longer than those before it"};
    OK(cache_schema_set(s.rows, names, 3));
    for (int64_t there = first; there < id; there++)
        check_bytes(s.rows, there, 8);
}

Test(spill, reservations_are_written_by_their_commit) {
    SpillSession s;
    const int64_t first = fill_memory(s, 0);
    for (int64_t id = first; id < first + 40; id++) {
        const rows::Row row(id, 200'000);
        std::vector<cache_column> columns(row.columns(), row.columns() + row.n());
        cache_reservation *reservation = nullptr;
        OK(cache_reserve(s.rows, id, columns.data(), row.n(), &reservation));
        for (uint32_t i = 0; i < row.n(); i++)
            rows::fill(columns[i].data, columns[i].bytes, id, i);
        OK(id % 4 ? cache_commit(reservation) : cache_abort(reservation));
    }
    OK(cache_flush(s.rows));
    for (int64_t id = first; id < first + 40; id++) {
        cache_view view;
        if (id % 4)
            RIGHT(rows::check(s.rows, id, 200'000));
        else
            FAILS(cache_get(s.rows, id, &view), CACHE_ENOTFOUND);
    }
}

Test(spill, streams_spill_and_keep_their_order) {
    SpillSession s;
    cache_options options = spilling(4 << 20);
    options.flags = CACHE_BUILD;
    cache *stream = s.open(2, options);
    int64_t resume = -1;
    OK(cache_build_begin(stream, &resume));
    constexpr int64_t kRows = 600;
    for (int64_t expected = 0; expected < kRows; expected++) {
        const rows::Row row(expected, expected % 50 == 9 ? 1'500'000 : 30'000);
        int64_t id = -1;
        OK(cache_append(stream, row.columns(), row.n(), &id));
        cr_assert_eq(id, expected);
    }
    OK(cache_build_done(stream));
    cr_assert_eq(cache_build_begin(stream, &resume), 1);
    cr_assert_eq(resume, kRows);
    cr_assert_gt(s.stat(stream).rows_spilled, 100);
    for (int64_t id = 0; id < kRows; id++)
        RIGHT(rows::check(stream, id, id % 50 == 9 ? 1'500'000 : 30'000));
    OK(cache_close(stream));
}

// Rows of a stream that are on disk are read by another process during the build, and when its builder is killed the
// next one goes on where it stopped.
Test(spill, a_killed_builders_stream_is_taken_over, .timeout = 60) {
    constexpr int64_t kRows = 400;
    SpillSession s(1 << 20);
    cache_options options = spilling(1 << 20);
    options.flags = CACHE_BUILD;
    cache *stream = s.open(2, options);
    const auto append = [&](int64_t expected) {
        const rows::Row row(expected, 30'000);
        int64_t id = -1;
        return cache_append(stream, row.columns(), row.n(), &id) == 0 && id == expected;
    };
    int ready[2];
    cr_assert_eq(pipe(ready), 0);
    const pid_t builder = fork();
    if (builder == 0) {
        int64_t at = -1;
        if (cache_build_begin(stream, &at) != 0) _exit(1);
        for (; at < kRows; at++)
            if (!append(at)) _exit(2);
        if (cache_flush(stream) != 0) _exit(3);
        (void)!write(ready[1], "x", 1);
        for (;; at++) // until it is killed
            if (!append(at)) _exit(4);
    }
    char byte;
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    for (int64_t id = 0; id < kRows; id++)
        RIGHT(rows::check(stream, id, 30'000));
    cr_assert_gt(s.stat(stream).rows_spilled, kRows / 2);
    int64_t at = -1;
    FAILS(cache_build_begin(stream, &at), CACHE_EBUILDING);
    kill(builder, SIGKILL);
    cr_assert_eq(waitpid(builder, nullptr, 0), builder);
    int rc;
    while ((rc = cache_build_begin(stream, &at)) == CACHE_EBUILDING) // the server notices a moment later
        usleep(2000);
    OK(rc);
    cr_assert_geq(at, kRows);
    for (const int64_t end = at + 100; at < end; at++)
        cr_assert(append(at), "row %ld: %s", long(at), cache_last_error());
    OK(cache_build_done(stream));
    for (int64_t id = 0; id < at; id++)
        RIGHT(rows::check(stream, id, 30'000));
    OK(cache_close(stream));
}

// The disk's limit is another cache's just now.
Test(spill, a_stream_that_met_full_goes_on_when_there_is_room, .timeout = 60) {
    SpillSession s(1 << 20, "/var/tmp", "16"); // MB: two segments
    uint32_t other = 0;
    OK(cache_session_create(s.client, &other));
    cache *hog = nullptr;
    const cache_options options = spilling(1 << 20);
    OK(cache_open(s.client, other, 1, &options, &hog));
    int64_t id = 0;
    while (put_bytes(hog, id, 100'000) == 0)
        id++;
    cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_SPILL_LIMIT}, "%s", cache_last_error());
    cache_options building = spilling(1 << 20);
    building.flags = CACHE_BUILD;
    cache *stream = s.open(2, building);
    int64_t next = -1;
    OK(cache_build_begin(stream, &next));
    const auto append = [&] {
        const std::vector<unsigned char> bytes = bytes_of(next, 100'000);
        const Bytes column(bytes.data(), bytes.size());
        int64_t got = -1;
        const int rc = cache_append(stream, &column.column, 1, &got);
        if (rc == 0) cr_assert_eq(got, next++);
        return rc;
    };
    while (append() == 0)
        cr_assert_lt(next, 100, "there is room for it");
    FAILS(append(), CACHE_EFULL);
    OK(cache_session_destroy(s.client, other));
    OK(cache_close(hog));
    for (const int64_t end = next + 50; next < end;)
        if (append() != 0) usleep(2000); // the server's space is free a moment later
    OK(cache_build_done(stream));
    for (int64_t there = 0; there < next; there++)
        check_bytes(stream, there, 100'000);
    OK(cache_close(stream));
}

Test(spill, threads_of_a_builder_leave_no_holes) {
    SpillSession s;
    cache_options options = spilling(4 << 20);
    options.flags = CACHE_BUILD;
    cache *stream = s.open(2, options);
    int64_t resume = -1;
    OK(cache_build_begin(stream, &resume));
    const std::vector<unsigned char> bytes(20'000, 'x');
    const Bytes column(bytes.data(), bytes.size()), small(bytes.data(), 40); // for these there is memory longer
    std::vector<int64_t> ids[4];
    std::vector<std::thread> threads;
    for (auto &mine : ids)
        threads.emplace_back([&] {
            for (int i = 0; i < 600; i++) {
                int64_t id = -1;
                const Bytes &row = i % 3 ? small : column;
                mine.push_back(cache_append(stream, &row.column, 1, &id) == 0 ? id : -1);
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    OK(cache_build_done(stream));
    std::set<int64_t> all;
    for (const auto &mine : ids)
        all.insert(mine.begin(), mine.end());
    cr_assert_eq(all.size(), 2400);
    cr_assert_eq(*all.begin(), 0);
    cr_assert_eq(*all.rbegin(), 2399);
    std::vector<int64_t> wanted(all.begin(), all.end());
    std::vector<uint8_t> found(2400);
    cr_assert_eq(cache_contains(stream, wanted.data(), 2400, found.data()), 2400);
    OK(cache_close(stream));
}

Test(spill, threads_that_end_leave_their_writes_to_others) {
    SpillSession s;
    const int64_t first = fill_memory(s, 0);
    for (int64_t id = first; id < first + 64; id++)
        std::thread([&] { OK(put_bytes(s.rows, id, 90'000)); }).join();
    OK(cache_flush(s.rows));
    for (int64_t id = first; id < first + 64; id++)
        check_bytes(s.rows, id, 90'000);
}

Test(spill, a_forked_child_reads_and_spills_by_itself) {
    SpillSession s;
    const int64_t first = fill_memory(s, 0);
    for (int64_t id = first; id < first + 50; id++)
        OK(put_bytes(s.rows, id, 30'000)); // some are being written
    cache_view inherited;
    OK(cache_get(s.rows, first, &inherited));
    int64_t some[] = {first + 1, first + 2, first + 9};
    cache_view views[3];
    cr_assert_eq(cache_get_batch(s.rows, some, 3, views), 3); // this thread has a ring now
    const int rings = open_rings();                           // none where io_uring is refused
    const pid_t child = fork();
    if (child == 0) {
        cache_column column{};
        bool right = open_rings() == 0 && cache_view_column(&inherited, 0, &column) == 0 &&
                     rows::first_wrong(column.data, 30'000, first, 0) == -1 && cache_view_release(&inherited) == 0;
        for (int64_t id = first + 100; right && id < first + 150; id++)
            right = put_bytes(s.rows, id, 30'000) == 0;
        right =
            right && cache_flush(s.rows) == 0 && cache_get_batch(s.rows, some, 3, views) == 3 && open_rings() == rings;
        _exit(right && cache_close(s.rows) == 0 ? 0 : 1);
    }
    for (int64_t id = first + 200; id < first + 250; id++)
        OK(put_bytes(s.rows, id, 30'000));
    int status = -1;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    OK(cache_flush(s.rows));
    for (int64_t base : {first, first + 100, first + 200})
        for (int64_t id = base; id < base + 50; id++)
            check_bytes(s.rows, id, 30'000);
}

Test(spill, ten_processes_spill_and_read_at_once, .timeout = 120) {
    SpillSession s(8 << 20);
    constexpr int64_t kRows = 3000;
    constexpr uint64_t kLargest = 30'000;
    std::vector<pid_t> children;
    for (int c = 0; c < 10; c++) {
        const pid_t child = fork();
        if (child == 0) {
            for (int64_t i = 0; i < kRows; i++) {
                const int64_t id = (i * 31 + c * 300) % kRows, other = (i * 17 + c) % kRows;
                if (rows::put(s.rows, id, kLargest) < 0) test_die("put: %s", cache_last_error());
                cache_view view;
                const int got = cache_get(s.rows, other, &view);
                if (got == CACHE_ENOTFOUND) continue;
                if (got != 0) test_die("get: %s", cache_last_error());
                const std::string wrong = rows::Row(other, kLargest).difference(view);
                if (!wrong.empty()) test_die("%s", wrong.c_str());
                if (i % 2) cache_view_release(&view);
            }
            if (cache_flush(s.rows) != 0 || cache_close(s.rows) != 0) test_die("flush: %s", cache_last_error());
            _exit(0);
        }
        children.push_back(child);
    }
    for (const pid_t child : children) {
        int status = -1;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0);
    }
    for (int64_t id = 0; id < kRows; id++)
        RIGHT(rows::check(s.rows, id, kLargest));
    const cache_stats stats = s.stat();
    cr_assert_eq(stats.rows_in_memory + stats.rows_spilled, kRows);
    cr_assert_gt(stats.rows_spilled, 0);
}

Test(spill, the_limit_on_disk_refuses_rows_and_caching_goes_on) {
    SpillSession s(4 << 20, "/var/tmp", "16"); // MB: two segments
    const int64_t first = fill_memory(s, 0);
    int64_t id = first;
    int rc = 0;
    while (rc == 0)
        rc = put_bytes(s.rows, id++, 100'000);
    cr_assert_eq(rc, CACHE_EFULL, "%s", cache_last_error());
    cr_assert_gt(strlen(cache_last_error()), 20);
    OK(cache_flush(s.rows));
    for (int64_t there = first; there < id - 1; there++)
        check_bytes(s.rows, there, 100'000);
    FAILS(put_bytes(s.rows, id, 100'000), CACHE_EFULL);
}

Test(spill, a_row_that_was_changed_on_disk_is_told) {
    SpillSession s;
    const int64_t first = fill_memory(s, 0);
    OK(put_bytes(s.rows, first, 50'000));
    OK(put_bytes(s.rows, first + 1, 50'000));
    OK(cache_flush(s.rows));
    // The file is one of the server's descriptors and has no name.
    char link[64], target[4096];
    const cache_server_stats info = [&] {
        cache_server_stats stats{};
        stats.size = sizeof stats;
        OK(cache_server_info(s.client, &stats));
        return stats;
    }();
    bool done = false;
    for (int fd = 3; fd < 256 && !done; fd++) {
        snprintf(link, sizeof link, "/proc/%d/fd/%d", info.broker_pid, fd);
        const ssize_t n = readlink(link, target, sizeof target - 1);
        if (n <= 0) continue;
        target[n] = 0;
        if (strncmp(target, s.folder.path().c_str(), s.folder.path().size()) != 0) continue;
        FILE *file = fopen(link, "r+");
        if (file == nullptr) continue;
        std::vector<unsigned char> segment(8 << 20);
        segment.resize(fread(segment.data(), 1, segment.size(), file));
        // One byte in the middle of a row, and all of another one, its header with it
        const std::vector<unsigned char> one = bytes_of(first, 50'000), all = bytes_of(first + 1, 50'000);
        const auto at = std::ranges::search(segment, one).begin(), there = std::ranges::search(segment, all).begin();
        cr_assert(at != segment.end() && there != segment.end(), "the rows are not in the first segment");
        at[25'000] ^= 1;
        std::fill(there - 128, there + 128, 1);
        rewind(file);
        fwrite(segment.data(), 1, segment.size(), file);
        done = fclose(file) == 0;
    }
    cr_assert(done, "the spill file was not found");
    cache_view view;
    FAILS(cache_get(s.rows, first, &view), CACHE_ECORRUPT, "CRC-32C", "one of its 1 columns");
    FAILS(cache_get(s.rows, first + 1, &view), CACHE_ECORRUPT, "CRC-32C", "its header is wrong");
    int64_t ids[] = {0, first};
    cache_view views[2];
    FAILS(cache_get_batch(s.rows, ids, 2, views), CACHE_ECORRUPT);
    cr_assert(views[0].cache != nullptr && views[1].cache == nullptr);
}

namespace {

void huge_row(uint64_t size) {
    // A disk may take a minute over it.
    const char *const where = test_memory_available() > 4 * size ? "/dev/shm" : "/var/tmp";
    SpillSession s(4 << 20, where);
    if (s.folder.room() < 2 * size) SKIP("no room on disk for a row of several GiB");
    if (test_memory_available() < 3 * size) SKIP("no memory for a row of several GiB and its copy");
    OK(put_bytes(s.rows, 1, size));
    check_bytes(s.rows, 1, size);
}

} // namespace

Test(spill, a_row_of_more_than_2_gib, .timeout = 300) {
    huge_row((uint64_t{2} << 30) + 4097);
}
Test(spill, a_row_of_more_than_4_gib, .timeout = 300) {
#if defined(__SANITIZE_ADDRESS__)
    SKIP("half a minute under this sanitizer: the row of more than 2 GiB stands for it");
#endif
    huge_row((uint64_t{4} << 30) + 4097);
}
