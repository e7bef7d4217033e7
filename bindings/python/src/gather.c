// SPDX-License-Identifier: Apache-2.0
// Cache.gather: one column of many rows copied into a batch array. Each row's dtype and shape are compared with the
// batch's, which cache_gather, whose destination is bytes, cannot do: a (784,) row is not a (28, 28) row.
#include "rows.h"

#include <string.h>

enum {
    kBlock = 32,               // rows looked up together, as the library does it
    kReleaseBytes = 128 * 1024 // a smaller copy is over before another thread would have had the GIL
};

typedef struct {
    int64_t hits;
    int64_t code;       // of a call that failed
    int64_t first_miss; // position, or -1
    int64_t misfit;     // position of the first row with another dtype or shape, or -1
    int from_disk;      // 1: a row was
} Outcome;

// Columns of bytes and uint8, or bfloat16 and uint16, are the same to NumPy.
static int same_kind(uint32_t a, uint32_t b) {
    return a == b || (a != 0 && a <= LAST_DTYPE && b <= LAST_DTYPE && descr_of_dtype(a) == descr_of_dtype(b));
}

static int fits(const Batch *batch, const cache_column *column) {
    if (column->bytes != batch->row_bytes || (int)column->ndim != batch->ndim) return 0;
    if (!same_kind(column->dtype, batch->dtype)) return 0;
    return batch->ndim == 0 || column->shape == batch->shape ||
           memcmp(column->shape, batch->shape, sizeof(int64_t) * (size_t)batch->ndim) == 0;
}

static void prefetch(const char *data, uint64_t bytes) {
    // The first kilobyte: what follows, the processor's own prefetcher has seen coming by then
    for (uint64_t at = 0; at < bytes && at < 1024; at += 64)
        __builtin_prefetch(data + at);
}

// Rows that were read from disk hold memory of their own.
static void release(cache_view *views, size_t count) {
    for (size_t i = 0; i < count; i++)
        cache_view_release(&views[i]);
}

// Runs with or without the GIL.
static void copy_block(const Batch *batch, const cache_view *views, size_t from, size_t count, uint32_t column,
                       uint8_t *found, Outcome *outcome) {
    cache_column columns[kBlock];
    for (size_t i = 0; i < count; i++) {
        columns[i].data = NULL;
        if (found != NULL) found[from + i] = 0;
        if (views[i].cache == NULL) {
            if (outcome->first_miss < 0) outcome->first_miss = (int64_t)(from + i);
        } else if (cache_view_column(&views[i], column, &columns[i]) != 0 || !fits(batch, &columns[i])) {
            columns[i].data = NULL;
            if (outcome->misfit < 0) outcome->misfit = (int64_t)(from + i);
        } else if (columns[i].bytes == 0) {
            columns[i].data = batch->data; // a hit of which there is nothing to copy
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (i + 1 < count && columns[i + 1].data != NULL) prefetch(columns[i + 1].data, batch->row_bytes);
        if (columns[i].data == NULL) continue;
        if (batch->row_bytes != 0)
            memcpy(batch->data + (int64_t)(from + i) * batch->stride, columns[i].data, batch->row_bytes);
        if (found != NULL) found[from + i] = 1;
        outcome->hits++;
    }
}

static void copy_rows(cache *handle, const Batch *batch, const int64_t *ids, size_t n, uint32_t column, uint8_t *found,
                      Outcome *outcome) {
    cache_view views[kBlock];
    *outcome = (Outcome){.first_miss = -1, .misfit = -1};
    for (size_t from = 0; from < n; from += kBlock) {
        const size_t count = n - from < kBlock ? n - from : kBlock;
        outcome->code = cache_get_batch(handle, ids + from, count, views);
        if (outcome->code < 0) return;
        copy_block(batch, views, from, count, column, found, outcome);
        outcome->from_disk |= any_from_disk(views, count);
        release(views, count);
    }
    outcome->code = 0;
}

int copy_whole_rows(cache *handle, const Batch *batches, uint32_t n_columns, const int64_t *ids, size_t n) {
    cache_view views[kBlock];
    Outcome outcome = {.first_miss = -1, .misfit = -1};
    int same = 1; // all rows so far were there and have n_columns columns
    for (size_t from = 0; from < n && same; from += kBlock) {
        const size_t count = n - from < kBlock ? n - from : kBlock;
        if (cache_get_batch(handle, ids + from, count, views) < 0) return 0;
        for (size_t i = 0; i < count; i++)
            same &= cache_view_columns(&views[i]) == (int)n_columns; // a miss has none
        for (uint32_t column = 0; column < n_columns && same; column++)
            copy_block(&batches[column], views, from, count, column, NULL, &outcome);
        release(views, count);
    }
    return same && outcome.hits == (int64_t)(n * n_columns);
}

// Describes the rows by the first one that is there, *hit, with room for its shape. 0, or -1 with an exception.
static int batch_of_first_hit(Mapping *mapping, const int64_t *ids, size_t n, uint32_t column, Batch *batch,
                              int64_t *shape, const int64_t **hit) {
    for (size_t i = 0; i < n; i++) {
        cache_view view;
        cache_column first;
        int rc = find_row(mapping, ids[i], &view);
        if (rc == CACHE_ENOTFOUND && i + 1 < n) continue;
        const int found = rc == 0;
        if (found) rc = cache_view_column(&view, column, &first);
        if (rc == 0) {
            for (uint32_t k = 0; k < first.ndim; k++)
                shape[k] = first.shape[k];
            *batch = (Batch){first.dtype, (int)first.ndim, shape, first.bytes, NULL, 0};
            *hit = &ids[i];
        } else {
            raise_code(rc);
        }
        if (found) cache_view_release(&view);
        return rc == 0 ? 0 : -1;
    }
    PyErr_SetString(PyExc_ValueError, "gather of no rows needs out=: nothing tells the shape of a row");
    return -1;
}

static PyArrayObject *new_out(Batch *batch, size_t n) {
    npy_intp shape[NPY_MAXDIMS];
    if (batch->ndim + 1 > NPY_MAXDIMS) {
        PyErr_Format(PyExc_ValueError, "a batch of rows of %d dimensions would have one too many", batch->ndim);
        return NULL;
    }
    shape[0] = (npy_intp)n;
    for (int i = 0; i < batch->ndim; i++)
        shape[i + 1] = (npy_intp)batch->shape[i];
    PyArray_Descr *const descr = descr_of_dtype(batch->dtype);
    if (descr == NULL) return NULL;
    Py_INCREF(descr);
    PyArrayObject *const out =
        (PyArrayObject *)PyArray_NewFromDescr(&PyArray_Type, descr, batch->ndim + 1, shape, NULL, NULL, 0, NULL);
    if (out == NULL) return NULL;
    batch->data = PyArray_DATA(out);
    batch->stride = (int64_t)batch->row_bytes;
    return out;
}

// The batch as the caller's array describes it. The rows may be apart; within a row all must lie side by side.
int batch_of_out(PyObject *object, size_t n, Batch *batch) {
    if (!PyArray_Check(object)) {
        PyErr_Format(PyExc_TypeError, "out must be a NumPy array, not %s", Py_TYPE(object)->tp_name);
        return -1;
    }
    PyArrayObject *const out = (PyArrayObject *)object;
    const uint32_t dtype = dtype_of_array(out);
    const int ndim = PyArray_NDIM(out);
    if (dtype == 0 || ndim < 1 || (size_t)PyArray_DIM(out, 0) != n || !PyArray_ISWRITEABLE(out)) {
        PyErr_Format(PyExc_ValueError, "out must be a writable array of native numbers with %zu rows, one per id", n);
        return -1;
    }
    uint64_t bytes = (uint64_t)PyArray_ITEMSIZE(out);
    for (int i = ndim - 1; i > 0; i--) {
        if (PyArray_DIM(out, i) > 1 && PyArray_SIZE(out) != 0 && PyArray_STRIDE(out, i) != (npy_intp)bytes) {
            PyErr_SetString(PyExc_ValueError, "out must be contiguous from its second dimension on");
            return -1;
        }
        bytes *= (uint64_t)PyArray_DIM(out, i);
    }
    *batch = (Batch){dtype, ndim - 1,          (const int64_t *)PyArray_DIMS(out) + 1,
                     bytes, PyArray_DATA(out), n > 1 ? PyArray_STRIDE(out, 0) : (int64_t)bytes};
    return 0;
}

static int found_of(PyObject *object, size_t n, uint8_t **found) {
    *found = NULL;
    if (object == Py_None) return 0;
    PyArrayObject *const array = (PyArrayObject *)object;
    if (PyArray_Check(object) && PyArray_ITEMSIZE(array) == 1 && PyArray_NDIM(array) == 1 &&
        (size_t)PyArray_DIM(array, 0) == n && PyArray_ISCARRAY(array) && dtype_of_array(array) != 0) {
        *found = PyArray_DATA(array);
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "found must be a writable, contiguous bool array of length %zu", n);
    return -1;
}

// "(28, 28) uint8". A new string.
static PyObject *kind_text(uint32_t dtype, int ndim, const int64_t *shape) {
    PyObject *const extents = PyTuple_New(ndim);
    for (int i = 0; extents != NULL && i < ndim; i++)
        PyTuple_SET_ITEM(extents, i, PyLong_FromLongLong(shape[i]));
    PyArray_Descr *const descr = descr_of_dtype(dtype);
    PyObject *text = NULL;
    if (extents != NULL && descr != NULL) text = PyUnicode_FromFormat("%R %S", extents, (PyObject *)descr);
    Py_XDECREF(extents);
    return text;
}

// made_for: the row that gave the batch its shape; NULL: out= did.
static void raise_misfit(Mapping *mapping, int64_t id, uint32_t column, const Batch *batch, const int64_t *made_for) {
    cache_view view;
    cache_column other;
    int rc = find_row(mapping, id, &view);
    if (rc != 0) {
        raise_code(rc);
        return;
    }
    rc = cache_view_column(&view, column, &other);
    if (rc != 0) {
        PyErr_Format(PyExc_ValueError, "row %lld has %d columns, there is no column %u", (long long)id,
                     cache_view_columns(&view), column);
    } else {
        PyObject *const is = kind_text(other.dtype, (int)other.ndim, other.shape);
        PyObject *const wanted = kind_text(batch->dtype, batch->ndim, batch->shape);
        PyObject *const by = made_for == NULL ? PyUnicode_FromString("rows of out= are")
                                              : PyUnicode_FromFormat("that of row %lld is", (long long)*made_for);
        if (is != NULL && wanted != NULL && by != NULL)
            PyErr_Format(PyExc_ValueError,
                         "column %u of row %lld is %U, but %U %U: a batch has one dtype and shape. Read such rows with "
                         "get_many, or put them padded to one shape",
                         column, (long long)id, is, by, wanted);
        Py_XDECREF(is);
        Py_XDECREF(wanted);
        Py_XDECREF(by);
    }
    cache_view_release(&view);
}

PyObject *gather(Mapping *mapping, PyObject *ids_object, uint32_t column, PyObject *out_object,
                 PyObject *found_object) {
    PyArrayObject *const ids = ids_of_object(ids_object);
    if (ids == NULL) return NULL;
    const size_t n = (size_t)PyArray_SIZE(ids);
    const int64_t *const id = PyArray_DATA(ids);
    const int own = out_object == Py_None;
    PyObject *out = NULL;
    uint8_t *found;
    Batch batch;
    int64_t shape[CACHE_MAX_DIMENSIONS];
    const int64_t *made_for = NULL;
    if (found_of(found_object, n, &found) != 0) goto end;
    if (own) {
        if (batch_of_first_hit(mapping, id, n, column, &batch, shape, &made_for) == 0)
            out = (PyObject *)new_out(&batch, n);
    } else if (batch_of_out(out_object, n, &batch) == 0) {
        Py_INCREF(out = out_object);
    }
    if (out == NULL) goto end;
    Outcome outcome;
    if (mapping->wary > 0 || n * batch.row_bytes >= kReleaseBytes) {
        Py_BEGIN_ALLOW_THREADS copy_rows(mapping->handle, &batch, id, n, column, found, &outcome);
        Py_END_ALLOW_THREADS
    } else {
        copy_rows(mapping->handle, &batch, id, n, column, found, &outcome);
    }
    note_reading(mapping, outcome.from_disk);
    PyObject *failed = out;
    if (outcome.code < 0) {
        raise_code(outcome.code);
    } else if (outcome.misfit >= 0) {
        raise_misfit(mapping, id[outcome.misfit], column, &batch, made_for);
    } else if (outcome.first_miss >= 0 && found == NULL) {
        cache_view view; // makes the sentence that names the row
        const int rc = cache_get(mapping->handle, id[outcome.first_miss], &view);
        raise_code(rc != 0 ? rc : CACHE_ENOTFOUND);
    } else {
        failed = NULL;
        for (size_t i = 0; own && found != NULL && i < n; i++) // a new array shows no leftovers of the heap
            if (!found[i]) memset(batch.data + i * batch.row_bytes, 0, batch.row_bytes);
    }
    if (failed != NULL) Py_CLEAR(out);
end:
    Py_DECREF(ids);
    return out;
}
