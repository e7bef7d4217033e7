/* SPDX-License-Identifier: Apache-2.0
 *
 * libcache.h: the C interface of libcache, a single-node dataset cache for machine-learning training.
 *
 * A cache is a store of immutable rows in shared memory, named by (session id, cache id). Every process of the
 * machine that opens it reads and writes rows directly; the server only lends memory and keeps sessions apart.
 *
 *     cache_client *client;  cache *rows;
 *     cache_connect(NULL, &client);
 *     cache_session_open(client, "imagenet", &session_id);
 *     cache_open(client, session_id, 1, NULL, &rows);
 *     if (cache_get(rows, i, &view) == CACHE_ENOTFOUND) { ... decode ...; cache_put(rows, i, columns, 2); }
 *
 * Results. A call returns 0 or a count, or a negative CACHE_E* code. cache_strerror() explains a code;
 *   cache_last_error() gives this thread's last failure as one sentence with names and numbers.
 * Structures. Those that the caller passes one by one begin with `uint32_t size`: set it to sizeof the structure
 *   (the CACHE_*_INIT macros do). Room unknown to the library must be zero. cache_column and cache_view travel in
 *   arrays: 64 bytes for ever.
 * Threads. Every handle may be used by several threads at once; closing one while another thread uses it is the
 *   caller's error. A view belongs to whoever holds it.
 * fork. A handle opened before fork() works in the child: reads go on at once, the first write connects the child
 *   anew. A reservation made before fork belongs to the parent: in the child commit and abort are CACHE_EINVAL, and
 *   the memory of its columns is not mapped there, or a copy. After vfork() and in a signal handler no call is allowed.
 * Cancellation. A thread inside a call must not be cancelled with pthread_cancel().
 * Blocking. cache_get, cache_get_batch, cache_gather, cache_contains and cache_scan never wait and, for rows in
 *   memory, make no system call. Calls that may wait have a deadline (cache_client_options.timeout_ms).
 */
#ifndef LIBCACHE_H
#define LIBCACHE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define CACHE_NOEXCEPT noexcept
extern "C" {
#else
#define CACHE_NOEXCEPT
#endif

#define CACHE_VERSION_MAJOR 1
#define CACHE_VERSION_MINOR 0
#define CACHE_VERSION_PATCH 0

/* Result codes. Each means one thing; the comment says what to do next. */
enum cache_error {
    CACHE_OK = 0,
    CACHE_EINVAL = -1001,    /* an argument is not allowed; cache_last_error() names it: mend the call */
    CACHE_ENOTFOUND = -1002, /* no such row, schema or cache: a miss, read the source */
    CACHE_EFULL = -1003,     /* the limit of the cache, or what the server may use, is used up: go on without caching */
    CACHE_EGONE = -1004,     /* the session or the cache was destroyed: views stay readable, open another cache */
    CACHE_ESERVER = -1005,   /* no server is reachable, or it has ended: start one (cache_admin --start), connect anew */
    CACHE_EVERSION = -1006,  /* the other side is of another major version: both are named; update one */
    CACHE_ECONFLICT = -1007, /* the cache exists with another tag or the schema differs: use another cache id */
    CACHE_EBUILDING = -1008, /* this process is not the builder of the cache, or nobody is: see cache_build_begin */
    CACHE_ECORRUPT = -1009,  /* what stands in the region is damaged: destroy the cache, report the message */
    CACHE_EIO = -1010,       /* a system call failed; the message names it and errno */
    CACHE_ENOSESSION = -1011,/* no session has this id: make one (cache_admin -g) */
    CACHE_ENOMEM = -1012,    /* this process has no memory or no address space left */
    CACHE_EPERM = -1013,     /* the server belongs to another user, or the handle is read-only */
    CACHE_ETIMEOUT = -1014,  /* no answer before the deadline: the server hangs or the machine is overloaded */
    CACHE_ENOTSUP = -1015,   /* not supported by this version, server or kernel; the message says which */
    CACHE_ELIMIT = -1016     /* a fixed limit is reached (sessions, caches, writers, descriptors); it is named */
};

/* What a CACHE_EFULL was for want of. The comment says who can make room. */
enum cache_cause {
    CACHE_FULL_UNKNOWN = 0,    /* the thread's last failure was no CACHE_EFULL, or the server is too old to say */
    CACHE_FULL_SIZE = 1,       /* the cache's own limit: cache_options.memory_limit_bytes */
    CACHE_FULL_SERVER = 2,     /* what all caches of the server may hold together: destroy others */
    CACHE_FULL_MEMORY = 3,     /* the machine or a cgroup has no more than the headroom left: others have taken it */
    CACHE_FULL_DISK = 4,       /* the file system of the spill folder */
    CACHE_FULL_SPILL_LIMIT = 5 /* the server's --spill_limit */
};

/* Element types of a column. The values are part of the ABI. CACHE_BYTES and CACHE_STRING (UTF-8) count in bytes:
 * their shape is what the caller says, with the product equal to the number of bytes. */
enum cache_dtype {
    CACHE_BOOL = 1,
    CACHE_INT8 = 2, CACHE_INT16 = 3, CACHE_INT32 = 4, CACHE_INT64 = 5,
    CACHE_UINT8 = 6, CACHE_UINT16 = 7, CACHE_UINT32 = 8, CACHE_UINT64 = 9,
    CACHE_FLOAT16 = 10, CACHE_BFLOAT16 = 11, CACHE_FLOAT32 = 12, CACHE_FLOAT64 = 13,
    CACHE_BYTES = 14, CACHE_STRING = 15
};

#define CACHE_MAX_COLUMNS 4096u     /* columns of one row */
#define CACHE_MAX_DIMENSIONS 32u    /* dimensions of one column */
#define CACHE_MAX_TAG_BYTES 64u     /* cache_options.tag, without the final 0 */
#define CACHE_MAX_LABEL_BYTES 255u  /* cache_options.label, without the final 0 */
#define CACHE_MAX_NAME_BYTES 63u    /* session name, without the final 0 */
#define CACHE_DEFAULT_PORT 50052u

typedef struct cache_client cache_client;           /* a connection to a server */
typedef struct cache cache;                         /* a handle on one cache */
typedef struct cache_reservation cache_reservation; /* room for one row that is being written in place */

/* One column of a row. shape has ndim extents in elements; ndim 0 is a scalar (shape may be NULL); an extent may be
 * 0. bytes must be the product of the extents times the element's size. data may be NULL where bytes is 0. */
typedef struct cache_column {
    void *data;           /* in: bytes to store (not changed by the library); out: into shared memory */
    uint64_t bytes;       /* length of data in bytes */
    const int64_t *shape; /* ndim extents, outermost first */
    uint32_t dtype;       /* enum cache_dtype */
    uint32_t ndim;        /* 0 .. CACHE_MAX_DIMENSIONS */
    uint64_t reserved[4]; /* zero */
} cache_column;

/* A row as cache_get found it. Read it with cache_view_columns and cache_view_column; row_id may be read directly.
 * Its memory is read-only: a store into it raises SIGSEGV. */
typedef struct cache_view {
    const struct cache *cache; /* NULL: a miss (in cache_get_batch) or a released view */
    int64_t row_id;
    uint64_t reserved[6];
} cache_view;

typedef struct cache_client_options {
    uint32_t size;           /* sizeof(cache_client_options) */
    uint32_t port;           /* 1025..65535; 0: $LIBCACHE_PORT, else $MS_CACHE_PORT, else CACHE_DEFAULT_PORT */
    const char *hostname;    /* NULL or "127.0.0.1": a cache never leaves the machine */
    const char *socket_path; /* NULL: made from the port, in $LIBCACHE_DIR or /tmp/libcache-<uid> */
    int64_t timeout_ms;      /* deadline of every call that may wait; 0: 60,000 */
} cache_client_options;
#define CACHE_CLIENT_OPTIONS_INIT { (uint32_t)sizeof(cache_client_options), 0, NULL, NULL, 0 }

enum cache_session_flags {
    CACHE_SESSION_KEEP = 1 /* its caches are not dropped to make room, nor for being idle */
};

typedef struct cache_session_options {
    uint32_t size;    /* sizeof(cache_session_options) */
    uint32_t flags;   /* enum cache_session_flags */
    const char *name; /* NULL, or as in cache_session_open */
} cache_session_options;
#define CACHE_SESSION_OPTIONS_INIT { (uint32_t)sizeof(cache_session_options), 0, NULL }

enum cache_open_flags {
    CACHE_READ_ONLY = 1, /* this handle never writes: puts are CACHE_EPERM */
    CACHE_NO_CREATE = 2, /* a cache that does not exist is CACHE_ENOTFOUND, not made */
    CACHE_BUILD = 4      /* rows are appended in a build phase: cache_put is CACHE_EINVAL. The first opener decides */
};

typedef struct cache_options {
    uint32_t size;               /* sizeof(cache_options) */
    uint32_t flags;              /* enum cache_open_flags */
    uint64_t memory_limit_bytes; /* of the whole cache, index included; 0: what the server may use */
    uint64_t expected_rows;      /* row ids will mostly lie in 0..expected_rows-1; 0: not known. A hint */
    uint32_t spill;              /* not 0: rows that memory refuses go to disk (CACHE_ENOTSUP: the server has no
                                    spill folder). The first opener decides */
    uint32_t reserved;           /* zero */
    const char *tag;             /* NULL, or up to 64 bytes: a fingerprint of what makes the rows. Joining a cache that
                                    has another tag is CACHE_ECONFLICT; NULL joins any */
    const char *label;           /* NULL, or up to 255 bytes of UTF-8 for people; kept from the first opener */
} cache_options;
#define CACHE_OPTIONS_INIT { (uint32_t)sizeof(cache_options), 0, 0, 0, 0, 0, NULL, NULL }

/* What one cache holds. Bytes are pages made unless said otherwise. */
typedef struct cache_stats {
    uint32_t size;              /* sizeof(cache_stats) */
    uint32_t session_id;
    uint32_t cache_id;
    uint32_t huge_pages;        /* 1: the data area may be on huge pages, 0: on small ones */
    int64_t rows_in_memory;
    int64_t rows_spilled;
    int64_t row_bytes;          /* column bytes of the rows in memory: what the user stored */
    int64_t limit_bytes;        /* as opened; what the server allowed if opened with 0 */
    int64_t charged_bytes;      /* counted against the limit: header, tables, index and data */
    int64_t granted_bytes;      /* of these, lent to writers and not yet filled */
    int64_t used_bytes;         /* of these, rows with their headers and padding */
    int64_t dead_bytes;         /* room of rows that a killed writer left unpublished below a published one */
    int64_t index_bytes;        /* of these, the index */
    int64_t free_bytes;         /* of these, made and lent to nobody */
    int64_t largest_free_bytes; /* the longest run a single row could still get, in bytes */
    int64_t index_levels;
    int64_t layouts;            /* distinct (dtype, shape) lists that are stored once */
    int64_t writers;            /* processes attached for writing */
    int64_t generation;         /* starts of the broker that this cache has seen */
    char tag[CACHE_MAX_TAG_BYTES + 8];
    char label[CACHE_MAX_LABEL_BYTES + 1];
    int64_t readers;            /* connections that have the cache open; -1 where only the server knows (cache_stat) */
    int64_t populated_bytes;    /* pages made and not given back, index and tables included */
    int64_t huge_page_bytes;    /* of the data area, on huge pages */
    int64_t spilled_bytes;      /* column bytes of the spilled rows */
    int64_t spill_file_bytes;   /* file space lent to this cache */
    int64_t page_table_bytes;   /* of this process, for its mappings of this cache; -1 in cache_list */
    int64_t idle_ms;            /* since the last process left it, 0 while one has it open; -1 in cache_stat */
    uint32_t state;             /* 1: live. 2: destroyed, its memory still mapped by somebody */
    uint32_t kept;              /* 1: of a session made with CACHE_SESSION_KEEP; 0 in cache_stat */
} cache_stats;

/* One line of cache_list. stats is NULL for a session that has no cache yet. Valid during the callback only. */
typedef struct cache_list_entry {
    uint32_t size; /* as the library made it */
    uint32_t session_id;
    const char *session_name; /* "" if the session has none */
    const cache_stats *stats;
    const int32_t *pids;      /* processes that have the cache open or, once destroyed, still map it; by number */
    uint32_t n_pids;          /* at most 64 are told */
    uint32_t session_flags;   /* enum cache_session_flags */
} cache_list_entry;
typedef int (*cache_list_callback)(const cache_list_entry *entry, void *argument); /* not 0 ends the listing */

typedef struct cache_server_stats {
    uint32_t size;              /* sizeof(cache_server_stats) */
    uint32_t port;              /* the number that names the server */
    uint32_t tcp_port;          /* the port bound on 127.0.0.1; 0: another user's server has it */
    uint32_t workers;           /* as given with -w, adjusted */
    uint32_t log_level;         /* 0..4 */
    uint32_t supervised;        /* 1: the keeper is alive and will start a new broker if this one dies */
    int32_t keeper_pid;
    int32_t broker_pid;
    uint32_t version_major;
    uint32_t version_minor;
    uint32_t version_patch;
    uint32_t huge_pages;        /* 1: regions are on the huge-page backing, 0: on sealed memfd */
    int64_t generation;         /* how many brokers have served, this one included */
    int64_t memory_limit_bytes; /* what all caches together may hold */
    int64_t memory_used_bytes;
    int64_t sessions;
    int64_t caches;
    int64_t clients;
    int64_t messages;           /* requests that the broker has answered since it started */
    char hostname[64];
    char spill_dir[512];        /* "" without spilling */
    char backing_reason[256];   /* why this backing: a sentence */
    char log_path[512];
    char socket_path[128];
    char server_path[512];      /* the program that serves */
    int64_t headroom_bytes;     /* caching stops while less than this is available */
    int64_t available_bytes;    /* the smallest of what the machine and the cgroups have left */
    int64_t spill_limit_bytes;  /* of all spill files; 0: as much as the file system gives */
    int64_t spill_used_bytes;   /* file space lent to caches */
} cache_server_stats;

/* ---- server and sessions --------------------------------------------------------------------------------------- */

/* Connects to the server of this user and port. options may be NULL. One connection per process and server is made,
 * however often this is called. CACHE_ESERVER, CACHE_EPERM, CACHE_EVERSION, CACHE_EINVAL, CACHE_ETIMEOUT. */
int cache_connect(const cache_client_options *options, cache_client **client) CACHE_NOEXCEPT;

/* Gives the handle back; caches opened through it stay usable until they are closed. NULL is allowed. Returns 0. */
int cache_disconnect(cache_client *client) CACHE_NOEXCEPT;

/* Makes a session; *session_id is random, unique among the live ones and never 0. CACHE_ELIMIT, CACHE_ESERVER. */
int cache_session_create(cache_client *client, uint32_t *session_id) CACHE_NOEXCEPT;

/* The same with options (NULL: as cache_session_create). With a name it finds or makes the session of that name, and
 * flags add to those it has. */
int cache_session_create_with(cache_client *client, const cache_session_options *options,
                              uint32_t *session_id) CACHE_NOEXCEPT;

/* Gives the session of this name (1..63 bytes, no control characters), made by whoever asks first. */
int cache_session_open(cache_client *client, const char *name, uint32_t *session_id) CACHE_NOEXCEPT;

/* Ends a session and its caches. Whoever uses one gets CACHE_EGONE from then on; views that exist stay readable
 * until their handle is closed, and so long the memory is not free. CACHE_ENOSESSION for an unknown id. */
int cache_session_destroy(cache_client *client, uint32_t session_id) CACHE_NOEXCEPT;

/* Calls back once per (session, cache), ascending, and once for each session without a cache. Returns the number of
 * calls, or what the callback returned if that was not 0. */
int cache_list(cache_client *client, cache_list_callback callback, void *argument) CACHE_NOEXCEPT;

/* Settings and totals of the server. stats->size must be set. */
int cache_server_info(cache_client *client, cache_server_stats *stats) CACHE_NOEXCEPT;

/* Ends the server: sessions and caches are dropped, its socket is removed. Returns when it has ended. Processes that
 * have a cache open go on reading; their memory is free when the last of them closes it. */
int cache_server_stop(cache_client *client) CACHE_NOEXCEPT;

/* ---- caches ---------------------------------------------------------------------------------------------------- */

/* Opens, or makes, a cache. options may be NULL. Joining ignores nothing silently: another tag is CACHE_ECONFLICT;
 * the limit and the spilling of the first opener hold, and where the caller asked for another limit than 0, or for
 * spilling, and the cache has not that, it is opened and the result is 1: cache_last_error() says how they differ.
 * Returns 0 otherwise. The smallest limit is 1 MiB. Takes no room that writers need: a process counts as writer from
 * its first put. CACHE_ENOSESSION, CACHE_ECONFLICT, CACHE_EINVAL,
 * CACHE_EFULL (the server has no memory for a new cache), CACHE_ENOTFOUND (with CACHE_NO_CREATE), CACHE_ENOTSUP. */
int cache_open(cache_client *client, uint32_t session_id, uint32_t cache_id, const cache_options *options,
               cache **handle) CACHE_NOEXCEPT;

/* Closes a handle; its views end with it. Rows stay. Open reservations are aborted. NULL is allowed. Returns 0. */
int cache_close(cache *handle) CACHE_NOEXCEPT;

/* Drops one cache of a session, as cache_session_destroy does for all of them. CACHE_ENOTFOUND. */
int cache_destroy(cache_client *client, uint32_t session_id, uint32_t cache_id) CACHE_NOEXCEPT;

/* Fills stats (stats->size must be set) from the region itself, without asking the server. Counts move while others
 * write; a row counts from its publication on. */
int cache_stat(cache *handle, cache_stats *stats) CACHE_NOEXCEPT;

enum cache_check_flags {
    CACHE_CHECK_ROWS = 1 /* also each row's column table and, of spilled rows, the bytes against their CRC-32C */
};
typedef void (*cache_check_callback)(const char *fault, void *argument);

/* Verifies what must hold in the cache's region: index against rows against counters, extents against owners, charged
 * bytes against the limit. Read-only, on a live cache, while others write. Calls report (may be NULL) with a sentence
 * per fault; returns the number of faults, 0: right. A flags bit that means nothing: CACHE_EINVAL. */
int64_t cache_check(cache *handle, uint32_t flags, cache_check_callback report, void *argument) CACHE_NOEXCEPT;

/* ---- writing --------------------------------------------------------------------------------------------------- */

/* Stores a row. Returns 0 if this call stored it, 1 if the row id was there before: the old row stays, the first one
 * wins. Columns are copied; row_id >= 0; n_columns >= 1. When granted memory is used up it waits for the server, at
 * most timeout_ms. CACHE_EFULL at once when the limit is reached; in a cache that spills the row goes to disk instead,
 * and others find it once it is written: see cache_flush. CACHE_EGONE, CACHE_ESERVER, CACHE_EPERM,
 * CACHE_ETIMEOUT, CACHE_ELIMIT. Lock-free against other processes; threads of one process meet in a short mutex. */
int cache_put(cache *handle, int64_t row_id, const cache_column *columns, uint32_t n_columns) CACHE_NOEXCEPT;

/* Reserves room for a row to be written in place, e.g. by a decoder. dtype, ndim, shape and bytes of each column are
 * read; data is set to writable shared memory (64-byte aligned where bytes >= 256), valid until commit or abort.
 * Nobody sees the row before its commit. Returns 0; 1 if the row id exists (*reservation is NULL then). */
int cache_reserve(cache *handle, int64_t row_id, cache_column *columns, uint32_t n_columns,
                  cache_reservation **reservation) CACHE_NOEXCEPT;

/* Publishes the row; the reservation and its pointers end, whatever is returned. 0, or 1 as cache_put. */
int cache_commit(cache_reservation *reservation) CACHE_NOEXCEPT;

/* Gives the room back; the reservation ends. NULL is allowed. */
int cache_abort(cache_reservation *reservation) CACHE_NOEXCEPT;

/* Waits until every row put by this process is as safe as it gets. Rows in memory are, when put returns: 0. Spilled
 * rows are when they are written; the first that could not be is reported: CACHE_EFULL (the disk), CACHE_EIO. */
int cache_flush(cache *handle) CACHE_NOEXCEPT;

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* Finds a row. On a hit fills *view with pointers into shared memory: no copy, no lock, valid until released or the
 * handle is closed. CACHE_ENOTFOUND: a miss. CACHE_EGONE, CACHE_ECORRUPT, CACHE_EINVAL. Wait-free. */
int cache_get(cache *handle, int64_t row_id, cache_view *view) CACHE_NOEXCEPT;

/* Finds n rows, fetching their memory ahead: faster than n times cache_get. Returns the number of hits; a miss
 * leaves views[i].cache NULL. A negative id: CACHE_EINVAL. */
int64_t cache_get_batch(cache *handle, const int64_t *row_ids, size_t n, cache_view *views) CACHE_NOEXCEPT;

/* Copies column `column` of n rows into dst, row i at i * stride bytes. A shorter column leaves the rest of its place
 * as it was. found[i] is set to 1 or 0; with found NULL a miss is CACHE_ENOTFOUND, after all rows were tried.
 * Returns the number of rows copied. A column longer than the stride, or missing in a row: CACHE_EINVAL, nothing is
 * written for that row (found 0), the others are copied. A negative id: CACHE_EINVAL, nothing is copied. */
int64_t cache_gather(cache *handle, const int64_t *row_ids, size_t n, uint32_t column, void *dst, size_t stride,
                     uint8_t *found) CACHE_NOEXCEPT;

/* found[i] = 1 where the row is there. Returns how many are. A negative id: CACHE_EINVAL. */
int64_t cache_contains(cache *handle, const int64_t *row_ids, size_t n, uint8_t *found) CACHE_NOEXCEPT;

/* Lists row ids. *cursor is 0 at first; returns how many ids were written (at most n), 0 at the end. Each row that
 * was there when the scan began comes exactly once, in no particular order; rows added meanwhile may come. */
int64_t cache_scan(cache *handle, uint64_t *cursor, int64_t *ids, size_t n) CACHE_NOEXCEPT;

/* Ends a view, not later than its handle. Needed once per hit: costs nothing for rows in memory, frees a copy of a
 * spilled one. NULL and released views are allowed. */
int cache_view_release(cache_view *view) CACHE_NOEXCEPT;

/* Number of columns (>= 1), or CACHE_EINVAL for a view without a row. */
int cache_view_columns(const cache_view *view) CACHE_NOEXCEPT;

/* Fills *column with column i of the row. data and shape live as long as the view. data is read-only. */
int cache_view_column(const cache_view *view, uint32_t i, cache_column *column) CACHE_NOEXCEPT;

/* ---- column names ---------------------------------------------------------------------------------------------- */

/* Stores the names of the columns, once per cache: 0 if this call stored them or the same ones are there,
 * CACHE_ECONFLICT if others are. Names are UTF-8, 4,000 bytes in all with a 0 after each. */
int cache_schema_set(cache *handle, const char *const *names, uint32_t n_names) CACHE_NOEXCEPT;

/* Returns the number of names and, where buffer is not NULL, writes them there one after the other, each ended by a
 * 0. *bytes: in the room in buffer, out what is needed. CACHE_ENOTFOUND: none stored yet. CACHE_EINVAL: too short. */
int cache_schema_get(cache *handle, char *buffer, size_t *bytes) CACHE_NOEXCEPT;

/* ---- streams: sources without an index ------------------------------------------------------------------------- */

/* Makes this process the builder of the cache. Ids are handed out in the order of publishing, 0, 1, 2, ... without
 * holes; rows are readable at once. *resume_at: the next id, i.e. how many rows a former builder, which may have been
 * killed, has appended: skip so many in the source. Returns 0; 1 if the build is done (*resume_at rows are there); the
 * builder itself may call again. CACHE_EBUILDING: another process builds: read along, or cache_build_wait. A process
 * stops being the builder with cache_build_done, cache_build_leave, its last cache_close and when it ends. A forked
 * child is not the builder. */
int cache_build_begin(cache *handle, int64_t *resume_at) CACHE_NOEXCEPT;

/* Stores a row under the next id and tells it (row_id may be NULL). Threads of the builder may call at once. On
 * CACHE_EFULL no id is used; it may be tried again when there is room. CACHE_EBUILDING: not the builder (any more). */
int cache_append(cache *handle, const cache_column *columns, uint32_t n_columns, int64_t *row_id) CACHE_NOEXCEPT;

/* Says that the source has ended. CACHE_EINVAL: this process does not build. */
int cache_build_done(cache *handle) CACHE_NOEXCEPT;

/* Stops building before the end, e.g. after CACHE_EFULL: rows that are there stay, and whoever calls cache_build_begin
 * next, which may be this process, goes on after them. CACHE_EINVAL: this process does not build. */
int cache_build_leave(cache *handle) CACHE_NOEXCEPT;

/* Waits until the build is done: 0. CACHE_ETIMEOUT after timeout_ms (< 0: for ever). CACHE_EBUILDING: it is not done
 * and nobody builds: take over with cache_build_begin. CACHE_EGONE, CACHE_ESERVER. */
int cache_build_wait(cache *handle, int64_t timeout_ms) CACHE_NOEXCEPT;

/* ---- messages -------------------------------------------------------------------------------------------------- */

/* A code's meaning as a constant string; never NULL, for any number. */
const char *cache_strerror(int code) CACHE_NOEXCEPT;

/* This thread's last failure as one sentence; "" if there was none. Valid until this thread's next call. */
const char *cache_last_error(void) CACHE_NOEXCEPT;

/* What this thread's last failure, a CACHE_EFULL, was for want of: enum cache_cause. */
uint32_t cache_full_cause(void) CACHE_NOEXCEPT;

/* "1.0.0": the library in use, which may be newer than this header. */
const char *cache_version(void) CACHE_NOEXCEPT;

/* Bytes of one element, 1 for CACHE_BYTES and CACHE_STRING, 0 for no dtype. */
size_t cache_dtype_bytes(uint32_t dtype) CACHE_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
