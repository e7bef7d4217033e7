// SPDX-License-Identifier: Apache-2.0
// The same caches in narrower surroundings: an unprivileged user, no user namespaces, no O_TMPFILE, a small control
// group, on both backings.
#include "tests/support/memory_group.h"
#include "tests/support/refuse.h"
#include "tests/support/rows.h"
#include "tests/support/session.h"

#include <cerrno>
#include <cstddef>
#include <fcntl.h>
#include <fstream>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr uint64_t MiB = 1 << 20;
constexpr uid_t kNobody = 65534;

// From here on this process and what it starts get `error` from `number`; with `flag`, only where argument 2 has it.
void forbid(uint32_t number, int error, uint32_t flag = 0) {
    const sock_filter all[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
                               BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
                               BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, flag, 0, 1),
                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | uint32_t(error)),
                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    sock_filter code[6];
    std::copy(std::begin(all), std::end(all), code);
    if (flag == 0) code[3] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)); // no test
    const sock_fprog program{6, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        SKIP("seccomp filters are not possible here");
}

void become_nobody() {
    if (geteuid() != 0) return; // unprivileged already
    const std::string server = std::string(test_build()) + "/bin/cache_server";
    if (setgroups(0, nullptr) != 0 || setresgid(kNobody, kNobody, kNobody) != 0 ||
        setresuid(kNobody, kNobody, kNobody) != 0)
        SKIP("this process cannot become another user");
    if (access(server.c_str(), X_OK) != 0) SKIP("the build folder is not open to other users");
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); // as a program has it that was started by this user
}

// Rows go in and come out again, from small to larger than a huge page.
void works(const Session &s) {
    for (int64_t id = 0; id < 300; ++id)
        OK(rows::put(s.rows, id, id % 50 == 0 ? 3 * MiB : 2000));
    for (int64_t id = 0; id < 300; ++id)
        RIGHT(rows::check(s.rows, id, id % 50 == 0 ? 3 * MiB : 2000));
    const cache_stats stats = s.stat();
    cr_assert_eq(stats.rows_in_memory, 300);
    cr_assert_leq(stats.populated_bytes, stats.charged_bytes);
    cr_assert_gt(stats.populated_bytes, stats.used_bytes);
    cr_assert_eq(stats.huge_page_bytes > 0, stats.huge_pages != 0);
    cr_assert_gt(stats.page_table_bytes, 0);
}

cache_server_stats info_of(const Session &s) {
    cache_server_stats info{};
    info.size = sizeof info;
    OK(cache_server_info(s.client, &info));
    return info;
}

const char *const kMemfd[] = {"--backing", "memfd", nullptr};
const char *const kAuto[] = {"--backing", "auto", nullptr};

} // namespace

Test(surroundings, an_unprivileged_user_with_what_there_is, .timeout = 60) {
    become_nobody();
    Session s(64 * MiB, kAuto);
    cr_assert_gt(strlen(info_of(s).backing_reason), 10);
    works(s);
}

Test(surroundings, an_unprivileged_user_on_memfd, .timeout = 60) {
    become_nobody();
    Session s(64 * MiB, kMemfd);
    cr_assert_eq(info_of(s).huge_pages, 0);
    works(s);
}

// As in most containers: neither a mount nor a user namespace to make one in.
Test(surroundings, without_user_namespaces_pages_are_small_and_the_server_says_why, .timeout = 60) {
    become_nobody();
    forbid(SYS_unshare, EPERM);
    forbid(SYS_fsopen, EPERM);
    Session s(64 * MiB, kAuto);
    cr_assert_eq(info_of(s).huge_pages, 0);
    cr_assert(strstr(info_of(s).backing_reason, "no huge pages here"), "%s", info_of(s).backing_reason);
    works(s);
}

// Before Linux 5.14. The other advices are known there: huge pages must still come.
Test(surroundings, a_kernel_without_populate_write, .timeout = 60) {
    NEEDS_SECCOMP();
    refuse_populating(EINVAL);
    for (const char *const *backing : {kMemfd, kAuto}) {
        Session s(64 * MiB, backing);
        works(s);
    }
}

// Every advice is refused as one that is not known.
Test(surroundings, a_kernel_that_takes_no_advice, .timeout = 60) {
    forbid(SYS_madvise, EINVAL);
    Session s(64 * MiB, kMemfd);
    works(s);
}

Test(surroundings, a_spill_folder_without_unnamed_files, .timeout = 60) {
    char folder[] = "/var/tmp/lcspill-XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    forbid(SYS_openat, EOPNOTSUPP, __O_TMPFILE & ~uint32_t{O_DIRECTORY});
    {
        const char *const arguments[] = {"--spilldir", folder, "--backing", "memfd", nullptr};
        Session s(64 * MiB, arguments);
        cache_options options = options_with_limit(8 * MiB);
        options.spill = 1;
        cache *handle = s.open(2, options);
        OK(rows::put(handle, 1, 1000));
        RIGHT(rows::check(handle, 1, 1000));
        OK(cache_close(handle));
        cr_assert_eq(rmdir(folder), 0, "the file has no name while the cache lives: %s", strerror(errno));
    }
}

Test(surroundings, a_control_group_of_256_MiB_is_respected, .timeout = 120) {
    if (kSanitized) SKIP("a small control group: the sanitizer's own memory counts there");
    MemoryGroup group;
    if (!group.enter(256 * MiB)) SKIP("no memory control group can be made here");
    for (const char *const *backing : {kMemfd, kAuto}) {
        Session s(2 * MiB, backing);
        cache *handle = s.open(2, options_with_limit(0));
        cr_assert_leq(s.stat(handle).limit_bytes, int64_t(256 * MiB));
        int64_t id = 0;
        int result;
        while ((result = rows::put(handle, id, 200'000)) == 0)
            ++id;
        cr_assert_eq(result, CACHE_EFULL, "row %lld: %s", (long long)id, cache_last_error());
        cr_assert_eq(cache_full_cause(), uint32_t{CACHE_FULL_MEMORY}, "%s", cache_last_error());
        const cache_server_stats info = info_of(s);
        cr_assert_eq(info.generation, 1, "nobody was killed");
        cr_assert_gt(info.memory_used_bytes, int64_t(100 * MiB), "most of what may be used is");
        cr_assert_geq(info.available_bytes, int64_t(16 * MiB), "and something is left to others");
        RIGHT(rows::check(handle, id - 1, 200'000));
        OK(cache_close(handle));
    }
}
