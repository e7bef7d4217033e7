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

// qemu-user, which the tests for another machine run in, takes every advice of madvise, also one that does not exist,
// and follows hardly any.
inline bool in_qemu() {
    constexpr int needs_no_advice = 1 << 20;
    return madvise(nullptr, 0, needs_no_advice) == 0;
}

#define NEEDS_MADVISE(what)                                                                                            \
    do {                                                                                                               \
        if (in_qemu()) SKIP(what ": madvise does nothing here, as in qemu-user");                                      \
    } while (0)

#endif
