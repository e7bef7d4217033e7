// SPDX-License-Identifier: Apache-2.0
// Cache._put_rows: many rows of one shape stored by one call, from arrays of which each holds one column of all rows.
// The GIL is given up once for all of them, and no Python object is made for any.
#include "rows.h"

typedef struct {
    size_t seen;   // rows stored, or there before
    size_t stored; // of these, by this call
    int code;      // of the row after them, which failed; 0: none did
} Outcome;

// Runs without the GIL. `columns` are as the batches describe them, but for `data`.
static void put_each(cache *handle, const int64_t *ids, size_t n, const Batch *batches, cache_column *columns,
                     uint32_t n_columns, Outcome *outcome) {
    *outcome = (Outcome){0};
    for (; outcome->seen < n; outcome->seen++) {
        for (uint32_t i = 0; i < n_columns; i++)
            columns[i].data = batches[i].data + (int64_t)outcome->seen * batches[i].stride;
        const int rc = cache_put(handle, ids[outcome->seen], columns, n_columns);
        if (rc < 0) {
            outcome->code = rc;
            return;
        }
        outcome->stored += rc == 0;
    }
}

// The exception of a failed call as an object, not raised: who asked must know how many rows came before.
static PyObject *error_of(int code) {
    if (code == 0) Py_RETURN_NONE;
    PyObject *type, *error, *traceback;
    raise_code(code);
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
}

static int describe(PyObject *blocks, size_t n, Batch *batches, cache_column *columns) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(blocks); i++) {
        Batch *const batch = &batches[i];
        if (batch_of_out(PyTuple_GET_ITEM(blocks, i), n, batch) != 0) return -1;
        columns[i] = (cache_column){.bytes = batch->row_bytes,
                                    .shape = batch->ndim != 0 ? batch->shape : NULL,
                                    .dtype = batch->dtype,
                                    .ndim = (uint32_t)batch->ndim};
    }
    return 0;
}

PyObject *put_rows(Mapping *mapping, PyObject *ids_object, PyObject *blocks) {
    if (!PyTuple_Check(blocks) || PyTuple_GET_SIZE(blocks) < 1)
        return PyErr_Format(PyExc_TypeError, "blocks must be a tuple with an array per column");
    const uint32_t n_columns = (uint32_t)PyTuple_GET_SIZE(blocks);
    PyArrayObject *const ids = ids_of_object(ids_object);
    if (ids == NULL) return NULL;
    const size_t n = (size_t)PyArray_SIZE(ids);
    Batch *const batches = PyMem_New(Batch, n_columns);
    cache_column *const columns = PyMem_New(cache_column, n_columns);
    PyObject *done = NULL;
    if (batches == NULL || columns == NULL) {
        PyErr_NoMemory();
    } else if (describe(blocks, n, batches, columns) == 0) {
        Outcome outcome;
        Py_BEGIN_ALLOW_THREADS put_each(mapping->handle, PyArray_DATA(ids), n, batches, columns, n_columns, &outcome);
        Py_END_ALLOW_THREADS done =
            Py_BuildValue("nnN", (Py_ssize_t)outcome.seen, (Py_ssize_t)outcome.stored, error_of(outcome.code));
    }
    PyMem_Free(columns);
    PyMem_Free(batches);
    Py_DECREF(ids);
    return done;
}
