// SPDX-License-Identifier: Apache-2.0
// Sessions, names, tags, labels, column names, listing; what is destroyed; who gets room again.
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>
#include <set>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

struct Line {
    uint32_t session_id;
    std::string name;
    bool has_cache;
    cache_stats stats;
};

std::vector<Line> list(cache_client *client) {
    std::vector<Line> lines;
    const int n = cache_list(
        client,
        [](const cache_list_entry *entry, void *argument) {
            static_cast<std::vector<Line> *>(argument)->push_back({entry->session_id, entry->session_name,
                                                                   entry->stats != nullptr,
                                                                   entry->stats ? *entry->stats : cache_stats{}});
            return 0;
        },
        &lines);
    cr_assert_eq(n, int(lines.size()), "%s", cache_last_error());
    return lines;
}

cache_server_stats info(cache_client *client) {
    cache_server_stats stats{};
    stats.size = sizeof stats;
    OK(cache_server_info(client, &stats));
    return stats;
}

// Polls until `done`; a deadline of 60 s stands for "never".
bool eventually(const std::function<bool()> &done) {
    for (const time_t deadline = time(nullptr) + 60; time(nullptr) < deadline; usleep(5000))
        if (done()) return true;
    return false;
}

int in_child(const std::function<int()> &body) {
    const pid_t pid = fork();
    if (pid == 0) _exit(body());
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

} // namespace

Test(session, ids_are_random_unique_and_never_0) {
    Session s;
    std::set<uint32_t> ids;
    for (int i = 0; i < 300; i++) {
        uint32_t id = 0;
        OK(cache_session_create(s.client, &id));
        cr_assert_neq(id, 0);
        cr_assert(ids.insert(id).second, "session %u came twice", id);
    }
    cr_assert_gt(*ids.rbegin() - *ids.begin(), 1u << 24, "300 random numbers lie close together");
    for (uint32_t id : ids)
        OK(cache_session_destroy(s.client, id));
    FAILS(cache_session_destroy(s.client, *ids.begin()), CACHE_ENOSESSION, std::to_string(*ids.begin()));
}

Test(session, of_one_name_is_the_same_for_all_who_ask) {
    Session s;
    uint32_t a, b, c;
    OK(cache_session_open(s.client, "imagenet", &a));
    OK(cache_session_open(s.client, "imagenet", &b));
    OK(cache_session_open(s.client, "Im\xc3\xa4genet", &c));
    cr_assert_eq(a, b);
    cr_assert_neq(a, c);
    cr_assert_eq(in_child([&] {
                     uint32_t id = 0;
                     cache_client *client;
                     if (cache_connect(nullptr, &client) || cache_session_open(client, "imagenet", &id)) return 1;
                     return id == a ? 0 : 2;
                 }),
                 0);
    bool listed = false;
    for (const Line &line : list(s.client))
        listed = listed || (line.session_id == a && line.name == "imagenet");
    cr_assert(listed);
    OK(cache_session_destroy(s.client, a));
    OK(cache_session_open(s.client, "imagenet", &b));
}

Test(session, destroyed_under_a_handle_is_egone_and_closes_well) {
    Session s;
    OK(rows::put(s.rows, 1));
    OK(cache_session_destroy(s.client, s.id));
    const std::string id = std::to_string(s.id);
    const int64_t one = 1;
    uint8_t found;
    cache_view view;
    uint64_t cursor = 0;
    int64_t ids[4];
    char buffer[8];
    size_t bytes = sizeof buffer;
    const char *names[] = {"a"};
    cache_column column = Bytes(nullptr, 8).column;
    const int64_t shape = 8;
    column.shape = &shape;
    cache_reservation *reservation;
    FAILS(rows::put(s.rows, 2), CACHE_EGONE, id.c_str(), "open the cache again");
    FAILS(cache_reserve(s.rows, 2, &column, 1, &reservation), CACHE_EGONE, id.c_str());
    FAILS(cache_get(s.rows, 1, &view), CACHE_EGONE, id.c_str());
    FAILS(cache_get_batch(s.rows, &one, 1, &view), CACHE_EGONE, id.c_str());
    FAILS(cache_gather(s.rows, &one, 1, 0, buffer, 8, &found), CACHE_EGONE, id.c_str());
    FAILS(cache_contains(s.rows, &one, 1, &found), CACHE_EGONE, id.c_str());
    FAILS(cache_scan(s.rows, &cursor, ids, 4), CACHE_EGONE, id.c_str());
    FAILS(cache_schema_set(s.rows, names, 1), CACHE_EGONE, id.c_str());
    FAILS(cache_schema_get(s.rows, buffer, &bytes), CACHE_EGONE, id.c_str());
    cache *again;
    FAILS(cache_open(s.client, s.id, 1, nullptr, &again), CACHE_ENOSESSION, id.c_str());
}

Test(cache, destroyed_alone_leaves_the_others_and_can_be_made_anew) {
    Session s;
    cache *other = s.open(2, options_with_limit(4 << 20));
    OK(rows::put(s.rows, 1));
    OK(rows::put(other, 1));
    OK(cache_destroy(s.client, s.id, 1));
    cache_view view;
    FAILS(cache_get(s.rows, 1, &view), CACHE_EGONE);
    RIGHT(rows::check(other, 1));
    cache *anew = s.open(1, options_with_limit(4 << 20));
    FAILS(cache_get(anew, 1, &view), CACHE_ENOTFOUND, "row 1");
    OK(rows::put(anew, 1));
    RIGHT(rows::check(anew, 1));
    FAILS(cache_get(s.rows, 1, &view), CACHE_EGONE);
    OK(cache_close(anew));
    OK(cache_close(other));
}

Test(cache, rows_stay_when_all_handles_are_closed) {
    Session s;
    for (int64_t id = 0; id < 1000; id++)
        OK(rows::put(s.rows, id));
    OK(cache_close(s.rows));
    s.rows = s.open(1, options_with_limit(0));
    for (int64_t id = 0; id < 1000; id++)
        RIGHT(rows::check(s.rows, id));
    cr_assert_eq(s.stat().limit_bytes, 64 << 20, "the first opener's limit holds");
    OK(rows::put(s.rows, 1000));
}

Test(cache, the_client_may_be_disconnected_first) {
    Session s;
    OK(cache_disconnect(s.client));
    s.client = nullptr;
    for (int64_t id = 0; id < 5000; id++)
        OK(rows::put(s.rows, id));
    for (int64_t id = 0; id < 5000; id++)
        RIGHT(rows::check(s.rows, id));
}

Test(tag, another_one_is_a_conflict_that_names_both_labels) {
    Session s;
    cache_options options = options_with_limit(4 << 20);
    options.tag = "decode-v1";
    options.label = "ImageNet, decoded \xe2\x9c\x93";
    cache *first = s.open(5, options), *second = nullptr;
    OK(rows::put(first, 1));
    cache_options other = options;
    other.tag = "decode-v2";
    other.label = "ImageNet, cropped";
    FAILS(cache_open(s.client, s.id, 5, &other, &second), CACHE_ECONFLICT, "ImageNet, decoded", "ImageNet, cropped");
    cr_assert_null(second);
    second = s.open(5, options);
    cache *any = s.open(5, CACHE_OPTIONS_INIT);
    for (cache *handle : {first, second, any}) {
        const cache_stats stats = s.stat(handle);
        cr_assert_str_eq(stats.tag, "decode-v1");
        cr_assert_str_eq(stats.label, options.label);
        RIGHT(rows::check(handle, 1));
        OK(cache_close(handle));
    }
    for (const Line &line : list(s.client))
        if (line.stats.cache_id == 5) cr_assert_str_eq(line.stats.label, options.label);
}

Test(tag, of_64_bytes_and_label_of_255_are_kept_whole) {
    Session s;
    const std::string tag(64, 't'), label(255, 'l');
    cache_options options = options_with_limit(4 << 20);
    options.tag = tag.c_str();
    options.label = label.c_str();
    cache *handle = s.open(6, options);
    const cache_stats stats = s.stat(handle);
    cr_assert_str_eq(stats.tag, tag.c_str());
    cr_assert_str_eq(stats.label, label.c_str());
    OK(cache_close(handle));
}

Test(schema, is_stored_once_and_another_one_is_a_conflict) {
    Session s;
    const char *const names[] = {"image", "label", "\xc3\xbc", "x"}, *const others[] = {"image", "mask"},
                      *const nameless[] = {"image", ""};
    char buffer[64];
    size_t bytes = sizeof buffer;
    FAILS(cache_schema_get(s.rows, buffer, &bytes), CACHE_ENOTFOUND, "column names");
    FAILS(cache_schema_set(s.rows, nameless, 2), CACHE_EINVAL, "empty");
    OK(cache_schema_set(s.rows, names, 4));
    OK(cache_schema_set(s.rows, names, 4));
    FAILS(cache_schema_set(s.rows, names, 3), CACHE_ECONFLICT);
    FAILS(cache_schema_set(s.rows, others, 2), CACHE_ECONFLICT);
    bytes = 0;
    cr_assert_eq(cache_schema_get(s.rows, nullptr, &bytes), 4);
    cr_assert_eq(bytes, 6 + 6 + 3 + 2);
    bytes--;
    FAILS(cache_schema_get(s.rows, buffer, &bytes), CACHE_EINVAL, "17");
    cr_assert_eq(bytes, 17, "says what is needed");
    cr_assert_eq(cache_schema_get(s.rows, buffer, &bytes), 4);
    cr_assert_eq(memcmp(buffer, "image\0label\0\xc3\xbc\0x", 17), 0);
    cr_assert_eq(s.stat().rows_in_memory, 0, "a schema is no row");
}

Test(schema, of_more_than_4000_bytes_or_of_no_name_is_refused) {
    Session s;
    const std::string half(1999, 'n'), more(2000, 'n');
    const char *const largest[] = {half.c_str(), half.c_str()}, *const larger[] = {half.c_str(), more.c_str()};
    FAILS(cache_schema_set(s.rows, larger, 2), CACHE_EINVAL, "4000");
    FAILS(cache_schema_set(s.rows, largest, 0), CACHE_EINVAL);
    OK(cache_schema_set(s.rows, largest, 2));
}

Test(list, shows_sessions_and_caches_in_order_and_rows_as_they_come) {
    Session s;
    uint32_t empty;
    OK(cache_session_create(s.client, &empty));
    cache *second = s.open(4000000000u, options_with_limit(4 << 20));
    for (int64_t id = 0; id < 50; id++)
        OK(rows::put(s.rows, id));
    std::vector<Line> lines = list(s.client);
    cr_assert_eq(lines.size(), 3);
    for (size_t i = 1; i < lines.size(); i++)
        cr_assert(
            lines[i - 1].session_id < lines[i].session_id ||
            (lines[i - 1].session_id == lines[i].session_id && lines[i - 1].stats.cache_id < lines[i].stats.cache_id));
    for (const Line &line : lines) {
        if (line.session_id == empty) {
            cr_assert_not(line.has_cache);
            continue;
        }
        cr_assert_eq(line.session_id, s.id);
        cr_assert_eq(line.stats.rows_in_memory, line.stats.cache_id == 1 ? 50 : 0);
        cr_assert_eq(line.stats.limit_bytes, line.stats.cache_id == 1 ? 64 << 20 : 4 << 20);
        cr_assert_geq(line.stats.readers, 1);
    }
    OK(cache_close(second));
}

Test(list, ends_when_the_callback_says_so) {
    Session s;
    uint32_t id;
    OK(cache_session_create(s.client, &id));
    int calls = 0;
    cr_assert_eq(cache_list(
                     s.client, [](const cache_list_entry *, void *n) { return ++*static_cast<int *>(n), 42; }, &calls),
                 42);
    cr_assert_eq(calls, 1);
}

Test(list, of_many_caches_is_complete) {
    Session s;
    std::map<uint32_t, int> seen;
    for (uint32_t id = 2; id <= 150; id++)
        OK(cache_close(s.open(id, options_with_limit(1 << 20))));
    for (const Line &line : list(s.client))
        seen[line.stats.cache_id]++;
    cr_assert_eq(seen.size(), 150);
    for (const auto &[id, n] : seen)
        cr_assert_eq(n, 1, "cache %u came %d times", id, n);
}

Test(server_info, tells_what_is_true) {
    Session s;
    const cache_server_stats stats = info(s.client);
    cr_assert_eq(stats.port, test_server_port(s.server));
    cr_assert_eq(stats.tcp_port, test_server_port(s.server));
    cr_assert_eq(stats.keeper_pid, test_server_pid(s.server));
    cr_assert_eq(kill(stats.broker_pid, 0), 0);
    cr_assert_eq(stats.supervised, 1);
    cr_assert_eq(stats.sessions, 1);
    cr_assert_eq(stats.caches, 1);
    cr_assert_geq(stats.clients, 1);
    cr_assert_eq(stats.version_major, CACHE_VERSION_MAJOR);
    cr_assert_str_eq(stats.socket_path, test_server_socket(s.server));
    cr_assert_gt(strlen(stats.backing_reason), 10);
    cr_assert_eq(stats.huge_pages, s.stat().huge_pages);
    cr_assert_gt(stats.memory_limit_bytes, 64 << 20);
    cr_assert_geq(stats.memory_used_bytes, s.stat().charged_bytes);
}

Test(server_info, no_row_costs_a_message) {
    Session s;
    for (int64_t id = 0; id < 100; id++)
        OK(rows::put(s.rows, id, 100)); // attached, layouts and levels are there
    const int64_t before = info(s.client).messages;
    for (int64_t id = 100; id < 20100; id++)
        OK(rows::put(s.rows, id, 100));
    const int64_t written = info(s.client).messages;
    cr_assert_leq(written - before, 20, "20,000 rows took %ld messages", written - before);
    for (int64_t id = 0; id < 20100; id++)
        RIGHT(rows::check(s.rows, id, 100));
    cr_assert_leq(info(s.client).messages - written, 1, "reading asks the server");
}

Test(server, given_one_backing_uses_it_or_says_why_not) {
    const char *const memfd[] = {"--backing", "memfd", nullptr};
    Session s(64 << 20, memfd);
    cr_assert_eq(info(s.client).huge_pages, 0);
    cr_assert_eq(s.stat().huge_pages, 0);
    for (int64_t id = 0; id < 1000; id++)
        OK(rows::put(s.rows, id));
    for (int64_t id = 0; id < 1000; id++)
        RIGHT(rows::check(s.rows, id));
}

Test(server, stopped_through_the_api_has_ended_when_the_call_returns) {
    Session s;
    OK(rows::put(s.rows, 1));
    const pid_t pid = test_server_pid(s.server), broker = info(s.client).broker_pid;
    OK(cache_server_stop(s.client));
    cr_assert_neq(access(test_server_socket(s.server), F_OK), 0);
    cr_assert(eventually([&] { return kill(broker, 0) != 0; }), "the broker lives on");
    int status = -1;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    RIGHT(rows::check(s.rows, 1));
    uint32_t id;
    FAILS(cache_session_create(s.client, &id), CACHE_ESERVER);
    s.server = nullptr;
}

Test(server, killed_with_its_keeper_is_eserver_for_writers_and_nothing_for_readers) {
    Session s;
    OK(rows::put(s.rows, 1));
    const std::string port = std::to_string(info(s.client).port);
    test_server_kill(s.server, info(s.client).broker_pid);
    s.server = nullptr;
    int result = 0;
    int64_t next = 1;
    while (result == 0)
        result = rows::put(s.rows, ++next, 20000); // what was granted still goes
    cr_assert_eq(result, CACHE_ESERVER, "%d: %s", result, cache_last_error());
    FAILS(rows::put(s.rows, next, 20000), CACHE_ESERVER, "row " + std::to_string(next) + " is not stored",
          "cache_admin --start -p " + port);
    RIGHT(rows::check(s.rows, 1));
    uint32_t id;
    FAILS(cache_session_create(s.client, &id), CACHE_ESERVER);
}

Test(server, that_hangs_is_a_timeout_for_calls_that_need_it) {
    Session s;
    OK(rows::put(s.rows, 1));
    const pid_t broker = info(s.client).broker_pid;
    cr_assert_eq(in_child([&] {
                     cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
                     options.timeout_ms = 300;
                     cache_client *client;
                     uint32_t id;
                     if (cache_connect(&options, &client)) return 1;
                     kill(broker, SIGSTOP);
                     const int result = cache_session_create(client, &id);
                     kill(broker, SIGCONT);
                     return result == CACHE_ETIMEOUT && strlen(cache_last_error()) > 10 ? 0 : 2;
                 }),
                 0);
    OK(rows::put(s.rows, 2));
}

Test(server, makes_its_folder_and_socket_anew_when_somebody_deletes_them) {
    Session s;
    OK(rows::put(s.rows, 1));
    const std::string aside = std::string(test_server_dir(s.server)) + ".aside";
    cr_assert_eq(rename(test_server_dir(s.server), aside.c_str()), 0);
    const auto connects = [] {
        return in_child([] {
                   cache_client *client;
                   return cache_connect(nullptr, &client) == 0 ? 0 : 1;
               }) == 0;
    };
    cr_assert(eventually(connects), "%s was not made anew", test_server_socket(s.server));
    OK(rows::put(s.rows, 2));
    cr_assert_eq(unlink(test_server_socket(s.server)), 0);
    cr_assert(eventually(connects), "%s was not made anew", test_server_socket(s.server));
    struct stat status;
    cr_assert_eq(stat(test_server_dir(s.server), &status), 0);
    cr_assert_eq(status.st_mode & 0777, 0700);
    uint32_t id;
    OK(cache_session_create(s.client, &id));
    rename((aside + "/output").c_str(), (std::string(test_server_dir(s.server)) + "/output").c_str());
    cr_assert_eq(system(("rm -rf " + aside).c_str()), 0);
}

Test(list, tells_each_of_many_destroyed_caches_once_with_those_who_map_it) {
    Session s;
    uint32_t doomed;
    OK(cache_session_create(s.client, &doomed));
    std::vector<cache *> handles(120);
    for (uint32_t i = 0; i < handles.size(); i++) {
        const cache_options options = options_with_limit(1 << 20);
        OK(cache_open(s.client, doomed, i, &options, &handles[i]));
    }
    OK(cache_session_destroy(s.client, doomed));
    struct Told {
        uint32_t session;
        std::set<uint32_t> caches;
        int count;
    } told{doomed, {}, 0};
    const auto note = [](const cache_list_entry *entry, void *argument) {
        Told &t = *static_cast<Told *>(argument);
        if (entry->session_id != t.session) return 0;
        if (!entry->stats || entry->stats->state != 2) return 1;
        if (std::find(entry->pids, entry->pids + entry->n_pids, getpid()) == entry->pids + entry->n_pids) return 2;
        t.caches.insert(entry->stats->cache_id);
        t.count++;
        return 0;
    };
    cr_assert_gt(cache_list(s.client, note, &told), 120, "%s", cache_last_error());
    cr_assert_eq(told.count, 120);
    cr_assert_eq(told.caches.size(), size_t{120});
    for (cache *handle : handles)
        OK(cache_close(handle));
    told = {doomed, {}, 0};
    cr_assert_gt(cache_list(s.client, note, &told), 0, "%s", cache_last_error());
    cr_assert_eq(told.count, 0, "nobody maps them any more");
}

Test(room, of_a_destroyed_session_goes_to_the_others) {
    // A server that may use 256 MiB or so: 64 MiB would not outlast the share for other processes in a small cgroup.
    const std::string ratio = std::to_string((256.0 * (1 << 20)) / double(sysconf(_SC_PHYS_PAGES)) / 4096);
    const char *const arguments[] = {"-r", ratio.c_str(), nullptr};
    Session s(0, arguments);
    const int64_t limit = info(s.client).memory_limit_bytes;
    cr_assert_leq(limit, 257 << 20);
    int64_t id = 0;
    while (rows::put(s.rows, id, 200000) == 0)
        id++;
    cr_assert(strstr(cache_last_error(), "bytes"), "%s", cache_last_error());
    cr_assert_leq(info(s.client).memory_used_bytes, limit);
    uint32_t second;
    OK(cache_session_create(s.client, &second));
    cache *other = nullptr;
    const auto fits = [&] {
        int result = other ? 0 : cache_open(s.client, second, 1, nullptr, &other);
        if (result == 0) result = rows::put(other, 1, 2000000);
        cr_assert(result == 0 || result == CACHE_EFULL, "%d: %s", result, cache_last_error());
        return result == 0;
    };
    cr_assert_not(fits(), "the first session left no room");
    OK(cache_session_destroy(s.client, s.id));
    OK(cache_close(s.rows)); // mapped memory is not free
    s.rows = nullptr;
    cr_assert(eventually(fits), "no room after the first session was destroyed: %s", cache_last_error());
    RIGHT(rows::check(other, 1, 2000000));
    OK(cache_close(other));
}

Test(users, another_users_server_is_eperm_whoever_asks) {
    if (geteuid() != 0) SKIP("two users: only root can be both");
    constexpr uid_t kNobody = 65534;
    test_server *server = test_server_start(nullptr);
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.socket_path = test_server_socket(server);
    chmod(test_server_dir(server), 0755);
    chmod(test_server_socket(server), 0777); // so that only the server's own check is left
    cr_assert_eq(in_child([&] {
                     if (setgid(kNobody) || setuid(kNobody)) return 1;
                     cache_client *client;
                     const int result = cache_connect(&options, &client);
                     if (result != CACHE_EPERM) fprintf(stderr, "nobody: %d %s\n", result, cache_last_error());
                     return result == CACHE_EPERM && strlen(cache_last_error()) > 10 ? 0 : 2;
                 }),
                 0);
    test_server_stop(server);
    const std::string program = std::string(test_build()) + "/bin/cache_server";
    const auto can_run_it = [&] { return int(setgid(kNobody) || setuid(kNobody) || access(program.c_str(), X_OK)); };
    if (in_child(can_run_it) != 0) SKIP("the build folder is not open to other users");
    server = test_server_start_as(kNobody, nullptr);
    options.socket_path = test_server_socket(server);
    cache_client *client;
    FAILS(cache_connect(&options, &client), CACHE_EPERM, "65534");
    test_server_stop(server);
}
