// SPDX-License-Identifier: Apache-2.0
// Sentences of failures, control messages and the packets that carry them.
#include "core/common/error.h"
#include "core/control/paths.h"
#include "core/control/socket.h"
#include "core/control/wire.h"

#include <cerrno>
#include <criterion/criterion.h>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace libcache;

namespace {

struct Pair {
    Fd a, b;
    Pair() {
        int pair[2];
        cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        a = Fd(pair[0]);
        b = Fd(pair[1]);
    }
};

int open_descriptors() {
    int n = 0;
    for (int fd = 0; fd < 1000; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

std::string fresh_folder() {
    const char *base = getenv("TMPDIR");
    std::string path = std::string(base ? base : "/tmp") + "/lcp-XXXXXX";
    cr_assert_not_null(mkdtemp(path.data()));
    return path;
}

} // namespace

Test(error, the_last_sentence_stays_until_the_next_failure) {
    cr_assert_str_eq(last_error(), "");
    cr_assert_eq(fail(CACHE_EIO, "row %d of %s", 7, "x"), CACHE_EIO);
    cr_assert_str_eq(last_error(), "row 7 of x");
    cr_assert_eq(note_miss(8, 9, 10), CACHE_ENOTFOUND);
    cr_assert_str_eq(last_error(), "row 8 is not in cache 10 of session 9");
    cr_assert_str_eq(last_error(), "row 8 is not in cache 10 of session 9");
    fail(CACHE_EIO, "again");
    cr_assert_str_eq(last_error(), "again");
}

Test(error, a_sentence_longer_than_its_room_is_cut) {
    const std::string text(5000, 'x');
    fail(CACHE_EIO, "%s", text.c_str());
    cr_assert_gt(strlen(last_error()), 300);
    cr_assert_lt(strlen(last_error()), 5000);
}

Test(error, threads_have_sentences_of_their_own) {
    fail(CACHE_EIO, "mine");
    std::thread([] {
        cr_assert_str_eq(last_error(), "");
        fail(CACHE_EIO, "theirs");
    }).join();
    cr_assert_str_eq(last_error(), "mine");
}

Test(packets, carry_a_message_and_descriptors) {
    Pair pair;
    auto out = std::make_unique<wire::Message>(), in = std::make_unique<wire::Message>();
    memset(static_cast<void *>(out.get()), 0x5a, sizeof *out);
    Fd null(open("/dev/null", O_RDONLY));
    const int fds[2] = {null.get(), pair.b.get()};
    cr_assert(send_packet(pair.a.get(), out.get(), sizeof *out, fds, 2) == Io::Done);
    Fd got[3];
    int n = 3;
    cr_assert(receive_packet(pair.b.get(), in.get(), sizeof *in, got, &n) == Io::Done);
    cr_assert_eq(n, 2);
    cr_assert_eq(memcmp(in.get(), out.get(), sizeof *in), 0);
    for (int i = 0; i < 2; i++)
        cr_assert(fcntl(got[i].get(), F_GETFD) & FD_CLOEXEC);
    struct stat a, b;
    fstat(null.get(), &a);
    fstat(got[0].get(), &b);
    cr_assert_eq(a.st_rdev, b.st_rdev);
}

Test(packets, of_another_size_are_bad_and_leave_no_descriptor) {
    Pair pair;
    auto message = std::make_unique<wire::Message>();
    std::vector<char> big(sizeof *message + 1);
    const int before = open_descriptors(), fd = pair.a.get();
    for (size_t bytes : {size_t{1}, sizeof(wire::Header), sizeof *message - 1, sizeof *message + 1}) {
        cr_assert(send_packet(pair.a.get(), big.data(), uint32_t(bytes), &fd, 1) == Io::Done);
        {
            Fd got[4];
            int n = 4;
            cr_assert(receive_packet(pair.b.get(), message.get(), sizeof *message, got, &n) == Io::Bad);
        }
        cr_assert_eq(open_descriptors(), before);
    }
}

Test(packets, with_more_descriptors_than_expected_are_bad_and_leave_none) {
    Pair pair;
    auto message = std::make_unique<wire::Message>();
    const int fds[3] = {0, 1, 2}, before = open_descriptors();
    for (int room : {0, 1, 2}) {
        cr_assert(send_packet(pair.a.get(), message.get(), sizeof *message, fds, 3) == Io::Done);
        {
            Fd got[3];
            int n = room;
            cr_assert(receive_packet(pair.b.get(), message.get(), sizeof *message, got, &n) == Io::Bad);
            cr_assert_leq(n, room);
        }
        cr_assert_eq(open_descriptors(), before);
    }
}

Test(packets, the_largest_number_of_descriptors_arrives) {
    Pair pair;
    auto message = std::make_unique<wire::Message>();
    int fds[kMaxFds];
    for (int &fd : fds)
        fd = pair.a.get();
    cr_assert(send_packet(pair.a.get(), message.get(), sizeof *message, fds, kMaxFds) == Io::Done);
    Fd got[kMaxFds];
    int n = kMaxFds;
    cr_assert(receive_packet(pair.b.get(), message.get(), sizeof *message, got, &n) == Io::Done);
    cr_assert_eq(n, kMaxFds);
    cr_assert(send_packet(pair.a.get(), message.get(), sizeof *message, fds, kMaxFds + 1) == Io::Failed);
}

Test(packets, credentials_name_the_sender) {
    Pair pair;
    const int on = 1;
    setsockopt(pair.b.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    auto message = std::make_unique<wire::Message>();
    cr_assert(send_packet(pair.a.get(), message.get(), sizeof *message, nullptr, 0, true) == Io::Done);
    int pid = -1;
    cr_assert(receive_packet(pair.b.get(), message.get(), sizeof *message, nullptr, nullptr, &pid) == Io::Done);
    cr_assert_eq(pid, getpid());
}

Test(packets, nothing_there_a_full_socket_and_a_closed_one_are_told_apart) {
    Pair pair;
    auto message = std::make_unique<wire::Message>();
    cr_assert(receive_packet(pair.b.get(), message.get(), sizeof *message, nullptr, nullptr, nullptr, false) ==
              Io::WouldBlock);
    Io last = Io::Done;
    for (int i = 0; i < 100000 && last == Io::Done; i++)
        last = send_packet(pair.a.get(), message.get(), sizeof *message, nullptr, 0, false, false);
    cr_assert(last == Io::WouldBlock);
    pair.b.reset();
    cr_assert(send_packet(pair.a.get(), message.get(), sizeof *message) == Io::Closed);
    Pair other;
    other.a.reset();
    cr_assert(receive_packet(other.b.get(), message.get(), sizeof *message) == Io::Closed);
}

// The kernel leaves them out. None of a packet's is better than some, and who expects none is told that some were.
Test(packets, with_descriptors_for_which_there_is_no_number_arrive_without_any) {
    Pair pair;
    auto message = std::make_unique<wire::Message>();
    const int fds[2] = {pair.a.get(), pair.b.get()}, before = open_descriptors();
    rlimit limit{};
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (const int left : {1, 0})
        for (const int room : {2, 0}) {
            std::vector<Fd> lower; // all numbers below this one are taken
            do
                lower.emplace_back(dup(fds[0]));
            while (open_descriptors() != lower.back().get() + 1);
            cr_assert(send_packet(pair.a.get(), message.get(), sizeof *message, fds, 2) == Io::Done);
            const rlimit few{rlim_t(lower.back().get() + 1 + left), limit.rlim_max};
            cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
            Fd got[2];
            int n = room;
            const Io io = receive_packet(pair.b.get(), message.get(), sizeof *message, got, &n);
            cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
            lower.clear();
            cr_assert(io == (room > 0 ? Io::Done : Io::Bad), "%d left, room for %d", left, room);
            cr_assert(n == 0 && !got[0] && !got[1]);
            cr_assert_eq(open_descriptors(), before);
        }
}

// A keeper reads what a dead broker sent, and a client what a server answered, though that one had not read all.
Test(packets, of_a_peer_that_ended_with_something_unread_arrive) {
    Pair pair;
    auto message = std::make_unique<wire::Message>();
    const int fd = 0; // not the peer's end: it would live on in the packet
    cr_assert(send_packet(pair.b.get(), message.get(), sizeof *message) == Io::Done); // never read
    for (uint64_t number : {1, 2}) {
        message->header.number = number;
        cr_assert(send_packet(pair.a.get(), message.get(), sizeof *message, &fd, 1) == Io::Done);
    }
    pair.a.reset();
    for (uint64_t number : {1, 2}) {
        Fd got;
        int n = 1;
        cr_assert(receive_packet(pair.b.get(), message.get(), sizeof *message, &got, &n) == Io::Done);
        cr_assert(message->header.number == number && n == 1);
    }
    for (bool wait : {false, true})
        cr_assert(receive_packet(pair.b.get(), message.get(), sizeof *message, nullptr, nullptr, nullptr, wait) ==
                  Io::Closed);
}

Test(packets, waiting_ends_at_the_deadline_or_with_input) {
    Pair pair;
    cr_assert_eq(wait_readable(pair.a.get(), now_ns() + 1000000), 0);
    cr_assert_eq(wait_readable(pair.a.get(), 0), 0);
    cr_assert_eq(write(pair.b.get(), "x", 1), 1);
    cr_assert_eq(wait_readable(pair.a.get(), now_ns() + int64_t{60} * 1000000000), 1);
}

Test(paths, follow_the_environment_or_the_user) {
    setenv("LIBCACHE_DIR", "/some/where", 1);
    cr_assert(server_folder(1000) == "/some/where");
    unsetenv("LIBCACHE_DIR");
    setenv("XDG_RUNTIME_DIR", "/run/user/1", 1);
    setenv("TMPDIR", "/elsewhere", 1);
    cr_assert(server_folder(1000) == "/tmp/libcache-1000");
    cr_assert(socket_path("/tmp/libcache-1000", 50052) == "/tmp/libcache-1000/cache_server.50052");
}

Test(paths, a_folder_is_made_private) {
    const std::string folder = fresh_folder() + "/new";
    umask(0);
    cr_assert_eq(make_server_folder(folder), 0, "%s", last_error());
    struct stat status;
    cr_assert_eq(stat(folder.c_str(), &status), 0);
    cr_assert_eq(status.st_mode & 07777, 0700);
    cr_assert_eq(make_server_folder(folder), 0, "%s", last_error());
    rmdir(folder.c_str());
}

Test(paths, what_is_no_folder_of_ours_is_refused) {
    const std::string base = fresh_folder(), file = base + "/file", link = base + "/link";
    close(creat(file.c_str(), 0600));
    cr_assert_eq(make_server_folder(file), CACHE_EPERM);
    cr_assert_eq(symlink(base.c_str(), link.c_str()), 0);
    cr_assert_eq(make_server_folder(link), CACHE_EPERM, "a link may lead anywhere");
    cr_assert_eq(make_server_folder(base + "/missing/new"), CACHE_EIO);
    if (geteuid() == 0) {
        const std::string foreign = base + "/foreign";
        cr_assert(mkdir(foreign.c_str(), 0700) == 0 && chown(foreign.c_str(), 12345, 12345) == 0);
        cr_assert_eq(make_server_folder(foreign), CACHE_EPERM);
        cr_assert(strstr(last_error(), "12345"), "%s", last_error());
    }
    cr_assert_eq(system(("rm -rf " + base).c_str()), 0);
}
