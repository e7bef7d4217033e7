// SPDX-License-Identifier: Apache-2.0
// The control socket spoken to by hand: what a server makes of bad clients, and the library of bad servers.
#include "core/control/wire.h"
#include "tests/support/raw.h"
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <functional>
#include <memory>
#include <random>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
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

// A server of our own making: accepts one connection and hands it to `body`.
class FakeServer {
  public:
    explicit FakeServer(std::function<void(int)> body) {
        cr_assert_not_null(mkdtemp(folder_));
        setenv("LIBCACHE_DIR", folder_, 1);
        setenv("LIBCACHE_PORT", "44444", 1);
        path_ = std::string(folder_) + "/cache_server.44444";
        const sockaddr_un address = address_of(path_);
        listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        cr_assert_eq(bind(listener_, reinterpret_cast<const sockaddr *>(&address), sizeof address), 0);
        cr_assert_eq(listen(listener_, 5), 0);
        thread_ = std::thread([this, body] {
            for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0; close(fd))
                body(fd);
        });
    }
    FakeServer(const FakeServer &) = delete;
    FakeServer &operator=(const FakeServer &) = delete;
    ~FakeServer() {
        shutdown(listener_, SHUT_RDWR);
        thread_.join();
        close(listener_);
        unlink(path_.c_str());
        rmdir(folder_);
    }

  private:
    char folder_[20] = "/tmp/lcs-XXXXXX";
    std::string path_;
    int listener_;
    std::thread thread_;
};

int connect_with_timeout(int64_t timeout_ms) {
    cache_client_options options = CACHE_CLIENT_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    cache_client *client = nullptr;
    const int result = cache_connect(&options, &client);
    cr_assert_null(client);
    return result;
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
