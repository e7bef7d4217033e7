// SPDX-License-Identifier: Apache-2.0
// The keeper and brokers that are not what it expects: such as send what is no message, die half way, read no answer.
// Whatever one of them does, the next one gets what is held. And a broker to which not all descriptors come.
#include "core/server/keeper.h"
#include "core/server/keeper_link.h"

#include <atomic>
#include <criterion/criterion.h>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace libcache;

namespace {

using Key = std::pair<HeldKind, uint64_t>;
using Body = std::function<void(KeeperLink &link, int fd)>;

struct Shared { // with the brokers, which are processes of their own
    std::atomic<int> started, wrong;
};
Shared *shared = nullptr;

void fail_unless(bool right) {
    if (right) return;
    shared->wrong.fetch_add(1);
    _exit(1);
}

Fd null_file() {
    return Fd(open("/dev/null", O_RDWR | O_CLOEXEC));
}

LinkMessage of(LinkType type, HeldKind kind, uint64_t id) {
    LinkMessage message;
    message.type = type;
    message.count = 1;
    message.entry[0] = {kind, 1, id};
    return message;
}

// True if it holds just these, each with its descriptors.
bool holds(KeeperLink &link, const std::set<Key> &wanted) {
    std::set<Key> found;
    bool whole = true;
    const bool all = link.take_all([&](const LinkEntry &entry, Fd *fds) {
        found.insert({entry.kind, entry.id});
        for (uint32_t i = 0; i < entry.n_fds; i++)
            whole &= fcntl(fds[i].get(), F_GETFD) >= 0;
    });
    return all && whole && found == wanted;
}

// A keeper that holds a server region, and brokers that do this, one after the other: all but the last die of it.
void keep(const std::vector<Body> &brokers) {
    shared =
        static_cast<Shared *>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    sigset_t set;
    sigemptyset(&set);
    for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD})
        sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    Keeper keeper(
        "/nowhere",
        [&](Fd socket) -> int {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            const auto number = size_t(shared->started.fetch_add(1));
            if (number >= brokers.size()) _exit(kBrokerEnded); // with its link: see main.cc
            const int fd = socket.get();
            KeeperLink link(std::move(socket));
            link.serving();
            brokers[number](link, fd);
            fail_unless(number + 1 == brokers.size()); // the others should have died
            _exit(kBrokerEnded);
        },
        [](const std::string &) {});
    keeper.hold(HeldKind::ServerRegion, 0, null_file());
    cr_assert_eq(keeper.run(), 0);
    cr_assert_eq(shared->started.load(), int(brokers.size()));
    cr_assert_eq(shared->wrong.load(), 0, "%d brokers found something wrong", shared->wrong.load());
    munmap(shared, sizeof *shared);
}

const std::set<Key> kFirst = {{HeldKind::ServerRegion, 0}};

Body finds(const std::set<Key> &wanted) {
    return [wanted](KeeperLink &link, int) { fail_unless(holds(link, wanted)); };
}

// The test's timeout ends it if nobody does.
void be_killed() {
    for (;;)
        pause();
}

} // namespace

Test(keeper, kills_a_broker_that_sends_what_is_no_message, .timeout = 60) {
    const auto send = [](const void *data, size_t bytes, int n_fds) {
        return [=](KeeperLink &, int fd) {
            const Fd file = null_file();
            const std::vector<int> fds(size_t(n_fds), file.get());
            fail_unless(send_packet(fd, data, uint32_t(bytes), fds.data(), n_fds) == Io::Done);
            be_killed();
        };
    };
    LinkMessage strange = of(LinkType::Forget, HeldKind::ServerRegion, 0);
    const LinkMessage deposit = of(LinkType::Deposit, HeldKind::Region, 7);
    strange.magic ^= 1;
    static LinkMessage longer[2];
    longer[0] = of(LinkType::Forget, HeldKind::ServerRegion, 0);
    keep({send(&strange, sizeof strange, 0), send(longer, sizeof(LinkMessage) - 1, 0),
          send(longer, sizeof(LinkMessage) + 1, 0), send(&deposit, sizeof deposit, 3), finds(kFirst)});
}

Test(keeper, goes_on_after_messages_that_mean_nothing, .timeout = 60) {
    keep({[](KeeperLink &link, int fd) {
        const LinkMessage unknown = of(LinkType(99), HeldKind::Region, 1);
        const LinkMessage batch = of(LinkType::Batch, HeldKind::Region, 1);
        const LinkMessage empty = of(LinkType::Deposit, HeldKind::Region, 1);
        for (const LinkMessage &message : {unknown, batch, empty}) // a deposit of nothing is not one
            fail_unless(send_packet(fd, &message, sizeof message) == Io::Done);
        fail_unless(holds(link, kFirst));
        link.forget(HeldKind::Region, 12345); // never held: said to be forgotten
        link.deposit(HeldKind(4711), 1, null_file().get());
        fail_unless(holds(link, {{HeldKind::ServerRegion, 0}, {HeldKind(4711), 1}}) && link.alive());
        LinkMessage beyond = of(LinkType::Next, HeldKind::Region, UINT64_MAX);
        fail_unless(send_packet(fd, &beyond, sizeof beyond) == Io::Done &&
                    receive_packet(fd, &beyond, sizeof beyond) == Io::Done && beyond.type == LinkType::Batch &&
                    beyond.count == 0);
    }});
}

Test(keeper, has_what_a_broker_deposited_before_it_died, .timeout = 60) {
    const LinkMessage deposit = of(LinkType::Deposit, HeldKind::Connection, 5);
    const LinkMessage forget = of(LinkType::Forget, HeldKind::Region, 7);
    keep({[&](KeeperLink &link, int fd) {
              link.deposit(HeldKind::Region, 7, null_file().get());
              const Fd pair[2] = {null_file(), null_file()};
              const int fds[2] = {pair[0].get(), pair[1].get()};
              fail_unless(send_packet(fd, &deposit, sizeof deposit, fds, 2) == Io::Done);
              fail_unless(send_packet(fd, &forget, sizeof forget) == Io::Done);
              kill(getpid(), SIGKILL); // before it is told that it was done
          },
          finds({{HeldKind::ServerRegion, 0}, {HeldKind::Connection, 5}})});
}

// Its link fills up with answers; the keeper must not wait there for it.
Test(keeper, does_not_wait_for_a_broker_that_reads_no_answer, .timeout = 60) {
    const LinkMessage forget = of(LinkType::Forget, HeldKind::Region, 7);
    keep({[&](KeeperLink &, int fd) {
              for (int i = 0; i < 5000; i++)
                  fail_unless(send_packet(fd, &forget, sizeof forget) == Io::Done);
              kill(getpid(), SIGKILL);
          },
          finds(kFirst)});
}

// The kernel drops those for which the receiver has no number left; they are asked for again.
Test(keeper, descriptors_that_got_lost_are_asked_for_again, .timeout = 60) {
    int pair[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    const Fd held[2] = {null_file(), null_file()};
    rlimit plenty{};
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &plenty), 0);
    int asked = 0;
    std::thread keeper([&, socket = Fd(pair[0])] {
        LinkMessage message;
        while (receive_packet(socket.get(), &message, sizeof message) == Io::Done) {
            const bool over = message.entry[0].id != 0, first = asked++ == 0;
            LinkMessage batch = of(LinkType::Batch, HeldKind::Connection, 5);
            batch.entry[0].n_fds = 2;
            batch.count = over ? 0 : 1;
            const int fds[2] = {held[0].get(), held[1].get()};
            rlimit limit = plenty;
            if (first) limit.rlim_cur = rlim_t(held[1].get()) + 2; // one more
            cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
            cr_assert(send_packet(socket.get(), &batch, sizeof batch, fds, over ? 0 : 2) == Io::Done);
        }
    });
    {
        KeeperLink link{Fd(pair[1])};
        int taken = 0;
        cr_assert(link.take_all([&](const LinkEntry &entry, Fd *fds) {
            taken++;
            cr_assert(entry.id == 5 && entry.n_fds == 2 && fds[0] && fds[1]);
        }));
        cr_assert_eq(taken, 1);
        cr_assert(link.alive());
    }
    keeper.join();
    cr_assert_eq(asked, 3, "asked %d times", asked);
}
