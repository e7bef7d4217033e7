// SPDX-License-Identifier: Apache-2.0
// Row ids as Python gives them. What is none is refused here, by value and with the range: the library would be handed
// a number that was cut off.
#include "rows.h"

static int raise_outside(PyObject *number) {
    PyObject *const text = PyUnicode_FromFormat("row id %.60R is not in 0..%lld", number, (long long)INT64_MAX);
    if (text != NULL) raise_error(CACHE_EINVAL, PyUnicode_AsUTF8(text));
    Py_XDECREF(text);
    return -1;
}

static int raise_no_integer(PyObject *object) {
    const int many = PyArray_Check(object) || PyList_Check(object) || PyTuple_Check(object);
    PyErr_Format(PyExc_TypeError, "a row id is an integer, not %s %.60R%s", Py_TYPE(object)->tp_name, object,
                 many ? "; contains, get_many and gather take many" : "");
    return -1;
}

static int64_t id_of_integer(PyObject *number) {
    int overflow;
    const int64_t id = PyLong_AsLongLongAndOverflow(number, &overflow);
    return overflow == 0 ? id : raise_outside(number);
}

int64_t id_of_object(PyObject *object) {
    if (PyLong_CheckExact(object)) return id_of_integer(object);
    if (PyBool_Check(object) || PyArray_IsScalar(object, Bool))
        return raise_no_integer(object); // an index to Python, here always a mistake
    PyObject *const number = PyNumber_Index(object);
    if (number == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) return -1;
        PyErr_Clear();
        return raise_no_integer(object);
    }
    const int64_t id = id_of_integer(number);
    Py_DECREF(number);
    return id;
}

int id_if_any(PyObject *object, int64_t *id) {
    *id = id_of_object(object);
    if (*id >= 0 || !PyErr_Occurred()) return *id >= 0;
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        if (PyObject_Hash(object) == -1) { // a list of ids, say, where one is asked for
            PyErr_Restore(type, value, traceback);
            return -1;
        }
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_ValueError)) return -1;
    PyErr_Clear();
    return 0;
}

// A list that NumPy makes no integers of: one by one, which finds the number that is in the way.
static PyArrayObject *ids_one_by_one(PyObject *object) {
    PyObject *const items = PySequence_Fast(object, "row ids are a list or a vector of integers");
    if (items == NULL) return NULL;
    npy_intp n = PySequence_Fast_GET_SIZE(items);
    PyArrayObject *ids = (PyArrayObject *)PyArray_SimpleNew(1, &n, NPY_INT64);
    for (npy_intp i = 0; ids != NULL && i < n; i++) {
        const int64_t id = id_of_object(PySequence_Fast_GET_ITEM(items, i));
        if (id == -1 && PyErr_Occurred())
            Py_CLEAR(ids);
        else
            ((int64_t *)PyArray_DATA(ids))[i] = id;
    }
    Py_DECREF(items);
    return ids;
}

// Integers of any width. Those of 64 bits without a sign that have no place among row ids have become negative.
static PyArrayObject *ids_of_integers(PyArrayObject *given) {
    PyArrayObject *ids =
        (PyArrayObject *)PyArray_FROMANY((PyObject *)given, NPY_INT64, 1, 1, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST);
    if (ids == NULL || !PyArray_ISUNSIGNED(given)) return ids;
    const int64_t *const id = PyArray_DATA(ids);
    for (npy_intp i = 0, n = PyArray_SIZE(ids); i < n; i++) {
        if (id[i] >= 0) continue;
        PyObject *const number = PyLong_FromUnsignedLongLong((uint64_t)id[i]);
        if (number != NULL) raise_outside(number);
        Py_XDECREF(number);
        Py_DECREF(ids);
        return NULL;
    }
    return ids;
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
        PyErr_Format(PyExc_TypeError, "row ids are a list or a vector of integers, not %s %.60R of %d dimensions",
                     Py_TYPE(object)->tp_name, object, PyArray_NDIM(given));
    else if (PyArray_SIZE(given) == 0 || PyArray_ISINTEGER(given))
        ids = ids_of_integers(given);
    else if (!PyArray_Check(object) || PyArray_ISOBJECT(given))
        ids = ids_one_by_one(object);
    else
        PyErr_Format(PyExc_TypeError,
                     "row ids are integers, not %R: ids.astype('int64') makes integers of whole numbers",
                     (PyObject *)PyArray_DESCR(given));
    Py_DECREF(given);
    return ids;
}
