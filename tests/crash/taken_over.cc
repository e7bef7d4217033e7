// SPDX-License-Identifier: Apache-2.0
// A broker takes a region over, and a writer changes words of it after they were checked: the broker stands still
// between the two. It must serve on with what it checked.
#include "tests/crash/orders.h"
#include "tests/support/writable_region.h"

#include <cstdio>

using namespace libcache;

namespace {

bool stands_still(pid_t pid) {
    std::string text;
    std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), text);
    return text.find(") T ") != std::string::npos;
}

// The next broker stands still at this point; returns when it does.
pid_t stop_next_broker(const crash::Orders &orders, const crash::Arena &arena, const char *point) {
    const uint64_t before = orders.obeyed();
    orders.give(point, 1);
    kill(crash::broker_of(arena.server), SIGKILL);
    crash::until([&] { return orders.obeyed() != before; }, "the next broker comes to the point");
    const pid_t broker = crash::broker_of(arena.server);
    crash::until([&] { return stands_still(broker); }, "it stands still"); // before: SIGCONT would be lost
    return broker;
}

} // namespace

int main() {
    test_watchdog(100);
    const crash::Orders orders;
    orders.begin();
    setenv("LIBCACHE_PAUSE_MODE", "stop", 1);
    crash::Arena arena;
    orders.end();
    unsetenv("LIBCACHE_PAUSE_MODE");
    cache *handle = crash::open_cache(arena.client, arena.session_id, 1);
    for (int64_t id = 0; id < 100; id++)
        crash::must(rows::put(handle, id, crash::kLargest), "a put");
    const int64_t generation = crash::server_info(arena.client).generation;
    // Slots that end far behind all that the broker has mapped.
    AtomicU64 &slots_top = reinterpret_cast<RegionHeader *>(writable_region())->slots_top;
    const uint64_t right = slots_top.load();
    const pid_t broker = stop_next_broker(orders, arena, "restart.extent");
    slots_top.store(uint64_t{1} << 30);
    kill(broker, SIGCONT);
    const int64_t now = crash::server_info(arena.client).generation; // waits until a broker serves
    slots_top.store(right);
    if (now != generation + 1) test_die("%ld brokers were needed", long(now - generation));
    for (int64_t id = 0; id < 100; id++)
        if (const std::string wrong = rows::check(handle, id, crash::kLargest); !wrong.empty())
            test_die("%s", wrong.c_str());
    crash::must(rows::put(handle, 100, crash::kLargest), "a put after the broker's death");
    cache_close(handle);
    printf("one broker took the cache over\n");
    return 0;
}
