// SPDX-License-Identifier: Apache-2.0
// The spill writer by itself: its runs, what it says of rows that the disk refuses, and of whom.
#include "tests/support/fake_spill.h"

#include "core/common/error.h"

#include <criterion/criterion.h>
#include <future>
#include <map>

using namespace libcache;

Test(spiller, a_run_is_sealed_once_its_last_row_is_written, .timeout = 60) {
    FakeSpill s;
    constexpr int64_t kRows = 400;
    constexpr uint64_t kBytes = 100'000; // 83 to a run
    std::map<uint64_t, uint64_t> sealed; // runs, and the rows in them when that was seen first
    for (int64_t id = 0; id < kRows; id++) {
        cr_assert_eq(s.put(id, kBytes), 0);
        for (uint64_t run = 0; run < s.lent(); run++)
            if (s.word(run).state == ExtentState::Sealed) sealed.emplace(run, s.rows_of(run));
    }
    cr_assert_eq(s.spiller().flush(), 0);
    cr_assert_eq(s.lent(), 5);
    for (const auto &[run, rows] : sealed)
        cr_assert_eq(rows, s.rows_of(run), "rows were on their way into run %lu when it was sealed", run);
    uint64_t counted = 0;
    for (uint64_t run = 0; run < s.lent(); run++) {
        const bool current = run + 1 == s.lent();
        cr_assert_eq(s.word(run).state, current ? ExtentState::Held : ExtentState::Sealed, "run %lu", run);
        counted += s.rows_of(run);
    }
    cr_assert_eq(counted, uint64_t(kRows));
    for (int64_t id = 0; id < kRows; id++)
        cr_assert(s.check(id, kBytes), "row %ld is missing", id);
    s.end();
    cr_assert_eq(s.word(4).state, ExtentState::Sealed);
}

Test(spiller, a_run_that_was_used_up_by_a_large_row_is_sealed_after_it, .timeout = 60) {
    FakeSpill s;
    for (int64_t id = 0; id < 6; id++)
        cr_assert_eq(s.put(id, 5 << 20), 0); // one to a run
    cr_assert_eq(s.lent(), 6);
    for (uint64_t run = 0; run < 5; run++) {
        cr_assert_eq(s.word(run).state, ExtentState::Sealed, "run %lu", run);
        cr_assert_eq(s.rows_of(run), 1);
    }
}

Test(spiller, who_comes_second_is_told_so, .timeout = 60) {
    FakeSpill s;
    cr_assert_eq(s.put(1, 1000), 0);
    cr_assert_eq(s.put(1, 1000), 1, "it is being written");
    cr_assert_eq(s.spiller().flush(), 0);
    cr_assert_eq(s.put(1, 1000), 1, "it is on disk");
    cr_assert_eq(s.writer().publish(s.place(2)), 0);
    cr_assert_eq(s.put(2, 1000), 1, "it is in memory");
    cr_assert_eq(s.spiller().flush(), 0);
}

// While a put asks the broker for file space, others put, flush, and wait for rows that are being written.
Test(spiller, only_the_row_that_has_no_room_waits_for_the_broker, .timeout = 20) {
    FakeSpill s;
    cr_assert_eq(s.put(1, 1000), 0);
    std::promise<void> asked, answer;
    s.before_grant = [&] {
        asked.set_value();
        answer.get_future().wait();
    };
    std::thread putting([&] {
        if (s.put(2, kSegmentBytes - 512) != 0) test_die("put: %s", last_error()); // the run at hand has less left
    });
    asked.get_future().wait();
    s.spiller().wait_for(3);
    cr_assert_not(s.spiller().writes(3));
    cr_assert_not(s.spiller().writes(2), "it is not under way before it has its place");
    s.spiller().wait_for(1);
    cr_assert_neq(s.index().find(1), 0);
    cr_assert_eq(s.put(4, 1000), 0, "there is room for it in the run at hand");
    cr_assert_eq(s.spiller().flush(), 0);
    cr_assert(s.check(4, 1000));
    answer.set_value();
    putting.join();
    cr_assert_neq(s.index().find(2), 0, "a large row is written by its put");
}

// Threads that use up the run at once share the next one: of each run but the last too little is left for a row.
Test(spiller, who_finds_no_room_at_once_asks_once, .timeout = 60) {
    FakeSpill s;
    constexpr int64_t kThreads = 4, kRows = 300;
    constexpr uint64_t kBytes = 100'000;                                                // 83 to a run
    s.before_grant = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }; // so that others come by
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < kThreads; t++)
        threads.emplace_back([&, t] {
            for (int64_t id = t; id < kRows; id += kThreads)
                if (s.put(id, kBytes) != 0) test_die("put %ld: %s", id, last_error());
        });
    for (std::thread &thread : threads)
        thread.join();
    cr_assert_eq(s.spiller().flush(), 0);
    cr_assert_eq(s.lent(), 4);
    for (int64_t id = 0; id < kRows; id++)
        cr_assert(s.check(id, kBytes), "row %ld is missing", id);
}

// A row is written and the index has no place for it until the broker makes a level: nobody but who waits for that row
// waits for the broker, and nobody holds up others meanwhile.
Test(spiller, a_row_that_needs_a_level_holds_up_nobody, .timeout = 20) {
    FakeSpill s;
    constexpr int64_t kFar = 1'000'000; // beyond the dense level that the first row brings
    cr_assert_eq(s.put(1, 1000), 0);
    cr_assert_eq(s.spiller().flush(), 0);
    auto stopped = s.stop_broker();
    cr_assert_eq(s.put(kFar, 1000), 0);
    while (s.byte_of_file(2048) == 0) // behind the first row
        s.spiller().writes(2);
    for (int i = 0; i < 1000; i++) // one of these finds that the write is done
        s.spiller().writes(2);
    cr_assert(s.spiller().writes(kFar));
    cr_assert_not(s.level_is_wanted(), "who only asks has asked the broker");
    std::thread flushing([&] {
        if (s.spiller().flush() != 0) test_die("flush: %s", last_error());
    });
    while (!s.level_is_wanted())
        std::this_thread::yield();
    cr_assert_eq(s.put(3, 1000), 0);
    s.spiller().wait_for(2);
    cr_assert_eq(s.index().find(kFar), 0);
    stopped.unlock();
    flushing.join();
    cr_assert(s.check(kFar, 1000));
    s.spiller().wait_for(3);
    cr_assert(s.check(3, 1000));
}

Test(spiller, a_failure_is_told_once_to_its_own_call_or_by_flush, .timeout = 60) {
    FakeSpill s(false);
    for (int64_t id = 0; id < 70; id++) // more than are kept in words
        cr_assert_eq(s.put(id, 2 << 20), CACHE_EIO, "row %ld is written by its call", id);
    cr_assert_eq(s.spiller().flush(), 0, "%s", last_error());
    int64_t told = 0;
    for (int64_t id = 100; id < 300; id++)
        told += s.put(id, 30'000) != 0;
    cr_assert_lt(told, 200);
    const int rc = s.spiller().flush();
    cr_assert_eq(rc, CACHE_EIO);
    const std::string more = "and " + std::to_string(200 - told - 1) + " more rows";
    cr_assert(strstr(last_error(), more.c_str()) != nullptr, "'%s' is not in: %s", more.c_str(), last_error());
    cr_assert_eq(s.spiller().flush(), 0);
    cr_assert_eq(s.spiller().busy(), false);
    for (int64_t id = 0; id < 300; id++)
        cr_assert_eq(s.index().find(id), 0, "row %ld was never written", id);
}

Test(spiller, a_stream_that_lost_a_row_says_so_until_it_is_begun_again, .timeout = 60) {
    FakeSpill s(false);
    int64_t id = -1;
    (void)s.append(2000, &id);
    cr_assert_eq(id, 0);
    s.spiller().drain();
    cr_assert(s.spiller().has_stream());
    cr_assert_eq(s.append(2000, &id), CACHE_EIO);
    // A row of memory must not get id 0, which the caller of another row was told.
    const Writer::Place row = s.place(0);
    cr_assert_eq(s.writer().append(row, FakeSpill::kTerm, &id), Writer::kBehind);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(s.spiller().flush_stream(), CACHE_EIO);
    s.spiller().begin_stream();
    cr_assert_eq(s.spiller().flush_stream(), 0, "%s", last_error());
    cr_assert_not(s.spiller().has_stream());
    cr_assert_eq(s.writer().append(row, FakeSpill::kTerm, &id), 0);
    cr_assert_eq(id, 0);
}

Test(spiller, a_stream_keeps_its_order_whatever_is_put_meanwhile, .timeout = 60) {
    FakeSpill s;
    std::thread putting([&] {
        for (int64_t id = 1000; id < 1200; id++)
            if (s.put(id, 20'000) != 0) test_die("put: %s", last_error());
    });
    for (int64_t expected = 0; expected < 100; expected++) {
        int64_t id = -1;
        cr_assert_eq(s.append(expected % 10 == 9 ? 1'500'000 : 20'000, &id), 0);
        cr_assert_eq(id, expected);
    }
    putting.join();
    cr_assert_eq(s.spiller().flush_stream(), 0, "%s", last_error());
    for (int64_t id = 0; id < 100; id++)
        cr_assert_neq(s.index().find(id), 0, "row %ld is missing", id);
    for (int64_t id = 1000; id < 1200; id++)
        cr_assert(s.check(id, 20'000));
}
