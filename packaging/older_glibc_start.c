// SPDX-License-Identifier: Apache-2.0
// The start of a program on glibc 2.28. Up to 2.33 a program brought a routine for its constructors along and handed it
// to
// __libc_start_main; the start files of 2.34 and later hand over none, and call a version of it that runs them itself.
// This one, which the start files find first, calls the first version, with the routine; newer libraries still take it.
#include "packaging/older_glibc.h"
#ifdef FIRST_VERSION

typedef void (*constructor)(int, char **, char **);
extern constructor __init_array_start[], __init_array_end[];
extern void _init(void);

static void run_constructors(int argc, char **argv, char **environment) {
    _init();
    for (constructor *each = __init_array_start; each < __init_array_end; each++)
        (*each)(argc, argv, environment);
}

// Destructors, and constructors of the kind that comes before all others, are run by the dynamic linker, as ever.
OLDER_AS(older_start, __libc_start_main);
int older_start(int (*)(int, char **, char **), int, char **, constructor, void (*)(void), void (*)(void), void *);

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, constructor none, void (*finish)(void),
                      void (*linker_finish)(void), void *stack_end) {
    (void)none;
    return older_start(main, argc, argv, run_constructors, finish, linker_finish, stack_end);
}

#endif // FIRST_VERSION
