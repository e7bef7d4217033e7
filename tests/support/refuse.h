// SPDX-License-Identifier: Apache-2.0
// Makes system calls fail for this process from now on, as a container's seccomp filter does.
#pragma once

#include "tests/support/server.h"
#include "tests/support/skip.h"

#include <cstdint>
#include <initializer_list>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

// Kernels without filters, and qemu-user.
#define NEEDS_SECCOMP()                                                                                                \
    do {                                                                                                               \
        if (prctl(PR_GET_SECCOMP) < 0) SKIP("seccomp filters are not possible here");                                  \
    } while (0)

inline void refuse_calls(std::initializer_list<int> calls, int error) {
    const scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (filter == nullptr) test_die("seccomp_init");
    for (const int call : calls)
        if (seccomp_rule_add(filter, SCMP_ACT_ERRNO(uint32_t(error)), call, 0) != 0) test_die("seccomp_rule_add");
    if (seccomp_load(filter) != 0) test_die("seccomp_load");
    seccomp_release(filter);
}

// Of madvise's advices this one, for ranges of at least so many bytes.
inline void refuse_populating(int error, uint64_t from_bytes = 0) {
    const scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (filter == nullptr) test_die("seccomp_init");
    if (seccomp_rule_add(filter, SCMP_ACT_ERRNO(uint32_t(error)), SCMP_SYS(madvise), 2,
                         SCMP_A1(SCMP_CMP_GE, from_bytes), SCMP_A2(SCMP_CMP_EQ, MADV_POPULATE_WRITE)) != 0)
        test_die("seccomp_rule_add");
    if (seccomp_load(filter) != 0) test_die("seccomp_load");
    seccomp_release(filter);
}
