// SPDX-License-Identifier: Apache-2.0
// The control socket spoken to by hand: what a server makes of bad clients, and the library of bad servers.
#include "core/control/wire.h"
#include "tests/support/fake_server.h"
#include "tests/support/raw_region.h"
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <csignal>
#include <memory>
#include <random>
#include <sys/socket.h>
#include <unistd.h>

namespace {

void still_serves(const Session &s) {
    uint32_t id;
    OK(cache_session_create(s.client, &id));
    OK(cache_session_destroy(s.client, id));
    const int fd = raw_connect(s.server);
    const auto hello = message(wire::Type::Hello);
    cr_assert(send_all(fd, hello.get(), sizeof *hello));
    cr_assert_not_null(reply(fd).get());
    close(fd);
}

int connect_with_timeout(int64_t timeout_ms) {
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    cache_client *client = nullptr;
    const int result = cache_connect(&options, &client);
    cr_assert_null(client);
    return result;
}

// Answers every message with itself, changed by `change`; the first one, Hello, with Welcome.
void answer_each(int fd, void (*change)(wire::Message &)) {
    for (auto m = std::make_unique<wire::Message>(); recv(fd, m.get(), sizeof *m, 0) == ssize_t(sizeof *m);) {
        if (m->header.type == uint32_t(wire::Type::Hello))
            m->header.type = uint32_t(wire::Type::Welcome);
        else
            change(*m);
        send_all(fd, m.get(), sizeof *m);
    }
}

int count_call(const cache_list_entry *, void *calls) {
    ++*static_cast<int *>(calls);
    return 0;
}

// Asks something and leaves the answer where it is. False: the server has hung up.
bool ask(const Session &s, int fd, uint64_t generation, int number) {
    const auto request = message(wire::Type::ServerInfo, uint64_t(number));
    request->header.generation = generation;
    if (!send_all(fd, request.get(), sizeof *request)) return false;
    for (int i = 0; i < 2; i++) { // one after the other: then that on the other connection was looked at
        cache_server_stats info{};
        info.size = sizeof info;
        OK(cache_server_info(s.client, &info));
    }
    pollfd entry{fd, POLLIN, 0};
    return poll(&entry, 1, 0) >= 0 && (entry.revents & POLLHUP) == 0;
}

void kill_broker(const Session &s) {
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    cr_assert_eq(kill(info.broker_pid, SIGKILL), 0);
    const int64_t before = info.generation;
    OK(cache_server_info(s.client, &info)); // answered by the next one
    cr_assert_gt(info.generation, before);
}

// What was destroyed has gone: its place in the server's table is free.
void memory_is_free(const Session &s) {
    cache_server_stats info{};
    info.size = sizeof info;
    for (int tries = 0; tries == 0 || info.memory_used_bytes != 0; tries++) {
        if (tries != 0) usleep(10000);
        cr_assert_lt(tries, 3000, "%lld bytes of destroyed caches stay charged", (long long)info.memory_used_bytes);
        OK(cache_server_info(s.client, &info));
    }
}

} // namespace

Test(server, names_both_versions_to_a_client_of_another_major_version) {
    Session s;
    const int fd = raw_connect(s.server);
    auto hello = message(wire::Type::Hello);
    hello->header.version_major = 73;
    hello->header.version_minor = 9;
    cr_assert(send_all(fd, hello.get(), sizeof *hello));
    const auto answer = reply(fd);
    cr_assert_not_null(answer.get(), "hangs up without a word");
    cr_assert_eq(answer->header.status, CACHE_EVERSION, "%d %s", answer->header.status, answer->text);
    cr_assert(strstr(answer->text, "73.9") && strstr(answer->text, "1.0"), "%s", answer->text);
    close(fd);
    still_serves(s);
}

Test(server, outlives_packets_of_any_size_and_content) {
    Session s;
    std::mt19937 random(3);
    for (size_t bytes : {size_t{0}, size_t{1}, sizeof(wire::Header), sizeof(wire::Message) - 1, sizeof(wire::Message),
                         sizeof(wire::Message) + 1, size_t{100000}})
        for (int first = 0; first < 2; first++) {
            std::vector<unsigned char> junk(bytes);
            for (unsigned char &byte : junk)
                byte = (unsigned char)random();
            const int fd = first ? raw_connect(s.server) : welcomed(s);
            send_all(fd, junk.data(), junk.size());
            close(fd);
        }
    still_serves(s);
}

Test(server, outlives_every_request_type_with_random_contents) {
    Session s;
    OK(rows::put(s.rows, 1));
    std::mt19937 random(4);
    for (int round = 0; round < 300; round++) {
        const int fd = welcomed(s);
        const uint32_t type = random() % 20;
        if (type == uint32_t(wire::Type::Stop)) { // a rightful request
            close(fd);
            continue;
        }
        const auto m = message(wire::Type(type), random());
        for (char &byte : m->u.bytes)
            byte = random() % 3 ? 0 : char(random());
        m->header.generation = random() % 2 ? 1 : random();
        send_all(fd, m.get(), sizeof *m);
        close(fd);
    }
    still_serves(s);
    RIGHT(rows::check(s.rows, 1));
    OK(rows::put(s.rows, 2));
}

// What a client of a later minor version may send.
Test(server, answers_a_request_of_unknown_type_and_goes_on) {
    Session s;
    uint64_t generation = 0;
    const int fd = welcomed(s, &generation);
    for (uint32_t type : {uint32_t(wire::Type::BuildLeave) + 1, 1000u, UINT32_MAX}) {
        const auto hint = message(wire::Type(type), 0), request = message(wire::Type(type), type);
        hint->header.generation = request->header.generation = generation;
        cr_assert(send_all(fd, hint.get(), sizeof *hint));
        cr_assert(send_all(fd, request.get(), sizeof *request));
        const auto answer = reply(fd);
        cr_assert_not_null(answer.get(), "hangs up at type %u", type);
        cr_assert_eq(answer->header.number, uint64_t(type), "the hint was answered");
        cr_assert_eq(answer->header.type, type);
        cr_assert_eq(answer->header.status, CACHE_ENOTSUP, "%d %s", answer->header.status, answer->text);
        cr_assert(strstr(answer->text, std::to_string(type).c_str()), "%s", answer->text);
    }
    const auto known = message(wire::Type::ServerInfo, 5);
    known->header.generation = generation;
    cr_assert(send_all(fd, known.get(), sizeof *known));
    const auto answer = reply(fd);
    cr_assert(answer && answer->header.number == 5 && answer->header.status == 0);
    close(fd);
    still_serves(s);
}

Test(server, does_not_wait_for_clients_that_say_nothing) {
    Session s;
    std::vector<int> silent;
    for (int i = 0; i < 20; i++)
        silent.push_back(raw_connect(s.server));
    still_serves(s);
    for (int fd : silent)
        close(fd);
}

Test(server, hears_no_request_before_hello) {
    Session s;
    const int fd = raw_connect(s.server);
    const auto destroy = message(wire::Type::SessionDestroy);
    destroy->u.session.session_id = s.id;
    cr_assert(send_all(fd, destroy.get(), sizeof *destroy));
    const auto answer = reply(fd);
    cr_assert(!answer || answer->header.status < 0);
    close(fd);
    OK(rows::put(s.rows, 1));
}

// Its sender may have read the socket before the new broker's RESUME came, and stored its word after that broker
// looked.
Test(server, a_want_of_an_older_generation_is_heard) {
    Session s;
    uint64_t generation = 0;
    const int fd = welcomed(s, &generation);
    const RawRegion region(fd, generation, s.id);
    const libcache::Slot &slot = region.slot();
    const uint32_t seen = slot.futex.load(std::memory_order_acquire);

    const auto want = message(wire::Type::Stock, 0);
    want->header.generation = generation - 1;
    want->u.want = region.want(libcache::Want{true, false, 0, 1});
    cr_assert(send_all(fd, want.get(), sizeof *want));
    for (int tries = 0; slot.futex.load(std::memory_order_acquire) == seen; tries++) {
        cr_assert_lt(tries, 3000, "nothing was heard of the want");
        usleep(10000);
    }
    close(fd);
}

// A client that asks for nothing reads nothing: RESUME of one broker after the other fills its socket, until one finds
// no room. Here answers that are not read fill it.
Test(server, a_client_whose_socket_is_full_when_a_broker_dies_is_kept) {
    Session s;
    uint64_t generation = 0;
    const int probe = welcomed(s, &generation);
    for (int number = 1; ask(s, probe, generation, number); number++) // the server hangs up on who lets it wait
        cr_assert_lt(number, 100'000);
    int room = 0;
    while (reply(probe))
        room++;
    close(probe);
    const int fd = welcomed(s, &generation);
    for (int number = 1; number <= room; number++)
        cr_assert(ask(s, fd, generation, number));
    // A broker that answers others has come by each time: none of these is unread when it dies.
    cache_server_stats info{};
    info.size = sizeof info;
    for (int number = 1; number <= room; number++)
        OK(cache_server_info(s.client, &info));
    kill_broker(s);
    for (int number = 1; number <= room; number++) {
        const auto answer = reply(fd);
        cr_assert(answer && answer->header.number == uint64_t(number), "hung up after %d of %d answers", number, room);
    }
    const auto request = message(wire::Type::ServerInfo, 777);
    request->header.generation = generation;
    cr_assert(send_all(fd, request.get(), sizeof *request));
    const auto resume = reply(fd);
    cr_assert(resume && resume->header.type == uint32_t(wire::Type::Resume), "the owed RESUME");
    cr_assert_eq(resume->header.generation, generation + 1);
    request->header.generation = generation + 1;
    request->header.repeated = 1;
    cr_assert(send_all(fd, request.get(), sizeof *request));
    const auto answer = reply(fd);
    cr_assert(answer && answer->header.number == 777 && answer->header.status == 0);
    close(fd);
}

// A put that waits when a broker dies is woken by the next one: what the old one once refused is no answer to it.
Test(server, a_new_broker_wakes_writers_without_an_old_refusal) {
    Session s;
    uint64_t generation = 0;
    const int fd = welcomed(s, &generation);
    const RawRegion region(fd, generation, s.id);
    libcache::Slot &slot = region.slot();
    slot.answer.store(libcache::Answer{CACHE_EFULL, 1}.pack(), std::memory_order_relaxed);
    const uint32_t seen = slot.futex.load(std::memory_order_acquire);
    kill_broker(s);
    for (int tries = 0; slot.futex.load(std::memory_order_acquire) == seen; tries++) {
        cr_assert_lt(tries, 3000, "the new broker wakes nobody");
        usleep(10000);
    }
    cr_assert_eq(slot.answer.load(std::memory_order_relaxed), uint64_t{0});
    close(fd);
}

Test(server, hangs_up_on_messages_of_another_protocol) {
    Session s;
    for (const bool greeted : {false, true}) {
        uint64_t generation = 0;
        const int fd = greeted ? welcomed(s, &generation) : raw_connect(s.server);
        const auto m = message(greeted ? wire::Type::ServerInfo : wire::Type::Hello, 3);
        m->header.magic ^= 1;
        m->header.generation = generation;
        cr_assert(send_all(fd, m.get(), sizeof *m));
        cr_assert_null(reply(fd).get());
        close(fd);
    }
    still_serves(s);
}

// The broker that did it died before it answered, and somebody made a cache of that name before the request came again.
Test(server, a_destroy_that_comes_again_leaves_a_cache_made_since) {
    Session s;
    uint64_t generation = 0;
    const int fd = welcomed(s, &generation);
    const auto destroy = message(wire::Type::Destroy, 5);
    destroy->header.generation = generation;
    destroy->u.region = {0, s.id, 1};
    cr_assert(send_all(fd, destroy.get(), sizeof *destroy));
    auto answer = reply(fd);
    cr_assert(answer && answer->header.number == 5 && answer->header.status == 0);
    kill_broker(s);
    cache *const anew = s.open(1, options_with_limit(16 << 20));
    OK(rows::put(anew, 1));

    answer = reply(fd);
    cr_assert(answer && answer->header.type == uint32_t(wire::Type::Resume));
    destroy->header.generation = answer->header.generation;
    destroy->header.repeated = 1;
    cr_assert(send_all(fd, destroy.get(), sizeof *destroy));
    answer = reply(fd);
    cr_assert(answer && answer->header.number == 5 && answer->header.status == 0);
    OK(rows::put(anew, 2));

    destroy->header.number = 6; // this one was not done
    cr_assert(send_all(fd, destroy.get(), sizeof *destroy));
    answer = reply(fd);
    cr_assert(answer && answer->header.number == 6 && answer->header.status == 0);
    FAILS(rows::put(anew, 3), CACHE_EGONE);
    OK(cache_close(anew));
    close(fd);
}

// The same when that cache has been destroyed by somebody too, and its place in the server's table used again.
Test(server, a_destroy_that_comes_again_leaves_the_third_cache_of_that_name) {
    Session s;
    OK(cache_close(s.rows));
    uint64_t generation = 0;
    const int fd = welcomed(s, &generation);
    const auto destroy = message(wire::Type::Destroy, 5);
    destroy->header.generation = generation;
    destroy->u.region = {0, s.id, 1};
    cr_assert(send_all(fd, destroy.get(), sizeof *destroy));
    auto answer = reply(fd);
    cr_assert(answer && answer->header.number == 5 && answer->header.status == 0);
    memory_is_free(s);
    kill_broker(s);
    cache *const second = s.open(1, options_with_limit(16 << 20));
    OK(cache_close(second));
    OK(cache_destroy(s.client, s.id, 1));
    memory_is_free(s);
    s.rows = s.open(1, options_with_limit(16 << 20));
    OK(rows::put(s.rows, 1));

    answer = reply(fd);
    cr_assert(answer && answer->header.type == uint32_t(wire::Type::Resume));
    destroy->header.generation = answer->header.generation;
    destroy->header.repeated = 1;
    cr_assert(send_all(fd, destroy.get(), sizeof *destroy));
    answer = reply(fd);
    cr_assert(answer && answer->header.number == 5 && answer->header.status == 0);
    OK(rows::put(s.rows, 2));
    RIGHT(rows::check(s.rows, 1));
    close(fd);
}

Test(client, names_both_versions_of_a_server_of_another_major_version) {
    FakeServer fake([](int fd) {
        auto hello = std::make_unique<wire::Message>();
        if (recv(fd, hello.get(), sizeof *hello, 0) <= 0) return;
        auto answer = message(wire::Type::Welcome, hello->header.number);
        answer->header.version_major = 73;
        answer->header.version_minor = 9;
        strcpy(answer->u.welcome.version, "73.9.0");
        send_all(fd, answer.get(), sizeof *answer);
        char byte;
        (void)!read(fd, &byte, 1);
    });
    FAILS(connect_with_timeout(5000), CACHE_EVERSION, "version 73", "version 1");
}

Test(client, gives_up_on_a_silent_server_at_its_deadline) {
    FakeServer fake([](int fd) {
        char buffer[4096];
        while (read(fd, buffer, sizeof buffer) > 0) {
        }
    });
    FAILS(connect_with_timeout(300), CACHE_ETIMEOUT, "deadline");
}

// A broker may die before its WELCOME and the next one serve: the client tries again as long as it may.
Test(client, gives_up_on_a_server_that_always_hangs_up_at_its_deadline) {
    FakeServer fake([](int) {});
    const int result = connect_with_timeout(300);
    cr_assert(result == CACHE_ESERVER || result == CACHE_ETIMEOUT, "%d: %s", result, cache_last_error());
    cr_assert(strstr(cache_last_error(), "44444"), "%s", cache_last_error());
}

Test(client, is_welcomed_by_the_broker_after_those_that_die_before_their_welcome) {
    int connections = 0;
    FakeServer fake([&connections](int fd) {
        auto hello = std::make_unique<wire::Message>();
        if (++connections == 1 || recv(fd, hello.get(), sizeof *hello, 0) <= 0 || connections == 2) return;
        send_all(fd, message(wire::Type::Welcome, hello->header.number).get(), sizeof(wire::Message));
        char byte;
        (void)!read(fd, &byte, 1);
    });
    cache_client *client = nullptr;
    OK(cache_connect(nullptr, &client));
    cr_assert_eq(connections, 3);
    OK(cache_disconnect(client));
}

// Whatever a server of another build answers, a listing ends.
Test(client, ends_a_listing_that_does_not_go_on) {
    FakeServer fake([](int fd) { answer_each(fd, [](wire::Message &m) { m.u.entry.session_id = 7; }); });
    cache_client *client = nullptr;
    OK(cache_connect(nullptr, &client));
    int calls = 0;
    FAILS(cache_list(client, count_call, &calls), CACHE_EVERSION, "session 7");
    cr_assert_eq(calls, 1);
    OK(cache_disconnect(client));
}

Test(client, ends_a_listing_whose_destroyed_caches_are_live) {
    FakeServer fake([](int fd) {
        answer_each(fd, [](wire::Message &m) {
            m.u.entry.state = 1;
            if (m.u.list.started == 1) m.header.status = CACHE_ENOTFOUND;
            m.u.entry.session_id = 7;
        });
    });
    cache_client *client = nullptr;
    OK(cache_connect(nullptr, &client));
    int calls = 0;
    cr_assert_eq(cache_list(client, count_call, &calls), 1, "%s", cache_last_error());
    cr_assert_eq(calls, 1);
    OK(cache_disconnect(client));
}

Test(client, survives_answers_that_are_none) {
    FakeServer fake([](int fd) {
        static std::mt19937 random(5);
        char junk[sizeof(wire::Message)];
        if (read(fd, junk, sizeof junk) <= 0) return;
        for (char &byte : junk)
            byte = char(random());
        send_all(fd, junk, random() % 2 ? sizeof junk : random() % sizeof junk);
    });
    for (int i = 0; i < 20; i++) {
        cr_assert_lt(connect_with_timeout(2000), 0);
        cr_assert_gt(strlen(cache_last_error()), 10);
    }
}
