// SPDX-License-Identifier: Apache-2.0
#include "core/shm/backing.h"

#include "core/common/error.h"
#include "core/shm/layout.h"

#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace libcache {
namespace {

constexpr int64_t kHelperPatience = 2'000'000'000; // ns

struct HelperAnswer {
    int error; // errno of the step, 0: the mount travels with this
    char step[60];
};

// A detached tmpfs that gives huge pages to whoever advises them. Returns its descriptor, or -1 and names the step.
int mount_tmpfs(const char **step) {
    const Fd context(static_cast<int>(syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC)));
    *step = "fsopen(tmpfs)";
    if (!context) return -1;
    // The default size is half of the memory; budgets are the broker's business, so the mount must never be the limit.
    char size[32];
    snprintf(size, sizeof size, "%" PRIu64, 4 * uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE)));
    const char *const settings[][2] = {{"huge", "advise"}, {"size", size}, {"mode", "0700"}};
    for (const auto &[key, value] : settings) {
        *step = key[0] == 'h' ? "tmpfs option huge=advise" : "tmpfs options";
        if (syscall(SYS_fsconfig, context.get(), FSCONFIG_SET_STRING, key, value, 0) != 0) return -1;
    }
    *step = "creating the tmpfs";
    if (syscall(SYS_fsconfig, context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return -1;
    *step = "fsmount";
    return static_cast<int>(syscall(SYS_fsmount, context.get(), FSMOUNT_CLOEXEC, 0));
}

bool write_file(const char *path, const char *text) {
    const Fd file(open(path, O_WRONLY | O_CLOEXEC));
    return file && write(file.get(), text, strlen(text)) == static_cast<ssize_t>(strlen(text));
}

// A user namespace in which this process may mount, with the same uid inside as outside.
bool enter_namespace(const char **step) {
    const unsigned uid = geteuid(), gid = getegid();
    *step = "a user namespace";
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    char map[64];
    *step = "the user namespace's id maps";
    write_file("/proc/self/setgroups", "deny"); // missing before Linux 3.19, where it is not needed
    snprintf(map, sizeof map, "%u %u 1", gid, gid);
    if (!write_file("/proc/self/gid_map", map)) return false;
    snprintf(map, sizeof map, "%u %u 1", uid, uid);
    return write_file("/proc/self/uid_map", map);
}

[[noreturn]] void run_helper(int socket) {
    const char *step = "";
    int mount = mount_tmpfs(&step);
    if (mount < 0 && enter_namespace(&step)) mount = mount_tmpfs(&step);
    HelperAnswer answer{};
    answer.error = mount < 0 ? errno : 0;
    snprintf(answer.step, sizeof answer.step, "%s", step);
    send_packet(socket, &answer, sizeof answer, &mount, mount < 0 ? 0 : 1);
    _exit(0);
}

// The mount, made by a child because a namespace cannot be left again. Invalid: *why says what refused.
Fd mount_by_helper(std::string *why) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return *why = std::string("socketpair failed: ") + strerror(errno), Fd();
    Fd ours(pair[0]), theirs(pair[1]);
    const pid_t child = fork();
    if (child < 0) return *why = std::string("fork failed: ") + strerror(errno), Fd();
    if (child == 0) run_helper(theirs.get());
    theirs.reset();

    HelperAnswer answer{};
    Fd mount;
    int n_fds = 1;
    const bool ready = wait_readable(ours.get(), now_ns() + kHelperPatience) == 1;
    const bool answered =
        ready && receive_packet(ours.get(), &answer, sizeof answer, &mount, &n_fds, nullptr, false) == Io::Done;
    if (!answered) kill(child, SIGKILL);
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    answer.step[sizeof answer.step - 1] = 0;
    if (!answered)
        *why = ready ? "the process that makes the mount died" : "the process that makes the mount did not answer";
    else if (answer.error != 0)
        *why = std::string(answer.step) + " failed: " + strerror(answer.error);
    return mount;
}

// Of the kernel's huge pages; 0 where it does not say.
uint64_t huge_page_bytes() {
    const Fd file(open("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", O_RDONLY | O_CLOEXEC));
    char text[24] = {};
    return file && read(file.get(), text, sizeof text - 1) > 0 ? strtoull(text, nullptr, 10) : 0;
}

// Writes one huge page of a file on this mount and looks whether it became one.
bool gives_huge_pages(int mount, std::string *why) {
    if (const uint64_t bytes = huge_page_bytes(); bytes != 0 && bytes != kHugeBytes)
        return *why = "huge pages have " + std::to_string(bytes) + " bytes on this kernel; a cache uses those of " +
                      std::to_string(kHugeBytes),
               false;
    const Fd file(openat(mount, ".", O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600));
    if (!file || ftruncate(file.get(), kHugeBytes) != 0)
        return *why = std::string("no file can be made on the tmpfs: ") + strerror(errno), false;
    // Twice the length, so that an aligned place lies inside.
    void *room = mmap(nullptr, 2 * kHugeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) return *why = std::string("no address space: ") + strerror(errno), false;
    char *place = reinterpret_cast<char *>(round_up(reinterpret_cast<uintptr_t>(room), kHugeBytes));
    bool huge = false;
    if (mmap(place, kHugeBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0) == MAP_FAILED)
        *why = std::string("a file on the tmpfs cannot be mapped: ") + strerror(errno);
    else if (madvise(place, kHugeBytes, MADV_HUGEPAGE) != 0)
        *why = std::string("madvise(MADV_HUGEPAGE) failed: ") + strerror(errno);
    else {
        *static_cast<volatile char *>(place) = 1;
        huge = bytes_on_huge_pages(place) != 0;
        if (!huge) *why = "the kernel gave small pages on a tmpfs with huge=advise";
    }
    munmap(room, 2 * kHugeBytes);
    return huge;
}

} // namespace

int Backing::choose(BackingWish wish) {
    if (wish == BackingWish::Memfd) {
        reason_ = "--backing memfd was given";
        return 0;
    }
    std::string why;
    Fd mount = mount_by_helper(&why);
    if (mount && gives_huge_pages(mount.get(), &why)) {
        mount_ = std::move(mount);
        reason_ = wish == BackingWish::Huge ? "--backing huge was given, and a detached tmpfs gives them"
                                            : "a detached tmpfs gives them here, and they are the best backing";
        return 0;
    }
    if (wish == BackingWish::Huge)
        return fail(CACHE_ENOTSUP, "--backing huge is not possible here: %s; start without it to use small pages",
                    why.c_str());
    reason_ = "no huge pages here: " + why;
    return 0;
}

int Backing::make_region(uint64_t bytes, Fd *file) const {
    if (!huge()) return make_memfd("libcache region", bytes, file);
    Fd fresh(openat(mount_.get(), ".", O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600));
    if (!fresh || ftruncate(fresh.get(), static_cast<off_t>(bytes)) != 0)
        return fail(CACHE_EIO, "cannot make a region of %" PRIu64 " bytes on the tmpfs: %s", bytes, strerror(errno));
    *file = std::move(fresh);
    return 0;
}

uint64_t bytes_on_huge_pages(const void *address) {
    const std::unique_ptr<FILE, int (*)(FILE *)> maps(fopen("/proc/self/smaps", "re"), fclose);
    const auto wanted = reinterpret_cast<uintptr_t>(address);
    char line[512];
    for (bool ours = false; maps && fgets(line, sizeof line, maps.get());) {
        uintptr_t first, end;
        uint64_t kib;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &first, &end) == 2)
            ours = first <= wanted && wanted < end;
        else if (ours && sscanf(line, "ShmemPmdMapped: %" SCNu64 " kB", &kib) == 1)
            return kib * 1024;
    }
    return 0;
}

Fd open_again(int fd, int open_flags) {
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return Fd(open(path, open_flags | O_CLOEXEC));
}

int make_memfd(const char *name, uint64_t bytes, Fd *file) {
    const Fd fresh(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fresh || fchmod(fresh.get(), 0600) != 0 || ftruncate(fresh.get(), static_cast<off_t>(bytes)) != 0 ||
        fcntl(fresh.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        return fail(CACHE_EIO, "cannot make a memfd of %" PRIu64 " bytes: %s", bytes, strerror(errno));
    // A description made by memfd_create is not counted as open by the kernel's leases; one made by open() is.
    Fd again = open_again(fresh.get(), O_RDWR);
    if (!again)
        return fail(CACHE_EIO, "cannot open a memfd again through /proc/self/fd (is /proc mounted?): %s",
                    strerror(errno));
    *file = std::move(again);
    return 0;
}

} // namespace libcache
