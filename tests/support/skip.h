// SPDX-License-Identifier: Apache-2.0
#ifndef LIBCACHE_TESTS_SUPPORT_SKIP_H
#define LIBCACHE_TESTS_SUPPORT_SKIP_H

#include <criterion/criterion.h>
#include <cstdio>
#include <sys/mman.h>

// run.py looks for lines that begin like this.
#define SKIP(reason)                                                                                                   \
    do {                                                                                                               \
        fprintf(stderr, "SKIP %s\n", reason);                                                                          \
        cr_skip_test("%s", reason);                                                                                    \
    } while (0)

// For what madvise does. qemu-user, which the tests for another machine run in, takes every advice, also one that does
// not exist, and follows hardly any.
#define NEEDS_MADVISE(what)                                                                                            \
    do {                                                                                                               \
        constexpr int needs_no_advice = 1 << 20;                                                                       \
        if (madvise(nullptr, 0, needs_no_advice) == 0) SKIP(what ": madvise does nothing here, as in qemu-user");      \
    } while (0)

#endif
