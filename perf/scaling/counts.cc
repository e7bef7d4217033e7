// SPDX-License-Identifier: Apache-2.0
// More and more caches that one process has open, and more and more sessions.
#include "perf/scaling/scaling.h"

#include <algorithm>
#include <array>
#include <random>
#include <vector>

namespace scaling {
namespace {

constexpr uint64_t kLimit = 1 << 20; // the smallest
constexpr int64_t kRows = 64;        // of each cache
constexpr size_t kGets = 200'000;

// Gets of all caches in turn, in random order: what many open caches cost a reader.
double get_ns(const std::vector<cache *> &handles) {
    std::mt19937 random(1);
    unsigned sum = 0;
    int64_t start = 0;
    std::vector<std::pair<cache *, int64_t>> gets(kGets);
    for (auto &[handle, id] : gets)
        handle = handles[random() % handles.size()], id = static_cast<int64_t>(random() % kRows);
    for (int pass = 0; pass < 2; ++pass) { // the first one makes the page tables
        start = now_ns();
        for (const auto &[handle, id] : gets)
            sum += get(handle, id);
    }
    const double ns = static_cast<double>(now_ns() - start) / static_cast<double>(kGets);
    asm volatile("" : : "r"(sum)); // what was read counts as used
    return ns;
}

int count_lines(const cache_list_entry *, void *lines) {
    ++*static_cast<int64_t *>(lines);
    return 0;
}

double list_seconds(cache_client *client) {
    int64_t lines = 0;
    const int64_t start = now_ns();
    must(cache_list(client, count_lines, &lines), "cache_list");
    return static_cast<double>(now_ns() - start) / 1e9;
}

} // namespace

void caches(unsigned most, Json &results) {
    const Session session;
    const std::array<char, kRowBytes> row{};
    std::vector<cache *> handles;
    for (unsigned wanted = 1; wanted <= most; wanted *= 10) {
        fprintf(stderr, "%u caches\n", wanted);
        const auto before = handles.size();
        const int64_t start = now_ns();
        while (handles.size() < wanted)
            handles.push_back(session.open(static_cast<uint32_t>(handles.size()), kRows, kLimit));
        const double open_ns = static_cast<double>(now_ns() - start) / static_cast<double>(wanted - before);
        int64_t charged = 0;
        for (size_t i = 0; i < handles.size(); ++i) {
            for (int64_t id = 0; i >= before && id < kRows; ++id)
                put(handles[i], id, row.data());
            charged += stat_of(handles[i]).charged_bytes;
        }
        results.push_back({{"part", "caches"},
                           {"caches", wanted},
                           {"open_us", open_ns / 1e3},
                           {"get_ns", get_ns(handles)},
                           {"list_seconds", list_seconds(session.client)},
                           {"charged_bytes_each", charged / wanted},
                           {"server_bytes", server_bytes(session.client)}});
    }
    for (cache *const handle : handles)
        cache_close(handle);
}

void sessions(unsigned most, Json &results) {
    const Session session;
    std::vector<uint32_t> ids;
    for (unsigned wanted = 10; wanted <= most; wanted *= 10) {
        fprintf(stderr, "%u sessions\n", wanted);
        const auto before = ids.size();
        const int64_t start = now_ns();
        while (ids.size() < wanted) {
            ids.push_back(0);
            must(cache_session_create(session.client, &ids.back()), "cache_session_create");
        }
        const double create_ns = static_cast<double>(now_ns() - start) / static_cast<double>(wanted - before);
        const int64_t open_start = now_ns();
        cache *const handle = session.open(1, 0, kLimit);
        const double open_ns = static_cast<double>(now_ns() - open_start);
        cache_close(handle);
        must(cache_destroy(session.client, session.id, 1), "cache_destroy");
        results.push_back({{"part", "sessions"},
                           {"sessions", wanted},
                           {"create_us", create_ns / 1e3},
                           {"open_us", open_ns / 1e3},
                           {"list_seconds", list_seconds(session.client)},
                           {"server_bytes", server_bytes(session.client)}});
    }
    for (const uint32_t id : ids)
        must(cache_session_destroy(session.client, id), "cache_session_destroy");
}

} // namespace scaling
