/* The type Table of pslaunch.runtime._core: the table of a shard, in this process. */
#include "bindings/py_parts.h"

#include <pthread.h>
#include <string.h>

#include "bindings/py_args.h"
#include "tables/ps_sparse.h"

enum { COUNTS = sizeof(ps_counts) / sizeof(float) };

typedef struct table {
    PyObject_HEAD ps_sparse *core;
    size_t dim, rest; /* floats of a row's values, and of what is behind them */
    ps_entry entry;
    pthread_mutex_t lock; /* calls run without the GIL */
} table;

/* A call of the core: its own arguments, and what it found. */
typedef struct call {
    table *table;
    int (*run)(struct call *c, const py_arrays *all, ps_err *err);
    unsigned long long step;
    float rate;
    uint32_t number;
    size_t found;
} call;

static int run_locked(const py_arrays *all, void *own, ps_err *err) {
    call *c = own;
    pthread_mutex_lock(&c->table->lock);
    int rc = c->run(c, all, err);
    pthread_mutex_unlock(&c->table->lock);
    return rc;
}

/* Run a call whose rows, the array of the letter d, need so many floats. None, or NULL with an exception. */
static PyObject *run(call *c, py_arrays *all, size_t floats) {
    if (floats == 0 || py_size(all, 'd') == floats) return py_run(all, run_locked, c);
    PyErr_Format(PyExc_ValueError, "%s has rows of %zu floats, the table needs %zu", all->taken[1].name,
                 py_size(all, 'd'), floats);
    return py_release(all);
}

static int run_read(call *c, const py_arrays *all, ps_err *Py_UNUSED(err)) {
    ps_sparse_look_up(c->table->core, all->of[0].buf, py_size(all, 'n'), all->of[1].buf);
    return PS_OK;
}

static PyObject *table_read(PyObject *obj, PyObject *args) {
    static const py_want wants[] = {{"keys", PY_U64, "n", PY_READ}, {"out", PY_F32, "nd", PY_WRITE}};
    call c = {.table = (table *)obj, .run = run_read};
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&", py_take, &all, py_take, &all)) return py_release(&all);
    return run(&c, &all, c.table->dim);
}

static int run_missing(call *c, const py_arrays *all, ps_err *Py_UNUSED(err)) {
    c->found = ps_sparse_missing(c->table->core, all->of[0].buf, py_size(all, 'n'), all->of[1].buf);
    return PS_OK;
}

static PyObject *table_find_missing(PyObject *obj, PyObject *args) {
    static const py_want wants[] = {{"keys", PY_U64, "n", PY_READ}, {"sorted", PY_U64, "n", PY_WRITE}};
    call c = {.table = (table *)obj, .run = run_missing};
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&", py_take, &all, py_take, &all)) return py_release(&all);
    PyObject *none = run(&c, &all, 0);
    Py_XDECREF(none);
    return none == NULL ? NULL : PyLong_FromSize_t(c.found);
}

static int run_changes(call *c, const py_arrays *all, ps_err *Py_UNUSED(err)) {
    ps_sparse_changes(c->table->core, c->rate, py_size(all, 'n'), all->of[0].buf, all->of[1].buf);
    return PS_OK;
}

static PyObject *table_read_changes(PyObject *obj, PyObject *args) {
    static const py_want wants[] = {{"keys", PY_U64, "n", PY_WRITE}, {"out", PY_F32, "nd", PY_WRITE}};
    call c = {.table = (table *)obj, .run = run_changes};
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "fO&O&", &c.rate, py_take, &all, py_take, &all)) return py_release(&all);
    return run(&c, &all, c.table->dim);
}

/* Check rows [n, dim] or [n, dim + rest] and counts [n, 3], where they have no items none. -1 with
 * ValueError. */
static int check_rows(const table *t, const py_arrays *all) {
    size_t n = py_size(all, 'n'), rows = py_items(&all->of[1]), counts = py_items(&all->of[2]);
    bool waiting = rows == 0 && n > 0;
    if (waiting ? !ps_entry_waits(&t->entry) : rows != n * t->dim && rows != n * (t->dim + t->rest))
        PyErr_Format(PyExc_ValueError, "rows has %zu items, which %zu keys of this table can't have", rows,
                     n);
    else if (counts != 0 ? t->entry.rule == PS_ENTRY_ANY || counts != n * COUNTS : waiting)
        PyErr_Format(PyExc_ValueError, "counts has %zu items, which %zu keys of this table can't have",
                     counts, n);
    else return 0;
    return -1;
}

static int run_load(call *c, const py_arrays *all, ps_err *err) {
    const Py_buffer *of = all->of;
    size_t n = py_size(all, 'n'), width = n == 0 ? 0 : py_items(&of[1]) / n;
    const ps_counts *counts = py_items(&of[2]) == 0 ? NULL : of[2].buf;
    return ps_sparse_load(c->table->core, of[0].buf, width == 0 ? NULL : of[1].buf, width, counts, n, err);
}

static PyObject *table_load(PyObject *obj, PyObject *args) {
    static const py_want wants[] = {
        {"keys", PY_U64, "n", PY_READ}, {"rows", PY_F32, NULL, PY_READ}, {"counts", PY_F32, NULL, PY_READ}};
    call c = {.table = (table *)obj, .run = run_load};
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&O&", py_take, &all, py_take, &all, py_take, &all) ||
        check_rows(c.table, &all) < 0)
        return py_release(&all);
    return run(&c, &all, 0);
}

static int run_learn(call *c, const py_arrays *all, ps_err *err) {
    ps_sparse *t = c->table->core;
    const Py_buffer *of = all->of;
    int rc = ps_entry_check_rows(&c->table->entry, of[0].buf, of[1].buf, py_size(all, 'd'), py_size(all, 'n'),
                                 err);
    ps_sparse_begin(t, c->rate, c->step);
    return rc < 0 ? rc : ps_sparse_learn(t, c->step, of[0].buf, of[1].buf, py_size(all, 'n'), err);
}

static PyObject *table_learn(PyObject *obj, PyObject *args) {
    static const py_want wants[] = {{"keys", PY_U64, "n", PY_READ}, {"grads", PY_F32, "nd", PY_READ}};
    call c = {.table = (table *)obj, .run = run_learn};
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "fKO&O&", &c.rate, &c.step, py_take, &all, py_take, &all))
        return py_release(&all);
    return run(&c, &all, c.table->dim + ps_entry_extra(&c.table->entry));
}

static int run_copy(call *c, const py_arrays *all, ps_err *Py_UNUSED(err)) {
    const table *t = c->table;
    uint64_t *keys = all->of[0].buf;
    float *values = all->of[1].buf, *rest = all->of[2].buf;
    ps_counts *counts = py_items(&all->of[3]) == 0 ? NULL : all->of[3].buf;
    bool waiting = py_items(&all->of[1]) == 0;
    ps_row row;
    for (size_t i = 0; i < py_size(all, 'n') && ps_sparse_kept(t->core, waiting, false, &c->number, &row);
         i++) {
        memcpy(keys + i, row.key, sizeof *keys);
        if (counts != NULL) counts[i] = *row.counts;
        if (waiting) continue;
        memcpy(values + i * t->dim, row.values, t->dim * sizeof *values);
        memcpy(rest + i * t->rest, row.values + t->dim, t->rest * sizeof *rest);
    }
    return PS_OK;
}

static PyObject *table_copy(PyObject *obj, PyObject *args) {
    static const py_want wants[] = {{"keys", PY_U64, "n", PY_WRITE},
                                    {"values", PY_F32, NULL, PY_WRITE},
                                    {"rest", PY_F32, NULL, PY_WRITE},
                                    {"counts", PY_F32, NULL, PY_WRITE}};
    call c = {.table = (table *)obj, .run = run_copy};
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "IO&O&O&O&", &c.number, py_take, &all, py_take, &all, py_take, &all, py_take,
                          &all))
        return py_release(&all);
    size_t n = py_size(&all, 'n'), rows = py_items(&all.of[1]) == 0 ? 0 : n;
    size_t ruled = c.table->entry.rule != PS_ENTRY_ANY;
    const Py_buffer *counts = &all.of[3];
    if (py_need_items(&all.of[1], rows * c.table->dim, "values", "the table") < 0 ||
        py_need_items(&all.of[2], rows * c.table->rest, "rest", "the table") < 0 ||
        (py_items(counts) != 0 && py_need_items(counts, ruled * n * COUNTS, "counts", "the table") < 0))
        return py_release(&all);
    PyObject *none = run(&c, &all, 0);
    Py_XDECREF(none);
    return none == NULL ? NULL : PyLong_FromUnsignedLong(c.number);
}

static PyObject *table_clear(PyObject *obj, PyObject *Py_UNUSED(none)) {
    table *self = (table *)obj;
    pthread_mutex_lock(&self->lock);
    ps_sparse_clear(self->core);
    pthread_mutex_unlock(&self->lock);
    return Py_NewRef(Py_None);
}

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
    if (ps_sparse_new(&self->core, dim, &rule, &init, entry, &err) < 0) {
        py_raise(&err);
        return -1;
    }
    if (beside) ps_sparse_widen(self->core);
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
    {"clear", table_clear, METH_NOARGS, "Forget all rows."},
    {"count", table_count, METH_NOARGS, "Return the numbers of rows and of waiting keys."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot table_slots[] = {
    {Py_tp_doc, (void *)"A table in this process; see ps_sparse.h."},
    {Py_tp_new, (void *)table_new},
    {Py_tp_dealloc, (void *)table_dealloc},
    {Py_tp_methods, table_methods},
    {0, NULL},
};

PyType_Spec py_table_type = {
    .name = "pslaunch.runtime._core.Table",
    .basicsize = sizeof(table),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = table_slots,
};
