// SPDX-License-Identifier: Apache-2.0
// broker_points [point]: the broker dies at each of its pause points (core/common/pause.h) while clients do everything
// that a broker is asked for. Nobody may see an error, and afterwards nothing is lent, counted or held that should not
// be. The list of points is made from the sources by the Makefile.
#include "tests/crash/doomed.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

namespace {

const char *const kPoints[] = {
#include "broker_points.inc"
};
constexpr uint64_t kSmall = 200, kMiB = 1 << 20;

struct Place {
    cache_client *client = nullptr;
    cache *handle = nullptr;
    void open(uint32_t session, uint32_t id, uint64_t limit) {
        crash::must(cache_connect(nullptr, &client), "cache_connect");
        handle = crash::open_cache(client, session, id, limit);
    }
    void close() {
        cache_close(handle);
        cache_disconnect(client);
    }
};

void put(cache *handle, int64_t id, uint64_t largest = kSmall) {
    if (rows::put(handle, id, largest) < 0) crash::must(CACHE_EIO, "a put");
}

// One process holds a hardly used extent, another one fills the cache to its limit: extents are made, lent, taken back,
// cut, lent again with rows in them; levels grow. Then the first one is killed.
void fill(crash::Doomed &doomed, uint32_t session, const std::function<void()> &middle) {
    constexpr uint64_t kLimit = 8 * kMiB;
    Place holding;
    crash::Helper holder(
        [&] {
            holding.open(session, 1, kLimit);
            put(holding.handle, 1);
        },
        [] {});
    holder.wait_ready();
    cache *handle = crash::open_cache(doomed.arena->client, session, 1, kLimit);
    std::vector<int64_t> stored;
    const auto write_until_full = [&](uint64_t largest) {
        int64_t id = 2;
        for (int result = 0; result >= 0; id++) {
            result = rows::put(handle, crash::id_of(id), largest);
            if (result == 0) stored.push_back(crash::id_of(id));
            if (result < 0 && result != CACHE_EFULL) crash::must(result, "filling a cache");
        }
    };
    write_until_full(100'000);
    middle();
    write_until_full(kSmall);
    const int status = holder.end(true);
    if (!WIFSIGNALED(status)) test_die("the holder ended with wait status %d", status);
    crash::until(
        [&] {
            cache_stats stats{};
            stats.size = sizeof stats;
            crash::must(cache_stat(handle, &stats), "cache_stat");
            return stats.writers == 1;
        },
        "the killed writer's slot is vacant");
    for (int64_t id : stored) {
        cache_view view;
        crash::must(cache_get(handle, id, &view), "a row that was stored");
        std::string wrong = rows::Row(id, 100'000).difference(view);
        if (!wrong.empty()) wrong = rows::Row(id, kSmall).difference(view);
        if (!wrong.empty()) test_die("%s", wrong.c_str());
    }
    cache_close(handle);
}

// The first id from `id` on whose row has nearly `largest` bytes.
int64_t full_row(int64_t id, uint64_t largest) {
    while (rows::Row(id, largest).bytes() < largest / 10 * 9)
        id++;
    return id;
}

// Each of three processes leaves an extent with one row and much room above it: together enough for a large row, but
// nowhere in one piece. Pages are given back, and made elsewhere in the span.
void fragments(crash::Doomed &doomed, uint32_t session) {
    constexpr uint64_t kLimit = 19 * kMiB, kMiddling = 2'400'000, kLarge = 4'800'000;
    std::vector<crash::Helper> helpers;
    std::vector<Place> places(3);
    for (int64_t i = 0; i < 3; i++)
        helpers.emplace_back(
            [&] {
                Place &place = places[size_t(i)];
                place.open(session, 2, kLimit);
                cache_column column{};
                const int64_t shape = column.bytes = 6 * kMiB - 100'000; // of an extent of 6 MiB, on small pages too
                column.shape = &shape;
                column.dtype = CACHE_UINT8;
                column.ndim = 1;
                cache_reservation *reservation = nullptr;
                crash::must(cache_reserve(place.handle, 5000 + i, &column, 1, &reservation), "cache_reserve");
                crash::must(cache_abort(reservation), "cache_abort");
                put(place.handle, full_row(100 * i, kMiddling), kMiddling); // too long for what is lent ahead
            },
            [&] { places[size_t(i)].close(); });
    for (const crash::Helper &helper : helpers)
        helper.wait_ready();
    for (crash::Helper &helper : helpers)
        if (const int status = helper.end(false)) test_die("a helper ended with wait status %d", status);
    cache *handle = crash::open_cache(doomed.arena->client, session, 2, kLimit);
    const int64_t large = full_row(1000, kLarge);
    put(handle, large, kLarge);
    if (const std::string wrong = rows::check(handle, large, kLarge); !wrong.empty()) test_die("%s", wrong.c_str());
    for (int64_t i = 0; i < 3; i++)
        if (const std::string wrong = rows::check(handle, full_row(100 * i, kMiddling), kMiddling); !wrong.empty())
            test_die("%s", wrong.c_str());
    cache_close(handle);
}

void stream(crash::Doomed &doomed, uint32_t session) {
    cache_options options = CACHE_OPTIONS_INIT;
    options.flags = CACHE_BUILD;
    options.memory_limit_bytes = 2 * kMiB;
    cache *handle = nullptr;
    int64_t next = -1, id = -1;
    crash::must(cache_open(doomed.arena->client, session, 3, &options, &handle), "cache_open");
    crash::must(cache_build_begin(handle, &next), "cache_build_begin");
    for (int64_t i = 0; i < 20; i++) {
        const rows::Row row(i, kSmall);
        crash::must(cache_append(handle, row.columns(), row.n(), &id), "cache_append");
        if (next != 0 || id != i) test_die("row %ld was appended as %ld after %ld", long(i), long(id), long(next));
    }
    crash::must(cache_build_done(handle), "cache_build_done");
    crash::must(cache_build_wait(handle, 10'000), "cache_build_wait");
    cache_close(handle);
}

// Everything a broker is asked for, in a session that is gone afterwards with all it held.
void round_of_work(crash::Doomed &doomed, bool kill_in_the_middle) {
    cache_client *client = doomed.arena->client;
    uint32_t session = 0;
    crash::must(cache_session_create(client, &session), "cache_session_create");
    fill(doomed, session, [&] {
        if (kill_in_the_middle) doomed.kill_broker();
    });
    fragments(doomed, session);
    stream(doomed, session);
    test_server_check(doomed.arena->server);
    crash::must(cache_destroy(client, session, 1), "cache_destroy");
    crash::must(cache_session_destroy(client, session), "cache_session_destroy");
    doomed.wait_until_as_before();
}

// Does a new broker come by there before it serves? Then it can die of what killed the one before it.
bool is_passed_at_a_start(const std::string &point) {
    for (const char *steps : {"restart.", "broker.recover.", "broker.cut.", "broker.vacate.", "broker.remove."})
        if (point.starts_with(steps)) return true;
    return false;
}

// Does a broker come by there again whose predecessor died there? It is what the steps before the point left that
// brings it back: not those that a finished step leaves nothing to do at.
bool is_passed_again(const std::string &point) {
    for (const char *steps : {"restart.1", "restart.2", "restart.3", "restart.4", "restart.5", "broker.recover.1",
                              "broker.recover.2", "broker.vacate.1", "broker.cut.1", "broker.cut.2"})
        if (point == steps) return true;
    return false;
}

// Two brokers in a row die there. The second death is asserted by itself: what it does not undo is in the round's end.
int both_die_at(crash::Doomed &doomed, const std::string &point) {
    int deaths = 0;
    for (int tries = 0; deaths == 0 && tries < 4; tries++) { // as often as it takes to come there once
        const uint64_t before = doomed.orders.obeyed();
        doomed.orders.give(point, 1, 1);
        round_of_work(doomed, point.starts_with("restart."));
        deaths = int(doomed.orders.obeyed() - before);
        doomed.orders.take_back();
    }
    if (deaths == 1 && is_passed_again(point)) test_die("%s: the broker after the dead one did not die", point.c_str());
    return deaths;
}

// How often the broker died there: it is to die at its first passage, and at later ones, in other circumstances.
int dies_at(crash::Doomed &doomed, const std::string &point) {
    int deaths = 0;
    for (uint64_t passage : {1, 2, 1, 1}) {
        if (passage == 1 && deaths != 0) continue; // more tries where the first round did not come there
        doomed.orders.give(point, passage);
        round_of_work(doomed, point.starts_with("restart."));
        deaths += doomed.died();
        doomed.orders.take_back();
    }
    if (deaths != 0 && is_passed_at_a_start(point)) deaths += both_die_at(doomed, point);
    return deaths;
}

} // namespace

int main(int argc, char **argv) {
    test_watchdog(290);
    std::set<std::string> points(std::begin(kPoints), std::end(kPoints));
    if (argc > 1) points = {argv[1]};
    // Those of spilling need a spill folder and rows on disk: broker_spill_points drives a broker there.
    std::erase_if(points, [](const std::string &point) { return point.find("spill") != std::string::npos; });
    std::set<std::string> reached;
    for (const char *backing : {"memfd", "auto"}) { // on huge pages runs are split in whole units
        if (reached.size() == points.size()) break;
        const char *const arguments[] = {"--backing", backing, nullptr};
        crash::Doomed doomed(arguments);
        if (backing == std::string("auto") && crash::server_info(doomed.arena->client).huge_pages == 0) {
            printf("SKIP no huge pages here: %zu points are not tested\n", points.size() - reached.size());
            return reached.empty() ? 77 : 0;
        }
        for (const std::string &point : points) {
            if (reached.count(point) != 0) continue;
            const time_t began = time(nullptr);
            const int deaths = dies_at(doomed, point);
            if (deaths != 0) reached.insert(point);
            printf("%-22s %d deaths on %s, %ld s\n", point.c_str(), deaths, backing, long(time(nullptr) - began));
            fflush(stdout);
        }
    }
    for (const std::string &point : points)
        if (reached.count(point) == 0) test_die("no broker came to %s: the test does not test it", point.c_str());
    printf("the broker died at each of its %zu points\n", reached.size());
    return 0;
}
