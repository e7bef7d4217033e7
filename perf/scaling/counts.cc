// SPDX-License-Identifier: Apache-2.0
// More and more caches that one process has open, and more and more sessions.
#include "perf/scaling/scaling.h"
#include "perf/support/resident.h"

#include <array>
#include <random>

namespace scaling {
namespace {

constexpr uint64_t kLimit = 1 << 20; // the smallest
constexpr int64_t kRows = 64;        // of each cache
constexpr size_t kGets = 200'000;
constexpr unsigned kOpens = 20; // of one more cache, beside many sessions

// Each call's time, in us: their median, and the slowest.
void add_calls(Json &figures, const std::string &what, const std::vector<double> &seconds) {
    figures[what + "_us"] = percentile(seconds, 0.5) * 1e6;
    figures[what + "_most_us"] = percentile(seconds, 1) * 1e6;
}

// Gets of all caches in turn, in random order: what many open caches cost a reader.
Json get_ns(const std::vector<cache *> &handles, unsigned repetitions) {
    std::mt19937 random(1);
    std::vector<std::pair<cache *, int64_t>> gets(kGets);
    for (auto &[handle, id] : gets)
        handle = handles[random() % handles.size()], id = static_cast<int64_t>(random() % kRows);
    unsigned sum = 0;
    const auto pass = [&] {
        for (const auto &[handle, id] : gets)
            sum += get(handle, id);
    };
    pass(); // makes the page tables
    Json ns = Json::array();
    for (unsigned i = 0; i < repetitions; ++i)
        ns.push_back(seconds_of(pass) * 1e9 / static_cast<double>(kGets));
    asm volatile("" : : "r"(sum)); // what was read counts as used
    return ns;
}

int count_lines(const cache_list_entry *, void *lines) {
    ++*static_cast<int64_t *>(lines);
    return 0;
}

Json list_seconds(cache_client *client, unsigned repetitions) {
    Json seconds = Json::array();
    for (unsigned i = 0; i < repetitions; ++i) {
        int64_t lines = 0;
        seconds.push_back(seconds_of([&] { must(cache_list(client, count_lines, &lines), "cache_list"); }));
    }
    return seconds;
}

// Opens caches until there are `wanted` and gives each its rows.
std::vector<double> open_up_to(const Session &session, unsigned wanted, std::vector<cache *> &handles) {
    const std::array<char, kRowBytes> row{};
    std::vector<double> seconds;
    while (handles.size() < wanted) {
        const auto id = static_cast<uint32_t>(handles.size());
        seconds.push_back(seconds_of([&] { handles.push_back(session.open(id, kRows, kLimit)); }));
        for (int64_t row_id = 0; row_id < kRows; ++row_id)
            put(handles.back(), row_id, row.data());
    }
    return seconds;
}

int64_t charged_bytes(const std::vector<cache *> &handles) {
    int64_t bytes = 0;
    for (cache *const handle : handles)
        bytes += stat_of(handle).charged_bytes;
    return bytes;
}

} // namespace

Json caches(unsigned most, unsigned repetitions) {
    const Session session;
    std::vector<cache *> handles;
    Json results = Json::array();
    for (unsigned wanted = 1; wanted <= most; wanted *= 10) {
        fprintf(stderr, "%u caches\n", wanted);
        Json figures = {{"part", "caches"}, {"caches", wanted}};
        add_calls(figures, "open", open_up_to(session, wanted, handles));
        figures["get_ns"] = get_ns(handles, repetitions);
        figures["list_seconds"] = list_seconds(session.client, repetitions);
        figures["charged_bytes_each"] = charged_bytes(handles) / wanted;
        figures["server_bytes"] = perf::server_bytes(server_of(session.client));
        results.push_back(figures);
    }
    for (cache *const handle : handles)
        cache_close(handle);
    return results;
}

Json sessions(unsigned most, unsigned repetitions) {
    const Session session;
    std::vector<uint32_t> ids;
    Json results = Json::array();
    for (unsigned wanted = 10; wanted <= most; wanted *= 10) {
        fprintf(stderr, "%u sessions\n", wanted);
        std::vector<double> made, opened;
        while (ids.size() < wanted) {
            ids.push_back(0);
            made.push_back(
                seconds_of([&] { must(cache_session_create(session.client, &ids.back()), "cache_session_create"); }));
        }
        for (unsigned i = 0; i < kOpens; ++i) {
            cache *handle = nullptr;
            opened.push_back(seconds_of([&] { handle = session.open(1, 0, kLimit); }));
            session.end(handle, 1);
        }
        Json figures = {{"part", "sessions"}, {"sessions", wanted}};
        add_calls(figures, "create", made);
        add_calls(figures, "open", opened);
        figures["list_seconds"] = list_seconds(session.client, repetitions);
        figures["server_bytes"] = perf::server_bytes(server_of(session.client));
        results.push_back(figures);
    }
    for (const uint32_t id : ids)
        must(cache_session_destroy(session.client, id), "cache_session_destroy");
    return results;
}

} // namespace scaling
