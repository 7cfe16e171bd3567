/* The kernels as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_parts.h"

#include "tables/ps_init.h"
#include "kernels/ps_optim.h"
#include "tables/ps_schedule.h"
#include "bindings/py_args.h"

/* Check the rule and its slots, of[SLOTS], for a value [rows, dim]; those of None have no array. */
enum { VALUE, SLOTS };

static int check_optim(const ps_optim *o, const py_arrays *all, size_t rows, size_t dim) {
    ps_err err;
    const Py_buffer *slots = &all->of[SLOTS];
    if (ps_optim_check(o, &err) < 0) {
        py_raise(&err);
        return -1;
    }
    if (slots->obj != NULL)
        return py_need_items(slots, rows * ps_optim_state(o->method, dim), "slots", "value with this method");
    if (ps_optim_state(o->method, 1) == 0) return 0;
    PyErr_Format(PyExc_ValueError, "slots: optimizer %s needs an array, not None",
                 ps_optim_method(o->method)->name);
    return -1;
}

static PyObject *apply_optim(PyObject *Py_UNUSED(self), PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rule", "step", "value", "slots", "grad", NULL};
    static const py_want wants[] = {
        {"value", PY_F32, 0, PY_WRITE}, {"slots", PY_F32, 0, PY_WRITE_OR_NONE}, {"grad", PY_F32, 0, PY_READ}};
    ps_optim o = {0};
    unsigned long long step;
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&KO&O&O&", names, py_optim, &o, &step, py_take, &all,
                                     py_take, &all, py_take, &all))
        return py_release(&all);
    const Py_buffer *value = &all.of[VALUE], *slots = &all.of[SLOTS], *grad = &all.of[2];
    size_t n = py_items(value);
    if (check_optim(&o, &all, 1, n) < 0 || py_need_items(grad, n, "grad", "value") < 0 ||
        py_need_apart(&all) < 0)
        return py_release(&all);
    Py_BEGIN_ALLOW_THREADS
    unsigned floats = ps_floats_set(PS_FLOATS_IEEE);
    ps_rate rate = ps_optim_rate(&o, step);
    ps_optim_apply(&o, rate, value->buf, slots->buf, n, grad->buf, n);
    ps_optim_finish(&o, rate, value->buf, slots->buf, n);
    ps_floats_set(floats);
    Py_END_ALLOW_THREADS
    return py_finish(&all, PS_OK, NULL);
}

/* value [rows, dim], rows [k], grad [k, dim]. */
static PyObject *apply_sparse(PyObject *Py_UNUSED(self), PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rule", "step", "value", "slots", "rows", "grad", NULL};
    static const py_want wants[] = {{"value", PY_F32, 2, PY_WRITE},
                                    {"slots", PY_F32, 0, PY_WRITE_OR_NONE},
                                    {"rows", PY_U64, 1, PY_READ},
                                    {"grad", PY_F32, 2, PY_READ}};
    ps_optim o = {0};
    ps_err err;
    unsigned long long step;
    int rc;
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&KO&O&O&O&", names, py_optim, &o, &step, py_take, &all,
                                     py_take, &all, py_take, &all, py_take, &all))
        return py_release(&all);
    const Py_buffer *value = &all.of[VALUE], *slots = &all.of[SLOTS], *rows = &all.of[2], *grad = &all.of[3];
    size_t rows_n = (size_t)value->shape[0], dim = (size_t)value->shape[1];
    if (check_optim(&o, &all, rows_n, dim) < 0 || py_need_apart(&all) < 0) return py_release(&all);
    if (grad->shape[0] != rows->shape[0] || grad->shape[1] != value->shape[1]) {
        PyErr_Format(PyExc_ValueError, "grad is [%zd, %zd], but rows and value need [%zd, %zd]",
                     grad->shape[0], grad->shape[1], rows->shape[0], value->shape[1]);
        return py_release(&all);
    }
    Py_BEGIN_ALLOW_THREADS
    unsigned floats = ps_floats_set(PS_FLOATS_IEEE);
    rc = ps_optim_apply_rows(&o, ps_optim_rate(&o, step), value->buf, slots->buf, rows_n, dim, rows->buf,
                             grad->buf, py_items(rows), &err);
    ps_floats_set(floats);
    Py_END_ALLOW_THREADS
    return py_finish(&all, rc, &err);
}

static PyObject *add(PyObject *Py_UNUSED(self), PyObject *args) {
    static const py_want wants[] = {{"acc", PY_F32, 0, PY_WRITE}, {"g", PY_F32, 0, PY_READ}};
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&", py_take, &all, py_take, &all)) return py_release(&all);
    const Py_buffer *acc = all.of, *g = acc + 1;
    if (py_need_items(g, py_items(acc), "g", "acc") < 0 || py_need_apart(&all) < 0) return py_release(&all);
    Py_BEGIN_ALLOW_THREADS
    unsigned floats = ps_floats_set(PS_FLOATS_IEEE);
    ps_add(acc->buf, g->buf, py_items(acc));
    ps_floats_set(floats);
    Py_END_ALLOW_THREADS
    return py_finish(&all, PS_OK, NULL);
}

/* Arguments of the initializer; 64-bit ones as objects, because "K" does not check overflow. */
static int get_init(ps_init *init, PyObject *seed, PyObject *table, int kind) {
    init->seed = PyLong_AsUnsignedLongLong(seed);
    if (PyErr_Occurred()) return -1;
    init->table = PyLong_AsUnsignedLongLong(table);
    if (PyErr_Occurred()) return -1;
    init->kind = (uint32_t)kind;
    ps_err err;
    if (ps_init_check(init, &err) == PS_OK) return 0;
    py_raise(&err);
    return -1;
}

static PyObject *init_rows(PyObject *Py_UNUSED(self), PyObject *args, PyObject *kwargs) {
    static char *names[] = {"out", "keys", "seed", "table", "kind", "mean", "std", NULL};
    static const py_want wants[] = {{"out", PY_F32, 2, PY_WRITE}, {"keys", PY_U64, 1, PY_READ}};
    ps_init init;
    int kind;
    PyObject *seed, *table;
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&OOiff", names, py_take, &all, py_take, &all, &seed,
                                     &table, &kind, &init.mean, &init.std) ||
        get_init(&init, seed, table, kind) < 0)
        return py_release(&all);
    const Py_buffer *out = all.of, *keys = out + 1;
    size_t n = (size_t)out->shape[0], dim = (size_t)out->shape[1];
    if (py_need_items(keys, n, "keys", "out, one for each row,") < 0 || py_need_apart(&all) < 0)
        return py_release(&all);
    Py_BEGIN_ALLOW_THREADS
    unsigned floats = ps_floats_set(PS_FLOATS_IEEE);
    for (size_t i = 0; i < n; i++)
        ps_init_row(&init, ((const uint64_t *)keys->buf)[i], (float *)out->buf + i * dim, dim);
    ps_floats_set(floats);
    Py_END_ALLOW_THREADS
    return py_finish(&all, PS_OK, NULL);
}

static PyObject *hash_name(PyObject *Py_UNUSED(self), PyObject *arg) {
    if (!PyUnicode_Check(arg)) return PyErr_Format(PyExc_TypeError, "hash_name: expected a string");
    Py_ssize_t n;
    const char *name = PyUnicode_AsUTF8AndSize(arg, &n);
    return name == NULL ? NULL : PyLong_FromUnsignedLongLong(ps_table_id(name, (size_t)n));
}

static PyObject *set_floats(PyObject *Py_UNUSED(self), PyObject *args) {
    unsigned mode = PS_FLOATS_IEEE;
    return PyArg_ParseTuple(args, "|I", &mode) ? PyLong_FromUnsignedLong(ps_floats_set(mode)) : NULL;
}

/* Return name, slots, kind and numbers of each optimizer. */
static PyObject *list_methods(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < PS_METHODS; i++) {
        const ps_method *m = ps_optim_method(i);
        const ps_number *own = m->numbers;
        PyObject *row =
            Py_BuildValue("(sIOO((zd)(zd)(zd)))", m->name, m->slots, ps_optim_by_row(i) ? Py_True : Py_False,
                          ps_optim_whole(i) ? Py_True : Py_False, own[0].name, own[0].usual, own[1].name,
                          own[1].usual, own[2].name, own[2].usual);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* Return the names of all schedules. */
static PyObject *list_schedules(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < PS_SCHEDULES; i++) {
        PyObject *name = PyUnicode_FromString(ps_schedule_name(i));
        if (name == NULL || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *find_rate(PyObject *Py_UNUSED(self), PyObject *args) {
    ps_schedule schedule = {0};
    float rate, factor = 1;
    unsigned long long samples, pass;
    ps_err err;
    if (!PyArg_ParseTuple(args, "O&fKK|f", py_schedule, &schedule, &rate, &samples, &pass, &factor))
        return NULL;
    if (ps_schedule_check(&schedule, &err) < 0) return py_raise(&err);
    return PyFloat_FromDouble((double)ps_schedule_rate(&schedule, rate * factor, samples, pass));
}

/* Features of this build on this machine; the names are those of `pslaunch version`. */
static PyObject *get_features(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    return Py_BuildValue("{sOsOsOsO}", "avx2", ps_cpu_avx2() ? Py_True : Py_False, "gpu", Py_False, "double",
                         Py_False, "rdma", Py_False);
}

PyMethodDef ps_kernels_methods[] = {
    {"apply_optim", PY_KEYWORDS(apply_optim), "Apply one optimizer step to value, in place."},
    {"apply_sparse", PY_KEYWORDS(apply_sparse), "Apply one optimizer step to some rows of value, in place."},
    {"add", add, METH_VARARGS, "Add g to acc in place."},
    {"set_floats", set_floats, METH_VARARGS, "Set this thread's treatment of floats; return the one before."},
    {"list_methods", list_methods, METH_NOARGS, "Return name, slots and numbers of each optimizer."},
    {"list_schedules", list_schedules, METH_NOARGS, "Return the name of each schedule of the learning rate."},
    {"find_rate", find_rate, METH_VARARGS, "Return the learning rate of an update."},
    {"init_rows", PY_KEYWORDS(init_rows), "Write the initial values of the rows `keys` to out."},
    {"hash_name", hash_name, METH_O, "Return the 64-bit FNV-1a hash of a parameter's name."},
    {"get_features", get_features, METH_NOARGS, "Return the features of this build on this machine."},
    {NULL, NULL, 0, NULL},
};
