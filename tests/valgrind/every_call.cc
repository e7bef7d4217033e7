// SPDX-License-Identifier: Apache-2.0
// every_call [without_io_uring]: each call of libcache.h at least once, with what it returns on success and on failure,
// for memcheck (`make test-valgrind`). tests/valgrind/run sees to it that no call of capi/libcache.map is missing here.
#include "capi/libcache.h"
#include "tests/support/rows.h"
#include "tests/support/server.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <seccomp.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

constexpr uint64_t kLimit = 2 << 20, kLargest = 60'000;
constexpr int64_t kIds = 250; // 3.5 MB

void expect(int64_t result, int64_t wanted, const char *call) {
    if (result != wanted) test_die("%s gave %ld, not %ld: %s", call, long(result), long(wanted), cache_last_error());
}
#define EXPECT(call, wanted) expect((call), (wanted), #call)

cache *open(cache_client *client, uint32_t session, uint32_t id, uint32_t flags, bool spill) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.memory_limit_bytes = kLimit;
    options.flags = flags;
    options.spill = spill;
    options.expected_rows = 500;
    options.tag = "tag";
    options.label = "label";
    cache *handle = nullptr;
    EXPECT(cache_open(client, session, id, &options, &handle), 0);
    return handle;
}

void expect_right(cache *handle, int64_t id, uint64_t largest) {
    if (const std::string wrong = rows::check(handle, id, largest); !wrong.empty()) test_die("%s", wrong.c_str());
}

// As an older kernel does, for this process from now on.
void refuse_io_uring() {
    const scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (filter == nullptr || seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(io_uring_setup), 0) != 0 ||
        seccomp_load(filter) != 0)
        test_die("io_uring cannot be refused");
    seccomp_release(filter);
}

void sessions(cache_client *client) {
    uint32_t id = 0, named = 0, again = 0;
    EXPECT(cache_session_create(client, &id), 0);
    cache_session_options options = CACHE_SESSION_OPTIONS_INIT;
    options.name = "name";
    EXPECT(cache_session_create_with(client, &options, &named), 0);
    EXPECT(cache_session_open(client, "name", &again), 0);
    if (named != again) test_die("a session's name leads to another session");
    EXPECT(cache_session_destroy(client, named), 0);
    EXPECT(cache_session_destroy(client, named), CACHE_ENOSESSION);
    EXPECT(cache_session_destroy(client, id), 0);
}

// Rows there, rows missing, one by one and together; `largest` chooses where they lie.
void read(cache *handle, uint64_t largest, int64_t n) {
    std::vector<int64_t> ids;
    for (int64_t id = 0; id < n; id++) {
        ids.push_back(id);
        expect_right(handle, id, largest);
    }
    ids.push_back(n + 1000);
    std::vector<cache_view> views(ids.size());
    std::vector<uint8_t> found(ids.size());
    EXPECT(cache_get_batch(handle, ids.data(), ids.size(), views.data()), n);
    for (int64_t id = 0; id < n; id++) {
        if (const std::string wrong = rows::Row(id, largest).difference(views[size_t(id)]); !wrong.empty())
            test_die("%s", wrong.c_str());
        EXPECT(cache_view_release(&views[size_t(id)]), 0);
    }
    EXPECT(cache_contains(handle, ids.data(), ids.size(), found.data()), n);
    std::vector<unsigned char> gathered(ids.size() * 8);
    EXPECT(cache_gather(handle, ids.data(), ids.size(), 1, gathered.data(), 8, found.data()), n);
    for (int64_t id = 0; id < n; id++)
        if (rows::first_wrong(&gathered[size_t(id) * 8], 8, id, 1) >= 0)
            test_die("row %ld is gathered wrong", long(id));
    uint64_t cursor = 0;
    int64_t scanned = 0;
    for (int64_t some; (some = cache_scan(handle, &cursor, ids.data(), ids.size())) > 0;)
        scanned += some;
    if (scanned < n) test_die("%ld of %ld rows are listed", long(scanned), long(n));
    cache_view view{};
    EXPECT(cache_get(handle, n + 1000, &view), CACHE_ENOTFOUND);
    EXPECT(cache_view_columns(&view), CACHE_EINVAL);
    cache_column column{};
    EXPECT(cache_view_column(&view, 0, &column), CACHE_EINVAL);
}

void reserve(cache *handle, int64_t id) {
    const rows::Row row(id);
    for (const bool commit : {false, true}) {
        std::vector<cache_column> columns(row.columns(), row.columns() + row.n());
        cache_reservation *reservation = nullptr;
        EXPECT(cache_reserve(handle, id, columns.data(), row.n(), &reservation), 0);
        for (uint32_t i = 0; i < row.n(); i++)
            rows::fill(columns[i].data, columns[i].bytes, id, i);
        EXPECT(commit ? cache_commit(reservation) : cache_abort(reservation), 0);
    }
    expect_right(handle, id, 2000);
}

void names(cache *handle) {
    const char *const some[] = {"image", "label"}, *const others[] = {"picture"};
    char buffer[32];
    size_t bytes = sizeof buffer;
    EXPECT(cache_schema_get(handle, buffer, &bytes), CACHE_ENOTFOUND);
    EXPECT(cache_schema_set(handle, some, 2), 0);
    EXPECT(cache_schema_set(handle, others, 1), CACHE_ECONFLICT);
    bytes = sizeof buffer;
    EXPECT(cache_schema_get(handle, buffer, &bytes), 2);
    if (std::string(buffer, bytes) != std::string("image\0label\0", 12)) test_die("the names of columns are wrong");
}

void in_memory(cache_client *client, uint32_t session) {
    cache *handle = open(client, session, 1, 0, false);
    names(handle);
    EXPECT(rows::put(handle, 0), 0);
    EXPECT(rows::put(handle, 0), 1);
    EXPECT(rows::put(handle, -1), CACHE_EINVAL);
    std::thread other([&] {
        for (int64_t id = 1; id < 60; id++)
            EXPECT(rows::put(handle, id), 0);
    });
    other.join();
    read(handle, 2000, 60);
    reserve(handle, 200);
    EXPECT(cache_flush(handle), 0);
    EXPECT(cache_check(handle, CACHE_CHECK_ROWS, nullptr, nullptr), 0);
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        expect_right(handle, 59, 2000);
        EXPECT(rows::put(handle, 300), 0);
        EXPECT(cache_close(handle), 0);
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0) test_die("a child ended with wait status %d", status);
    expect_right(handle, 300, 2000);
    int result = 0;
    for (int64_t id = 1000; result == 0; id++)
        result = rows::put(handle, id, 100'000);
    expect(result, CACHE_EFULL, "a put into a full cache");
    if (cache_full_cause() != CACHE_FULL_SIZE) test_die("a full cache has cause %u", cache_full_cause());
    if (std::string(cache_strerror(result)).empty()) test_die("a code without a meaning");
    cache_stats stats{};
    stats.size = sizeof stats;
    EXPECT(cache_stat(handle, &stats), 0);
    EXPECT(cache_destroy(client, session, 1), 0);
    EXPECT(rows::put(handle, 5000), CACHE_EGONE);
    EXPECT(cache_close(handle), 0);
}

void on_disk(cache_client *client, uint32_t session) {
    cache *handle = open(client, session, 2, 0, true);
    for (int64_t id = 0; id < kIds; id++)
        EXPECT(rows::put(handle, id, kLargest), 0);
    EXPECT(cache_flush(handle), 0);
    cache_stats stats{};
    stats.size = sizeof stats;
    EXPECT(cache_stat(handle, &stats), 0);
    if (stats.rows_spilled < kIds / 4) test_die("%ld rows are spilled", long(stats.rows_spilled));
    read(handle, kLargest, kIds);
    EXPECT(cache_check(handle, CACHE_CHECK_ROWS, nullptr, nullptr), 0);
    EXPECT(cache_close(handle), 0);
}

void stream(cache_client *client, uint32_t session) {
    cache *handle = open(client, session, 3, CACHE_BUILD, false);
    int64_t next = -1, id = -1;
    EXPECT(cache_build_begin(handle, &next), 0);
    const rows::Row first(0), second(1);
    EXPECT(cache_append(handle, first.columns(), first.n(), &id), 0);
    EXPECT(cache_build_leave(handle), 0);
    EXPECT(cache_build_begin(handle, &next), 0);
    EXPECT(next, 1);
    EXPECT(cache_append(handle, second.columns(), second.n(), &id), 0);
    EXPECT(cache_build_done(handle), 0);
    EXPECT(cache_build_wait(handle, 60'000), 0);
    EXPECT(cache_append(handle, first.columns(), first.n(), &id), CACHE_EBUILDING);
    expect_right(handle, 1, 2000);
    EXPECT(cache_close(handle), 0);
}

int count_entry(const cache_list_entry *, void *n) {
    ++*static_cast<int *>(n);
    return 0;
}

void drive(cache_client *client) {
    sessions(client);
    uint32_t session = 0;
    EXPECT(cache_session_create(client, &session), 0);
    in_memory(client, session);
    on_disk(client, session);
    stream(client, session);
    int n = 0;
    EXPECT(cache_list(client, count_entry, &n), 2);
    cache_server_stats info{};
    info.size = sizeof info;
    EXPECT(cache_server_info(client, &info), 0);
    if (std::string(cache_version()).empty() || cache_dtype_bytes(CACHE_INT64) != 8) test_die("constants are wrong");
}

} // namespace

int main(int argc, char **argv) {
    test_watchdog(280);
    std::string folder = std::string(getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp") + "/libcache-spill-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) test_die("mkdtemp %s", folder.c_str());
    const char *const arguments[] = {"--spilldir", folder.c_str(), nullptr};
    test_server *const server = test_server_start(arguments);
    if (argc > 1 && std::string(argv[1]) == "without_io_uring") refuse_io_uring();
    cache_client *client = nullptr;
    EXPECT(cache_connect(nullptr, &client), 0);
    drive(client);
    EXPECT(cache_disconnect(client), 0);
    test_server_stop(server);
    // Without a server, and the end of one by a client.
    EXPECT(cache_connect(nullptr, &client), CACHE_ESERVER);
    static test_server *const other = test_server_start(nullptr); // static: nothing deletes it, and it is not lost
    EXPECT(cache_connect(nullptr, &client), 0);
    EXPECT(cache_server_stop(client), 0);
    EXPECT(cache_disconnect(client), 0);
    if (waitpid(test_server_pid(other), nullptr, 0) < 0) test_die("the server that was stopped is not our child");
    std::filesystem::remove_all(test_server_dir(other));
    std::filesystem::remove_all(folder);
    printf("every call was made\n");
    return 0;
}
