// SPDX-License-Identifier: Apache-2.0
// A handle opened before fork() works in the child.
#include "tests/support/child.h"
#include "tests/support/rows.h"
#include "tests/support/spill.h"

#include <atomic>
#include <dlfcn.h>
#include <thread>
#include <unistd.h>

namespace {

constexpr int kChildren = 8;

std::string put_rows(cache *handle, int64_t from, int64_t to, uint64_t largest = 2000) {
    for (int64_t id = from; id < to; id++)
        if (const int code = rows::put(handle, id, largest))
            return "put of row " + std::to_string(id) + ": " + std::to_string(code) + " " + cache_last_error();
    return "";
}

std::string check_rows(cache *handle, int64_t from, int64_t to, uint64_t largest = 2000) {
    for (int64_t id = from; id < to; id++)
        if (std::string wrong = rows::check(handle, id, largest); !wrong.empty()) return wrong;
    return "";
}

// Puts rows [from, to), then checks rows [first, to).
std::string put_and_check(cache *handle, int64_t from, int64_t to, int64_t first, uint64_t largest = 2000) {
    const std::string wrong = put_rows(handle, from, to, largest);
    return wrong.empty() ? check_rows(handle, first, to, largest) : wrong;
}

// Children read what the parent wrote, write 500 rows each, and read them; then everybody's rows are right.
void children_read_and_write(Session &s, int64_t parent_rows) {
    std::vector<pid_t> children;
    for (int child = 0; child < kChildren; child++)
        children.push_back(spawn([&, child] {
            std::string wrong = check_rows(s.rows, 0, parent_rows);
            const int64_t first = 100000 + child * 500;
            return wrong.empty() ? put_and_check(s.rows, first, first + 500, first) : wrong;
        }));
    RIGHT(put_rows(s.rows, parent_rows, parent_rows + 500));
    for (pid_t child : children)
        join(child);
    RIGHT(check_rows(s.rows, 0, parent_rows + 500));
    RIGHT(check_rows(s.rows, 100000, 100000 + kChildren * 500));
    cr_assert_eq(s.stat().rows_in_memory, parent_rows + 500 + kChildren * 500);
}

// Where a thread stands in the middle of what the library does once in a process.
std::atomic<bool> holds{false}, held{false};

// A process's first calls, up to its first row on disk.
std::string connect_and_spill(int64_t from) {
    cache_client *client = nullptr;
    cache *handle = nullptr;
    uint32_t id = 0;
    const cache_options options = spilling(4 << 20);
    if (cache_connect(nullptr, &client) || cache_session_open(client, "shared", &id) ||
        cache_open(client, id, 1, &options, &handle))
        return cache_last_error();
    const std::string wrong = put_and_check(handle, from, from + 200, from, 60'000);
    return wrong.empty() && (cache_close(handle) || cache_disconnect(client)) ? cache_last_error() : wrong;
}

} // namespace

// glibc's, by which pthread_atfork() works: in place of it for the library, too.
extern "C" [[gnu::visibility("default")]] int __register_atfork(void (*prepare)(), void (*parent)(), void (*child)(),
                                                                void *library) {
    for (held = holds.load(); holds.load();)
        usleep(1000);
    const auto real = reinterpret_cast<decltype(&__register_atfork)>(dlsym(RTLD_NEXT, "__register_atfork"));
    return real == nullptr ? -1 : real(prepare, parent, child, library);
}

Test(fork, a_handle_opened_before_it_reads_and_writes_in_8_children) {
    Session s;
    children_read_and_write(s, 0);
}

Test(fork, a_handle_written_before_it_reads_and_writes_in_8_children) {
    Session s;
    RIGHT(put_rows(s.rows, 0, 2000));
    children_read_and_write(s, 2000);
}

Test(fork, a_child_that_changes_its_folder_finds_a_server_named_by_a_relative_path) {
    Session s;
    cr_assert_eq(chdir(test_server_dir(s.server)), 0);
    const std::string socket = test_server_socket(s.server);
    const std::string relative = socket.substr(socket.rfind('/') + 1);
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.socket_path = relative.c_str();
    cache_client *client = nullptr;
    cache *handle = nullptr;
    OK(cache_connect(&options, &client));
    OK(cache_open(client, s.id, 1, nullptr, &handle));
    RIGHT(put_and_check(handle, 0, 10, 0));
    join(spawn([&] { return chdir("/") != 0 ? "chdir" : put_and_check(handle, 10, 20, 0); }));
    RIGHT(check_rows(handle, 0, 20));
    cache_close(handle);
    cache_disconnect(client);
}

Test(fork, grandchildren_work_too) {
    Session s;
    RIGHT(put_rows(s.rows, 0, 10));
    join(spawn([&] {
        std::string wrong = put_rows(s.rows, 10, 20);
        if (!wrong.empty()) return wrong;
        wrong = outcome(spawn([&] { return put_and_check(s.rows, 20, 30, 0); }));
        return wrong.empty() ? put_rows(s.rows, 30, 40) : wrong;
    }));
    RIGHT(check_rows(s.rows, 0, 40));
}

Test(fork, a_reservation_belongs_to_the_parent) {
    Session s;
    Bytes bytes(nullptr, 1000);
    cache_reservation *reservation;
    OK(cache_reserve(s.rows, 1, &bytes.column, 1, &reservation));
    rows::fill(bytes.column.data, 1000, 1, 0);
    for (bool commit : {true, false})
        join(spawn([&] {
            const int result = commit ? cache_commit(reservation) : cache_abort(reservation);
            if (result != CACHE_EINVAL) return "in the child: " + std::to_string(result);
            if (!strstr(cache_last_error(), "child")) return std::string(cache_last_error());
            return put_rows(s.rows, 2 + commit, 3 + commit); // the child can write none the less
        }));
    OK(cache_commit(reservation));
    cache_view view;
    cache_column column;
    OK(cache_get(s.rows, 1, &view));
    OK(cache_view_column(&view, 0, &column));
    cr_assert_eq(rows::first_wrong(column.data, 1000, 1, 0), -1);
    RIGHT(check_rows(s.rows, 2, 4));
}

Test(fork, views_of_the_parent_are_readable_in_the_child_after_the_session_ended) {
    Session s;
    RIGHT(put_rows(s.rows, 0, 10));
    cache_view view;
    OK(cache_get(s.rows, 5, &view));
    int gate[2];
    cr_assert_eq(pipe(gate), 0);
    const pid_t child = spawn([&] {
        char byte;
        (void)!read(gate[0], &byte, 1);
        return rows::Row(5).difference(view);
    });
    OK(cache_session_destroy(s.client, s.id));
    cr_assert_eq(write(gate[1], "x", 1), 1);
    join(child);
}

Test(fork, the_child_goes_on_when_its_parent_has_ended) {
    Session s;
    int done[2];
    cr_assert_eq(pipe(done), 0);
    join(spawn([&] { // the parent of the child that counts
        std::string wrong = put_rows(s.rows, 0, 100);
        if (!wrong.empty()) return wrong;
        const pid_t parent = getpid();
        spawn([&, parent] {
            while (getppid() == parent)
                usleep(1000);
            std::string late = check_rows(s.rows, 0, 100);
            if (late.empty()) late = put_and_check(s.rows, 100, 2000, 0);
            const char verdict = late.empty() ? 'y' : 'n';
            if (!late.empty()) fprintf(stderr, "orphan: %s\n", late.c_str());
            (void)!write(done[1], &verdict, 1);
            return late;
        });
        return std::string();
    }));
    close(done[1]);
    char verdict = 0;
    cr_assert_eq(read(done[0], &verdict, 1), 1);
    cr_assert_eq(verdict, 'y');
    RIGHT(check_rows(s.rows, 0, 2000));
}

Test(fork, closing_in_the_child_takes_nothing_from_the_parent) {
    Session s;
    RIGHT(put_rows(s.rows, 0, 10));
    join(spawn([&] {
        if (cache_close(s.rows) || cache_disconnect(s.client)) return std::string(cache_last_error());
        return std::string();
    }));
    RIGHT(put_rows(s.rows, 10, 1000));
    RIGHT(check_rows(s.rows, 0, 1000));
    uint32_t id;
    OK(cache_session_create(s.client, &id));
}

Test(fork, control_calls_work_in_the_child) {
    Session s;
    join(spawn([&]() -> std::string {
        uint32_t id;
        cache *handle;
        if (cache_session_create(s.client, &id) || cache_open(s.client, id, 1, nullptr, &handle))
            return cache_last_error();
        return put_and_check(handle, 0, 10, 0);
    }));
    uint32_t id;
    OK(cache_session_create(s.client, &id));
}

Test(fork, while_another_thread_writes_leaves_the_child_able_to_write) {
    if (kSanitized)
        SKIP("a fork beside a thread that allocates: the sanitizer's own allocator lock stays held in the child");
    Session s;
    std::atomic<bool> stop{false};
    std::atomic<int64_t> written{0};
    std::string wrong;
    std::thread writer([&] {
        for (int64_t id = 0; !stop.load() && wrong.empty() && id < 200000; id++, written.store(id))
            wrong = rows::put(s.rows, id, 100) ? cache_last_error() : "";
    });
    while (written.load() < 100)
        std::this_thread::yield();
    for (int round = 0; round < 24; round++)
        join(spawn([&, round] { return put_rows(s.rows, 1000000 + round * 50, 1000050 + round * 50); }));
    stop.store(true);
    writer.join();
    RIGHT(wrong);
    for (int64_t id = 0; id < written.load(); id++)
        RIGHT(rows::check(s.rows, id, 100));
    RIGHT(check_rows(s.rows, 1000000, 1000000 + 24 * 50));
}

// What a thread had begun stays half done in a child that another one forks: nothing there may wait for its end.
Test(fork, while_another_thread_makes_its_first_calls_leaves_the_child_able_to_make_its_own) {
    SpillFolder folder;
    const char *const arguments[] = {"--spilldir", folder.path().c_str(), nullptr};
    test_server *const server = test_server_start(arguments);
    holds = true;
    std::atomic<bool> ended{false};
    std::string wrong;
    std::thread first([&] {
        wrong = connect_and_spill(0);
        ended = true;
    });
    while (!held.load() && !ended.load())
        std::this_thread::yield();
    const pid_t child = spawn([] {
        holds = false;
        return connect_and_spill(1000);
    });
    const std::string childs = outcome(child);
    holds = false;
    first.join();
    RIGHT(wrong);
    RIGHT(childs);
    test_server_stop(server);
}
