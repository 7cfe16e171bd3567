/* The type Table of pslaunch.runtime._core: the table of a shard, in this process. */
#include "bindings/py_parts.h"

#include <pthread.h>
#include <string.h>

#include "bindings/py_args.h"
#include "tables/ps_sparse.h"

typedef struct table {
    PyObject_HEAD ps_sparse *core;
    size_t dim, rest, grads; /* floats of a row's values, of what is behind them, and of a gradient */
    pthread_mutex_t lock;    /* calls run without the GIL */
} table;

/* A call of the core: its own arguments, and what it found. */
typedef struct call {
    table *table;
    int (*run)(struct call *c, const py_arrays *all, ps_err *err);
    unsigned long long step, pass;
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

/* Run it likewise; return the number that it found. */
static PyObject *count(call *c, py_arrays *all, size_t floats) {
    PyObject *none = run(c, all, floats);
    Py_XDECREF(none);
    return none == NULL ? NULL : PyLong_FromSize_t(c->found);
}

static int run_read(call *c, const py_arrays *all, ps_err *Py_UNUSED(err)) {
    ps_sparse_read(c->table->core, all->of[0].buf, py_size(all, 'n'), all->of[1].buf);
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
    static const py_want wants[] = {{"keys", PY_U64, "n", PY_READ}, {"places", PY_U64, "n", PY_WRITE}};
    call c = {.table = (table *)obj, .run = run_missing};
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&", py_take, &all, py_take, &all)) return py_release(&all);
    return count(&c, &all, 0);
}

static int run_load(call *c, const py_arrays *all, ps_err *err) {
    return ps_sparse_load(c->table->core, all->of[0].buf, all->of[1].buf, py_size(all, 'd'), NULL,
                          py_size(all, 'n'), err);
}

static PyObject *table_load(PyObject *obj, PyObject *args) {
    static const py_want wants[] = {{"keys", PY_U64, "n", PY_READ}, {"rows", PY_F32, "nd", PY_READ}};
    call c = {.table = (table *)obj, .run = run_load};
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&", py_take, &all, py_take, &all)) return py_release(&all);
    return run(&c, &all, c.table->dim + (py_size(&all, 'd') == c.table->dim ? 0 : c.table->rest));
}

static int run_learn(call *c, const py_arrays *all, ps_err *err) {
    ps_sparse *t = c->table->core;
    ps_sparse_begin(t, c->rate, c->step);
    return ps_sparse_learn(t, all->of[0].buf, all->of[1].buf, py_size(all, 'n'), err);
}

static PyObject *table_learn(PyObject *obj, PyObject *args) {
    static const py_want wants[] = {{"keys", PY_U64, "n", PY_READ}, {"grads", PY_F32, "nd", PY_READ}};
    call c = {.table = (table *)obj, .run = run_learn};
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "fKKO&O&", &c.rate, &c.step, &c.pass, py_take, &all, py_take, &all))
        return py_release(&all);
    return run(&c, &all, c.table->grads);
}

static int run_copy(call *c, const py_arrays *all, ps_err *Py_UNUSED(err)) {
    const table *t = c->table;
    uint64_t *keys = all->of[0].buf;
    float *values = all->of[1].buf, *rest = all->of[2].buf;
    ps_row row;
    for (; c->found < py_size(all, 'n') && ps_sparse_next(t->core, false, &c->number, &row); c->found++) {
        memcpy(keys + c->found, row.key, sizeof *keys);
        memcpy(values + c->found * t->dim, row.values, t->dim * sizeof *values);
        memcpy(rest + c->found * t->rest, row.values + t->dim, t->rest * sizeof *rest);
    }
    return PS_OK;
}

static PyObject *table_copy(PyObject *obj, PyObject *args) {
    static const py_want wants[] = {{"keys", PY_U64, "n", PY_WRITE},
                                    {"values", PY_F32, "nd", PY_WRITE},
                                    {"rest", PY_F32, "nr", PY_WRITE}};
    call c = {.table = (table *)obj, .run = run_copy};
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&O&", py_take, &all, py_take, &all, py_take, &all))
        return py_release(&all);
    if (py_size(&all, 'r') == c.table->rest) return count(&c, &all, c.table->dim);
    PyErr_Format(PyExc_ValueError, "rest has rows of %zu floats, the table needs %zu", py_size(&all, 'r'),
                 c.table->rest);
    return py_release(&all);
}

static PyObject *table_clear(PyObject *obj, PyObject *Py_UNUSED(none)) {
    table *self = (table *)obj;
    pthread_mutex_lock(&self->lock);
    ps_sparse_clear(self->core);
    pthread_mutex_unlock(&self->lock);
    return Py_NewRef(Py_None);
}

static PyObject *table_count(PyObject *obj, PyObject *Py_UNUSED(none)) {
    const ps_sparse *t = ((table *)obj)->core;
    return Py_BuildValue("nn", (Py_ssize_t)ps_sparse_rows(t), (Py_ssize_t)ps_sparse_bytes(t));
}

/* Make the core's table. 0, or -1 with an exception. */
static int fill(table *self, PyObject *args) {
    ps_optim rule;
    ps_init init = {0};
    unsigned long long seed, name;
    unsigned int dim, beside;
    ps_err err;
    pthread_mutex_init(&self->lock, NULL);
    if (!PyArg_ParseTuple(args, "IO&KKIffI", &dim, py_optim, &rule, &seed, &name, &init.kind, &init.mean,
                          &init.std, &beside))
        return -1;
    init.seed = seed, init.table = name;
    if (ps_sparse_new(&self->core, dim, &rule, &init, NULL, &err) < 0) {
        py_raise(&err);
        return -1;
    }
    ps_sparse_widen(self->core, beside = beside ? dim : 0);
    self->dim = self->grads = dim, self->rest = ps_optim_state(rule.method, dim) + beside;
    return 0;
}

static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *obj = PyType_GenericNew(type, args, kwargs);
    if (obj != NULL && fill((table *)obj, args) < 0) Py_CLEAR(obj);
    return obj;
}

static void table_dealloc(PyObject *obj) {
    table *self = (table *)obj;
    PyTypeObject *type = Py_TYPE(obj);
    ps_sparse_free(self->core);
    pthread_mutex_destroy(&self->lock);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(obj);
    Py_DECREF(type);
}

static PyMethodDef table_methods[] = {
    {"read", table_read, METH_VARARGS, "Write the values of rows to out."},
    {"find_missing", table_find_missing, METH_VARARGS, "Find the keys without a row."},
    {"load", table_load, METH_VARARGS, "Set rows, made if necessary."},
    {"learn", table_learn, METH_VARARGS, "Apply one step."},
    {"copy", table_copy, METH_VARARGS, "Write all rows to arrays."},
    {"clear", table_clear, METH_NOARGS, "Forget all rows."},
    {"count", table_count, METH_NOARGS, "Return the number of rows, and the bytes of memory."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot table_slots[] = {
    {Py_tp_doc, (void *)"A table in this process; see ps_sparse.h."},
    {Py_tp_new, (void *)table_new},
    {Py_tp_dealloc, (void *)table_dealloc},
    {Py_tp_methods, table_methods},
    {0, NULL},
};

static PyType_Spec table_spec = {
    .name = "pslaunch.runtime._core.Table",
    .basicsize = sizeof(table),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = table_slots,
};

int py_table_add(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &table_spec, NULL);
    int code = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return code;
}
