/* SPDX-License-Identifier: Apache-2.0
 * exchange_c write|read SESSION CACHE IMAGES LABELS: the C side of test_exchange.py. Rows of two unpacked IDX files:
 * the image (uint8, 28 x 28), the label (int64), the mean of the pixels (float32) and the label in letters (a string).
 * `write` stores them all, `read` compares every byte with what it makes of the files itself, and prints how many. */
#include <libcache.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kSide = 28, kPixels = kSide * kSide, kImagesHeader = 16, kLabelsHeader = 8, kColumns = 4 };
static const char *const kNames[kColumns] = {"image", "label", "mean", "word"};
static const char *const kWords[] = {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"};
static const int64_t kImageShape[] = {kSide, kSide};

/* What one row is made of; the columns point into it. */
struct row {
    int64_t label, word_bytes;
    float mean;
    cache_column columns[kColumns];
};

static _Noreturn void die(const char *what) {
    fprintf(stderr, "exchange_c: %s: %s\n", what, cache_last_error());
    exit(1);
}

static unsigned char *read_whole(const char *path, long *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0 || (*bytes = ftell(file)) < 0) die(path);
    rewind(file);
    unsigned char *data = malloc((size_t)*bytes);
    if (!data || fread(data, 1, (size_t)*bytes, file) != (size_t)*bytes) die(path);
    fclose(file);
    return data;
}

static void make_row(struct row *row, unsigned char *pixels, unsigned char label) {
    unsigned sum = 0;
    for (int i = 0; i < kPixels; ++i)
        sum += pixels[i];
    row->label = label;
    row->mean = (float)sum / kPixels;
    row->word_bytes = (int64_t)strlen(kWords[label]);
    const cache_column columns[kColumns] = {
        {.data = pixels, .bytes = kPixels, .shape = kImageShape, .dtype = CACHE_UINT8, .ndim = 2},
        {.data = &row->label, .bytes = sizeof row->label, .dtype = CACHE_INT64},
        {.data = &row->mean, .bytes = sizeof row->mean, .dtype = CACHE_FLOAT32},
        {.data = (void *)kWords[label],
         .bytes = (uint64_t)row->word_bytes,
         .shape = &row->word_bytes,
         .dtype = CACHE_STRING,
         .ndim = 1}};
    memcpy(row->columns, columns, sizeof columns);
}

static int same(const cache_column *a, const cache_column *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim && a->bytes == b->bytes &&
           memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape) == 0 && memcmp(a->data, b->data, a->bytes) == 0;
}

static void compare(cache *rows, int64_t id, const struct row *row) {
    static const int64_t none[1] = {0};
    cache_view view;
    if (cache_get(rows, id, &view) != 0) die("get");
    if (cache_view_columns(&view) != kColumns) die("another number of columns");
    for (uint32_t i = 0; i < kColumns; ++i) {
        cache_column found, wanted = row->columns[i];
        if (cache_view_column(&view, i, &found) != 0) die("column");
        if (!wanted.shape) wanted.shape = none;
        if (!found.shape) found.shape = none;
        if (!same(&found, &wanted)) {
            fprintf(stderr, "exchange_c: row %lld, column %s: not what was written\n", (long long)id, kNames[i]);
            exit(1);
        }
    }
    cache_view_release(&view);
}

static void compare_names(cache *rows) {
    char wanted[] = "image\0label\0mean\0word", names[4000];
    size_t bytes = sizeof names;
    if (cache_schema_get(rows, names, &bytes) != kColumns) die("schema_get");
    if (bytes != sizeof wanted || memcmp(names, wanted, bytes) != 0) die("other names");
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    const int write = strcmp(argv[1], "write") == 0;
    long image_bytes, label_bytes;
    unsigned char *images = read_whole(argv[4], &image_bytes), *labels = read_whole(argv[5], &label_bytes);
    cache_client *client;
    cache *rows;
    if (cache_connect(NULL, &client) < 0) die("connect");
    if (cache_open(client, (uint32_t)strtoul(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10), NULL, &rows) < 0)
        die("open");
    if (write && cache_schema_set(rows, kNames, kColumns) < 0) die("schema_set");
    if (!write) compare_names(rows);
    const long n = label_bytes - kLabelsHeader;
    for (long i = 0; i < n; ++i) {
        struct row row;
        make_row(&row, images + kImagesHeader + i * kPixels, labels[kLabelsHeader + i]);
        if (!write)
            compare(rows, i, &row);
        else if (cache_put(rows, i, row.columns, kColumns) != 0)
            die("put");
    }
    printf("%ld rows\n", n);
    cache_close(rows);
    cache_disconnect(client);
    free(images);
    free(labels);
    return 0;
}
