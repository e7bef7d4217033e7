// SPDX-License-Identifier: Apache-2.0
// Lets what is linked with glibc 2.29 to 2.36 run on glibc 2.28, which is what the wheel is for. Linked into everything
// in the wheel, hidden: each function below would otherwise be imported in a version that the older library has not.
//
// Debian 12's glibc has moved libpthread into libc (2.34) and given stat real symbols (2.33); its libstdc++.a asks for
// arc4random (2.36). Nothing here changes what a function does. packaging/README.md says how to find new names.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// gcc 12 says it of pthread_setspecific's value, behind which nobody looks
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "packaging/older_glibc.h"
#ifdef FIRST_VERSION

// ---- the same function under its first version, from when it was in libpthread --------------------------------------
OLDER(int, pthread_create,
      (pthread_t * thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument),
      (thread, attributes, start, argument))
OLDER(int, pthread_join, (pthread_t thread, void **result), (thread, result))
OLDER(int, pthread_detach, (pthread_t thread), (thread))
OLDER(int, pthread_once, (pthread_once_t * once, void (*routine)(void)), (once, routine))
OLDER(int, pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex))
OLDER(int, pthread_rwlock_rdlock, (pthread_rwlock_t * lock), (lock))
OLDER(int, pthread_rwlock_wrlock, (pthread_rwlock_t * lock), (lock))
OLDER(int, pthread_rwlock_unlock, (pthread_rwlock_t * lock), (lock))
OLDER(int, pthread_key_create, (pthread_key_t * key, void (*destructor)(void *)), (key, destructor))
OLDER(int, __pthread_key_create, (pthread_key_t * key, void (*destructor)(void *)), (key, destructor))
OLDER(int, pthread_key_delete, (pthread_key_t key), (key))
OLDER(int, pthread_setspecific, (pthread_key_t key, const void *value), (key, value))
OLDER(void *, pthread_getspecific, (pthread_key_t key), (key))

// ---- what was no symbol: there was __xstat, whose first argument is another one on each machine -----------------
// On the machines that OLDER knows, the kernel's struct stat is the library's, and stat64 is stat.
#define STATS(name, buffer)                                                                                            \
    int name(const char *restrict path, struct buffer *restrict to) {                                                  \
        return (int)syscall(SYS_newfstatat, AT_FDCWD, path, to, 0);                                                    \
    }                                                                                                                  \
    int l##name(const char *restrict path, struct buffer *restrict to) {                                               \
        return (int)syscall(SYS_newfstatat, AT_FDCWD, path, to, AT_SYMLINK_NOFOLLOW);                                  \
    }                                                                                                                  \
    int f##name(int file, struct buffer *to) {                                                                         \
        return (int)syscall(SYS_fstat, file, to);                                                                      \
    }
STATS(stat, stat)
STATS(stat64, stat64)

// ---- what was not there ---------------------------------------------------------------------------------------------
char __libc_single_threaded; // 0: libstdc++ counts references atomically, as it did before

uint32_t arc4random(void) {
    uint32_t number;
    while (getrandom(&number, sizeof number, 0) != sizeof number) {
        if (errno != EINTR) abort(); // no kernel since 3.17 fails; a number that is not random would be worse
    }
    return number;
}

#endif // FIRST_VERSION
