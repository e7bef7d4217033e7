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

int columns_init(void) {
    for (uint32_t dtype = CACHE_BOOL; dtype <= LAST_DTYPE; dtype++) {
        descrs[dtype] = PyArray_DescrFromType(kTypeNumbers[dtype]);
        if (descrs[dtype] == NULL) return -1;
        if (dtype <= CACHE_FLOAT64 && dtype != CACHE_BFLOAT16) dtypes[kTypeNumbers[dtype]] = dtype;
    }
    // long and long long are different numbers for the same 8 bytes
    dtypes[NPY_LONG] = dtypes[NPY_LONGLONG] = CACHE_INT64;
    dtypes[NPY_ULONG] = dtypes[NPY_ULONGLONG] = CACHE_UINT64;
    return 0;
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

PyObject *row_of_view(Mapping *mapping, const cache_view *view) {
    const int n_columns = cache_view_columns(view);
    if (n_columns < 0) return raise_code(n_columns);
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
            item = array_of_memory((PyObject *)mapping, column.dtype, (int)column.ndim, column.shape, column.data, 0);
        if (item == NULL) {
            Py_DECREF(row);
            return NULL;
        }
        PyTuple_SET_ITEM(row, i, item);
    }
    return row;
}

int64_t id_of_object(PyObject *object) {
    if (PyLong_Check(object)) return PyLong_AsLongLong(object);
    PyObject *const number = PyNumber_Index(object);
    if (number == NULL) return -1;
    const int64_t id = PyLong_AsLongLong(number);
    Py_DECREF(number);
    return id;
}

PyArrayObject *ids_of_object(PyObject *object) {
    if (PyArray_CheckExact(object) && PyArray_NDIM((PyArrayObject *)object) == 1 &&
        PyArray_TYPE((PyArrayObject *)object) == NPY_INT64 && PyArray_ISCARRAY_RO((PyArrayObject *)object)) {
        Py_INCREF(object);
        return (PyArrayObject *)object;
    }
    PyArrayObject *const given = (PyArrayObject *)PyArray_FROM_O(object);
    if (given == NULL) return NULL;
    PyArrayObject *ids = NULL;
    if (PyArray_NDIM(given) != 1)
        PyErr_Format(PyExc_TypeError, "row ids are a vector of integers; this array has %d dimensions",
                     PyArray_NDIM(given));
    else if (PyArray_SIZE(given) != 0 && !PyArray_ISINTEGER(given))
        PyErr_Format(PyExc_TypeError, "row ids are integers, not %R", (PyObject *)PyArray_DESCR(given));
    else
        ids = (PyArrayObject *)PyArray_FROMANY((PyObject *)given, NPY_INT64, 1, 1,
                                               NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST);
    Py_DECREF(given);
    return ids;
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

int column_of_object(PyObject *object, Py_ssize_t position, cache_column *column, int64_t *length, PyObject **owner) {
    if (PyArray_CheckExact(object) && PyArray_IS_C_CONTIGUOUS((PyArrayObject *)object)) {
        const uint32_t dtype = dtype_of_array((PyArrayObject *)object);
        if (dtype != 0) {
            Py_INCREF(*owner = object);
            return describe_array((PyArrayObject *)object, dtype, column);
        }
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
