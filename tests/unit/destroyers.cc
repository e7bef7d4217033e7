// SPDX-License-Identifier: Apache-2.0
// The note of who destroyed which cache: what a new broker finds of it, and what happens when the table is full.
#include "core/server/destroyers.h"

#include "capi/libcache.h"

#include <criterion/criterion.h>
#include <cstring>

using namespace libcache;

namespace {

CacheNames named(uint64_t region_id) {
    return {region_id, 77, 5};
}

struct Table {
    Fd file;
    ServerRegion server;

    Table() { cr_assert_eq(server.make(ServerConfig{}, &file), 0); }
    // Every entry in use, by connections 1, 2, ..., each with its second request, of region 100 + connection.
    void fill() {
        for (uint64_t i = 0; i < kMaxDestroyers; i++) {
            server->destroyer[i].conn_id.store(i + 1, std::memory_order_relaxed);
            server->destroyer[i].number.store(2, std::memory_order_relaxed);
            server->destroyer[i].region_id.store(101 + i, std::memory_order_relaxed);
        }
    }
};

} // namespace

Test(destroyers, are_known_to_the_next_broker_by_connection_and_number) {
    Table table;
    Destroyers first(table.server);
    cr_assert_eq(first.note({7, 3}, named(40)), 0);
    cr_assert_eq(first.note({8, 3}, named(41)), 0);
    cr_assert_eq(first.note({7, 4}, named(42)), 0);
    Destroyers second(table.server);
    second.restore();
    for (const Destroyers *broker : {&first, &second}) {
        cr_assert_eq(broker->region_of({7, 3}), 0, "only a connection's last request can come again");
        cr_assert_eq(broker->region_of({7, 4}), 42);
        cr_assert_eq(broker->region_of({8, 3}), 41);
        cr_assert_eq(broker->region_of({9, 3}), 0);
    }
}

Test(destroyers, of_a_full_table_are_refused_by_name_until_one_has_ended) {
    Table table;
    table.fill();
    Destroyers destroyers(table.server);
    destroyers.restore();
    cr_assert_eq(destroyers.note({1'000'000, 1}, named(9)), CACHE_ELIMIT);
    for (const char *word :
         {"cache 5 of session 77", "16384 processes", "end some of them", "destroy the whole session"})
        cr_assert(strstr(cache_last_error(), word), "\"%s\" does not say %s", cache_last_error(), word);
    cr_assert_eq(destroyers.region_of({1'000'000, 1}), 0);
    for (uint64_t conn_id : {1, 5000, int(kMaxDestroyers)})
        cr_assert_eq(destroyers.region_of({conn_id, 2}), 100 + conn_id, "a refusal took the place of %lu", conn_id);

    cr_assert_eq(destroyers.note({5000, 3}, named(10)), 0, "who has a place keeps it");
    cr_assert_eq(destroyers.region_of({5000, 3}), 10);
    destroyers.forget(5000);
    cr_assert_eq(destroyers.note({1'000'000, 1}, named(9)), 0, "a place was free");
    cr_assert_eq(destroyers.region_of({1'000'000, 1}), 9);
    cr_assert_eq(destroyers.region_of({5000, 3}), 0);
    cr_assert_eq(destroyers.note({1'000'001, 1}, named(9)), CACHE_ELIMIT);
}
