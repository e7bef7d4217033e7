/* SPDX-License-Identifier: Apache-2.0
 * A real cache_server for the duration of a test, for C and C++ programs. Every call ends the test with a sentence on
 * stderr if it cannot do what it says. One test, one thread uses these calls; several servers may run at once. */
#ifndef LIBCACHE_TESTS_SERVER_H
#define LIBCACHE_TESTS_SERVER_H

#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct test_server test_server;

/* Starts build/bin/cache_server in the foreground with a folder and a free port of its own, waits until it accepts a
 * connection, and sets LIBCACHE_DIR and LIBCACHE_PORT so that cache_connect(NULL, ...) of this process finds it.
 * arguments (may be NULL) ends with NULL. The server gets SIGTERM when the calling thread ends in any way.
 * Without a --backing among the arguments, $LIBCACHE_TEST_BACKING (if set) chooses it. $LIBCACHE_TEST_SERVER (if set)
 * names another program of the build folder than bin/cache_server. */
test_server *test_server_start(const char *const *arguments);

/* Once more in the same folder, on the same port, in place of keeper and broker that have died. */
void test_server_start_again(test_server *server, const char *const *arguments);

/* The same as another user: the folder belongs to uid. For root only. */
test_server *test_server_start_as(uid_t uid, const char *const *arguments);

uint32_t test_server_port(const test_server *server);
pid_t test_server_pid(const test_server *server);          /* of the keeper */
const char *test_server_dir(const test_server *server);    /* its LIBCACHE_DIR */
const char *test_server_socket(const test_server *server); /* path of its socket */

/* Walks the region of every cache of the server in a process of its own (check_region). To be called when no thread
 * writes. */
void test_server_check(const test_server *server);

/* Ends the server: its regions checked, SIGTERM, exit status 0, its socket gone. NULL is allowed. */
void test_server_stop(test_server *server);

/* As a crash would: SIGKILL to keeper and broker, nothing checked. */
void test_server_kill(test_server *server, pid_t broker);

/* Runs a program of the build folder, waits, returns its exit status. */
int test_run(const char *const *arguments);

/* The build folder: $LIBCACHE_BUILD, else the one this program lies in. */
const char *test_build(void);

/* Ends the program with a sentence on stderr. */
#ifdef __GNUC__
__attribute__((format(printf, 1, 2), noreturn))
#endif
void test_die(const char *format, ...);

/* Ends this process after so many seconds, with a sentence: for plain programs (Criterion has its own). */
void test_watchdog(unsigned seconds);

/* MemAvailable of this machine in bytes. */
uint64_t test_memory_available(void);

#ifdef __cplusplus
}
#endif
#endif
