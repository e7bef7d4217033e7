// SPDX-License-Identifier: Apache-2.0
// Answers that are wrong in one field, or come with other descriptors: the call they belong to fails with a sentence,
// or takes no harm, and the next one is right.
#include "tests/support/fake_server.h"
#include "tests/support/rows.h"
#include "tests/support/session.h"
#include "tests/support/spill.h"

#include <atomic>
#include <fcntl.h>
#include <sys/stat.h>

namespace {

constexpr uint64_t kLimit = 16 << 20;

// Changes the next answer of one type, once.
class Once {
  public:
    void next(wire::Type type, std::function<void(Packet &)> change) {
        change_ = std::move(change);
        type_.store(uint32_t(type), std::memory_order_release); // with the line above
    }
    void operator()(Packet &answer) {
        uint32_t wanted = answer.message.header.type;
        if (type_.load(std::memory_order_acquire) == wanted && type_.exchange(0) == wanted) change_(answer);
    }

  private:
    std::atomic<uint32_t> type_{0};
    std::function<void(Packet &)> change_;
};

// A second client of the session's server, whose answers come through our hands.
struct Lied {
    Once once;
    Between between;
    cache_client *client = nullptr;
    explicit Lied(const test_server *server) : between(server, [this](Packet &answer) { once(answer); }) {
        OK(cache_connect(nullptr, &client));
    }
    Lied(const Lied &) = delete;
    Lied &operator=(const Lied &) = delete;
    ~Lied() { OK(cache_disconnect(client)); }

    cache *open(uint32_t session_id, uint32_t cache_id) const {
        const cache_options options = options_with_limit(kLimit);
        cache *handle = nullptr;
        OK(cache_open(client, session_id, cache_id, &options, &handle));
        return handle;
    }
    cache_server_stats info() const {
        cache_server_stats stats{};
        stats.size = sizeof stats;
        OK(cache_server_info(client, &stats));
        return stats;
    }
};

template <size_t N> void without_end(wire::Message &m, char (&text)[N]) {
    memset(text, 'x', size_t(reinterpret_cast<char *>(&m + 1) - text));
}

int open_of(const char *path, int flags) {
    const int fd = open(path, flags | O_CLOEXEC);
    cr_assert_geq(fd, 0, "%s: %s", path, strerror(errno));
    return fd;
}

// A server that answers a Hello with Welcome and each request with what `answer` sends.
void after_welcome(int fd, const std::function<void(int, const wire::Message &)> &answer) {
    for (Packet request; request.receive(fd);) {
        if (!request.is(wire::Type::Hello)) {
            answer(fd, request.message);
            continue;
        }
        request.message.header.type = uint32_t(wire::Type::Welcome);
        request.message.header.generation = 1;
        send_all(fd, &request.message, sizeof request.message);
    }
}

cache_client *connected(int64_t timeout_ms = 0) {
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    cache_client *client = nullptr;
    OK(cache_connect(&options, &client));
    return client;
}

// Says something again and again until nobody hears it.
void say_for_ever(int fd, wire::Message m) {
    while (send_all(fd, &m, sizeof m)) {
    }
}

} // namespace

// ---- words

Test(replies, with_a_sentence_without_end_are_cut) {
    FakeServer fake([](int fd) {
        after_welcome(fd, [](int to, const wire::Message &request) {
            wire::Message answer = request;
            answer.header.status = CACHE_ELIMIT;
            without_end(answer, answer.text);
            send_all(to, &answer, sizeof answer);
        });
    });
    cache_client *const client = connected();
    uint32_t id = 0;
    FAILS(cache_session_create(client, &id), CACHE_ELIMIT);
    cr_assert_eq(strlen(cache_last_error()), sizeof wire::Message{}.text - 1, "%zu bytes", strlen(cache_last_error()));
    OK(cache_disconnect(client));
}

Test(replies, with_codes_and_causes_that_are_none_of_ours_are_told_as_such) {
    Session s;
    Lied lied(s.server);
    uint32_t id = 0;
    for (const int status : {1, INT32_MAX, INT32_MIN, CACHE_EINVAL + 1, CACHE_EINVAL - 999}) {
        lied.once.next(wire::Type::SessionCreate, [=](Packet &p) { p.message.header.status = status; });
        FAILS(cache_session_create(lied.client, &id), CACHE_EVERSION, std::to_string(status));
    }
    lied.once.next(wire::Type::SessionCreate, [](Packet &p) { p.message.header.status = CACHE_EIO; });
    FAILS(cache_session_create(lied.client, &id), CACHE_EIO, "no reason");
    lied.once.next(wire::Type::SessionCreate, [](Packet &p) {
        p.message.header.status = CACHE_EFULL;
        p.message.header.full_cause = 1000;
        strcpy(p.message.text, "there is no room");
    });
    FAILS(cache_session_create(lied.client, &id), CACHE_EFULL, "there is no room");
    cr_assert_eq(cache_full_cause(), CACHE_FULL_UNKNOWN);
    lied.once.next(wire::Type::SessionCreate, [](Packet &p) {
        p.message.header.status = CACHE_ELIMIT;
        p.message.header.full_cause = CACHE_FULL_SIZE;
        strcpy(p.message.text, "there are enough");
    });
    FAILS(cache_session_create(lied.client, &id), CACHE_ELIMIT, "there are enough");
    cr_assert_eq(cache_full_cause(), CACHE_FULL_UNKNOWN);
    OK(cache_session_create(lied.client, &id));
}

Test(replies, with_strings_without_end_and_too_many_pids_are_cut) {
    Session s;
    Lied lied(s.server);
    lied.once.next(wire::Type::ServerInfo, [](Packet &p) { without_end(p.message, p.message.u.info.hostname); });
    const cache_server_stats info = lied.info();
    cr_assert_eq(strnlen(info.hostname, sizeof info.hostname), sizeof info.hostname - 1);
    cr_assert_lt(strnlen(info.spill_dir, sizeof info.spill_dir), sizeof info.spill_dir);
    cr_assert_lt(strnlen(info.log_path, sizeof info.log_path), sizeof info.log_path);
    cr_assert_lt(strnlen(info.server_path, sizeof info.server_path), sizeof info.server_path);
    lied.once.next(wire::Type::List, [](Packet &p) {
        wire::Entry &entry = p.message.u.entry;
        memset(entry.name, 'x', sizeof entry.name);
        memset(entry.tag, 'x', sizeof entry.tag);
        memset(entry.label, 'x', sizeof entry.label);
        entry.n_pids = UINT32_MAX;
    });
    const auto look = [](const cache_list_entry *entry, void *) {
        cr_assert_eq(strlen(entry->session_name), sizeof wire::Entry{}.name - 1);
        cr_assert_lt(strlen(entry->stats->tag), sizeof entry->stats->tag);
        cr_assert_lt(strlen(entry->stats->label), sizeof entry->stats->label);
        cr_assert_eq(entry->n_pids, std::size(wire::Entry{}.pids));
        return 7;
    };
    cr_assert_eq(cache_list(lied.client, look, nullptr), 7, "%s", cache_last_error());
}

Test(replies, of_another_size_magic_or_version_are_refused) {
    Session s;
    Lied lied(s.server);
    cache_server_stats stats{};
    stats.size = sizeof stats;
    lied.once.next(wire::Type::ServerInfo, [](Packet &p) { p.message.header.magic ^= 1; });
    FAILS(cache_server_info(lied.client, &stats), CACHE_EVERSION, "no libcache server");
    lied.once.next(wire::Type::ServerInfo, [](Packet &p) { p.message.header.version_major++; });
    FAILS(cache_server_info(lied.client, &stats), CACHE_EVERSION, "of version");
    (void)lied.info();
    FakeServer other([](int fd) {
        after_welcome(fd, [](int to, const wire::Message &request) {
            wire::Message answers[2] = {request, request};
            send_all(to, answers, sizeof answers[0] + sizeof(wire::Header)); // begins as a right one
        });
    });
    cache_client *const client = connected();
    FAILS(cache_server_info(client, &stats), CACHE_EVERSION, "another size");
    OK(cache_disconnect(client));
}

// ---- answers to something else

Test(replies, to_another_request_are_not_taken) {
    FakeServer fake([](int fd) {
        after_welcome(fd, [](int to, const wire::Message &request) {
            wire::Message answer = request;
            answer.header.number--; // as one that comes late
            answer.u.session.session_id = 1;
            send_all(to, &answer, sizeof answer);
            answer.header.number = request.header.number;
            answer.header.type = uint32_t(wire::Type::Open);
            answer.u.session.session_id = 2;
            send_all(to, &answer, sizeof answer);
            answer = request;
            answer.u.session.session_id = 3;
            send_all(to, &answer, sizeof answer);
        });
    });
    cache_client *const client = connected();
    uint32_t id = 0;
    OK(cache_session_create(client, &id));
    cr_assert_eq(id, 3);
    OK(cache_disconnect(client));
}

// A request comes again when a new broker resumes, and only then.
Test(replies, that_resume_the_same_broker_repeat_nothing) {
    static std::atomic<int> requests;
    FakeServer fake([](int fd) {
        after_welcome(fd, [](int to, const wire::Message &request) {
            wire::Message answer = request;
            requests++;
            if (request.header.repeated == 0)
                for (const uint64_t generation : {request.header.generation, request.header.generation + 1}) {
                    answer.header.type = uint32_t(wire::Type::Resume);
                    answer.header.generation = generation;
                    send_all(to, &answer, sizeof answer);
                }
            else
                send_all(to, &answer, sizeof answer);
        });
    });
    cache_client *const client = connected();
    uint32_t id = 0;
    OK(cache_session_create(client, &id));
    cr_assert_eq(requests.load(), 2);
    OK(cache_disconnect(client));
}

// A late answer or a RESUME comes between two requests; what is neither is passed over there.
Test(replies, that_nobody_asked_for_do_no_harm) {
    static std::atomic<bool> said;
    static std::atomic<uint64_t> generation;
    FakeServer fake([](int fd) {
        after_welcome(fd, [](int to, const wire::Message &request) {
            generation = request.header.generation;
            send_all(to, &request, sizeof request);
            wire::Message resume = request;
            resume.header.type = uint32_t(wire::Type::Resume);
            resume.header.generation = 9;
            resume.header.magic ^= 1;
            send_all(to, &resume, sizeof resume);
            send_all(to, &resume, sizeof resume.header);
            said = true;
        });
    });
    cache_client *const client = connected();
    uint32_t id = 0;
    for (int i = 0; i < 3; i++) {
        OK(cache_session_create(client, &id));
        cr_assert_eq(generation.load(), uint64_t{1}, "what is no message of ours told of a new broker");
        for (int tries = 0; !said.exchange(false); tries++) {
            cr_assert_lt(tries, 6000);
            usleep(10000);
        }
    }
    OK(cache_disconnect(client));
}

// Whatever a server says all the time, a call ends: with its deadline, and not with the server's breath.
Test(replies, without_end_do_not_hold_a_request) {
    FakeServer fake([](int fd) {
        after_welcome(fd, [](int to, const wire::Message &request) {
            wire::Message other = request;
            other.header.number += 1000;
            say_for_ever(to, other);
        });
    });
    cache_client *const client = connected(300);
    uint32_t id = 0;
    FAILS(cache_session_create(client, &id), CACHE_ETIMEOUT);
    FAILS(cache_session_create(client, &id), CACHE_ETIMEOUT); // which begins with what came since
    OK(cache_disconnect(client));
}

Test(replies, without_end_do_not_hold_a_greeting) {
    FakeServer fake([](int fd) { say_for_ever(fd, *message(wire::Type::SessionCreate)); });
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.timeout_ms = 300;
    cache_client *client = nullptr;
    FAILS(cache_connect(&options, &client), CACHE_ETIMEOUT);
}

Test(replies, without_end_do_not_hold_who_stops_a_server) {
    FakeServer fake([](int fd) {
        after_welcome(fd, [](int to, const wire::Message &request) {
            send_all(to, &request, sizeof request);
            if (request.header.type == uint32_t(wire::Type::Stop)) say_for_ever(to, request);
        });
    });
    cache_client *const client = connected(300);
    FAILS(cache_server_stop(client), CACHE_ETIMEOUT);
    OK(cache_disconnect(client));
}

Test(replies, of_a_listing_without_end_end) {
    FakeServer fake([](int fd) {
        after_welcome(fd, [](int to, const wire::Message &request) {
            wire::Message answer = request;
            answer.u.entry.session_id = 7;
            answer.u.entry.state = 2; // destroyed, one after the other
            if (request.u.list.started != wire::kListDestroyed) answer.header.status = CACHE_ENOTFOUND;
            send_all(to, &answer, sizeof answer);
        });
    });
    cache_client *const client = connected();
    int calls = 0;
    const auto count = [](const cache_list_entry *, void *n) { return ++*static_cast<int *>(n), 0; };
    cr_assert_eq(cache_list(client, count, &calls), calls, "%s", cache_last_error());
    OK(cache_disconnect(client));
}

// ---- descriptors

Test(replies, to_an_opening_with_other_descriptors_fail_it) {
    Session s;
    Lied lied(s.server);
    const cache_options options = options_with_limit(kLimit);
    const std::function<void(Packet &)> changes[] = {
        [](Packet &p) { p.drop_fds(); },
        [](Packet &p) { p.drop_fds(), p.fds.push_back(open_of("/dev/null", O_RDWR)); },
        [](Packet &p) { p.drop_fds(), p.fds.push_back(open_of("/", O_RDONLY | O_DIRECTORY)); },
        [](Packet &p) { p.drop_fds(), p.fds.push_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); },
    };
    for (const auto &change : changes) {
        lied.once.next(wire::Type::Open, change);
        cache *handle = nullptr;
        cr_assert_lt(cache_open(lied.client, s.id, 2, &options, &handle), 0);
        cr_assert_null(handle);
        cr_assert_gt(strlen(cache_last_error()), 10);
    }
    lied.once.next(wire::Type::Open, [](Packet &p) { p.drop_fds(); });
    cache *handle = nullptr;
    FAILS(cache_open(lied.client, s.id, 2, &options, &handle), CACHE_EIO, "no descriptor");
    lied.once.next(wire::Type::Open, [](Packet &p) { p.fds.push_back(open_of("/dev/null", O_RDWR)); }); // one too many
    handle = lied.open(s.id, 2);
    OK(rows::put(handle, 1));
    RIGHT(rows::check(handle, 1));
    OK(cache_close(handle));
}

Test(replies, to_an_attaching_with_other_descriptors_fail_it) {
    Session s;
    Lied lied(s.server);
    cache *const one = lied.open(s.id, 2), *const other = lied.open(s.id, 3);
    lied.once.next(wire::Type::Attach, [](Packet &p) { p.drop_fds(); });
    FAILS(rows::put(one, 1), CACHE_EIO, "no descriptor");
    lied.once.next(wire::Type::Attach, [](Packet &p) { p.drop_fds(), p.fds.push_back(open_of("/dev/null", O_RDWR)); });
    cr_assert_lt(rows::put(one, 1), 0);
    // What the one's rows are read from is not what they would be written to.
    Packet kept;
    lied.once.next(wire::Type::Attach, [&](Packet &p) { kept.fds.push_back(dup(p.fds[0])); });
    OK(rows::put(other, 1));
    lied.once.next(wire::Type::Attach, [&](Packet &p) { std::swap(p.fds, kept.fds); });
    FAILS(rows::put(one, 1), CACHE_EGONE, "made anew");
    lied.once.next(wire::Type::Attach, [](Packet &p) { p.message.u.attached.slot = UINT32_MAX; });
    FAILS(rows::put(one, 1), CACHE_ECORRUPT, "slot");
    OK(rows::put(one, 1));
    OK(cache_close(one));
    OK(cache_close(other));
}

// The file of spilled rows is another, or none: rows on disk are told as damage, those in memory are right.
Test(replies, to_an_opening_with_another_spill_file_fail_spilled_rows_alone) {
    SpillSession s;
    int64_t spilled = 0;
    for (cache_stats stats{}; stats.rows_spilled == 0; spilled++) {
        OK(rows::put(s.rows, spilled, 100'000));
        OK(cache_flush(s.rows));
        stats.size = sizeof stats;
        OK(cache_stat(s.rows, &stats));
    }
    spilled--; // the last one
    Lied lied(s.server);
    const std::string pipe = s.folder.path() + "/pipe";
    cr_assert_eq(mkfifo(pipe.c_str(), 0600), 0);
    const cache_options options = spilling(4 << 20);
    const auto opened_with = [&](const std::function<void(Packet &)> &change) {
        lied.once.next(wire::Type::Open, change);
        cache *handle = nullptr;
        OK(cache_open(lied.client, s.id, 1, &options, &handle));
        cache_view view{};
        const int result = cache_get(handle, spilled, &view);
        RIGHT(rows::check(handle, 0, 100'000));
        OK(cache_close(handle));
        return result;
    };
    const auto instead = [](const char *path, int flags) {
        return [path, flags](Packet &p) {
            close(p.fds[1]);
            p.fds[1] = open_of(path, flags);
        };
    };
    cr_assert_eq(opened_with([](Packet &p) { close(p.fds[1]), p.fds.pop_back(); }), CACHE_ECORRUPT);
    cr_assert_lt(opened_with(instead("/dev/null", O_RDONLY)), 0);
    cr_assert_lt(opened_with(instead("/", O_RDONLY | O_DIRECTORY)), 0);
    cr_assert_lt(opened_with(instead(pipe.c_str(), O_RDWR)), 0);
    cr_assert_eq(unlink(pipe.c_str()), 0);
    OK(opened_with([](Packet &) {}));
}

// A run of the file that is none, no file to write to, a file for a cache that does not spill.
Test(replies, to_who_spills_with_other_places_and_files_fail_no_other_row) {
    SpillSession s;
    Lied lied(s.server);
    const auto filled = [&](uint32_t cache_id, const cache_options &options) {
        cache *handle = nullptr;
        OK(cache_open(lied.client, s.id, cache_id, &options, &handle));
        int result = 0;
        cache_stats stats{};
        stats.size = sizeof stats;
        for (int64_t id = 0; result == 0 && stats.rows_spilled == 0; id++) {
            result = rows::put(handle, id, 100'000);
            OK(cache_stat(handle, &stats));
        }
        RIGHT(rows::check(handle, 0, 100'000));
        OK(cache_close(handle));
        return result;
    };
    lied.once.next(wire::Type::SpillGrant, [](Packet &p) { p.message.u.spill.segment = uint64_t{1} << 40; });
    OK(filled(2, spilling(4 << 20))); // it asks once more
    lied.once.next(wire::Type::Attach, [](Packet &p) { close(p.fds[1]), p.fds.pop_back(); });
    cr_assert_eq(filled(3, spilling(4 << 20)), CACHE_EFULL);
    lied.once.next(wire::Type::Attach, [](Packet &p) { p.fds.push_back(open_of("/dev/null", O_RDWR)); });
    cr_assert_eq(filled(4, options_with_limit(4 << 20)), CACHE_EFULL);
}
