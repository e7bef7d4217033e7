// SPDX-License-Identifier: Apache-2.0
// Gatherer: a thread that copies whole rows into batch arrays and never has the GIL. Python hands it batches ahead of
// their use and collects them in the same order; while the trainer computes, its next batches are being copied.
#include "rows.h"

#include <pthread.h>
#include <unistd.h>

// One batch: column i of the rows `ids` goes to outs[i].
typedef struct Job {
    struct Job *next;
    Mapping *mapping;
    PyArrayObject *ids;
    PyObject *outs; // a tuple of arrays; the batches point into them
    uint32_t n_columns;
    int done;
    int all; // every row was there and had these columns
    Batch batches[];
} Job;

typedef struct {
    PyObject_HEAD pthread_t thread;
    pthread_mutex_t lock; // of all that follows
    pthread_cond_t changed;
    Job *first, *last; // not collected yet, oldest first
    Job *todo;         // the oldest of them that is not done
    int stop;
    pid_t pid; // whose thread it is: a forked child has none
} Gatherer;

static void job_free(Job *job) {
    Py_XDECREF(job->mapping);
    Py_XDECREF(job->ids);
    Py_XDECREF(job->outs);
    PyMem_Free(job);
}

static Job *job_new(Mapping *mapping, PyObject *ids, PyObject *outs) {
    if (!PyTuple_Check(outs) || PyTuple_GET_SIZE(outs) < 1)
        return (Job *)PyErr_Format(PyExc_TypeError, "outs must be a tuple with an array per column");
    const Py_ssize_t n_columns = PyTuple_GET_SIZE(outs);
    Job *const job = PyMem_Calloc(1, sizeof(Job) + sizeof(Batch) * (size_t)n_columns);
    if (job == NULL) return (Job *)PyErr_NoMemory();
    Py_INCREF(job->mapping = mapping);
    Py_INCREF(job->outs = outs);
    job->n_columns = (uint32_t)n_columns;
    job->ids = ids_of_object(ids);
    int failed = job->ids == NULL;
    for (Py_ssize_t i = 0; !failed && i < n_columns; i++)
        failed = batch_of_out(PyTuple_GET_ITEM(outs, i), (size_t)PyArray_SIZE(job->ids), &job->batches[i]) != 0;
    if (!failed) return job;
    job_free(job);
    return NULL;
}

// Runs without the GIL.
static void job_do(Job *job) {
    job->all = copy_whole_rows(job->mapping->handle, job->batches, job->n_columns, PyArray_DATA(job->ids),
                               (size_t)PyArray_SIZE(job->ids));
}

PyObject *gather_rows(Mapping *mapping, PyObject *ids, PyObject *outs) {
    Job *const job = job_new(mapping, ids, outs);
    if (job == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS job_do(job);
    Py_END_ALLOW_THREADS PyObject *const all = PyBool_FromLong(job->all);
    job_free(job);
    return all;
}

static void *gatherer_thread(void *argument) {
    Gatherer *const self = argument;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        while (self->todo == NULL && !self->stop)
            pthread_cond_wait(&self->changed, &self->lock);
        if (self->stop) break;
        Job *const job = self->todo;
        pthread_mutex_unlock(&self->lock);
        job_do(job);
        pthread_mutex_lock(&self->lock);
        job->done = 1;
        self->todo = job->next;
        pthread_cond_broadcast(&self->changed);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

static PyObject *gatherer_new(PyTypeObject *type, PyObject *Py_UNUSED(arguments), PyObject *Py_UNUSED(keywords)) {
    Gatherer *const self = (Gatherer *)type->tp_alloc(type, 0); // all zero
    if (self == NULL) return NULL;
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, NULL);
    const int rc = pthread_create(&self->thread, NULL, gatherer_thread, self);
    if (rc == 0) {
        self->pid = getpid();
        return (PyObject *)self;
    }
    Py_DECREF(self);
    errno = rc;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static void gatherer_dealloc(Gatherer *self) {
    if (self->pid == getpid()) {
        pthread_mutex_lock(&self->lock);
        self->stop = 1;
        pthread_cond_broadcast(&self->changed);
        pthread_mutex_unlock(&self->lock);
        Py_BEGIN_ALLOW_THREADS pthread_join(self->thread, NULL);
        Py_END_ALLOW_THREADS for (Job *job = self->first, *next; job != NULL; job = next) {
            next = job->next;
            job_free(job);
        }
    } // In a forked child the list may be half changed: what its parent had handed over stays.
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int mine(const Gatherer *self) {
    if (self->pid == getpid()) return 1;
    PyErr_SetString(PyExc_RuntimeError, "a gatherer belongs to the process that made it: make another one after fork");
    return 0;
}

static PyObject *gatherer_submit(Gatherer *self, PyObject *const *arguments, Py_ssize_t n) {
    if (n != 3) return PyErr_Format(PyExc_TypeError, "submit(cache, ids, outs) takes 3 arguments, not %zd", n);
    if (!mine(self)) return NULL;
    Mapping *const mapping = mapping_of_rows(arguments[0]);
    Job *const job = mapping == NULL ? NULL : job_new(mapping, arguments[1], arguments[2]);
    Py_XDECREF(mapping);
    if (job == NULL) return NULL;
    pthread_mutex_lock(&self->lock); // held for a few instructions only, never while rows are copied
    if (self->first == NULL)
        self->first = job;
    else
        self->last->next = job;
    self->last = job;
    if (self->todo == NULL) self->todo = job;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
    Py_RETURN_NONE;
}

static PyObject *gatherer_result(Gatherer *self, PyObject *Py_UNUSED(none)) {
    if (!mine(self)) return NULL;
    Job *const job = self->first; // changed with the GIL held only
    if (job == NULL) return PyErr_Format(PyExc_ValueError, "nothing was submitted of which the result is not known");
    Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&self->lock);
    while (!job->done)
        pthread_cond_wait(&self->changed, &self->lock);
    if (self->first == job) self->first = job->next;
    pthread_mutex_unlock(&self->lock);
    Py_END_ALLOW_THREADS PyObject *const all = PyBool_FromLong(job->all);
    job_free(job);
    return all;
}

static PyMethodDef gatherer_methods[] = {
    {"submit", (PyCFunction)(void (*)(void))gatherer_submit, METH_FASTCALL,
     "submit($self, cache, ids, outs, /)\n--\n\n"
     "Begins to copy: column i of the n rows `ids` into outs[i], an array of shape (n, *shape of a row)."},
    {"result", (PyCFunction)gatherer_result, METH_NOARGS,
     "result($self, /)\n--\n\n"
     "Waits for the oldest batch. True: all its rows were copied. False: some were not there, or have other columns."},
    {NULL, NULL, 0, NULL}};

PyTypeObject GathererType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "libcache._rows.Gatherer",
    .tp_basicsize = sizeof(Gatherer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "A thread that copies rows into batches without the GIL. For one thread of Python at a time.",
    .tp_new = gatherer_new,
    .tp_dealloc = (destructor)gatherer_dealloc,
    .tp_methods = gatherer_methods,
};
