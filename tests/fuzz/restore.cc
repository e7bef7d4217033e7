// SPDX-License-Identifier: Apache-2.0
// A new broker in front of a damaged region: it takes the region over, recovers its dead writer, lists it, lends to a
// living one, destroys it, and serves other sessions meanwhile.
#include "core/client/cache.h"
#include "core/server/server_region.h"
#include "tests/fuzz/image.h"
#include "tests/fuzz/server.h"
#include "tests/support/rows.h"
#include "tests/support/server.h"

namespace {

using namespace libcache;
using fuzz::Image;
using fuzz::Input;

constexpr uint32_t kSession = 77;

// What a former broker left of the cache in the tables.
void enter(ServerTables &tables, const RegionHeader &header) {
    SessionEntry &session = tables.session[0];
    session.session_id = kSession;
    session.state.store(EntryState::Live, std::memory_order_relaxed);
    CacheEntry &entry = tables.cache[0];
    entry.region_id = header.region_id;
    entry.session_id = kSession;
    entry.cache_id = header.cache_id;
    entry.limit_bytes = header.limit_bytes;
    entry.state.store(EntryState::Live, std::memory_order_relaxed);
    tables.header.next_region_id.store(header.region_id + 1, std::memory_order_relaxed);
    tables.header.next_conn_id.store(100, std::memory_order_relaxed);
}

int count(const cache_list_entry *, void *entries) {
    ++*static_cast<int *>(entries);
    return 0;
}

void use(Input &input, const fuzz::Mapping &region) {
    cache_client *client = nullptr;
    if (cache_connect(nullptr, &client) != 0) test_die("connecting to the new broker: %s", cache_last_error());
    int entries = 0;
    if (cache_list(client, count, &entries) < 0 || entries == 0) test_die("listing: %s", cache_last_error());
    cache *handle = nullptr;
    if (cache_open(client, kSession, Image::get().header().cache_id, nullptr, &handle) >= 0) {
        for (int64_t id = 0; id < 4; id++) {
            (void)rows::check(handle, id, 300);
            (void)rows::put(handle, 5000 + id, 300);
            for (unsigned more = input.byte() % 3; more != 0; more--)
                Image::get().damage(region.base(), input);
        }
        cache_close(handle);
    }
    if (cache_list(client, count, &entries) < 0) test_die("listing once more: %s", cache_last_error());
    uint32_t other = 0;
    if (cache_session_create(client, &other) != 0) test_die("another session: %s", cache_last_error());
    (void)cache_session_destroy(client, kSession); // gone already if the region could not be taken over
    cache_disconnect(client);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const Image &image = Image::get();
    Input input(data, size);
    const Fd file = image.copy();
    const fuzz::Mapping region(file.get());
    // The writer of slot 0 is no process that could be found: the new broker recovers it.
    if (input.byte() % 4 != 0) region.slot(0).start_time.store(1, std::memory_order_relaxed);
    for (unsigned times = input.byte() % 6; times != 0; times--)
        image.damage(region.base(), input);
    fuzz::Server server;
    enter(*server.tables().operator->(), image.header());
    server.hold(HeldKind::Region, image.header().region_id, file.get());
    server.start();
    use(input, region);
    return 0; // its end stops the server
}
