/* The type Table of pslaunch.runtime._core: the table of a shard, in this process. */
#include "bindings/py_args.h"

#include <pthread.h>
#include <string.h>

#include "tables/ps_sparse.h"

enum { COUNTS = sizeof(ps_counts) / sizeof(float) };

typedef struct table {
    PyObject_HEAD ps_sparse *core;
    size_t dim, rest; /* floats of a row's values, and of what is behind them */
    ps_entry entry;
    pthread_mutex_t lock; /* calls run without the GIL */
} table;

/* A method that runs a kernel, while no other one uses the table. */
#define METHOD(name, forms, ...)                          \
    static int lock_and_##name(py_call *c, ps_err *err) { \
        pthread_mutex_lock(&((table *)c->own)->lock);     \
        int rc = run_##name(c, err);                      \
        pthread_mutex_unlock(&((table *)c->own)->lock);   \
        return rc;                                        \
    }                                                     \
    PY_FUNCTION(table_##name, lock_and_##name, forms, __VA_ARGS__)

/* Check that the second array, [n, d], has rows of so many floats. PS_OK or PS_EINVAL. */
static int check_width(const py_call *c, size_t floats, ps_err *err) {
    if (py_size(c, 'd') == floats) return PS_OK;
    return ps_fail(err, PS_EINVAL, 0, "%s has rows of %zu floats, the table needs %zu", c->taken[1].name,
                   py_size(c, 'd'), floats);
}

static int run_read(py_call *c, ps_err *err) {
    const table *t = c->own;
    if (check_width(c, t->dim, err) < 0) return PS_EINVAL;
    ps_sparse_read(t->core, c->of[0].buf, py_size(c, 'n'), c->of[1].buf);
    return PS_OK;
}

METHOD(read, "aa", {"keys", PY_U64, "n", PY_READ}, {"out", PY_F32, "nd", PY_WRITE})

static int run_find_missing(py_call *c, ps_err *Py_UNUSED(err)) {
    const table *t = c->own;
    c->found = ps_sparse_missing(t->core, c->of[0].buf, py_size(c, 'n'), c->of[1].buf);
    return PS_OK;
}

METHOD(find_missing, "aa=k", {"keys", PY_U64, "n", PY_READ}, {"sorted", PY_U64, "n", PY_WRITE})

static int run_read_changes(py_call *c, ps_err *err) {
    const table *t = c->own;
    if (check_width(c, t->dim, err) < 0) return PS_EINVAL;
    ps_sparse_changes(t->core, c->rates[0], py_size(c, 'n'), c->of[0].buf, c->of[1].buf);
    return PS_OK;
}

METHOD(read_changes, "faa", {"keys", PY_U64, "n", PY_WRITE}, {"out", PY_F32, "nd", PY_WRITE})

/* Rows are [n, dim] or [n, dim + rest] and counts [n, 3], where they have no items none. */
static int run_load(py_call *c, ps_err *err) {
    const table *t = c->own;
    const Py_buffer *of = c->of;
    size_t n = py_size(c, 'n'), rows = py_items(&of[1]), counts = py_items(&of[2]);
    size_t width = n == 0 ? 0 : rows / n;
    bool waiting = rows == 0 && n > 0;
    if (waiting ? !ps_entry_waits(&t->entry) : rows != n * t->dim && rows != n * (t->dim + t->rest))
        return ps_fail(err, PS_EINVAL, 0, "rows has %zu items, which %zu keys of this table can't have", rows,
                       n);
    if (counts != 0 ? t->entry.rule == PS_ENTRY_ANY || counts != n * COUNTS : waiting)
        return ps_fail(err, PS_EINVAL, 0, "counts has %zu items, which %zu keys of this table can't have",
                       counts, n);
    return ps_sparse_load(t->core, of[0].buf, width == 0 ? NULL : of[1].buf, width,
                          counts == 0 ? NULL : of[2].buf, n, err);
}

METHOD(load, "aaa", {"keys", PY_U64, "n", PY_READ}, {"rows", PY_F32, NULL, PY_READ},
       {"counts", PY_F32, NULL, PY_READ})

static int run_learn(py_call *c, ps_err *err) {
    const table *t = c->own;
    const Py_buffer *of = c->of;
    size_t n = py_size(c, 'n'), width = t->dim + ps_entry_extra(&t->entry);
    if (check_width(c, width, err) < 0 ||
        ps_entry_check_rows(&t->entry, of[0].buf, of[1].buf, width, n, err) < 0)
        return PS_EINVAL;
    ps_sparse_begin(t->core, c->rates[0], c->numbers[0]);
    return ps_sparse_learn(t->core, c->numbers[0], of[0].buf, of[1].buf, n, err);
}

METHOD(learn, "fkaa", {"keys", PY_U64, "n", PY_READ}, {"grads", PY_F32, "nd", PY_READ})

/* Check that an array has n items. PS_OK or PS_EINVAL. */
static int check_items(const Py_buffer *view, size_t n, const char *name, ps_err *err) {
    if (py_items(view) == n) return PS_OK;
    return ps_fail(err, PS_EINVAL, 0, "%s has %zu items, but the table needs %zu", name, py_items(view), n);
}

static int run_copy(py_call *c, ps_err *err) {
    const table *t = c->own;
    uint64_t *keys = c->of[0].buf;
    float *rows = c->of[1].buf;
    size_t n = py_size(c, 'n'), width = t->dim + t->rest,
           counted = t->entry.rule == PS_ENTRY_ANY ? 0 : n * COUNTS;
    bool waiting = py_items(&c->of[1]) == 0;
    ps_counts *counts = py_items(&c->of[2]) == 0 ? NULL : c->of[2].buf;
    if ((!waiting && check_items(&c->of[1], n * width, "rows", err) < 0) ||
        (counts != NULL && check_items(&c->of[2], counted, "counts", err) < 0))
        return PS_EINVAL;
    uint32_t number = (uint32_t)c->numbers[0];
    ps_row row;
    for (size_t i = 0; i < n && ps_sparse_kept(t->core, waiting, false, &number, &row); i++) {
        memcpy(keys + i, row.key, sizeof *keys);
        if (counts != NULL) counts[i] = *row.counts;
        if (!waiting) memcpy(rows + i * width, row.values, width * sizeof *rows);
    }
    c->found = number;
    return PS_OK;
}

METHOD(copy, "kaaa=k", {"keys", PY_U64, "n", PY_WRITE}, {"rows", PY_F32, NULL, PY_WRITE},
       {"counts", PY_F32, NULL, PY_WRITE})

static int run_clear(py_call *c, ps_err *Py_UNUSED(err)) {
    ps_sparse_clear(((table *)c->own)->core);
    return PS_OK;
}

METHOD(clear, "", {0})

static PyObject *table_count(PyObject *obj, PyObject *Py_UNUSED(none)) {
    table *self = (table *)obj;
    pthread_mutex_lock(&self->lock);
    size_t rows = ps_sparse_rows(self->core), waiting = ps_sparse_waiting(self->core);
    pthread_mutex_unlock(&self->lock);
    return Py_BuildValue("nn", (Py_ssize_t)rows, (Py_ssize_t)waiting);
}

/* Make the core's table. 0, or -1 with an exception. */
static int fill(table *self, PyObject *args) {
    ps_optim rule;
    ps_init init = {0};
    unsigned long long seed, name;
    unsigned int dim;
    int beside;
    ps_err err;
    pthread_mutex_init(&self->lock, NULL);
    ps_entry *entry = &self->entry;
    if (!PyArg_ParseTuple(args, "IO&(KKIff)(Iff)p", &dim, py_optim, &rule, &seed, &name, &init.kind,
                          &init.mean, &init.std, &entry->rule, &entry->numbers[0], &entry->numbers[1],
                          &beside))
        return -1;
    init.seed = seed, init.table = name;
    if (ps_sparse_new(&self->core, dim, &rule, &init, entry, beside != 0, &err) < 0) {
        py_raise(&err);
        return -1;
    }
    self->dim = dim, self->rest = ps_optim_state(rule.method, dim) + (beside ? dim : 0);
    return 0;
}

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *obj = PyType_GenericNew(type, args, kwargs);
    if (obj != NULL && fill((table *)obj, args) < 0) Py_CLEAR(obj);
    return obj;
}

static void table_dealloc(PyObject *obj) {
    table *self = (table *)obj;
    ps_sparse_free(self->core);
    pthread_mutex_destroy(&self->lock);
    py_free(obj);
}

static PyMethodDef table_methods[] = {
    {"read", table_read, METH_VARARGS, "Write the values of rows to out."},
    {"find_missing", table_find_missing, METH_VARARGS, "Sort out the keys without a row."},
    {"read_changes", table_read_changes, METH_VARARGS, "Write the changes from the bases to arrays."},
    {"load", table_load, METH_VARARGS, "Set rows, made if necessary."},
    {"learn", table_learn, METH_VARARGS, "Apply one step."},
    {"copy", table_copy, METH_VARARGS, "Write all rows to arrays."},
    {"clear", table_clear, METH_VARARGS, "Forget all rows."},
    {"count", table_count, METH_NOARGS, "Return the numbers of rows and of waiting keys."},
    {NULL, NULL, 0, NULL},
};

PY_TYPE(table, "Table", "A table in this process; see ps_sparse.h.")
