// SPDX-License-Identifier: Apache-2.0
// --group: what a member of the server's group may do, and what stays the owner's. For root only, who can be both.
#include "tests/support/descriptors.h"
#include "tests/support/raw.h"
#include "tests/support/rows.h"
#include "tests/support/spilled_rows.h"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <grp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr uid_t kMember = 65534, kStranger = 65533;
constexpr gid_t kGroup = 65534; // nogroup
const char *const kReads[] = {"--group", "nogroup", nullptr};
const char *const kWrites[] = {"--group", "nogroup", "--group_write", nullptr};

bool testable() {
    const group *entry = getgrnam("nogroup");
    return geteuid() == 0 && entry && entry->gr_gid == kGroup;
}

// What `body` returns in a process of this user: 0, or the number of the step that went wrong.
int as_user(uid_t uid, gid_t gid, const std::function<int()> &body) {
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(100);
        if (setgroups(1, &gid) != 0 || setgid(uid) != 0 || setuid(uid) != 0) _exit(99);
        const int wrong = body();
        if (wrong) fprintf(stderr, "user %u, step %d: %s\n", uid, wrong, cache_last_error());
        _exit(wrong);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

// Whether the pages of row 0 can be made writable: not those of a file that was handed out for reading.
bool can_write_a_row(cache *handle) {
    cache_view view;
    cache_column column;
    if (cache_get(handle, 0, &view) != 0 || cache_view_column(&view, 1, &column) != 0) return true;
    const uintptr_t bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    void *page = reinterpret_cast<void *>(reinterpret_cast<uintptr_t>(column.data) & ~(bytes - 1));
    return mprotect(page, bytes, PROT_READ | PROT_WRITE) == 0 || errno != EACCES;
}

// Another user's process that welcomes whoever comes, in a folder of its own, with a socket of this mode and group.
class Impostor {
  public:
    Impostor(mode_t mode, gid_t gid) {
        cr_assert_not_null(mkdtemp(folder_));
        path_ = std::string(folder_) + "/cache_server.44444";
        listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        const sockaddr_un address = address_of(path_);
        cr_assert_eq(bind(listener_, reinterpret_cast<const sockaddr *>(&address), sizeof address), 0);
        cr_assert(chown(path_.c_str(), kStranger, gid) == 0 && chmod(path_.c_str(), mode) == 0);
        cr_assert(chown(folder_, kStranger, kGroup) == 0 && chmod(folder_, 0755) == 0);
        pid_ = fork();
        if (pid_ == 0) serve();
        setenv("LIBCACHE_DIR", folder_, 1);
        setenv("LIBCACHE_PORT", "44444", 1);
        for (int tries = 0; access((std::string(folder_) + "/ready").c_str(), F_OK) != 0; tries++) {
            cr_assert_lt(tries, 6000, "the impostor does not listen");
            usleep(10000);
        }
    }
    Impostor(const Impostor &) = delete;
    Impostor &operator=(const Impostor &) = delete;
    ~Impostor() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        close(listener_);
        unlink((std::string(folder_) + "/ready").c_str());
        unlink(path_.c_str());
        rmdir(folder_);
    }

  private:
    char folder_[20] = "/tmp/lcg-XXXXXX";
    std::string path_;
    int listener_;
    pid_t pid_;

    [[noreturn]] void serve() const {
        alarm(100);
        // The kernel notes who listens, not who bound.
        if (setgid(kStranger) != 0 || setuid(kStranger) != 0 || listen(listener_, 5) != 0) _exit(1);
        prctl(PR_SET_PDEATHSIG, SIGKILL); // a new user id takes it back
        close(creat((std::string(folder_) + "/ready").c_str(), 0600));
        for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0;) {
            const auto hello = reply(fd);
            const auto welcome = message(wire::Type::Welcome, hello ? hello->header.number : 0);
            welcome->header.generation = 1;
            (void)send_all(fd, welcome.get(), sizeof *welcome); // and keeps the connection
        }
        _exit(0);
    }
};

int connect_as_member() {
    return as_user(kMember, kGroup, [] {
        cache_client *client = nullptr;
        const int rc = cache_connect(nullptr, &client);
        if (rc == 0) return 1;
        if (rc != CACHE_EPERM || !strstr(cache_last_error(), "user 65533") || !strstr(cache_last_error(), "user 65534"))
            return 2;
        return 0;
    });
}

} // namespace

Test(group, another_users_server_that_is_for_no_group_of_ours_is_not_believed) {
    if (!testable()) SKIP("two users and the group nogroup: only root can be both");
    Impostor anybodys(0666, kStranger);
    cr_assert_eq(connect_as_member(), 0);
}

Test(group, another_users_server_that_is_for_a_group_of_ours_is_believed) {
    if (!testable()) SKIP("two users and the group nogroup: only root can be both");
    Impostor groups(0660, kGroup);
    cr_assert_eq(connect_as_member(), 1, "a server with the marks of --group is refused");
}

Test(group, a_member_reads_and_changes_nothing) {
    if (!testable()) SKIP("two users and the group nogroup: only root can be both");
    Session s(64 << 20, kReads);
    cr_assert_eq(s.stat().huge_pages, 0, "what other users map is sealed memory");
    struct stat folder;
    cr_assert_eq(stat(test_server_dir(s.server), &folder), 0);
    cr_assert_eq(folder.st_mode & 07777, 0750);
    cr_assert_eq(folder.st_gid, kGroup);
    for (int64_t id = 0; id < 300; id++)
        OK(rows::put(s.rows, id));
    uint32_t named;
    OK(cache_session_open(s.client, "there", &named));
    const int wrong = as_user(kMember, kGroup, [&] {
        cache_client *client = nullptr;
        cache *handle = nullptr;
        uint32_t id = 0;
        if (cache_connect(nullptr, &client) != 0) return 1;
        if (cache_open(client, s.id, 1, nullptr, &handle) != 0) return 2;
        for (int64_t row = 0; row < 300; row++)
            if (!rows::check(handle, row).empty()) return 3;
        if (rows::put(handle, 1000) != CACHE_EPERM) return 4;
        if (cache_session_create(client, &id) != CACHE_EPERM) return 5;
        if (cache_session_open(client, "there", &id) != 0 || id != named) return 6;
        if (cache_session_open(client, "new", &id) != CACHE_EPERM) return 7;
        if (cache_session_destroy(client, s.id) != CACHE_EPERM) return 8;
        if (cache_destroy(client, s.id, 1) != CACHE_EPERM) return 9;
        if (cache_server_stop(client) != CACHE_EPERM) return 10;
        cache *other = nullptr;
        if (cache_open(client, s.id, 2, nullptr, &other) != CACHE_ENOTFOUND) return 11;
        cache_server_stats info{};
        info.size = sizeof info;
        if (cache_server_info(client, &info) != 0) return 12;
        if (can_write_a_row(handle)) return 13;
        return 0;
    });
    cr_assert_eq(wrong, 0, "step %d", wrong);
    RIGHT(rows::check(s.rows, 299));
}

// What a hostile member could do with the descriptor, not what the library does with it.
Test(group, a_member_gets_the_spill_file_for_reading_only) {
    if (!testable()) SKIP("two users and the group nogroup: only root can be both");
    SpillSession s(4 << 20, {"--group", "nogroup"});
    const std::vector<int64_t> spilled = spill_rows(s, 0);
    const int wrong = as_user(kMember, kGroup, [&] {
        const std::map<int, std::string> before = open_in("self");
        cache_client *client = nullptr;
        cache *handle = nullptr;
        if (cache_connect(nullptr, &client) != 0) return 1;
        if (cache_open(client, s.id, 1, nullptr, &handle) != 0) return 2;
        if (!read_batch(handle, spilled).empty()) return 3;
        if (rows::put(handle, 1'000'000, kSpilledLargest) != CACHE_EPERM) return 4;
        const std::map<int, std::string> opened = without(open_in("self"), before);
        if (!contains(opened, s.folder.path())) return 5;
        for (const auto &[fd, what] : opened) {
            if (!what.starts_with(s.folder.path())) continue;
            if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY) return 6;
            if (open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR) >= 0) return 7;
        }
        return 0;
    });
    cr_assert_eq(wrong, 0, "step %d", wrong);
}

Test(group, with_group_write_a_member_puts_rows_and_makes_sessions_and_ends_nothing) {
    if (!testable()) SKIP("two users and the group nogroup: only root can be both");
    Session s(64 << 20, kWrites);
    OK(rows::put(s.rows, 0));
    const int wrong = as_user(kMember, kGroup, [&] {
        cache_client *client = nullptr;
        cache *handle = nullptr;
        uint32_t id = 0;
        if (cache_connect(nullptr, &client) != 0) return 1;
        if (cache_open(client, s.id, 1, nullptr, &handle) != 0) return 2;
        for (int64_t row = 1; row < 300; row++)
            if (rows::put(handle, row) != 0) return 3;
        if (cache_session_create(client, &id) != 0) return 4;
        if (cache_session_destroy(client, id) != CACHE_EPERM) return 5;
        if (cache_destroy(client, s.id, 1) != CACHE_EPERM) return 6;
        if (cache_server_stop(client) != CACHE_EPERM) return 7;
        return 0;
    });
    cr_assert_eq(wrong, 0, "step %d", wrong);
    for (int64_t row = 0; row < 300; row++)
        RIGHT(rows::check(s.rows, row));
}

Test(group, who_is_no_member_is_refused) {
    if (!testable()) SKIP("two users and the group nogroup: only root can be both");
    Session s(64 << 20, kReads);
    chmod(test_server_dir(s.server), 0755);
    chmod(test_server_socket(s.server), 0777); // so that only the server's own check is left
    const int wrong = as_user(kStranger, kStranger, [] {
        cache_client *client = nullptr;
        return cache_connect(nullptr, &client) == CACHE_EPERM && strstr(cache_last_error(), "group") ? 0 : 1;
    });
    cr_assert_eq(wrong, 0);
}
