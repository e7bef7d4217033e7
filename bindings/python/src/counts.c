// SPDX-License-Identifier: Apache-2.0
// Counters that several processes share: Python has shared memory, but no way to add to it that loses nothing.
#include "rows.h"

PyObject *add_to_counter(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t n) {
    if (n != 3) return PyErr_Format(PyExc_TypeError, "add(counters, index, amount) takes 3 arguments, not %zd", n);
    const Py_ssize_t index = PyLong_AsSsize_t(arguments[1]);
    const int64_t amount = PyLong_AsLongLong(arguments[2]);
    if (PyErr_Occurred()) return NULL;
    Py_buffer buffer;
    if (PyObject_GetBuffer(arguments[0], &buffer, PyBUF_WRITABLE) != 0) return NULL;
    const int inside = index >= 0 && index < buffer.len / (Py_ssize_t)sizeof(int64_t);
    // relaxed: a count says nothing about other memory, and whoever reads it wants a number, not an order
    if (inside) __atomic_fetch_add((int64_t *)buffer.buf + index, amount, __ATOMIC_RELAXED);
    PyBuffer_Release(&buffer);
    if (!inside) return PyErr_Format(PyExc_IndexError, "there is no counter %zd", index);
    Py_RETURN_NONE;
}
