// SPDX-License-Identifier: Apache-2.0
// Streams: ids in the order of publishing, one builder at a time, and who goes on after it.
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <algorithm>
#include <csignal>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

// Appends a row whose bytes follow from the id it will get; returns the id, or a code.
int64_t append_next(cache *handle, int64_t expected) {
    const rows::Row row(expected, 500);
    int64_t id = -1;
    const int result = cache_append(handle, row.columns(), row.n(), &id);
    return result < 0 ? result : id;
}

cache *open_stream(const Session &s, cache_client *client) {
    cache_options options = options_with_limit(16 << 20);
    options.flags = CACHE_BUILD;
    cache *handle = nullptr;
    OK(cache_open(client, s.id, 2, &options, &handle));
    return handle;
}

void append_rows(cache *handle, int64_t from, int64_t to) {
    for (int64_t id = from; id < to; id++)
        cr_assert_eq(append_next(handle, id), id, "%s", cache_last_error());
}

} // namespace

Test(streams, ids_come_in_order_and_rows_are_readable_at_once) {
    Session s;
    cache *stream = open_stream(s, s.client);
    int64_t resume = -1;
    OK(cache_build_begin(stream, &resume));
    cr_assert_eq(resume, 0);
    for (int64_t id = 0; id < 3000; id++) {
        append_rows(stream, id, id + 1);
        RIGHT(rows::check(stream, id, 500));
    }
    OK(cache_build_done(stream));
    OK(cache_build_wait(stream, 0));
    cr_assert_eq(cache_build_begin(stream, &resume), 1);
    cr_assert_eq(resume, 3000);
    OK(cache_close(stream));
}

Test(streams, put_is_refused_and_who_does_not_build_cannot_append) {
    Session s;
    cache *stream = open_stream(s, s.client);
    FAILS(rows::put(stream, 1), CACHE_EINVAL);
    cr_assert_eq(append_next(stream, 0), CACHE_EBUILDING, "%s", cache_last_error());
    FAILS(cache_build_done(stream), CACHE_EINVAL);
    FAILS(cache_build_leave(stream), CACHE_EINVAL);
    FAILS(cache_build_wait(stream, 10), CACHE_EBUILDING);
    OK(cache_close(stream));
}

Test(streams, threads_of_the_builder_share_the_ids_without_holes) {
    Session s;
    cache *stream = open_stream(s, s.client);
    int64_t resume;
    OK(cache_build_begin(stream, &resume));
    std::vector<int64_t> ids[4];
    std::vector<std::thread> threads;
    const Bytes bytes("0123456789", 10);
    for (auto &mine : ids)
        threads.emplace_back([&] {
            for (int n = 0; n < 1000; n++) {
                int64_t id = -1;
                mine.push_back(cache_append(stream, &bytes.column, 1, &id) == 0 ? id : -1);
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    std::vector<int64_t> all;
    for (auto &mine : ids) {
        cr_assert(std::is_sorted(mine.begin(), mine.end()));
        all.insert(all.end(), mine.begin(), mine.end());
    }
    std::sort(all.begin(), all.end());
    for (int64_t n = 0; n < 4000; n++)
        cr_assert_eq(all[size_t(n)], n);
    OK(cache_close(stream));
}

Test(streams, a_builder_that_leaves_lets_another_one_go_on) {
    Session s;
    cache *mine = open_stream(s, s.client);
    int64_t resume = -1;
    OK(cache_build_begin(mine, &resume));
    append_rows(mine, 0, 100);
    const auto in_child = [&](auto &&body) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(100);
            cache_client *client;
            cache *stream = nullptr;
            cache_options options = CACHE_OPTIONS_INIT;
            options.flags = CACHE_BUILD;
            _exit(cache_connect(nullptr, &client) || cache_open(client, s.id, 2, &options, &stream) || !body(stream));
        }
        int status = -1;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0);
    };
    in_child([](cache *stream) {
        int64_t at = -1;
        return cache_build_begin(stream, &at) == CACHE_EBUILDING;
    });
    OK(cache_build_leave(mine));
    cr_assert_eq(append_next(mine, 100), CACHE_EBUILDING, "%s", cache_last_error());
    FAILS(cache_build_wait(mine, 10), CACHE_EBUILDING);
    FAILS(cache_build_leave(mine), CACHE_EINVAL);
    in_child([](cache *stream) {
        int64_t at = -1;
        if (cache_build_begin(stream, &at) != 0 || at != 100) return false;
        for (int64_t id = 100; id < 150; id++)
            if (append_next(stream, id) != id) return false;
        return cache_build_leave(stream) == 0;
    });
    OK(cache_build_begin(mine, &resume)); // also who has left
    cr_assert_eq(resume, 150);
    append_rows(mine, 150, 200);
    OK(cache_build_done(mine));
    for (int64_t id = 0; id < 200; id++)
        RIGHT(rows::check(mine, id, 500));
    OK(cache_close(mine));
}

Test(streams, another_process_goes_on_where_a_killed_builder_stopped) {
    Session s;
    cache *reader = open_stream(s, s.client);
    int ready[2];
    cr_assert_eq(pipe(ready), 0);
    const pid_t builder = fork();
    if (builder == 0) {
        alarm(100);
        cache_client *client;
        cache *stream = nullptr;
        cache_options options = CACHE_OPTIONS_INIT;
        options.flags = CACHE_BUILD;
        int64_t resume;
        if (cache_connect(nullptr, &client) || cache_open(client, s.id, 2, &options, &stream) ||
            cache_build_begin(stream, &resume))
            _exit(1);
        for (int64_t id = 0;; id++) {
            if (append_next(stream, id) != id) _exit(2);
            if (id == 700) (void)!write(ready[1], "x", 1);
        }
    }
    char byte;
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    int64_t resume = -1;
    FAILS(cache_build_begin(reader, &resume), CACHE_EBUILDING);
    kill(builder, SIGKILL);
    cr_assert_eq(waitpid(builder, nullptr, 0), builder);
    int result = 0;
    for (const time_t deadline = time(nullptr) + 60;
         (result = cache_build_begin(reader, &resume)) == CACHE_EBUILDING && time(nullptr) < deadline;)
        usleep(2000);
    OK(result);
    cr_assert_gt(resume, 700);
    append_rows(reader, resume, resume + 500);
    OK(cache_build_done(reader));
    for (int64_t id = 0; id < resume + 500; id++)
        RIGHT(rows::check(reader, id, 500));
    OK(cache_close(reader));
}
