// SPDX-License-Identifier: Apache-2.0
// pinned: what looks like the end of a user and is none. A live process that loses its socket while it copies keeps its
// extents. A destroyed session's memory stays charged, and its views right, while anybody maps it: who opened it, who
// closed its connection with it, a fork child whose parent is dead; it is free when the last of them ends. Each with a
// broker that stays, and with one killed meanwhile.
#include "core/client/internal.h"
#include "tests/crash/doomed.h"

#include <sys/socket.h>
#include <unistd.h>

namespace {

constexpr uint32_t kCache = 1;
constexpr int64_t kRows = 200, kReserved = 5000;

// All sockets of this process that lead to a server.
void hang_up() {
    for (int fd = 3; fd < 1024; fd++) {
        int type = 0;
        socklen_t size = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET) shutdown(fd, SHUT_RDWR);
    }
}

cache *fill(cache_client **client, uint32_t session) {
    crash::must(cache_connect(nullptr, client), "cache_connect");
    cache *handle = crash::open_cache(*client, session, kCache);
    for (int64_t id = 0; id < kRows; id++)
        if (rows::put(handle, id, crash::kLargest) < 0) crash::must(CACHE_EIO, "a put");
    return handle;
}

uint32_t new_session(cache_client *client) {
    uint32_t session = 0;
    crash::must(cache_session_create(client, &session), "cache_session_create");
    return session;
}

void replace_broker(crash::Doomed &doomed) {
    const int64_t generation = crash::server_info(doomed.arena->client).generation;
    doomed.kill_broker();
    crash::until([&] { return crash::server_info(doomed.arena->client).generation > generation; }, "a new broker");
}

// Two ticks of the broker's, so that what it would take back it has taken: the second process is made, seen and
// reclaimed after the first one hung up.
void let_the_broker_work(uint32_t session) {
    for (int i = 0; i < 2; i++) {
        const int status = crash::wait_for(crash::spawn([&] {
            cache_client *client = nullptr;
            cache *handle = fill(&client, session); // the rows are there: it writes one of its own
            if (rows::put(handle, 10'000 + getpid(), crash::kLargest) < 0) return 1;
            cache_close(handle);
            cache_close(crash::open_cache(client, session, kCache + 1)); // who destroyed it is noted while it lives
            crash::must(cache_destroy(client, session, kCache + 1), "cache_destroy");
            cache_disconnect(client);
            return 0;
        }));
        if (status != 0) test_die("a writer beside ended with wait status %d", status);
    }
}

// It has a reservation open, and half of its bytes are there, when its socket goes.
void keeps_its_extents(crash::Doomed &doomed, bool with_new_broker) {
    const uint32_t session = new_session(doomed.arena->client);
    cache *handle = nullptr;
    cache_client *client = nullptr;
    cache_reservation *reservation = nullptr;
    const rows::Row row(kReserved, crash::kLargest);
    std::vector<cache_column> columns(row.columns(), row.columns() + row.n());
    crash::Helper copying(
        [&] {
            handle = fill(&client, session);
            crash::must(cache_reserve(handle, kReserved, columns.data(), row.n(), &reservation), "cache_reserve");
            hang_up();
        },
        [&] {
            for (uint32_t i = 0; i < row.n(); i++)
                rows::fill(columns[i].data, columns[i].bytes, kReserved, i);
            crash::must(cache_commit(reservation), "the commit of a live process without a socket");
        });
    copying.wait_ready();
    if (with_new_broker) replace_broker(doomed);
    let_the_broker_work(session);
    cache *reader = crash::open_cache(doomed.arena->client, session, kCache);
    cache_stats stats{};
    stats.size = sizeof stats;
    crash::must(cache_stat(reader, &stats), "cache_stat");
    if (stats.writers != 1) test_die("%ld writers are counted: a live one was taken for dead", long(stats.writers));
    if (const int status = copying.end(false)) test_die("who hung up ended with wait status %d", status);
    if (const std::string wrong = rows::check(reader, kReserved, crash::kLargest); !wrong.empty())
        test_die("%s", wrong.c_str());
    crash::until(
        [&] {
            crash::must(cache_stat(reader, &stats), "cache_stat");
            return stats.writers == 0 && stats.granted_bytes == 0;
        },
        "what the process without a socket held comes back when it has ended");
    test_server_check(doomed.arena->server);
    cache_close(reader);
    crash::must(cache_session_destroy(doomed.arena->client, session), "cache_session_destroy");
    doomed.wait_until_as_before();
}

enum class Holder { Opener, WithoutSocket, ForkChild };

void stays_charged(crash::Doomed &doomed, Holder kind, bool with_new_broker) {
    const uint32_t session = new_session(doomed.arena->client);
    int gate[2];
    if (pipe(gate) != 0) test_die("pipe failed");
    cache_client *client = nullptr;
    cache_view view{};
    const auto check_view = [&] {
        if (const std::string wrong = rows::Row(7, crash::kLargest).difference(view); !wrong.empty())
            test_die("a view of a destroyed session: %s", wrong.c_str());
    };
    crash::Helper holder(
        [&] {
            cache *handle = fill(&client, session);
            crash::must(cache_get(handle, 7, &view), "cache_get");
            if (kind == Holder::WithoutSocket) hang_up();
            if (kind != Holder::ForkChild || fork() != 0) return;
            alarm(100);
            char byte;
            (void)!read(gate[0], &byte, 1); // until the test has looked
            check_view();
            _exit(0);
        },
        check_view);
    holder.wait_ready();
    crash::must(cache_session_destroy(doomed.arena->client, session), "cache_session_destroy");
    if (kind == Holder::ForkChild && !WIFSIGNALED(holder.end(true))) test_die("the parent was not killed");
    if (with_new_broker) replace_broker(doomed);
    // Another session comes and goes entirely: the broker has looked at destroyed caches since.
    const uint32_t other = new_session(doomed.arena->client);
    let_the_broker_work(other);
    crash::must(cache_session_destroy(doomed.arena->client, other), "cache_session_destroy");
    const auto destroyed = [&] {
        struct Found {
            uint32_t session;
            int64_t bytes;
        } found{session, 0};
        const auto note = [](const cache_list_entry *entry, void *argument) {
            auto &f = *static_cast<Found *>(argument);
            if (entry->session_id == f.session && entry->stats) f.bytes += entry->stats->charged_bytes;
            return 0;
        };
        if (const int64_t n = cache_list(doomed.arena->client, note, &found); n < 0) crash::must(int(n), "cache_list");
        return found.bytes;
    };
    crash::until(
        [&] { return crash::server_info(doomed.arena->client).memory_used_bytes <= doomed.memory + destroyed(); },
        "the other session's memory is free");
    if (destroyed() < kRows * 100 || crash::server_info(doomed.arena->client).memory_used_bytes <= doomed.memory)
        test_die("a destroyed session that somebody maps is charged %ld bytes, the server %ld, %ld before it",
                 long(destroyed()), long(crash::server_info(doomed.arena->client).memory_used_bytes),
                 long(doomed.memory));
    if (kind == Holder::ForkChild) {
        if (write(gate[1], "", 1) != 1) test_die("write failed");
    } else if (const int status = holder.end(false)) {
        test_die("who held a view ended with wait status %d", status);
    }
    close(gate[0]), close(gate[1]);
    doomed.wait_until_as_before();
}

} // namespace

int main() {
    test_watchdog(200);
    crash::Doomed doomed(nullptr);
    for (const bool with_new_broker : {false, true}) {
        keeps_its_extents(doomed, with_new_broker);
        for (const Holder kind : {Holder::Opener, Holder::WithoutSocket, Holder::ForkChild})
            stays_charged(doomed, kind, with_new_broker);
    }
    printf("nobody who lives was taken for dead, no mapped memory for free\n");
    return 0;
}
