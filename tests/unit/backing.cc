// SPDX-License-Identifier: Apache-2.0
// Both backings of regions: what they promise, and what they say where they do not work.
#include "core/shm/backing.h"

#include "core/common/error.h"
#include "core/shm/layout.h"

#include <cerrno>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace libcache;

namespace {

constexpr uint64_t kBytes = 8 << 20;

void check_promises(const Backing &backing) {
    Fd file;
    cr_assert_eq(backing.make_region(kBytes, &file), 0, "%s", last_error());
    struct stat status;
    cr_assert_eq(fstat(file.get(), &status), 0);
    cr_assert_eq(status.st_size, kBytes);
    cr_assert_eq(status.st_blocks, 0, "a fresh region has pages");
    cr_assert_eq(status.st_mode & 0777, 0600);
    cr_assert(fcntl(file.get(), F_GETFD) & FD_CLOEXEC);

    // A write lease is granted while there is no other open description, and refused from the second one on.
    cr_assert_eq(fcntl(file.get(), F_SETLEASE, F_WRLCK), 0, "%s", strerror(errno));
    cr_assert_eq(fcntl(file.get(), F_SETLEASE, F_UNLCK), 0);
    {
        const Fd reader = open_again(file.get(), O_RDONLY);
        cr_assert(bool(reader), "%s", strerror(errno));
        cr_assert_neq(fcntl(file.get(), F_SETLEASE, F_WRLCK), 0);
        cr_assert_eq(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, reader.get(), 0), MAP_FAILED,
                     "a reader's description can be mapped for writing");
        void *map = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, reader.get(), 0);
        cr_assert_neq(map, MAP_FAILED);
        cr_assert_neq(mprotect(map, 4096, PROT_READ | PROT_WRITE), 0);
        munmap(map, 4096);
    }
    cr_assert_eq(fcntl(file.get(), F_SETLEASE, F_WRLCK), 0, "the closed one still counts: %s", strerror(errno));
}

} // namespace

Test(backing, memfd_keeps_its_promises_and_cannot_be_shortened) {
    Backing backing;
    cr_assert_eq(backing.choose(BackingWish::Memfd), 0);
    cr_assert_not(backing.huge());
    cr_assert(backing.reason().find("memfd") != std::string::npos, "%s", backing.reason().c_str());
    check_promises(backing);
    Fd file;
    cr_assert_eq(backing.make_region(kBytes, &file), 0);
    cr_assert_neq(ftruncate(file.get(), kBytes / 2), 0);
    cr_assert_eq(errno, EPERM);
}

Test(backing, huge_pages_keep_their_promises_or_say_why_not) {
    Backing backing;
    if (backing.choose(BackingWish::Huge) != 0) {
        fprintf(stderr, "SKIP huge pages: %s\n", last_error());
        cr_assert(strstr(last_error(), "huge"), "%s", last_error());
        cr_skip_test("no huge pages here");
    }
    cr_assert(backing.huge());
    check_promises(backing);
    Fd file;
    cr_assert_eq(backing.make_region(kBytes, &file), 0);
    char *room = static_cast<char *>(mmap(nullptr, 2 * kHugeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    char *place = reinterpret_cast<char *>(round_up(reinterpret_cast<uintptr_t>(room), kHugeBytes));
    cr_assert_eq(mmap(place, kHugeBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0), place);
    madvise(place, kHugeBytes, MADV_HUGEPAGE);
    *static_cast<volatile char *>(place) = 1;
    struct stat status;
    fstat(file.get(), &status);
    cr_assert_eq(status.st_blocks * 512, kHugeBytes, "one byte made %ld bytes of pages", status.st_blocks * 512);
}

Test(backing, whatever_is_chosen_has_a_reason) {
    Backing backing;
    cr_assert_eq(backing.choose(BackingWish::Auto), 0);
    cr_assert_gt(backing.reason().size(), 20);
    check_promises(backing);
}

Test(backing, a_heir_makes_regions_like_its_predecessor) {
    Backing first, heir;
    cr_assert_eq(first.choose(BackingWish::Auto), 0);
    const bool huge = first.huge();
    heir.adopt(first.release_mount(), first.reason());
    cr_assert_eq(heir.huge(), huge);
    cr_assert(heir.reason() == first.reason());
    check_promises(heir);
}

Test(backing, a_region_beyond_all_reason_is_an_error) {
    Backing backing;
    cr_assert_eq(backing.choose(BackingWish::Auto), 0);
    Fd file;
    cr_assert_eq(backing.make_region(UINT64_MAX / 2 + 5, &file), CACHE_EIO);
    cr_assert_not(bool(file));
}
