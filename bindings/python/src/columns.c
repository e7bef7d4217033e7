// SPDX-License-Identifier: Apache-2.0
// Between Python objects and columns: arrays made from shared memory without a copy, and buffers handed to the library.
#include "rows.h"

#include <string.h>

_Static_assert(sizeof(npy_intp) == sizeof(int64_t), "an array's dimensions are handed to the library as they are");

PyObject *storable;
static PyArray_Descr *descrs[LAST_DTYPE + 1];
static uint32_t dtypes[NPY_NTYPES]; // cache_dtype by NumPy's type number

// bfloat16, which NumPy does not have, comes as its 16 bits; bytes and text come as bytes.
static const int kTypeNumbers[LAST_DTYPE + 1] = {
    NPY_NOTYPE, NPY_BOOL,   NPY_INT8,    NPY_INT16,  NPY_INT32,   NPY_INT64,   NPY_UINT8, NPY_UINT16,
    NPY_UINT32, NPY_UINT64, NPY_FLOAT16, NPY_UINT16, NPY_FLOAT32, NPY_FLOAT64, NPY_UINT8, NPY_UINT8};

static PyTypeObject HeldType;

int columns_init(void) {
    for (uint32_t dtype = CACHE_BOOL; dtype <= LAST_DTYPE; dtype++) {
        descrs[dtype] = PyArray_DescrFromType(kTypeNumbers[dtype]);
        if (descrs[dtype] == NULL) return -1;
        if (dtype <= CACHE_FLOAT64 && dtype != CACHE_BFLOAT16) dtypes[kTypeNumbers[dtype]] = dtype;
    }
    // long and long long are different numbers for the same 8 bytes
    dtypes[NPY_LONG] = dtypes[NPY_LONGLONG] = CACHE_INT64;
    dtypes[NPY_ULONG] = dtypes[NPY_ULONGLONG] = CACHE_UINT64;
    return PyType_Ready(&HeldType);
}

uint32_t dtype_of_array(PyArrayObject *array) {
    const int number = PyArray_TYPE(array);
    return number >= 0 && number < NPY_NTYPES && PyArray_ISNOTSWAPPED(array) ? dtypes[number] : 0;
}

PyArray_Descr *descr_of_dtype(uint32_t dtype) {
    if (dtype >= CACHE_BOOL && dtype <= LAST_DTYPE) return descrs[dtype];
    PyErr_Format(PyExc_ValueError, "dtype %u is none of enum cache_dtype", dtype);
    return NULL;
}

PyObject *array_of_memory(PyObject *owner, uint32_t dtype, int ndim, const int64_t *shape, void *data, int writable) {
    static int64_t nothing; // NumPy would allocate for a null pointer, and then own what it must not
    PyArray_Descr *const descr = descr_of_dtype(dtype);
    if (descr == NULL) return NULL;
    Py_INCREF(descr);
    const int flags = NPY_ARRAY_C_CONTIGUOUS | (writable ? NPY_ARRAY_WRITEABLE : 0);
    PyObject *const array = PyArray_NewFromDescr(&PyArray_Type, descr, ndim, (const npy_intp *)shape, NULL,
                                                 data != NULL ? data : &nothing, flags, NULL);
    if (array == NULL) return NULL;
    Py_INCREF(owner);
    if (PyArray_SetBaseObject((PyArrayObject *)array, owner) == 0) return array;
    Py_DECREF(array);
    return NULL;
}

// Owns the view of a row that was read from disk: its memory is the view's own, and ends with it.
typedef struct {
    PyObject_HEAD Mapping *mapping;
    cache_view view;
} Held;

static void held_dealloc(Held *self) {
    cache_view_release(&self->view);
    Py_DECREF(self->mapping);
    PyObject_Free(self);
}

static PyTypeObject HeldType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "libcache._rows.Held",
    .tp_basicsize = sizeof(Held),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Keeps a row that was read from disk for as long as an array points into it.",
    .tp_dealloc = (destructor)held_dealloc,
};

// A new reference to what the arrays of a row must keep. *view is released then, if releasing it ended them.
static PyObject *owner_of_row(Mapping *mapping, cache_view *view) {
    if (!any_from_disk(view, 1)) { // in memory: the row stays as long as the mapping
        Py_INCREF(mapping);
        return (PyObject *)mapping;
    }
    Held *const held = PyObject_New(Held, &HeldType);
    if (held == NULL) return NULL;
    Py_INCREF(held->mapping = mapping);
    held->view = *view;
    view->cache = NULL;
    return (PyObject *)held;
}

// A new tuple with an entry per column, whose arrays keep the owner.
static PyObject *fill_row(PyObject *owner, const cache_view *view, int n_columns) {
    PyObject *const row = PyTuple_New(n_columns);
    for (int i = 0; row != NULL && i < n_columns; i++) {
        cache_column column;
        PyObject *item = NULL;
        const int rc = cache_view_column(view, (uint32_t)i, &column);
        if (rc != 0)
            raise_code(rc);
        else if (column.dtype == CACHE_STRING)
            item = PyUnicode_DecodeUTF8(column.data, (Py_ssize_t)column.bytes, "strict");
        else
            item = array_of_memory(owner, column.dtype, (int)column.ndim, column.shape, column.data, 0);
        if (item == NULL) {
            Py_DECREF(row);
            return NULL;
        }
        PyTuple_SET_ITEM(row, i, item);
    }
    return row;
}

PyObject *row_of_view(Mapping *mapping, cache_view *view) {
    const int n_columns = cache_view_columns(view);
    if (n_columns < 0) return raise_code(n_columns);
    PyObject *const owner = owner_of_row(mapping, view);
    if (owner == NULL) return NULL;
    const cache_view *const kept = owner == (PyObject *)mapping ? view : &((Held *)owner)->view;
    PyObject *const row = fill_row(owner, kept, n_columns);
    Py_DECREF(owner);
    return row;
}

static void describe(cache_column *column, void *data, uint64_t bytes, uint32_t dtype, uint32_t ndim,
                     const int64_t *shape) {
    *column = (cache_column){.data = data, .bytes = bytes, .shape = shape, .dtype = dtype, .ndim = ndim};
}

static int describe_array(PyArrayObject *array, uint32_t dtype, cache_column *column) {
    describe(column, PyArray_DATA(array), (uint64_t)PyArray_NBYTES(array), dtype, (uint32_t)PyArray_NDIM(array),
             (const int64_t *)PyArray_DIMS(array));
    return 0;
}

// A plain Python number, which is what labels are. 0: it is none, or does not fit. *value, the column's room for a
// length, holds the number: a scalar has no length.
static int describe_number(PyObject *object, cache_column *column, int64_t *value) {
    if (PyLong_CheckExact(object)) {
        int overflow;
        *value = PyLong_AsLongLongAndOverflow(object, &overflow);
        if (overflow != 0) return 0;
        describe(column, value, sizeof(int64_t), CACHE_INT64, 0, NULL);
    } else if (PyFloat_CheckExact(object)) {
        const double number = PyFloat_AS_DOUBLE(object);
        memcpy(value, &number, sizeof(double));
        describe(column, value, sizeof(double), CACHE_FLOAT64, 0, NULL);
    } else if (PyBool_Check(object)) {
        *(uint8_t *)value = object == Py_True;
        describe(column, value, 1, CACHE_BOOL, 0, NULL);
    } else {
        return 0;
    }
    return 1;
}

int column_of_object(PyObject *object, Py_ssize_t position, cache_column *column, int64_t *length, PyObject **owner) {
    if (PyArray_CheckExact(object) && PyArray_IS_C_CONTIGUOUS((PyArrayObject *)object)) {
        const uint32_t dtype = dtype_of_array((PyArrayObject *)object);
        if (dtype != 0) {
            Py_INCREF(*owner = object);
            return describe_array((PyArrayObject *)object, dtype, column);
        }
    }
    if (describe_number(object, column, length)) {
        Py_INCREF(*owner = object);
        return 0;
    }
    if (PyBytes_Check(object)) {
        Py_INCREF(*owner = object);
        *length = PyBytes_GET_SIZE(object);
        describe(column, PyBytes_AS_STRING(object), (uint64_t)*length, CACHE_BYTES, 1, length);
        return 0;
    }
    if (PyUnicode_Check(object)) {
        Py_ssize_t bytes = 0;
        const char *const text = PyUnicode_AsUTF8AndSize(object, &bytes); // kept by the object
        if (text == NULL) return -1;
        Py_INCREF(*owner = object);
        *length = bytes;
        describe(column, (void *)text, (uint64_t)bytes, CACHE_STRING, 1, length);
        return 0;
    }
    *owner = PyObject_CallFunction(storable, "On", object, position);
    if (*owner == NULL) return -1;
    if (PyArray_CheckExact(*owner) && PyArray_IS_C_CONTIGUOUS((PyArrayObject *)*owner)) {
        const uint32_t dtype = dtype_of_array((PyArrayObject *)*owner);
        if (dtype != 0) return describe_array((PyArrayObject *)*owner, dtype, column);
    }
    PyErr_Format(PyExc_TypeError, "column %zd: %R cannot be stored", position, *owner);
    return -1;
}
