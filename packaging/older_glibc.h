// SPDX-License-Identifier: Apache-2.0
#ifndef LIBCACHE_PACKAGING_OLDER_GLIBC_H
#define LIBCACHE_PACKAGING_OLDER_GLIBC_H

// The version of all that glibc had when the machine was new to it. On machines that are not listed nothing is bound,
// and the wheel asks for the glibc that it was made with.
#if defined __x86_64__
#define FIRST_VERSION "GLIBC_2.2.5"
#elif defined __aarch64__
#define FIRST_VERSION "GLIBC_2.17"
#endif

// OLDER_AS: `older` stands for glibc's `name` in its first version. OLDER: `name` is that.
#define OLDER_AS(older, name) __asm__(".symver " #older ", " #name "@" FIRST_VERSION)
#define OLDER(result, name, parameters, arguments)                                                                     \
    OLDER_AS(older_##name, name);                                                                                      \
    result older_##name parameters;                                                                                    \
    result name parameters {                                                                                           \
        return older_##name arguments;                                                                                 \
    }

#endif
