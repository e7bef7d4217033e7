// SPDX-License-Identifier: Apache-2.0
// Requests that are wrong in one field, as the library never sends them: each is refused with its own code, changes
// nothing, and the connection goes on.
#include "tests/support/raw_region.h"
#include "tests/support/rows.h"
#include "tests/support/session.h"
#include "tests/support/spill.h"

#include <csignal>
#include <functional>
#include <poll.h>
#include <sys/wait.h>

namespace {

constexpr uint32_t kNobodys = 0x7fffffff; // as a session, a slot, a cache

using Change = std::function<void(wire::Message &)>;

// What the server answers to a request of this type.
int asked(RawClient &client, wire::Type type, const Change &change) {
    const auto m = client.request(type);
    change(*m);
    const auto answer = client.ask(*m);
    cr_assert(answer->header.status == 0 || strnlen(answer->text, sizeof answer->text) > 10, "no sentence");
    return answer->header.status;
}

Change open_of(const Session &s, const Change &change) {
    return [&s, change](wire::Message &m) {
        m.u.open.session_id = s.id;
        m.u.open.cache_id = 2;
        m.u.open.limit_bytes = 16 << 20;
        change(m);
    };
}

// All bytes from this field on to the message's end.
template <size_t N> void without_end(wire::Message &m, char (&text)[N]) {
    memset(text, 'x', size_t(reinterpret_cast<char *>(&m + 1) - text));
}

void eventually(const std::function<bool()> &so, const char *what) {
    for (int tries = 0; !so(); tries++) {
        cr_assert_lt(tries, 6000, "it did not come about: %s", what);
        usleep(10000);
    }
}

pid_t broker_of(const Session &s) {
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    return info.broker_pid;
}

struct DistrustingSession { // of a server that has a client prove who it is, as before Linux 6.5
    DistrustingSession() { setenv("LIBCACHE_NO_PEERPIDFD", "1", 1); }
};
struct ProvingSession : DistrustingSession, Session {};

std::unique_ptr<wire::Message> right_session_destroy(const Session &s) {
    uint64_t generation = 0;
    close(welcomed(s, &generation));
    auto m = message(wire::Type::SessionDestroy, 2);
    m->header.generation = generation; // of another, it would not be looked at anyway
    m->u.session.session_id = s.id;
    return m;
}

} // namespace

// ---- greeting

Test(requests, before_hello_end_the_connection) {
    Session s;
    const auto destroy = right_session_destroy(s);
    const int fd = raw_connect(s.server);
    cr_assert(send_all(fd, destroy.get(), sizeof *destroy));
    cr_assert_null(reply(fd).get(), "a request before hello is answered");
    close(fd);
    OK(rows::put(s.rows, 1)); // and was not done
}

Test(requests, before_the_proof_end_the_connection) {
    ProvingSession s;
    const auto destroy = right_session_destroy(s);
    const int fd = raw_connect(s.server);
    const auto hello = message(wire::Type::Hello);
    cr_assert(send_all(fd, hello.get(), sizeof *hello));
    const auto prove = reply(fd);
    cr_assert(prove && prove->header.type == uint32_t(wire::Type::Prove));
    cr_assert(send_all(fd, destroy.get(), sizeof *destroy));
    cr_assert_null(reply(fd).get(), "a request before the proof is answered");
    close(fd);
    OK(rows::put(s.rows, 1));
}

// Its pid may be another's by now: the proof is the sender's own.
Test(requests, a_proof_of_another_process_is_none) {
    ProvingSession s;
    const int fd = raw_connect(s.server);
    const auto hello = message(wire::Type::Hello), prove = message(wire::Type::Prove);
    cr_assert(send_all(fd, hello.get(), sizeof *hello));
    const auto asked_for = reply(fd);
    cr_assert(asked_for && asked_for->header.type == uint32_t(wire::Type::Prove));
    const pid_t child = fork();
    if (child == 0) _exit(send_all(fd, prove.get(), sizeof *prove) ? 0 : 1);
    int status = -1;
    waitpid(child, &status, 0);
    cr_assert_eq(status, 0);
    cr_assert_null(reply(fd).get(), "a child spoke in its parent's place and is welcomed");
    close(fd);
}

// After ten seconds. Who was welcomed may be silent for as long as it likes.
Test(requests, are_not_waited_for_from_who_does_not_greet, .timeout = 100) {
    ProvingSession s;
    RawClient welcome(s.server);
    const int silent = raw_connect(s.server), unproved = raw_connect(s.server);
    const auto hello = message(wire::Type::Hello);
    cr_assert(send_all(unproved, hello.get(), sizeof *hello));
    const auto asked_for = reply(unproved);
    cr_assert(asked_for && asked_for->header.type == uint32_t(wire::Type::Prove));
    for (int fd : {silent, unproved}) {
        pollfd entry{fd, POLLIN, 0};
        cr_assert_eq(poll(&entry, 1, 60'000), 1, "a connection that %s is kept for a minute",
                     fd == silent ? "never greeted" : "never proved who it is");
        cr_assert_null(reply(fd).get());
        close(fd);
    }
    welcome.has_been_heard();
}

// As of a library that knows no witness: its death could not be noticed.
Test(requests, of_who_cannot_be_watched_are_not_heard) {
    setenv("LIBCACHE_NO_PIDFD", "1", 1);
    ProvingSession s;
    const int fd = raw_connect(s.server);
    const auto hello = message(wire::Type::Hello), prove = message(wire::Type::Prove);
    cr_assert(send_all(fd, hello.get(), sizeof *hello));
    cr_assert_not_null(reply(fd).get());
    cr_assert(send_all(fd, prove.get(), sizeof *prove));
    const auto answer = reply(fd);
    cr_assert(answer && answer->header.status == CACHE_ENOTSUP, "%s", answer ? answer->text : "no answer");
    cr_assert(strstr(answer->text, "cannot watch process"), "%s", answer->text);
    cr_assert_null(reply(fd).get(), "the connection stands");
    close(fd);
}

Test(requests, with_names_that_have_no_end_are_refused) {
    Session s;
    const Change changes[] = {[](wire::Message &m) { memset(m.u.hello.program, 'x', sizeof m.u.hello.program); },
                              [](wire::Message &m) { without_end(m, m.u.hello.version); }};
    for (const Change &change : changes) {
        const int fd = raw_connect(s.server);
        const auto hello = message(wire::Type::Hello);
        change(*hello);
        cr_assert(send_all(fd, hello.get(), sizeof *hello));
        const auto answer = reply(fd);
        cr_assert(answer && answer->header.status == CACHE_EINVAL, "%s", answer ? answer->text : "no answer");
        cr_assert_null(reply(fd).get(), "the connection stands");
        close(fd);
    }
    const int fd = raw_connect(s.server);
    const auto hello = message(wire::Type::Hello);
    hello->header.version_major = CACHE_VERSION_MAJOR + 1;
    without_end(*hello, hello->u.hello.program);
    cr_assert(send_all(fd, hello.get(), sizeof *hello));
    const auto answer = reply(fd);
    cr_assert(answer && answer->header.status == CACHE_EVERSION);
    cr_assert(strstr(answer->text, "not named") && !strstr(answer->text, "xxx"), "%s", answer->text);
    close(fd);
}

Test(requests, of_another_major_version_end_the_connection) {
    Session s;
    RawClient client(s.server);
    const auto create = client.request(wire::Type::SessionCreate);
    create->header.version_major = CACHE_VERSION_MAJOR + 1;
    client.say(*create);
    cr_assert_null(reply(client.fd()).get(), "a request of another major version is answered");
}

Test(requests, a_greeting_said_again_changes_nothing) {
    Session s;
    RawClient client(s.server);
    for (wire::Type type : {wire::Type::Hello, wire::Type::Prove, wire::Type::Hello})
        client.say(*client.request(type));
    for (int i = 0; i < 2; i++) {
        const auto answer = reply(client.fd());
        cr_assert(answer && answer->header.type == uint32_t(wire::Type::Welcome) && answer->header.status == 0);
    }
    client.has_been_heard();
}

// ---- sessions and caches

Test(requests, for_sessions_are_checked_field_by_field) {
    Session s;
    RawClient client(s.server);
    const auto named = [](const char *name) { return [name](wire::Message &m) { strcpy(m.u.session.name, name); }; };
    const auto flags = [](wire::Message &m) { m.u.session.flags = 1u << 31; };
    cr_assert_eq(asked(client, wire::Type::SessionCreate, flags), CACHE_EINVAL);
    cr_assert_eq(asked(client, wire::Type::SessionOpen,
                       [](wire::Message &m) {
                           strcpy(m.u.session.name, "name");
                           m.u.session.flags = 1u << 31;
                       }),
                 CACHE_EINVAL);
    cr_assert_eq(asked(client, wire::Type::SessionOpen, named("")), CACHE_EINVAL);
    cr_assert_eq(asked(client, wire::Type::SessionOpen, named("two\nlines")), CACHE_EINVAL);
    cr_assert_eq(asked(client, wire::Type::SessionOpen, named("del\x7f")), CACHE_EINVAL);
    cr_assert_eq(asked(client, wire::Type::SessionOpen, [](wire::Message &m) { without_end(m, m.u.session.name); }),
                 CACHE_EINVAL);
    cr_assert_eq(asked(client, wire::Type::SessionDestroy, [](wire::Message &m) { m.u.session.session_id = kNobodys; }),
                 CACHE_ENOSESSION);
    cr_assert_eq(asked(client, wire::Type::SessionOpen, named("name")), 0);
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    cr_assert_eq(info.sessions, 2, "%lld sessions were made", (long long)info.sessions);
}

Test(requests, for_opening_a_cache_are_checked_field_by_field) {
    Session s;
    RawClient client(s.server);
    const auto opened = [&](const Change &change) { return asked(client, wire::Type::Open, open_of(s, change)); };
    cr_assert_eq(opened([](wire::Message &m) { m.u.open.has_tag = 1, without_end(m, m.u.open.tag); }), CACHE_EINVAL);
    cr_assert_eq(opened([](wire::Message &m) { m.u.open.has_label = 1, without_end(m, m.u.open.label); }),
                 CACHE_EINVAL);
    cr_assert_eq(opened([](wire::Message &m) { memset(m.u.open.tag, 't', CACHE_MAX_TAG_BYTES + 1); }), CACHE_EINVAL);
    cr_assert_eq(opened([](wire::Message &m) { m.u.open.flags = 1u << 31; }), CACHE_EINVAL);
    cr_assert_eq(opened([](wire::Message &m) { m.u.open.session_id = kNobodys; }), CACHE_ENOSESSION);
    cr_assert_eq(opened([](wire::Message &m) { m.u.open.spill = 1; }), CACHE_ENOTSUP);
    cr_assert_eq(opened([](wire::Message &m) { m.u.open.flags = CACHE_NO_CREATE; }), CACHE_ENOTFOUND);
    cr_assert_eq(opened([](wire::Message &m) { m.u.open.limit_bytes = 1; }), CACHE_EINVAL);
    cr_assert_eq(opened([](wire::Message &m) { m.u.open.limit_bytes = UINT64_MAX; }), CACHE_EFULL);
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    cr_assert_eq(info.caches, 1, "%lld caches were made", (long long)info.caches);
    // More rows than there can be: cut to what the limit holds.
    cr_assert_eq(opened([](wire::Message &m) { m.u.open.expected_rows = UINT64_MAX; }), 0);
}

// A client has one request under way: the answers to what it gave up it would not read, and kept without end they would
// fill the server's memory while a cache is being made, or file space.
Test(requests, for_a_cache_that_is_being_made_wait_one_for_each_connection) {
    constexpr uint64_t kGivenUp = 30; // with those before and after them less than the broker takes in one turn
    Session s;
    const pid_t broker = broker_of(s);
    RawClient client(s.server);
    uint32_t id = 0;
    OK(cache_session_create(s.client, &id));
    cr_assert_eq(kill(broker, SIGSTOP), 0); // all is there when the broker looks
    uint64_t last = 0;
    for (uint64_t i = 0; i <= kGivenUp; i++) {
        const auto open = client.request(wire::Type::Open);
        open->u.open.session_id = id;
        open->u.open.cache_id = 1;
        open->u.open.limit_bytes = 16 << 20;
        client.say(*open);
        last = open->header.number;
    }
    const auto destroy = client.request(wire::Type::SessionDestroy);
    destroy->u.session.session_id = id;
    client.say(*destroy);
    cr_assert_eq(kill(broker, SIGCONT), 0);
    const auto gone = reply(client.fd()), ended = reply(client.fd());
    cr_assert(gone && gone->header.number == last, "request %llu of %llu is answered",
              (unsigned long long)(gone ? gone->header.number : 0), (unsigned long long)last);
    cr_assert_eq(gone->header.status, CACHE_EGONE, "%s", gone->text);
    cr_assert(ended && ended->header.number == destroy->header.number && ended->header.status == 0);
    client.has_been_heard(); // and nothing else was said
}

Test(requests, about_a_region_that_is_none_or_was_destroyed_do_nothing) {
    Session s;
    RawClient client(s.server);
    const RawRegion region(client, s.id);
    OK(cache_destroy(s.client, s.id, 1)); // s.rows maps it still
    for (const uint64_t region_id : {region.attached.region_id, uint64_t{0}, UINT64_MAX}) {
        const auto of_region = [&](wire::Message &m) { m.u.region = {region_id, s.id, 1}; };
        cr_assert_eq(asked(client, wire::Type::Attach, of_region), CACHE_EGONE);
        for (wire::Type type : {wire::Type::BuildBegin, wire::Type::BuildDone, wire::Type::BuildLeave})
            cr_assert_eq(asked(client, type, [&](wire::Message &m) { m.u.build.region_id = region_id; }), CACHE_EGONE);
        cr_assert_eq(asked(client, wire::Type::SpillGrant, [&](wire::Message &m) { m.u.spill.region_id = region_id; }),
                     CACHE_EGONE);
        const auto want = client.request(wire::Type::Stock);
        want->u.want = region.want(libcache::Want{true, false, 0, 1});
        want->u.want.region_id = region_id;
        client.say(*want);
        cr_assert_eq(asked(client, wire::Type::Close, of_region), 0); // nothing to do is done
    }
    cr_assert_eq(asked(client, wire::Type::Destroy,
                       [&](wire::Message &m) {
                           m.u.region = {0, s.id, 1};
                       }),
                 CACHE_ENOTFOUND);
    cr_assert_eq(asked(client, wire::Type::Destroy,
                       [&](wire::Message &m) {
                           m.u.region = {0, kNobodys, 1};
                       }),
                 CACHE_ENOSESSION);
}

Test(requests, for_a_listing_from_anywhere_are_answered) {
    Session s;
    RawClient client(s.server);
    for (const wire::List from : {wire::List{kNobodys, 0, 1, 0}, wire::List{UINT32_MAX, UINT32_MAX, 1, 0},
                                  wire::List{0, 0, wire::kListDestroyed, 0}, wire::List{0, 0, wire::kListDestroyed, 1},
                                  wire::List{0, 0, wire::kListDestroyed, UINT32_MAX}}) {
        const auto list = client.request(wire::Type::List);
        list->u.list = from;
        const auto answer = client.ask(*list);
        cr_assert(answer->header.status == CACHE_ENOTFOUND || answer->u.entry.session_id == s.id);
        if (from.started == wire::kListDestroyed) cr_assert_eq(answer->header.status, CACHE_ENOTFOUND);
    }
}

// ---- what belongs to a slot

// A want of so many chunks is refused at once, so that it can be told whether it was heard.
Test(requests, about_the_slot_of_another_are_not_heard) {
    Session s;
    RawClient client(s.server), other(s.server);
    const RawRegion region(client, s.id);
    const auto want_as = [&](RawClient &who, const std::function<void(wire::Want &)> &change) {
        const auto m = who.request(wire::Type::Stock);
        m->u.want = region.want(libcache::Want{true, false, 0, uint32_t{libcache::kMaxExtentChunks} + 1});
        change(m->u.want);
        who.say(*m);
        who.has_been_heard();
        return libcache::Answer::unpack(region.slot().answer.load(std::memory_order_acquire)).code;
    };
    const auto as_it_is = [](wire::Want &) {};
    cr_assert_eq(want_as(other, as_it_is), 0, "another's want was looked after");
    cr_assert_eq(want_as(client, [](wire::Want &w) { w.slot = kNobodys; }), 0);
    cr_assert_eq(want_as(client, [](wire::Want &w) { w.slot++; }), 0);
    cr_assert_eq(want_as(client, [](wire::Want &w) { w.epoch++; }), 0, "a want of another time was looked after");
    cr_assert_eq(want_as(client, as_it_is), CACHE_EINVAL, "more chunks than an extent may have");
}

// Whoever asks for level after level is refused when the memory is used up, and the others go on.
Test(requests, for_levels_without_end_are_refused) {
    Session s;
    OK(rows::put(s.rows, 1));
    RawClient client(s.server);
    const RawRegion region(client, s.id);
    int code = 0;
    for (uint32_t asked_for = 0; code == 0; asked_for++) {
        cr_assert_leq(asked_for, libcache::kMaxLevels, "no end of levels");
        const uint32_t seen = region.slot().futex.load(std::memory_order_acquire);
        const auto want = client.request(wire::Type::Stock);
        want->u.want = region.want(libcache::Want{false, true, libcache::kMaxLevels, 0}, INT64_MAX);
        client.say(*want);
        eventually([&] { return region.slot().futex.load(std::memory_order_acquire) != seen; }, "an answer");
        code = libcache::Answer::unpack(region.slot().answer.load(std::memory_order_relaxed)).code;
    }
    cr_assert_eq(code, CACHE_EFULL);
    RIGHT(rows::check(s.rows, 1));
}

Test(requests, about_a_build_are_its_builders) {
    Session s;
    cache_options options = options_with_limit(16 << 20);
    options.flags = CACHE_BUILD;
    cache *const stream = s.open(2, options);
    RawClient builder(s.server), other(s.server), stranger(s.server);
    const RawRegion rows(builder, s.id, 1), region(builder, s.id, 2), others(other, s.id, 2);
    uint64_t term = 0;
    const auto build = [&](RawClient &who, wire::Type type, uint64_t of_term, uint64_t region_id) {
        const auto m = who.request(type);
        m->u.build.region_id = region_id;
        m->u.build.term = of_term;
        const auto answer = who.ask(*m);
        if (type == wire::Type::BuildBegin && answer->header.status == 0) term = answer->u.build.term;
        return answer->header.status;
    };
    const uint64_t id = region.attached.region_id;
    const auto built = [&] { return region.header().built.load(std::memory_order_acquire) != 0; };
    cr_assert_eq(build(stranger, wire::Type::BuildBegin, 0, id), CACHE_EINVAL, "who is not attached builds");
    cr_assert_eq(build(builder, wire::Type::BuildBegin, 0, rows.attached.region_id), CACHE_EINVAL, "no stream");
    cr_assert_eq(build(builder, wire::Type::BuildDone, 0, id), CACHE_EINVAL, "done before it began");
    cr_assert_eq(build(builder, wire::Type::BuildBegin, 0, id), 0);
    cr_assert_eq(build(other, wire::Type::BuildBegin, 0, id), CACHE_EBUILDING);
    cr_assert_eq(build(other, wire::Type::BuildDone, term, id), CACHE_EINVAL, "another's build was ended");
    cr_assert_eq(build(builder, wire::Type::BuildDone, term + 1, id), CACHE_EINVAL, "a build of another time");
    cr_assert_eq(build(builder, wire::Type::BuildDone, 0, id), CACHE_EINVAL);
    cr_assert_not(built());
    for (const uint64_t wrong : {term + 1, uint64_t{0}})
        cr_assert_eq(build(builder, wire::Type::BuildLeave, wrong, id), 0);
    cr_assert_eq(build(other, wire::Type::BuildLeave, term, id), 0);
    cr_assert_eq(build(other, wire::Type::BuildBegin, 0, id), CACHE_EBUILDING, "left by who was not asked");
    cr_assert_eq(build(builder, wire::Type::BuildLeave, term, id), 0);
    cr_assert_eq(build(other, wire::Type::BuildBegin, 0, id), 0);
    cr_assert_eq(build(other, wire::Type::BuildDone, term, id), 0);
    cr_assert(built());
    OK(cache_close(stream));
}

Test(requests, for_file_space_are_for_ones_own_slot) {
    SpillSession s;
    RawClient client(s.server), other(s.server);
    const RawRegion region(client, s.id);
    const auto grant = [&](RawClient &who, const std::function<void(wire::Spill &)> &change) {
        return asked(who, wire::Type::SpillGrant, [&](wire::Message &m) {
            m.u.spill = {region.attached.region_id, region.attached.epoch, 1000, 0, 0, region.attached.slot, 0};
            change(m.u.spill);
        });
    };
    cr_assert_eq(grant(other, [](wire::Spill &) {}), CACHE_EINVAL, "another's slot got file space");
    cr_assert_eq(grant(client, [](wire::Spill &w) { w.slot = kNobodys; }), CACHE_EINVAL);
    cr_assert_eq(grant(client, [](wire::Spill &w) { w.epoch++; }), CACHE_EINVAL, "a slot of another time");
    cr_assert_eq(grant(client, [](wire::Spill &w) { w.bytes = 0; }), CACHE_EFULL);
    cr_assert_eq(grant(client, [](wire::Spill &w) { w.bytes = UINT64_MAX; }), CACHE_EFULL);
    cr_assert_eq(grant(client, [](wire::Spill &w) { w.len = UINT64_MAX; }), 0, "an errno that is none");
    cr_assert_eq(grant(client, [](wire::Spill &) {}), 0);

    cache *const in_memory = [&] {
        const cache_options options = options_with_limit(16 << 20);
        cache *handle = nullptr;
        OK(cache_open(s.client, s.id, 2, &options, &handle));
        return handle;
    }();
    const RawRegion another(client, s.id, 2);
    cr_assert_eq(grant(client, [&](wire::Spill &w) { w.region_id = another.attached.region_id; }), CACHE_ENOTSUP,
                 "a cache that does not spill");
    OK(cache_close(in_memory));
}
