/* Lookups in embedding tables as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_args.h"

#include "kernels/ps_lookup.h"

/* Read the tuple of a table: rows, ids. */
static int get_table(PyObject *table, ps_lookup *l, py_call *all) {
    unsigned long long rows;
    PyObject *ids;
    if (py_need_tuple(table, "tables: expected tuples of rows and ids") < 0) return -1;
    if (!PyArg_ParseTuple(table, "KO", &rows, &ids)) return -1;
    l->rows = rows;
    Py_buffer *view = py_take_as(all, ids, &(py_want){"ids", PY_I64, "_", PY_READ});
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
static PyObject *list_counts(const ps_lookup *lookups, size_t n) {
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list != NULL && i < n; i++) {
        const ps_lookup *l = &lookups[i];
        PyObject *k = NULL;
        if (l->bad == l->n) k = PyLong_FromSize_t(l->k);
        else
            PyErr_Format(PyExc_ValueError, "table %zu: id %lld at place %zu, expected 0 to %llu", i,
                         (long long)l->ids[l->bad], l->bad, (unsigned long long)(l->rows - 1));
        if (k == NULL || PyList_SetItem(list, (Py_ssize_t)i, k) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyObject *find_rows(PyObject *Py_UNUSED(self), PyObject *args) {
    static const py_want wants[] = {{"keys", PY_U64, "_", PY_WRITE}, {"index", PY_I64, "_", PY_WRITE}};
    PyObject *tables, *keys, *index, *result = NULL;
    int rc;
    unsigned threads;
    ps_err err;
    py_call all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O!OOO&", &PyList_Type, &tables, &keys, &index, py_threads, &threads))
        return NULL;
    size_t n = (size_t)PyList_Size(tables);
    ps_lookup *lookups = PyMem_Calloc(n + 1, sizeof *lookups);
    if (lookups == NULL) return PyErr_NoMemory();
    if (py_room(&all, n + 2) < 0 || !py_take(keys, &all) || !py_take(index, &all)) goto done;
    for (size_t i = 0; i < n; i++)
        if (get_table(PyList_GetItem(tables, (Py_ssize_t)i), &lookups[i], &all) < 0) goto done;
    if (deal_results(lookups, n, &all.of[0], &all.of[1]) < 0 || py_need_apart(&all) < 0) goto done;
    Py_BEGIN_ALLOW_THREADS
    rc = ps_lookup_run(lookups, n, threads, &err);
    Py_END_ALLOW_THREADS
    result = rc == PS_OK ? list_counts(lookups, n) : py_raise(&err);
done:
    py_release(&all);
    PyMem_Free(lookups);
    return result;
}

/* A part of a batch: a row for each of n ids, or for each bag of them. */
typedef struct part {
    const Py_buffer *rows;
    size_t n;
    ps_bags bags;     /* offsets: NULL without bags */
    Py_ssize_t blank; /* place of an id of the blank row; -1: none */
} part;

/* Parts whose rows are gathered, or summed. */
typedef struct move {
    bool sums;
    part *parts;
    Py_ssize_t n;
} move;

/* Read the rest of a part of bags: offsets, weights or None, and the place of a blank id. -1 with an
 * exception. */
static int take_bags(py_call *all, PyObject *offsets, PyObject *weights, part *p) {
    const Py_buffer *view = py_take_as(all, offsets, &(py_want){"offsets", PY_I64, "_", PY_READ});
    if (view == NULL) return -1;
    p->bags = (ps_bags){.offsets = view->buf, .n = py_items(view) - 1};
    p->n = py_items(view) == 0 ? SIZE_MAX : (size_t)p->bags.offsets[p->bags.n];
    if (p->n > INT32_MAX || p->blank >= (Py_ssize_t)p->n) {
        PyErr_SetString(PyExc_ValueError, "offsets: expected the begin of each bag, and the number of ids");
        return -1;
    }
    if (weights == Py_None) return 0;
    view = py_take_as(all, weights, &(py_want){"weights", PY_F32, "_", PY_READ});
    if (view != NULL) p->bags.weights = view->buf;
    return view == NULL ? -1 : py_need_items(view, p->n, "weights", "the ids of offsets");
}

/* Borrow the arrays of a part: dense rows at any distance from each other, or a tuple of them with those of
 * bags. -1 with an exception. */
static int take_part(py_call *all, PyObject *obj, py_access access, part *p) {
    PyObject *offsets = NULL, *weights;
    p->blank = -1;
    if (PyTuple_Check(obj) && !PyArg_ParseTuple(obj, "OOOn", &obj, &offsets, &weights, &p->blank)) return -1;
    if (offsets != NULL && take_bags(all, offsets, weights, p) < 0) return -1;
    p->rows = py_take_as(all, obj, &(py_want){"parts", PY_F32, "_d", access});
    if (p->rows == NULL) return -1;
    size_t rows = (size_t)p->rows->shape[0];
    if (offsets == NULL) p->n = p->bags.n = rows;
    bool fits = rows == p->bags.n, dense = p->rows->strides[1] == 4 || p->rows->shape[1] <= 1;
    if (fits && dense) return 0;
    PyErr_SetString(PyExc_ValueError,
                    fits ? "parts: rows are not dense" : "parts: expected a row for each bag");
    return -1;
}

/* Move each part's rows, the first by the first ones of the index. */
static int move_parts(py_call *all, ps_err *err) {
    const move *m = all->own;
    float *table = all->of[0].buf;
    const int64_t *index = all->of[1].buf;
    size_t rows = (size_t)all->of[0].shape[0], dim = py_size(all, 'd');
    int rc = PS_OK;
    if (m->sums) ps_clear_sums(table, rows * dim);
    for (part *p = m->parts; rc == PS_OK && p < m->parts + m->n; index += p++->n) {
        const ps_bags *bags = p->bags.offsets == NULL ? NULL : &p->bags;
        float *of = p->rows->buf;
        ptrdiff_t stride = p->rows->strides[0] / 4;
        p->bags.blank = p->blank < 0 ? -1 : index[p->blank];
        if (m->sums) rc = ps_add_rows(table, rows, dim, index, p->n, bags, of, stride, all->threads, err);
        else rc = ps_gather(table, rows, dim, index, p->n, bags, of, stride, all->threads, err);
    }
    return rc;
}

/* Borrow the arrays of all parts, and check that the index has their ids. -1 with an exception. */
static int take_parts(py_call *all, PyObject *list, Py_ssize_t n, move *m) {
    size_t ids = 0;
    for (; m->n < n && m->n < PyList_Size(list); ids += m->parts[m->n++].n)
        if (take_part(all, PyList_GetItem(list, m->n), m->sums ? PY_STRIDED : PY_PART, &m->parts[m->n]) < 0)
            return -1;
    return py_need_items(&all->of[1], ids, "index", "parts, one for each row,");
}

/* Move rows between a table and parts [.., dim], with an index for each id. Parts that are written may be
 * columns of one array. */
static PyObject *move_rows(PyObject *args, bool sums) {
    const py_want wants[] = {{sums ? "sums" : "table", PY_F32, "_d", sums ? PY_WRITE : PY_READ},
                             {"index", PY_I64, "_", PY_READ}};
    PyObject *table, *index, *parts, *result = NULL;
    move own = {.sums = sums};
    py_call all = {.wants = wants, .own = &own};
    if (!PyArg_ParseTuple(args, "OOO!O&", &table, &index, &PyList_Type, &parts, py_threads, &all.threads))
        return NULL;
    Py_ssize_t n = PyList_Size(parts);
    own.parts = PyMem_Calloc((size_t)n + 1, sizeof *own.parts);
    if (own.parts == NULL) return PyErr_NoMemory();
    if (py_room(&all, 3 * (size_t)n + 2) < 0 || !py_take(table, &all) || !py_take(index, &all) ||
        take_parts(&all, parts, n, &own) < 0)
        py_release(&all);
    else result = py_run(&all, move_parts);
    PyMem_Free(own.parts);
    return result;
}

static PyObject *gather_rows(PyObject *Py_UNUSED(self), PyObject *args) {
    return move_rows(args, false);
}

static PyObject *sum_rows(PyObject *Py_UNUSED(self), PyObject *args) {
    return move_rows(args, true);
}

PyMethodDef ps_lookup_methods[] = {
    {"find_rows", find_rows, METH_VARARGS, "Find the unique ids of a batch for each of several tables."},
    {"gather_rows", gather_rows, METH_VARARGS, "Copy rows of a table to the parts of a batch."},
    {"sum_rows", sum_rows, METH_VARARGS, "Write the sums of the rows of each index."},
    {NULL, NULL, 0, NULL},
};
