// SPDX-License-Identifier: Apache-2.0
// What the files of the extension module libcache._rows share: the owner of a C handle, and the way between NumPy
// arrays and columns. All of it runs with the GIL held unless it says otherwise.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API  NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL libcache_rows_array_api
#ifndef LIBCACHE_ROWS_MODULE
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include "libcache.h"

#define LAST_DTYPE CACHE_STRING

// Owns one C handle. A Cache holds it while it is open, each array that points into the region holds it as its base:
// cache_close() runs when the last of them is gone, so no array ever outlives the memory it shows.
typedef struct {
    PyObject_HEAD cache *handle;
    int wary; // so many reads more give the GIL up, since rows came from disk lately: find_row()
} Mapping;

extern PyTypeObject MappingType;
Mapping *mapping_new(cache *handle); // takes the handle also when it fails

// find.c
// cache_get and cache_get_batch, without the GIL while rows come from disk.
int find_row(Mapping *mapping, int64_t id, cache_view *view);
int64_t find_rows(Mapping *mapping, const int64_t *ids, size_t n, cache_view *views);
int any_from_disk(const cache_view *views, size_t n);
void note_reading(Mapping *mapping, int from_disk); // after each read, with the GIL

// columns.c
int columns_init(void);
uint32_t dtype_of_array(PyArrayObject *array); // 0: a type that has no cache_dtype, or foreign byte order
PyArray_Descr *descr_of_dtype(uint32_t dtype); // borrowed; NULL with an exception: no such dtype
PyObject *array_of_memory(PyObject *owner, uint32_t dtype, int ndim, const int64_t *shape, void *data, int writable);
PyObject *row_of_view(Mapping *mapping, cache_view *view); // a new tuple, an entry per column; may take the view over
// Fills `column` from `object`, which *owner keeps alive and *length describes where it has one dimension.
int column_of_object(PyObject *object, Py_ssize_t position, cache_column *column, int64_t *length, PyObject **owner);
extern PyObject *storable; // libcache._columns.storable(object, position): an array that can be stored as it is

// ids.c
PyArrayObject *ids_of_object(PyObject *object); // a contiguous int64 vector, or NULL
int64_t id_of_object(PyObject *object);         // -1 with an exception where it is none
int id_if_any(PyObject *object, int64_t *id);   // 1; 0: no row can have it; -1 with an exception: not even hashable

// gather.c
// What every row must be, and where the rows go.
typedef struct {
    uint32_t dtype;
    int ndim;
    const int64_t *shape;
    uint64_t row_bytes;
    char *data;
    int64_t stride;
} Batch;

PyObject *gather(Mapping *mapping, PyObject *ids, uint32_t column, PyObject *out, PyObject *found);
int batch_of_out(PyObject *array, size_t n, Batch *batch); // -1 with an exception
// Copies rows that have exactly these columns. Runs with or without the GIL. Whether all n were there and did.
int copy_whole_rows(cache *handle, const Batch *batches, uint32_t n_columns, const int64_t *ids, size_t n);

// gatherer.c
extern PyTypeObject GathererType;
PyObject *gather_rows(Mapping *mapping, PyObject *ids, PyObject *outs);

// put_rows.c
PyObject *put_rows(Mapping *mapping, PyObject *ids, PyObject *blocks);

// counts.c
PyObject *add_to_counter(PyObject *module, PyObject *const *arguments, Py_ssize_t n);

// rows.c
Mapping *mapping_of_rows(PyObject *rows); // a new reference, attached if need be, or NULL; TypeError: no Cache
PyObject *raise_code(int64_t code);       // the exception of this thread's last failed call; always NULL
PyObject *raise_error(int64_t code, const char *text); // the exception of a code, with this message; always NULL
