// SPDX-License-Identifier: Apache-2.0
// Clients that can no longer be told what the broker has to tell them.
#include "core/control/wire.h"
#include "tests/support/raw.h"
#include "tests/support/session.h"

#include <sys/socket.h>
#include <unistd.h>

namespace {

int64_t generation_of(const Session &s) {
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    return info.generation;
}

} // namespace

// Destroying the session answers an open that waits for its cache to be made, here on the connection whose request is
// being carried out: it must not end below it. Of use under AddressSanitizer, which ends a broker that reads what is
// gone.
Test(hang_up, a_session_destroyed_by_who_waits_for_a_cache_of_it_and_reads_no_more) {
    const Session s;
    const int64_t broker = generation_of(s);
    for (int round = 0; round < 20; round++) {
        uint64_t generation = 0;
        const int fd = welcomed(s, &generation);
        uint32_t id = 0;
        OK(cache_session_create(s.client, &id));
        const auto open = message(wire::Type::Open, 2), destroy = message(wire::Type::SessionDestroy, 3);
        open->header.generation = destroy->header.generation = generation;
        open->u.open.session_id = destroy->u.session.session_id = id;
        open->u.open.cache_id = 1;
        cr_assert_eq(shutdown(fd, SHUT_RD), 0);
        cr_assert(send_all(fd, open.get(), sizeof *open));
        cr_assert(send_all(fd, destroy.get(), sizeof *destroy));
        // Left to us where the cache was made before the second message came: its answer could not be sent.
        const int result = cache_session_destroy(s.client, id);
        cr_assert(result == 0 || result == CACHE_ENOSESSION, "%s", cache_last_error());
        close(fd);
    }
    cr_assert_eq(generation_of(s), broker, "the broker has died");
}
