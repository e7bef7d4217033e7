// SPDX-License-Identifier: Apache-2.0
// The extension module libcache._rows: the calls of a Cache that are made once per row or batch. Everything else goes
// through cffi (libcache._capi). Cache (libcache/_cache.py) is a subclass of Rows and knows how to attach it.
#define LIBCACHE_ROWS_MODULE
#include "rows.h"

#include <stddef.h>

static PyObject *make_error; // libcache._errors.make_error(code, message): an exception

PyObject *raise_error(int64_t code, const char *text) {
    if (text == NULL) return NULL;
    PyObject *const error = PyObject_CallFunction(make_error, "Ls", (long long)code, text);
    if (error == NULL) return NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    return NULL;
}

PyObject *raise_code(int64_t code) {
    const char *const text = cache_last_error();
    return raise_error(code, *text != 0 ? text : cache_strerror((int)code));
}

// ---- the owner of a C handle -----------------------------------------------------------------------------

Mapping *mapping_new(cache *handle) {
    Mapping *const mapping = PyObject_New(Mapping, &MappingType);
    if (mapping == NULL)
        cache_close(handle);
    else {
        mapping->handle = handle;
        mapping->wary = 1; // nothing is known yet
    }
    return mapping;
}

static void mapping_dealloc(Mapping *self) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback); // another thread may raise and catch while this one waits for the server
    Py_BEGIN_ALLOW_THREADS cache_close(self->handle);
    Py_END_ALLOW_THREADS PyErr_Restore(type, value, traceback);
    PyObject_Free(self);
}

static PyObject *mapping_array(Mapping *self, PyObject *const *arguments, Py_ssize_t n) {
    if (n != 3) return PyErr_Format(PyExc_TypeError, "array(address, dtype, shape) takes 3 arguments, not %zd", n);
    void *const address = PyLong_AsVoidPtr(arguments[0]);
    const unsigned long dtype = PyLong_AsUnsignedLong(arguments[1]);
    if (PyErr_Occurred()) return NULL;
    PyObject *const extents = PySequence_Tuple(arguments[2]);
    if (extents == NULL) return NULL;
    int64_t shape[NPY_MAXDIMS];
    const Py_ssize_t ndim = PyTuple_GET_SIZE(extents);
    PyObject *array = NULL;
    for (Py_ssize_t i = 0; i < ndim && i < NPY_MAXDIMS; i++)
        shape[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(extents, i));
    if (ndim > NPY_MAXDIMS)
        PyErr_Format(PyExc_ValueError, "%zd dimensions are too many", ndim);
    else if (!PyErr_Occurred())
        array = array_of_memory((PyObject *)self, (uint32_t)dtype, (int)ndim, shape, address, 1);
    Py_DECREF(extents);
    return array;
}

static PyObject *mapping_address(Mapping *self, void *Py_UNUSED(closure)) {
    return PyLong_FromVoidPtr(self->handle);
}

static PyMethodDef mapping_methods[] = {
    {"array", (PyCFunction)(void (*)(void))mapping_array, METH_FASTCALL,
     "array($self, address, dtype, shape, /)\n--\n\nA writable array of reserved memory, whose base is this owner."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef mapping_properties[] = {
    {"address", (getter)mapping_address, NULL, "The C handle, as a number.", NULL}, {NULL, NULL, NULL, NULL, NULL}};

PyTypeObject MappingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "libcache._rows.Mapping",
    .tp_basicsize = sizeof(Mapping),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Keeps a region mapped for as long as an array points into it (it is the base of such arrays).",
    .tp_dealloc = (destructor)mapping_dealloc,
    .tp_methods = mapping_methods,
    .tp_getset = mapping_properties,
};

// ---- Rows ------------------------------------------------------------------------------------------------

typedef struct {
    PyObject_HEAD Mapping *mapping; // NULL: not attached yet, or closed
} Rows;

static void rows_dealloc(Rows *self) {
    Py_CLEAR(self->mapping);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

// A new reference, which keeps the handle open while a call without the GIL uses it.
static Mapping *attached(Rows *self) {
    if (self->mapping == NULL) {
        PyObject *const done = PyObject_CallMethod((PyObject *)self, "_attach", NULL);
        if (done == NULL) return NULL;
        Py_DECREF(done);
        if (self->mapping == NULL) {
            PyErr_SetString(PyExc_RuntimeError, "the cache was closed by another thread while it was being opened");
            return NULL;
        }
    }
    Py_INCREF(self->mapping);
    return self->mapping;
}

static PyObject *rows_mapping(Rows *self, PyObject *Py_UNUSED(none)) {
    return (PyObject *)attached(self);
}

static PyObject *rows_adopt(Rows *self, PyObject *address) {
    cache *const handle = PyLong_AsVoidPtr(address);
    if (handle == NULL) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "no handle");
    Mapping *const mapping = mapping_new(handle);
    if (mapping == NULL) return NULL;
    if (self->mapping == NULL)
        self->mapping = mapping;
    else // another thread was faster
        Py_DECREF(mapping);
    Py_RETURN_NONE;
}

static PyObject *rows_release(Rows *self, PyObject *Py_UNUSED(none)) {
    Py_CLEAR(self->mapping);
    Py_RETURN_NONE;
}

// A new row tuple; NULL with or (a miss, if `quiet`) without an exception.
static PyObject *get_row(Rows *self, PyObject *id_object, int quiet) {
    const int64_t id = id_of_object(id_object);
    if (id == -1 && PyErr_Occurred()) return NULL;
    Mapping *const mapping = attached(self);
    if (mapping == NULL) return NULL;
    cache_view view;
    PyObject *row = NULL;
    const int rc = find_row(mapping, id, &view);
    if (rc == 0) {
        row = row_of_view(mapping, &view);
        cache_view_release(&view);
    } else if (rc != CACHE_ENOTFOUND || !quiet) {
        raise_code(rc);
    }
    Py_DECREF(mapping);
    return row;
}

static PyObject *rows_get(Rows *self, PyObject *const *arguments, Py_ssize_t n) {
    if (n < 1 || n > 2)
        return PyErr_Format(PyExc_TypeError, "get(row_id, default=None) takes 1 or 2 arguments, not %zd", n);
    PyObject *row = get_row(self, arguments[0], 1);
    if (row == NULL && !PyErr_Occurred()) Py_INCREF(row = n == 2 ? arguments[1] : Py_None);
    return row;
}

static PyObject *rows_subscript(PyObject *self, PyObject *id) {
    return get_row((Rows *)self, id, 0);
}

static int rows_contains_one(PyObject *self, PyObject *id_object) {
    Mapping *const mapping = attached((Rows *)self);
    if (mapping == NULL) return -1;
    int64_t id;
    uint8_t found = 0;
    int64_t rc = id_if_any(id_object, &id);
    if (rc <= 0) {
        Py_DECREF(mapping);
        return (int)rc;
    }
    rc = cache_contains(mapping->handle, &id, 1, &found);
    Py_DECREF(mapping);
    if (rc >= 0) return found;
    raise_code(rc);
    return -1;
}

static PyObject *rows_contains(Rows *self, PyObject *ids_object) {
    PyArrayObject *const ids = ids_of_object(ids_object);
    if (ids == NULL) return NULL;
    Mapping *const mapping = attached(self);
    PyArrayObject *found = NULL;
    if (mapping != NULL) {
        npy_intp n = PyArray_SIZE(ids);
        found = (PyArrayObject *)PyArray_SimpleNew(1, &n, NPY_BOOL);
        if (found != NULL) {
            const int64_t rc = cache_contains(mapping->handle, PyArray_DATA(ids), (size_t)n, PyArray_DATA(found));
            if (rc < 0) {
                raise_code(rc);
                Py_CLEAR(found);
            }
        }
        Py_DECREF(mapping);
    }
    Py_DECREF(ids);
    return (PyObject *)found;
}

static PyObject *rows_of_views(Mapping *mapping, cache_view *views, Py_ssize_t n) {
    PyObject *const rows = PyList_New(n);
    for (Py_ssize_t i = 0; rows != NULL && i < n; i++) {
        PyObject *row = Py_None;
        if (views[i].cache == NULL) {
            Py_INCREF(row);
        } else if ((row = row_of_view(mapping, &views[i])) == NULL) {
            Py_DECREF(rows);
            return NULL;
        }
        PyList_SET_ITEM(rows, i, row);
    }
    return rows;
}

static PyObject *rows_get_many(Rows *self, PyObject *ids_object) {
    PyArrayObject *const ids = ids_of_object(ids_object);
    if (ids == NULL) return NULL;
    const Py_ssize_t n = PyArray_SIZE(ids);
    Mapping *const mapping = attached(self);
    cache_view *const views = mapping == NULL ? NULL : PyMem_New(cache_view, n);
    PyObject *rows = NULL;
    if (mapping != NULL && views == NULL) PyErr_NoMemory();
    if (views != NULL) {
        const int64_t rc = find_rows(mapping, PyArray_DATA(ids), (size_t)n, views);
        rows = rc < 0 ? raise_code(rc) : rows_of_views(mapping, views, n);
        for (Py_ssize_t i = 0; rc >= 0 && i < n; i++)
            cache_view_release(&views[i]);
    }
    PyMem_Free(views);
    Py_XDECREF(mapping);
    Py_DECREF(ids);
    return rows;
}

static PyObject *rows_gather(Rows *self, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"ids", "column", "out", "found", NULL};
    PyObject *ids, *out = Py_None, *found = Py_None;
    unsigned column = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|IOO:gather", names, &ids, &column, &out, &found))
        return NULL;
    Mapping *const mapping = attached(self);
    if (mapping == NULL) return NULL;
    PyObject *const batch = gather(mapping, ids, column, out, found);
    Py_DECREF(mapping);
    return batch;
}

static PyObject *rows_gather_rows(Rows *self, PyObject *const *arguments, Py_ssize_t n) {
    if (n != 2) return PyErr_Format(PyExc_TypeError, "_gather_rows(ids, outs) takes 2 arguments, not %zd", n);
    Mapping *const mapping = attached(self);
    if (mapping == NULL) return NULL;
    PyObject *const all = gather_rows(mapping, arguments[0], arguments[1]);
    Py_DECREF(mapping);
    return all;
}

static PyObject *rows_put_rows(Rows *self, PyObject *const *arguments, Py_ssize_t n) {
    if (n != 2) return PyErr_Format(PyExc_TypeError, "_put_rows(ids, blocks) takes 2 arguments, not %zd", n);
    Mapping *const mapping = attached(self);
    if (mapping == NULL) return NULL;
    PyObject *const done = put_rows(mapping, arguments[0], arguments[1]);
    Py_DECREF(mapping);
    return done;
}

enum { kFewColumns = 8 };

// The columns of one put; `owners` keeps their bytes alive.
typedef struct {
    cache_column *columns;
    int64_t *lengths;
    PyObject **owners;
} Columns;

static int fill_columns(Columns *to, PyObject *const *objects, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++)
        if (column_of_object(objects[i], i, &to->columns[i], &to->lengths[i], &to->owners[i]) != 0) return -1;
    return 0;
}

// id: where to put the row; NULL: it is appended.
static PyObject *store_columns(Rows *self, const int64_t *id, PyObject *const *objects, Py_ssize_t n, Columns *room) {
    Mapping *const mapping = attached(self);
    if (mapping == NULL) return NULL;
    PyObject *stored = NULL;
    if (fill_columns(room, objects, n) == 0) {
        int rc;
        int64_t next = 0;
        Py_BEGIN_ALLOW_THREADS if (id == NULL) rc = cache_append(mapping->handle, room->columns, (uint32_t)n, &next);
        else rc = cache_put(mapping->handle, *id, room->columns, (uint32_t)n);
        Py_END_ALLOW_THREADS if (rc < 0) raise_code(rc);
        else stored = id == NULL ? PyLong_FromLongLong(next) : PyBool_FromLong(rc == 0);
    }
    for (Py_ssize_t i = 0; i < n; i++)
        Py_XDECREF(room->owners[i]);
    Py_DECREF(mapping);
    return stored;
}

static PyObject *store_row(Rows *self, const int64_t *id, PyObject *const *objects, Py_ssize_t n) {
    if (n > (Py_ssize_t)CACHE_MAX_COLUMNS)
        return PyErr_Format(PyExc_ValueError, "a row has at most %u columns, not %zd", CACHE_MAX_COLUMNS, n);
    cache_column columns[kFewColumns];
    int64_t lengths[kFewColumns];
    PyObject *owners[kFewColumns] = {NULL};
    if (n <= kFewColumns) return store_columns(self, id, objects, n, &(Columns){columns, lengths, owners});
    char *const room = PyMem_Calloc((size_t)n, sizeof(cache_column) + sizeof(int64_t) + sizeof(PyObject *));
    if (room == NULL) return PyErr_NoMemory();
    cache_column *const many = (cache_column *)room;
    Columns all = {many, (int64_t *)(many + n), (PyObject **)((int64_t *)(many + n) + n)};
    PyObject *const stored = store_columns(self, id, objects, n, &all);
    PyMem_Free(room);
    return stored;
}

static PyObject *rows_put(Rows *self, PyObject *const *arguments, Py_ssize_t n) {
    if (n < 2) return PyErr_Format(PyExc_TypeError, "put(row_id, column, ...) takes a row id and at least one column");
    const int64_t id = id_of_object(arguments[0]);
    if (id == -1 && PyErr_Occurred()) return NULL;
    return store_row(self, &id, arguments + 1, n - 1);
}

static PyObject *rows_append(Rows *self, PyObject *const *arguments, Py_ssize_t n) {
    if (n < 1) return PyErr_Format(PyExc_TypeError, "append(column, ...) takes at least one column");
    return store_row(self, NULL, arguments, n);
}

PyDoc_STRVAR(
    get_text,
    "get($self, row_id, default=None, /)\n--\n\n"
    "The row as a tuple with one entry per column, or `default` if it is not there.\n\n"
    "A column of numbers is a read-only NumPy array that shows the shared memory itself: nothing is copied, and the\n"
    "array stays readable for as long as it lives, also after close(), the session's end or the server's stop. Its "
    "shape\n"
    "is the one it was put with; a scalar has shape (). A column put as str comes back as str (copied), one put as "
    "bytes\n"
    "as a uint8 array (bytes(array) copies it); bfloat16, which NumPy lacks, as uint16.\n\n"
    "    image, label = cache.get(7)              # (28, 28) uint8, () int64\n"
    "    row = cache.get(8) or read_the_source(8) # None on a miss\n\n"
    "A row in memory takes no system call and no waiting; while rows come from disk they are read without the GIL.\n"
    "Raises Gone if the cache was destroyed, InvalidArgument for a number that is not in 0..2**63-1, and TypeError "
    "for\n"
    "what is no integer.");
PyDoc_STRVAR(
    get_many_text,
    "get_many($self, ids, /)\n--\n\n"
    "The rows of these ids, a list with what get() gives for each: a tuple, or None for a miss.\n\n"
    "ids: integers >= 0, of length n. Fetches the memory of the rows ahead, so it is faster than n times get().");
PyDoc_STRVAR(
    gather_text,
    "gather($self, ids, column=0, out=None, found=None)\n--\n\n"
    "Copies one column of n rows into a batch array of shape (n, *shape of a row) and returns it.\n\n"
    "ids     integers >= 0, of length n, in any order, also repeated\n"
    "column  which column, from 0\n"
    "out     a writable array of that shape and of the column's dtype; its rows may be apart. None: a new array\n"
    "found   a bool array of length n that is set to True where the row was there; out is left as it is elsewhere (a "
    "new\n"
    "        one is 0 there). None: a miss raises NotFound, after all other rows were copied\n\n"
    "Every row must have the same dtype and shape: ValueError names one that has not. A copy that takes long, and "
    "reading\n"
    "from disk, releases the GIL. Raises Gone if the cache was destroyed.");
PyDoc_STRVAR(contains_text,
             "contains($self, ids, /)\n--\n\n"
             "A bool array that is True where the row is there. ids: integers >= 0, of length n; others raise "
             "InvalidArgument or\n"
             "TypeError. `7 in cache` asks for one, and is False for whatever no row can have for an id.");
PyDoc_STRVAR(
    put_text,
    "put($self, row_id, /, *columns)\n--\n\n"
    "Stores a row; returns True if this call stored it, False if the row was there before (the first one wins).\n\n"
    "row_id   an integer in 0..2**63-1. Ids of 0..n-1 are looked up fastest\n"
    "columns  one or more of: a NumPy array or anything else with the buffer protocol (any shape, also empty; copied "
    "to\n"
    "         C order and to the machine's byte order where it is not), a number, bytes, or str\n\n"
    "dtypes: bool, int8..int64, uint8..uint64, float16, float32, float64. Anything else is a TypeError that names the\n"
    "column. The bytes are copied; the row is visible to every process when put returns. Waits for the server only "
    "when\n"
    "it must lend more memory, without the GIL. Raises Full when the cache's limit is reached, Gone when it was "
    "destroyed,\n"
    "ServerGone, PermissionDenied (a read-only handle) or Timeout.");

static PyMethodDef rows_methods[] = {
    {"get", (PyCFunction)(void (*)(void))rows_get, METH_FASTCALL, get_text},
    {"get_many", (PyCFunction)rows_get_many, METH_O, get_many_text},
    {"gather", (PyCFunction)(void (*)(void))rows_gather, METH_VARARGS | METH_KEYWORDS, gather_text},
    {"contains", (PyCFunction)rows_contains, METH_O, contains_text},
    {"put", (PyCFunction)(void (*)(void))rows_put, METH_FASTCALL, put_text},
    {"_gather_rows", (PyCFunction)(void (*)(void))rows_gather_rows, METH_FASTCALL,
     "_gather_rows(ids, outs, /)\n--\n\n"
     "Copies all columns, column i into outs[i]. Whether all rows were there and had exactly these columns."},
    {"_put_rows", (PyCFunction)(void (*)(void))rows_put_rows, METH_FASTCALL,
     "_put_rows($self, ids, blocks, /)\n--\n\n"
     "Stores a row for each id, whose column i is its part of blocks[i]: (rows seen to, of these stored by this call,\n"
     "the exception of the row after them or None)."},
    {"_append", (PyCFunction)(void (*)(void))rows_append, METH_FASTCALL,
     "_append($self, /, *columns)\n--\n\nStores the next row of a build; its id."},
    {"_mapping", (PyCFunction)rows_mapping, METH_NOARGS, "The owner of the C handle, attached if need be."},
    {"_adopt", (PyCFunction)rows_adopt, METH_O, "Takes over a C handle, given as a number."},
    {"_release", (PyCFunction)rows_release, METH_NOARGS, "Gives the owner up; arrays keep theirs."},
    {NULL, NULL, 0, NULL}};
static PyMappingMethods rows_as_mapping = {.mp_subscript = rows_subscript};
static PySequenceMethods rows_as_sequence = {.sq_contains = rows_contains_one};

static PyTypeObject RowsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "libcache._rows.Rows",
    .tp_basicsize = sizeof(Rows),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_doc = "The part of Cache that is written in C.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)rows_dealloc,
    .tp_methods = rows_methods,
    .tp_as_mapping = &rows_as_mapping,
    .tp_as_sequence = &rows_as_sequence,
};

Mapping *mapping_of_rows(PyObject *rows) {
    if (PyObject_TypeCheck(rows, &RowsType)) return attached((Rows *)rows);
    return (Mapping *)PyErr_Format(PyExc_TypeError, "not a Cache but a %s", Py_TYPE(rows)->tp_name);
}

static PyObject *connect_python(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *error, *convert;
    if (!PyArg_ParseTuple(arguments, "OO:connect_python", &error, &convert)) return NULL;
    Py_INCREF(error);
    Py_XSETREF(make_error, error);
    Py_INCREF(convert);
    Py_XSETREF(storable, convert);
    Py_RETURN_NONE;
}

static PyObject *row_id(PyObject *Py_UNUSED(module), PyObject *object) {
    const int64_t id = id_of_object(object);
    return id == -1 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(id);
}

static PyMethodDef module_methods[] = {
    {"add", (PyCFunction)(void (*)(void))add_to_counter, METH_FASTCALL,
     "add(counters, index, amount, /)\n--\n\nAdds to one of the int64 in a writable buffer, atomically."},
    {"row_id", row_id, METH_O, "row_id(object, /)\n--\n\nThe number that names a row; raises what get does."},
    {"connect_python", connect_python, METH_VARARGS,
     "connect_python(make_error, storable)\n--\n\nHands over what is written in Python; once, at import."},
    {NULL, NULL, 0, NULL}};
static PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, .m_name = "libcache._rows", .m_size = -1,
                                        .m_doc = "The fast part of libcache.", .m_methods = module_methods};

PyMODINIT_FUNC PyInit__rows(void) {
    import_array();
    if (columns_init() != 0 || PyType_Ready(&MappingType) != 0 || PyType_Ready(&RowsType) != 0 ||
        PyType_Ready(&GathererType) != 0)
        return NULL;
    PyObject *const module = PyModule_Create(&module_definition);
    if (module == NULL) return NULL;
    if (PyModule_AddObjectRef(module, "Rows", (PyObject *)&RowsType) == 0 &&
        PyModule_AddObjectRef(module, "Mapping", (PyObject *)&MappingType) == 0 &&
        PyModule_AddObjectRef(module, "Gatherer", (PyObject *)&GathererType) == 0)
        return module;
    Py_DECREF(module);
    return NULL;
}
