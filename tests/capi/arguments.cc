// SPDX-License-Identifier: Apache-2.0
// Bad input: each call says with its own code and a sentence what is wrong, and nothing is lost by it.
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <csignal>
#include <cstdint>

namespace {

constexpr int64_t kShape[] = {4};
char data[4] = {1, 2, 3, 4};
const cache_column kGood = {data, 4, kShape, CACHE_UINT8, 1, {}};

// One good row before, and everything right after.
struct Guarded : Session {
    Guarded() { OK(cache_put(rows, 1, &kGood, 1)); }
    ~Guarded() {
        cache_view view;
        cache_column column;
        OK(cache_get(rows, 1, &view));
        OK(cache_view_column(&view, 0, &column));
        cr_assert_eq(memcmp(column.data, data, 4), 0);
        OK(cache_put(rows, 2, &kGood, 1));
        cr_assert_eq(stat().rows_in_memory, 2, "a refused row counts");
    }
};

cache_column good_but(void (*change)(cache_column &)) {
    cache_column column = kGood;
    change(column);
    return column;
}

} // namespace

Test(connect, without_a_server_is_eserver_and_names_where_it_looked) {
    char folder[] = "/tmp/lcs-XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    setenv("LIBCACHE_DIR", folder, 1);
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.port = 40404;
    cache_client *client = reinterpret_cast<cache_client *>(1);
    FAILS(cache_connect(&options, &client), CACHE_ESERVER, "40404");
    cr_assert_null(client, "nothing to disconnect");
    rmdir(folder);
    FAILS(cache_connect(&options, &client), CACHE_ESERVER, "40404");
}

Test(connect, takes_only_what_is_allowed) {
    cache_client *client;
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    FAILS(cache_connect(&options, nullptr), CACHE_EINVAL, "client");
    for (uint32_t port : {1u, 1024u, 65536u, UINT32_MAX}) {
        options.port = port;
        FAILS(cache_connect(&options, &client), CACHE_EINVAL, std::to_string(port));
    }
    options = CACHE_CLIENT_OPTIONS_INIT;
    for (const char *host : {"localhost", "0.0.0.0", "127.0.0.2", ""}) {
        options.hostname = host;
        FAILS(cache_connect(&options, &client), CACHE_EINVAL, "127.0.0.1");
    }
    options = CACHE_CLIENT_OPTIONS_INIT;
    options.timeout_ms = -5;
    FAILS(cache_connect(&options, &client), CACHE_EINVAL, "timeout");
    options = CACHE_CLIENT_OPTIONS_INIT;
    options.size = 2;
    FAILS(cache_connect(&options, &client), CACHE_EINVAL, "size");
    const std::string path(200, 'x');
    options = CACHE_CLIENT_OPTIONS_INIT;
    options.socket_path = path.c_str();
    cr_assert_lt(cache_connect(&options, &client), 0);
    cr_assert_gt(strlen(cache_last_error()), 10);
}

Test(connect, a_port_in_the_environment_must_be_a_number) {
    cache_client *client;
    for (const char *port : {"50053x", "abc", "80", "70000", "-1"}) {
        setenv("LIBCACHE_PORT", port, 1);
        FAILS(cache_connect(nullptr, &client), CACHE_EINVAL, port);
    }
}

Test(structures, a_larger_one_of_a_newer_header_is_accepted_while_its_unknown_tail_is_zero) {
    Session s;
    struct {
        cache_options known = CACHE_OPTIONS_INIT;
        uint64_t tail[4] = {};
    } options;
    options.known.size = sizeof options;
    options.known.memory_limit_bytes = 4 << 20;
    cache *handle;
    OK(cache_open(s.client, s.id, 2, &options.known, &handle));
    OK(cache_close(handle));
    options.tail[2] = 1;
    FAILS(cache_open(s.client, s.id, 3, &options.known, &handle), CACHE_ENOTSUP, "cache_options");

    struct {
        cache_stats known{};
        uint64_t tail[4] = {7, 7, 7, 7};
    } stats;
    stats.known.size = sizeof stats;
    OK(cache_stat(s.rows, &stats.known));
    cr_assert_eq(stats.known.limit_bytes, 64 << 20);
}

Test(structures, a_shorter_one_of_an_older_program_is_not_written_beyond_its_end) {
    Session s;
    cache_stats stats;
    memset(&stats, 0x5a, sizeof stats);
    stats.size = offsetof(cache_stats, limit_bytes);
    OK(cache_stat(s.rows, &stats));
    cr_assert_eq(stats.session_id, s.id);
    for (size_t i = offsetof(cache_stats, limit_bytes); i < sizeof stats; i++)
        cr_assert_eq(reinterpret_cast<unsigned char *>(&stats)[i], 0x5a);
    stats.size = 0;
    FAILS(cache_stat(s.rows, &stats), CACHE_EINVAL, "size");
    cache_server_stats info{};
    FAILS(cache_server_info(s.client, &info), CACHE_EINVAL, "size");
}

Test(null_pointers, are_einval_in_every_call) {
    Guarded s;
    int64_t ids[1] = {1}, id;
    uint8_t found[1];
    uint64_t cursor = 0;
    size_t bytes = 10;
    char buffer[10];
    cache_view view;
    cache_column column = kGood;
    cache_reservation *reservation;
    cache_stats stats{};
    stats.size = sizeof stats;
    cache_server_stats info{};
    info.size = sizeof info;
    cache *handle;
    const char *names[] = {nullptr};

    FAILS(cache_session_create(nullptr, &s.id), CACHE_EINVAL);
    FAILS(cache_session_create(s.client, nullptr), CACHE_EINVAL);
    FAILS(cache_session_open(nullptr, "a", &s.id), CACHE_EINVAL);
    FAILS(cache_session_open(s.client, nullptr, &s.id), CACHE_EINVAL);
    FAILS(cache_session_open(s.client, "a", nullptr), CACHE_EINVAL);
    FAILS(cache_session_destroy(nullptr, s.id), CACHE_EINVAL);
    FAILS(cache_list(
              nullptr, [](const cache_list_entry *, void *) { return 0; }, nullptr),
          CACHE_EINVAL);
    FAILS(cache_list(s.client, nullptr, nullptr), CACHE_EINVAL);
    FAILS(cache_server_info(nullptr, &info), CACHE_EINVAL);
    FAILS(cache_server_info(s.client, nullptr), CACHE_EINVAL);
    FAILS(cache_server_stop(nullptr), CACHE_EINVAL);
    FAILS(cache_open(nullptr, s.id, 1, nullptr, &handle), CACHE_EINVAL);
    FAILS(cache_open(s.client, s.id, 1, nullptr, nullptr), CACHE_EINVAL);
    FAILS(cache_destroy(nullptr, s.id, 1), CACHE_EINVAL);
    FAILS(cache_stat(nullptr, &stats), CACHE_EINVAL);
    FAILS(cache_stat(s.rows, nullptr), CACHE_EINVAL);
    FAILS(cache_put(nullptr, 3, &kGood, 1), CACHE_EINVAL);
    FAILS(cache_put(s.rows, 3, nullptr, 1), CACHE_EINVAL);
    FAILS(cache_reserve(nullptr, 3, &column, 1, &reservation), CACHE_EINVAL);
    FAILS(cache_reserve(s.rows, 3, nullptr, 1, &reservation), CACHE_EINVAL);
    FAILS(cache_reserve(s.rows, 3, &column, 1, nullptr), CACHE_EINVAL);
    FAILS(cache_commit(nullptr), CACHE_EINVAL);
    FAILS(cache_flush(nullptr), CACHE_EINVAL);
    FAILS(cache_get(nullptr, 1, &view), CACHE_EINVAL);
    FAILS(cache_get(s.rows, 1, nullptr), CACHE_EINVAL);
    FAILS(cache_get_batch(nullptr, ids, 1, &view), CACHE_EINVAL);
    FAILS(cache_get_batch(s.rows, nullptr, 1, &view), CACHE_EINVAL);
    FAILS(cache_get_batch(s.rows, ids, 1, nullptr), CACHE_EINVAL);
    FAILS(cache_gather(nullptr, ids, 1, 0, buffer, 10, found), CACHE_EINVAL);
    FAILS(cache_gather(s.rows, nullptr, 1, 0, buffer, 10, found), CACHE_EINVAL);
    FAILS(cache_gather(s.rows, ids, 1, 0, nullptr, 10, found), CACHE_EINVAL);
    FAILS(cache_contains(nullptr, ids, 1, found), CACHE_EINVAL);
    FAILS(cache_contains(s.rows, nullptr, 1, found), CACHE_EINVAL);
    FAILS(cache_scan(nullptr, &cursor, ids, 1), CACHE_EINVAL);
    FAILS(cache_scan(s.rows, nullptr, ids, 1), CACHE_EINVAL);
    FAILS(cache_scan(s.rows, &cursor, nullptr, 1), CACHE_EINVAL);
    FAILS(cache_view_columns(nullptr), CACHE_EINVAL);
    FAILS(cache_view_column(nullptr, 0, &column), CACHE_EINVAL);
    OK(cache_get(s.rows, 1, &view));
    FAILS(cache_view_column(&view, 0, nullptr), CACHE_EINVAL);
    FAILS(cache_schema_set(nullptr, names, 1), CACHE_EINVAL);
    FAILS(cache_schema_set(s.rows, nullptr, 1), CACHE_EINVAL);
    FAILS(cache_schema_set(s.rows, names, 1), CACHE_EINVAL);
    FAILS(cache_schema_get(nullptr, buffer, &bytes), CACHE_EINVAL);
    FAILS(cache_schema_get(s.rows, buffer, nullptr), CACHE_EINVAL);
    cr_assert_lt(cache_build_begin(nullptr, &id), 0);
    cr_assert_lt(cache_append(nullptr, &kGood, 1, &id), 0);
    cr_assert_lt(cache_build_done(nullptr), 0);
    cr_assert_lt(cache_build_leave(nullptr), 0);
    cr_assert_lt(cache_build_wait(nullptr, 0), 0);
    OK(cache_abort(nullptr));
    OK(cache_close(nullptr));
    OK(cache_disconnect(nullptr));
    OK(cache_view_release(nullptr));
}

Test(nothing_asked, is_nothing_done) {
    Guarded s;
    cr_assert_eq(cache_get_batch(s.rows, nullptr, 0, nullptr), 0);
    cr_assert_eq(cache_gather(s.rows, nullptr, 0, 0, nullptr, 0, nullptr), 0);
    cr_assert_eq(cache_contains(s.rows, nullptr, 0, nullptr), 0);
}

Test(put, refuses_impossible_rows_and_says_which_column) {
    Guarded s;
    FAILS(cache_put(s.rows, -1, &kGood, 1), CACHE_EINVAL, "-1");
    FAILS(cache_put(s.rows, INT64_MIN, &kGood, 1), CACHE_EINVAL, "-9223372036854775808");
    FAILS(cache_put(s.rows, 3, &kGood, 0), CACHE_EINVAL, "0");
    FAILS(cache_put(s.rows, 3, &kGood, CACHE_MAX_COLUMNS + 1), CACHE_EINVAL, "4097");
    struct {
        cache_column bad;
        const char *word;
    } bads[] = {
        {good_but([](cache_column &c) { c.dtype = 0; }), "dtype"},
        {good_but([](cache_column &c) { c.dtype = 16; }), "16"},
        {good_but([](cache_column &c) { c.dtype = UINT32_MAX; }), "dtype"},
        {good_but([](cache_column &c) { c.bytes = 5; }), "5"},
        {good_but([](cache_column &c) { c.bytes = UINT64_MAX; }), "bytes"},
        {good_but([](cache_column &c) { c.data = nullptr; }), "data"},
        {good_but([](cache_column &c) { c.shape = nullptr; }), "shape"},
        {good_but([](cache_column &c) { c.ndim = 33; }), "33"},
        {good_but([](cache_column &c) {
             static const int64_t shape[] = {-4};
             c.shape = shape;
         }),
         "negative"},
        {good_but([](cache_column &c) { // 2^63 * 2^63 elements
             static const int64_t shape[] = {INT64_MAX, INT64_MAX};
             c.shape = shape;
             c.ndim = 2;
         }),
         "column 1"},
        {good_but([](cache_column &c) { // 2^32 * 2^32 * 1 wraps to 0
             static const int64_t shape[] = {int64_t{1} << 32, int64_t{1} << 32};
             c.shape = shape;
             c.ndim = 2;
             c.bytes = 0;
         }),
         "column 1"},
        {good_but([](cache_column &c) { // would not fit any extent
             static const int64_t shape[] = {int64_t{1} << 40};
             c.shape = shape;
             c.bytes = uint64_t{1} << 40;
         }),
         "row"},
    };
    for (const auto &[bad, word] : bads) {
        cache_column columns[] = {kGood, bad};
        FAILS(cache_put(s.rows, 3, columns, 2), CACHE_EINVAL, word);
        cache_reservation *reservation = reinterpret_cast<cache_reservation *>(1);
        if (bad.data) FAILS(cache_reserve(s.rows, 3, columns, 2, &reservation), CACHE_EINVAL, word);
    }
    uint8_t found = 9;
    const int64_t id = 3;
    cr_assert_eq(cache_contains(s.rows, &id, 1, &found), 0);
    cr_assert_eq(found, 0);
}

Test(get, refuses_impossible_ids_and_columns) {
    Guarded s;
    cache_view view;
    cache_column column;
    FAILS(cache_get(s.rows, -1, &view), CACHE_EINVAL, "-1");
    OK(cache_get(s.rows, 1, &view));
    FAILS(cache_view_column(&view, 1, &column), CACHE_EINVAL, "1");
    FAILS(cache_view_column(&view, UINT32_MAX, &column), CACHE_EINVAL);
    OK(cache_view_release(&view));
    FAILS(cache_view_columns(&view), CACHE_EINVAL);
    FAILS(cache_view_column(&view, 0, &column), CACHE_EINVAL);
}

Test(open, refuses_what_it_cannot_do_and_says_what) {
    Guarded s;
    cache *handle = reinterpret_cast<cache *>(1);
    FAILS(cache_open(s.client, 0, 1, nullptr, &handle), CACHE_ENOSESSION, "0");
    cr_assert_null(handle, "nothing to close");
    const uint32_t unknown = s.id == 77 ? 78 : 77;
    FAILS(cache_open(s.client, unknown, 1, nullptr, &handle), CACHE_ENOSESSION, std::to_string(unknown));
    cache_options options = options_with_limit((1 << 20) - 1);
    FAILS(cache_open(s.client, s.id, 2, &options, &handle), CACHE_EINVAL, "1048575");
    options = options_with_limit(UINT64_MAX);
    cr_assert_lt(cache_open(s.client, s.id, 2, &options, &handle), 0);
    options = CACHE_OPTIONS_INIT;
    options.flags = 1 << 30;
    FAILS(cache_open(s.client, s.id, 2, &options, &handle), CACHE_EINVAL, "flags");
    options = CACHE_OPTIONS_INIT;
    options.size = 3;
    FAILS(cache_open(s.client, s.id, 2, &options, &handle), CACHE_EINVAL, "size");
    options = CACHE_OPTIONS_INIT;
    options.flags = CACHE_NO_CREATE;
    FAILS(cache_open(s.client, s.id, 2, &options, &handle), CACHE_ENOTFOUND, "2");
    const std::string long_tag(65, 't'), long_label(256, 'l');
    options = CACHE_OPTIONS_INIT;
    options.tag = long_tag.c_str();
    FAILS(cache_open(s.client, s.id, 2, &options, &handle), CACHE_EINVAL, "64");
    options = CACHE_OPTIONS_INIT;
    options.label = long_label.c_str();
    FAILS(cache_open(s.client, s.id, 2, &options, &handle), CACHE_EINVAL, "255");
    options.label = "not UTF-8: \xff\xfe";
    FAILS(cache_open(s.client, s.id, 2, &options, &handle), CACHE_EINVAL, "UTF-8");
    options = CACHE_OPTIONS_INIT;
    options.expected_rows = UINT64_MAX - 2; // -3
    FAILS(cache_open(s.client, s.id, 2, &options, &handle), CACHE_EINVAL, "expected_rows 18446744073709551613");
    cr_assert_null(handle);
    options.expected_rows = uint64_t{1} << 63; // a hint: cut to what the limit can hold
    options.memory_limit_bytes = 64 << 20;
    OK(cache_open(s.client, s.id, 2, &options, &handle));
    const int64_t charged = s.stat(handle).charged_bytes;
    cr_assert(charged >= 8 << 20 && charged <= 16 << 20, "%lld is not an eighth of the limit, and what is lent ahead",
              static_cast<long long>(charged));
    OK(cache_close(handle));
}

Test(open, what_this_version_cannot_do_is_enotsup) {
    Guarded s;
    cache *handle;
    cache_options options = CACHE_OPTIONS_INIT;
    options.spill = 1;
    FAILS(cache_open(s.client, s.id, 2, &options, &handle), CACHE_ENOTSUP, "spill");
}

Test(sessions, refuse_impossible_names_and_unknown_ids) {
    Guarded s;
    uint32_t id;
    const std::string longest(CACHE_MAX_NAME_BYTES, 'n'), too_long(CACHE_MAX_NAME_BYTES + 1, 'n');
    OK(cache_session_open(s.client, longest.c_str(), &id));
    for (const char *name : {"", "a\nb", "tab\t", "\x7f", too_long.c_str()})
        FAILS(cache_session_open(s.client, name, &id), CACHE_EINVAL, "name");
    FAILS(cache_session_destroy(s.client, 0), CACHE_ENOSESSION, "0");
    const uint32_t unknown = s.id == 77 ? 78 : 77;
    FAILS(cache_session_destroy(s.client, unknown), CACHE_ENOSESSION, "7");
    FAILS(cache_destroy(s.client, unknown, 1), CACHE_ENOSESSION, "7");
    FAILS(cache_destroy(s.client, s.id, 4711), CACHE_ENOTFOUND, "4711");
}

Test(read_only, handles_never_write) {
    Guarded s;
    cache_options options = CACHE_OPTIONS_INIT;
    options.flags = CACHE_READ_ONLY;
    cache *reader = s.open(1, options);
    cache_reservation *reservation;
    cache_column column = kGood;
    const char *names[] = {"a"};
    FAILS(cache_put(reader, 9, &kGood, 1), CACHE_EPERM, "read-only");
    FAILS(cache_reserve(reader, 9, &column, 1, &reservation), CACHE_EPERM, "read-only");
    FAILS(cache_schema_set(reader, names, 1), CACHE_EPERM, "read-only");
    cache_view view;
    OK(cache_get(reader, 1, &view));
    OK(cache_view_release(&view));
    OK(cache_close(reader));
}

Test(read_only, views_cannot_be_written, .signal = SIGSEGV) {
    auto *s = new Session; // no destructor: the signal ends the test
    cache_view view;
    cache_column column;
    if (cache_put(s->rows, 1, &kGood, 1) || cache_get(s->rows, 1, &view) || cache_view_column(&view, 0, &column))
        return;
    *static_cast<volatile char *>(column.data) = 1;
}
