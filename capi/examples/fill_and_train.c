/* SPDX-License-Identifier: Apache-2.0
 * fill_and_train DIRECTORY [EPOCHS [PROCESSES]]: reads a directory of files in a loop of epochs, as a trainer does. A
 * file comes from the cache, or on a miss from the disk and then into the cache, for the next epoch and for every other
 * process that trains on the same files meanwhile: those that this one forks, and any other that is started. The cache
 * only ever helps: when it is full, dropped or away, training goes on. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <fcntl.h>
#include <libcache.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static cache_client *client;
static cache *rows; /* NULL: no cache, read the files */
static int full;    /* the cache takes no more rows, but still gives those it has */
static uint64_t fingerprint;

static void warn(const char *what_next) {
    fprintf(stderr, "%s: %s\n", cache_last_error(), what_next);
}

/* A source that cannot be read ends the training; a cache that cannot be used never does. */
static _Noreturn void die(const char *what) {
    perror(what);
    exit(1);
}

/* Whoever names the same session and cache id shares the cache. The id comes from the files' names, sizes and times, so
 * that a changed directory is another cache; the tag, all of the fingerprint, tells two apart that have the same id. */
static void open_cache(void) {
    char tag[32];
    snprintf(tag, sizeof tag, "%016llx", (unsigned long long)fingerprint);
    cache_options options = CACHE_OPTIONS_INIT;
    options.tag = tag;
    options.label = "fill_and_train";
    uint32_t session;
    full = 0;
    if ((!client && cache_connect(NULL, &client) < 0) || cache_session_open(client, "fill_and_train", &session) < 0 ||
        cache_open(client, session, (uint32_t)fingerprint, &options, &rows) < 0) {
        rows = NULL;
        warn("going on without a cache");
    }
}

/* Decides what a failed call means for the rest of the run. */
static void handle(int code) {
    if (code == CACHE_EFULL) { /* rows are never evicted: what is in stays, the rest comes from the disk each time */
        full = 1;
        warn("the rest is read from the disk");
        return;
    }
    if (code == CACHE_EGONE) /* somebody dropped the session, perhaps to make room */
        warn("opening a new cache");
    else /* no server any more, or a fault: no reason to stop training */
        warn("going on without a cache");
    cache_close(rows);
    rows = NULL;
    if (code == CACHE_EGONE) open_cache();
}

/* Stands for a training step: looks at every byte. */
static uint64_t train(const void *data, uint64_t bytes) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < bytes; ++i)
        sum += ((const unsigned char *)data)[i];
    return sum;
}

static int read_all(int file, char *to, uint64_t bytes) {
    while (bytes > 0) {
        ssize_t got = read(file, to, bytes);
        if (got <= 0) return -1; /* an error, or the file has become shorter */
        to += got;
        bytes -= (uint64_t)got;
    }
    return 0;
}

/* A miss: reads the file straight into the cache's memory if it may, else into memory of our own. */
static uint64_t fill(int64_t id, const char *name, int file, int64_t bytes) {
    cache_column column = {.bytes = (uint64_t)bytes, .shape = &bytes, .ndim = 1, .dtype = CACHE_BYTES};
    cache_reservation *room = NULL; /* stays so if another process was faster */
    int code = rows && !full ? cache_reserve(rows, id, &column, 1, &room) : 0;
    if (code < 0) handle(code);
    if (!room) column.data = malloc((size_t)bytes + 1);
    if (!column.data && bytes > 0) die("malloc");

    if (read_all(file, column.data, column.bytes) != 0) {
        cache_abort(room); /* nobody ever sees half a row */
        fprintf(stderr, "%s was not read to its end\n", name);
        exit(1);
    }
    const uint64_t sum = train(column.data, column.bytes);
    if (!room)
        free(column.data);
    else if ((code = cache_commit(room)) < 0)
        handle(code);
    return sum;
}

static uint64_t read_row(int64_t id, const char *name, long *hits) {
    cache_view view;
    const int code = rows ? cache_get(rows, id, &view) : CACHE_ENOTFOUND;
    if (code == 0) {
        cache_column column;
        cache_view_column(&view, 0, &column);
        const uint64_t sum = train(column.data, column.bytes); /* where it lies: nothing is copied */
        cache_view_release(&view);
        ++*hits;
        return sum;
    }
    if (code != CACHE_ENOTFOUND) handle(code);
    struct stat status;
    const int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) != 0) die(name);
    const uint64_t sum = fill(id, name, file, status.st_size);
    close(file);
    return sum;
}

static int regular(const struct dirent *entry) {
    struct stat status;
    return stat(entry->d_name, &status) == 0 && S_ISREG(status.st_mode);
}

/* FNV-1a, continued. */
static uint64_t mix(uint64_t hash, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return hash;
}

static uint64_t fingerprint_of(struct dirent **entries, int n) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < n; ++i) {
        struct stat status = {0};
        stat(entries[i]->d_name, &status);
        const int64_t facts[] = {status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
        for (const char *c = entries[i]->d_name; *c; ++c)
            hash = mix(hash, c, 1);
        hash = mix(hash, facts, sizeof facts);
    }
    return hash;
}

/* Every file once an epoch. Each process begins elsewhere, so that they share the first epoch's work. */
static void train_epochs(struct dirent **entries, int n, int epochs, int process, int processes) {
    const int first = (int)((long)n * process / processes);
    for (int epoch = 1; epoch <= epochs; ++epoch) {
        uint64_t sum = 0;
        long hits = 0;
        for (int i = 0; i < n; ++i) {
            const int id = (first + i) % n;
            sum += read_row(id, entries[id]->d_name, &hits);
        }
        printf("epoch %d: %ld rows from the cache, %ld from the disk, sum %llu\n", epoch, hits, n - hits,
               (unsigned long long)sum);
        fflush(stdout);
    }
}

/* Returns this process's number; the first one is the parent. What is open stays usable in the children. */
static int fork_others(int processes) {
    for (int process = 1; process < processes; ++process) {
        const pid_t pid = fork();
        if (pid < 0) die("fork");
        if (pid == 0) return process;
    }
    return 0;
}

static int all_ended_well(void) {
    int status, well = 1;
    while (wait(&status) > 0)
        well = well && status == 0;
    return well;
}

static int usage(FILE *to, const char *program) {
    fprintf(to,
            "usage: %s DIRECTORY [EPOCHS [PROCESSES]]\n"
            "Reads each file of DIRECTORY in EPOCHS epochs (3, unless given) and PROCESSES processes (1), through a "
            "cache.\n",
            program);
    return to == stdout ? 0 : 2;
}

/* Of epochs or processes: at least 1. */
static int number(const char *program, const char *name, const char *text) {
    char *end;
    const long n = strtol(text, &end, 10);
    if (n >= 1 && n <= INT_MAX && *end == 0) return (int)n;
    const int status = usage(stderr, program);
    fprintf(stderr, "%s: %s is '%s', not a whole number from 1 to %d\n", program, name, text, INT_MAX);
    exit(status);
}

int main(int argc, char **argv) {
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) return usage(stdout, argv[0]);
    if (argc < 2 || argc > 4) return usage(stderr, argv[0]);
    if (argv[1][0] == '-') { /* a directory of such a name: ./-name */
        const int status = usage(stderr, argv[0]);
        fprintf(stderr, "%s: unknown option %s\n", argv[0], argv[1]);
        return status;
    }
    const int epochs = argc > 2 ? number(argv[0], "EPOCHS", argv[2]) : 3;
    const int processes = argc > 3 ? number(argv[0], "PROCESSES", argv[3]) : 1;
    struct dirent **entries;
    int n;
    /* Sorted, so that row i is the same file for everyone. */
    if (chdir(argv[1]) != 0 || (n = scandir(".", &entries, regular, alphasort)) < 0) die(argv[1]);
    fingerprint = fingerprint_of(entries, n);
    open_cache();
    const int process = fork_others(processes);
    train_epochs(entries, n, epochs, process, processes);
    for (int i = 0; i < n; ++i)
        free(entries[i]);
    free(entries);
    cache_close(rows);
    cache_disconnect(client);
    return process != 0 || all_ended_well() ? 0 : 1;
}
