// SPDX-License-Identifier: Apache-2.0
// execve and its kin for test programs under qemu-user. The kernel would run what they start itself, and it cannot: it
// knows nothing of qemu, unless binfmt_misc says so, which takes root and a kernel of its own. So a program of this
// architecture is started through the emulator, whose path and arguments stand in LIBCACHE_TEST_EMULATOR, separated by
// spaces. Linked into every test program: libcriterion, which starts each test anew, finds these before libc's.
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_WORDS = 16, MACHINE_AT = 18, MACHINE_AARCH64 = 183 };

static bool is_ours(const char *path) {
    unsigned char head[MACHINE_AT + 2];
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t n = read(file, head, sizeof head);
    close(file);
    return n == (ssize_t)sizeof head && memcmp(head, "\177ELF", 4) == 0 && head[MACHINE_AT] == MACHINE_AARCH64;
}

int execve(const char *path, char *const arguments[], char *const environment[]) {
    const char *const emulator = getenv("LIBCACHE_TEST_EMULATOR");
    if (emulator == NULL || !is_ours(path)) return (int)syscall(SYS_execve, path, arguments, environment);
    size_t given = 0;
    while (arguments[given] != NULL)
        given++;
    char text[1024];
    char *words[MOST_WORDS + given + 4];
    if (strlen(emulator) >= sizeof text) return errno = E2BIG, -1;
    strcpy(text, emulator);
    size_t n = 0;
    char *rest = text;
    for (char *word; n < MOST_WORDS && (word = strtok_r(rest, " ", &rest)) != NULL;)
        words[n++] = word;
    words[n++] = "-0";
    words[n++] = given > 0 ? arguments[0] : (char *)path;
    words[n++] = (char *)path;
    for (size_t i = 1; i < given; i++)
        words[n++] = arguments[i];
    words[n] = NULL;
    return (int)syscall(SYS_execve, words[0], words, environment);
}

int execv(const char *path, char *const arguments[]) {
    return execve(path, arguments, environ);
}
