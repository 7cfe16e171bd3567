/* Lookups in embedding tables as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_parts.h"

#include "kernels/ps_lookup.h"
#include "bindings/py_args.h"

/* Arrays of a call, [cap], of which n are borrowed. */
typedef struct borrowed {
    Py_buffer *views;
    const char **names; /* borrowed too */
    size_t n, cap;
} borrowed;

static int make_room(borrowed *b, size_t cap) {
    b->views = PyMem_Calloc(cap, sizeof *b->views);
    b->names = PyMem_Calloc(cap, sizeof *b->names);
    b->cap = cap;
    if (b->views != NULL && b->names != NULL) return 0;
    PyErr_NoMemory();
    return -1;
}

static void release(borrowed *b) {
    while (b->n > 0) PyBuffer_Release(&b->views[--b->n]);
    PyMem_Free(b->views);
    PyMem_Free(b->names);
}

/* Borrow the next array. NULL with an exception. */
static Py_buffer *take(borrowed *b, PyObject *obj, py_item item, int ndim, bool writable, const char *name) {
    Py_buffer *view = &b->views[b->n];
    if (py_array(obj, view, item, writable, name) < 0) return NULL;
    b->names[b->n++] = name;
    return py_need_ndim(view, ndim, name) < 0 ? NULL : view;
}

/* Borrow the next array: dense rows [dim] at any distance from each other. NULL with an exception. */
static Py_buffer *take_rows(borrowed *b, PyObject *obj, Py_ssize_t dim, bool writable, const char *name) {
    Py_buffer *view = &b->views[b->n];
    if (py_matrix(obj, view, name) < 0) return NULL;
    b->names[b->n++] = name;
    if (writable && view->readonly) PyErr_Format(PyExc_ValueError, "%s: an array is read-only", name);
    else if (view->shape[1] != dim)
        PyErr_Format(PyExc_ValueError, "%s: rows of %zd values, expected %zd", name, view->shape[1], dim);
    else if (view->strides[1] != 4 && dim > 1) PyErr_Format(PyExc_ValueError, "%s: rows are not dense", name);
    else return view;
    return NULL;
}

/* Return -1 with ValueError if views[which] shares memory with another array of the call. */
static int need_alone(const borrowed *b, size_t which) {
    return py_need_alone(b->views, b->names, (int)b->n, (int)which);
}

/* Read the tuple of a table: name, rows, ids. */
static int get_table(PyObject *table, ps_lookup *l, borrowed *b) {
    const char *name;
    PyObject *rows, *ids;
    if (!PyTuple_Check(table)) {
        PyErr_SetString(PyExc_TypeError, "tables: expected tuples of name, rows and ids");
        return -1;
    }
    if (!PyArg_ParseTuple(table, "sO!O", &name, &PyLong_Type, &rows, &ids)) return -1;
    l->rows = PyLong_AsUnsignedLongLong(rows);
    if (PyErr_Occurred()) return -1;
    Py_buffer *view = take(b, ids, PY_I64, 1, false, name);
    if (view == NULL) return -1;
    l->ids = view->buf, l->n = py_items(view);
    return 0;
}

/* Give each lookup its part of keys and index. */
static int deal_results(ps_lookup *lookups, size_t n, const Py_buffer *keys, const Py_buffer *index) {
    size_t used = 0;
    for (size_t i = 0; i < n; used += lookups[i++].n) {
        lookups[i].keys = (uint64_t *)keys->buf + used;
        lookups[i].index = (int64_t *)index->buf + used;
    }
    return py_need_items(keys, used, "keys", "tables") < 0 ? -1
                                                           : py_need_items(index, used, "index", "tables");
}

/* Return the number of keys of each table, or NULL with an error for the first id out of range. */
static PyObject *list_counts(const ps_lookup *lookups, const char *const *names, size_t n) {
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list != NULL && i < n; i++) {
        const ps_lookup *l = &lookups[i];
        PyObject *k = NULL;
        if (l->bad == l->n) k = PyLong_FromSize_t(l->k);
        else
            PyErr_Format(PyExc_ValueError, "table %s: id %lld at place %zu, expected 0 to %llu", names[i],
                         (long long)l->ids[l->bad], l->bad, (unsigned long long)(l->rows - 1));
        if (k == NULL || PyList_SetItem(list, (Py_ssize_t)i, k) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyObject *find_rows(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *tables, *objs[2], *result = NULL;
    int rc;
    unsigned threads;
    ps_err err;
    borrowed b = {0};
    if (!PyArg_ParseTuple(args, "O!OOO&", &PyList_Type, &tables, &objs[0], &objs[1], py_threads, &threads))
        return NULL;
    size_t n = (size_t)PyList_Size(tables);
    ps_lookup *lookups = PyMem_Calloc(n + 1, sizeof *lookups);
    if (lookups == NULL) return PyErr_NoMemory();
    if (make_room(&b, n + 2) < 0) goto done;
    Py_buffer *keys = take(&b, objs[0], PY_U64, 1, true, "keys");
    if (keys == NULL) goto done;
    Py_buffer *index = take(&b, objs[1], PY_I64, 1, true, "index");
    if (index == NULL) goto done;
    for (size_t i = 0; i < n; i++)
        if (get_table(PyList_GetItem(tables, (Py_ssize_t)i), &lookups[i], &b) < 0) goto done;
    if (deal_results(lookups, n, keys, index) < 0) goto done;
    if (need_alone(&b, 0) < 0 || need_alone(&b, 1) < 0) goto done;
    Py_BEGIN_ALLOW_THREADS
    rc = ps_lookup_run(lookups, n, threads, &err);
    Py_END_ALLOW_THREADS
    result = rc == PS_OK ? list_counts(lookups, b.names + 2, n) : py_raise(&err);
done:
    release(&b);
    PyMem_Free(lookups);
    return result;
}

/* Move each part's rows, the first by the first ones of the index. */
static int move_parts(bool sums, const borrowed *b, unsigned threads, ps_err *err) {
    const Py_buffer *table = &b->views[0];
    const int64_t *index = b->views[1].buf;
    size_t rows = (size_t)table->shape[0], dim = (size_t)table->shape[1];
    int rc = PS_OK;
    for (const Py_buffer *part = b->views + 2; rc == PS_OK && part < b->views + b->n; part++) {
        size_t n = (size_t)part->shape[0];
        ptrdiff_t stride = part->strides[0] / 4;
        if (sums) rc = ps_add_rows(table->buf, rows, dim, index, n, part->buf, stride, threads, err);
        else rc = ps_gather(table->buf, rows, dim, index, n, part->buf, stride, threads, err);
        index += n;
    }
    return rc;
}

/* Borrow a table, an index, and parts [.., dim] with a row for each of the index. */
static int get_parts(PyObject *const *objs, PyObject *parts, bool sums, borrowed *b) {
    Py_buffer *table = take(b, objs[0], PY_F32, 2, sums, sums ? "sums" : "table");
    if (table == NULL) return -1;
    Py_buffer *index = take(b, objs[1], PY_I64, 1, false, "index");
    if (index == NULL) return -1;
    size_t rows = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(parts) && b->n < b->cap; i++) {
        Py_buffer *part = take_rows(b, PyList_GetItem(parts, i), table->shape[1], !sums, "parts");
        if (part == NULL) return -1;
        rows += (size_t)part->shape[0];
    }
    return py_need_items(index, rows, "index", "parts, one for each row,");
}

static PyObject *move_rows(PyObject *args, bool sums) {
    PyObject *objs[2], *parts, *result = NULL;
    int rc;
    unsigned threads;
    ps_err err;
    borrowed b = {0};
    if (!PyArg_ParseTuple(args, "OOO!O&", &objs[0], &objs[1], &PyList_Type, &parts, py_threads, &threads))
        return NULL;
    if (make_room(&b, (size_t)PyList_Size(parts) + 2) < 0) goto done;
    if (get_parts(objs, parts, sums, &b) < 0) goto done;
    if (need_alone(&b, 0) < 0 || need_alone(&b, 1) < 0) goto done; /* parts may be columns of one array */
    Py_BEGIN_ALLOW_THREADS
    if (sums) ps_clear_sums(b.views[0].buf, py_items(&b.views[0]));
    rc = move_parts(sums, &b, threads, &err);
    Py_END_ALLOW_THREADS
    result = rc == PS_OK ? Py_NewRef(Py_None) : py_raise(&err);
done:
    release(&b);
    return result;
}

static PyObject *gather_rows(PyObject *self, PyObject *args) {
    (void)self;
    return move_rows(args, false);
}

static PyObject *sum_rows(PyObject *self, PyObject *args) {
    (void)self;
    return move_rows(args, true);
}

PyMethodDef ps_lookup_methods[] = {
    {"find_rows", find_rows, METH_VARARGS, "Find the unique ids of a batch for each of several tables."},
    {"gather_rows", gather_rows, METH_VARARGS, "Copy rows of a table to the parts of a batch."},
    {"sum_rows", sum_rows, METH_VARARGS, "Write the sums of the rows of each index."},
    {NULL, NULL, 0, NULL},
};
