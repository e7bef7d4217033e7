// SPDX-License-Identifier: Apache-2.0
// What nearly every test of the C ABI begins with: a server, a session and a cache. And assertions that say what the
// library said.
#pragma once

#include "capi/libcache.h"
#include "tests/support/server.h"
#include "tests/support/skip.h"

#include <criterion/criterion.h>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

// The call succeeds: 0.
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        const long long ok_result = (call);                                                                            \
        cr_assert_eq(ok_result, 0, "%s gave %lld: %s", #call, ok_result, cache_last_error());                          \
    } while (0)

// The call fails with this code, and its sentence holds each of the words.
#define FAILS(call, code, ...)                                                                                         \
    do {                                                                                                               \
        const long long fails_result = (call);                                                                         \
        cr_assert_eq(fails_result, code, "%s gave %lld instead of %s: %s", #call, fails_result, #code,                 \
                     cache_last_error());                                                                              \
        for (const std::string &fails_word : std::vector<std::string>{__VA_ARGS__})                                    \
            cr_assert(strstr(cache_last_error(), fails_word.c_str()), "%s: '%s' is not in '%s'", #call,                \
                      fails_word.c_str(), cache_last_error());                                                         \
        cr_assert_gt(strlen(cache_last_error()), 10, "%s fails without a sentence", #call);                            \
    } while (0)

// Sentences of the functions in rows.h: "" means right.
#define RIGHT(call)                                                                                                    \
    do {                                                                                                               \
        const std::string right_result = (call);                                                                       \
        cr_assert(right_result.empty(), "%s", right_result.c_str());                                                   \
    } while (0)

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline cache_options options_with_limit(uint64_t limit_bytes) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.memory_limit_bytes = limit_bytes;
    return options;
}

// At its end the handle is closed, every region checked and the server stopped.
struct Session {
    test_server *server;
    cache_client *client = nullptr;
    uint32_t id = 0;
    cache *rows = nullptr; // cache 1

    explicit Session(uint64_t limit_bytes = 64 << 20, const char *const *server_arguments = nullptr)
        : server(test_server_start(server_arguments)) {
        OK(cache_connect(nullptr, &client));
        OK(cache_session_create(client, &id));
        rows = open(1, options_with_limit(limit_bytes));
    }
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;
    ~Session() {
        OK(cache_close(rows));
        OK(cache_disconnect(client));
        test_server_stop(server);
    }

    cache *open(uint32_t cache_id, const cache_options &options) const {
        cache *handle = nullptr;
        OK(cache_open(client, id, cache_id, &options, &handle));
        return handle;
    }
    cache_stats stat(cache *handle = nullptr) const {
        cache_stats stats{};
        stats.size = sizeof stats;
        OK(cache_stat(handle ? handle : rows, &stats));
        return stats;
    }
};

// A column of bytes, for tests that do not care.
struct Bytes {
    int64_t shape;
    cache_column column{};
    explicit Bytes(const void *data, uint64_t bytes, uint32_t dtype = CACHE_BYTES) : shape(int64_t(bytes)) {
        column.data = const_cast<void *>(data);
        column.bytes = bytes;
        column.shape = &shape;
        column.dtype = dtype;
        column.ndim = 1;
    }
    Bytes(const Bytes &) = delete;
    Bytes &operator=(const Bytes &) = delete;
};
