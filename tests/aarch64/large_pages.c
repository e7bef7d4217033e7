// SPDX-License-Identifier: Apache-2.0
// For LD_PRELOAD: a kernel with pages of 64 KiB, as a program sees it. sysconf tells that size, memory comes at
// multiples of it, and the kernel's EINVAL meets whoever passes an address or an offset that is none (`make
// test-large-pages`).
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 64 << 10 };

static int is_page(uintptr_t n) {
    return n % PAGE == 0;
}
static size_t pages(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}
static void *map(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, file, offset);
}

// True for Criterion's own calls: it changes the protection of whole pages that other libraries have parts of.
static int by_criterion(const void *caller) {
    Dl_info object;
    return dladdr(caller, &object) != 0 && strstr(object.dli_fname, "/libcriterion") != NULL;
}
#define BY_CRITERION by_criterion(__builtin_return_address(0))

long __sysconf(int name); // glibc's sysconf under its other name
long sysconf(int name) {
    return name == _SC_PAGESIZE && !BY_CRITERION ? PAGE : __sysconf(name);
}
int getpagesize(void) {
    return PAGE;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    if (BY_CRITERION) return map(at, bytes, protection, flags, file, offset);
    if (!is_page((uintptr_t)offset) || (flags & MAP_FIXED && !is_page((uintptr_t)at)))
        return errno = EINVAL, MAP_FAILED;
    bytes = pages(bytes); // as the kernel does, so that munmap() may take away the last page as a whole
    if (flags & MAP_FIXED) return map(at, bytes, protection, flags, file, offset);
    if (at != NULL) { // a wish, which the kernel may grant
        void *const wished = map(at, bytes, protection, flags, file, offset);
        if (wished == MAP_FAILED || is_page((uintptr_t)wished)) return wished;
        syscall(SYS_munmap, wished, bytes);
    }
    const size_t span = bytes + PAGE;
    char *const room = map(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return MAP_FAILED;
    char *const start = (char *)pages((uintptr_t)room);
    if (start > room) syscall(SYS_munmap, room, start - room);
    if (room + span > start + bytes) syscall(SYS_munmap, start + bytes, room + span - start - bytes);
    void *const mapped = map(start, bytes, protection, flags | MAP_FIXED, file, offset);
    if (mapped == MAP_FAILED) {
        const int error = errno;
        syscall(SYS_munmap, start, bytes);
        errno = error;
    }
    return mapped;
}
void *mmap64(void *at, size_t bytes, int protection, int flags, int file, off64_t offset) {
    return mmap(at, bytes, protection, flags, file, offset);
}

int munmap(void *at, size_t bytes) {
    if (BY_CRITERION) return (int)syscall(SYS_munmap, at, bytes);
    if (!is_page((uintptr_t)at)) return errno = EINVAL, -1;
    return (int)syscall(SYS_munmap, at, pages(bytes));
}
int mprotect(void *at, size_t bytes, int protection) {
    if (!is_page((uintptr_t)at) && !BY_CRITERION) return errno = EINVAL, -1;
    return (int)syscall(SYS_mprotect, at, bytes, protection);
}
int madvise(void *at, size_t bytes, int advice) {
    if (!is_page((uintptr_t)at) && !BY_CRITERION) return errno = EINVAL, -1;
    return (int)syscall(SYS_madvise, at, bytes, advice);
}
int mincore(void *at, size_t bytes, unsigned char *resident) {
    if (!is_page((uintptr_t)at) && !BY_CRITERION) return errno = EINVAL, -1;
    return (int)syscall(SYS_mincore, at, bytes, resident);
}
