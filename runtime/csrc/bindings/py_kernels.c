/* The kernels as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_args.h"

#include "tables/ps_init.h"
#include "kernels/ps_optim.h"
#include "tables/ps_schedule.h"

static int run_optim(py_call *c, ps_err *err) {
    float *value = c->of[0].buf, *slots = c->of[1].buf;
    size_t n = py_size(c, 'n'), floats = ps_optim_state(c->rule.method, n), given = py_items(&c->of[1]);
    if (ps_optim_check(&c->rule, err) < 0) return PS_EINVAL;
    if (given != floats)
        return ps_fail(err, PS_EINVAL, 0, "slots has %zu items, but value with this method needs %zu", given,
                       floats);
    ps_rate rate = ps_optim_rate(&c->rule, c->numbers[0]);
    ps_optim_apply(&c->rule, rate, value, slots, n, c->of[2].buf, n);
    ps_optim_finish(&c->rule, rate, value, slots, n);
    return PS_OK;
}

PY_FUNCTION(apply_optim, run_optim, "rkaaa", {"value", PY_F32, "*n", PY_WRITE},
            {"slots", PY_F32, NULL, PY_WRITE_OR_NONE}, {"grad", PY_F32, "*n", PY_READ})

static int run_add(py_call *c, ps_err *Py_UNUSED(err)) {
    ps_add(c->of[0].buf, c->of[1].buf, py_size(c, 'n'));
    return PS_OK;
}

PY_FUNCTION(add, run_add, "aa", {"acc", PY_F32, "*n", PY_WRITE}, {"g", PY_F32, "*n", PY_READ})

static int run_squares(py_call *c, ps_err *Py_UNUSED(err)) {
    c->sum = ps_squares(c->of->buf, py_items(c->of));
    return PS_OK;
}

PY_FUNCTION(sum_squares, run_squares, "a=f", {"values", PY_F32, NULL, PY_READ})

static PyObject *is_finite(PyObject *Py_UNUSED(self), PyObject *arg) {
    static const py_want wants[] = {{"values", PY_F32, NULL, PY_READ}};
    py_call all = {.wants = wants};
    if (!py_take(arg, &all)) return py_release(&all);
    bool finite = ps_finite(all.of->buf, py_items(all.of)); /* at the speed of memory: the GIL is kept */
    py_release(&all);
    return PyBool_FromLong(finite);
}

static int run_init(py_call *c, ps_err *err) {
    const uint64_t *numbers = c->numbers, *keys = c->of[1].buf;
    const ps_init init = {numbers[0], numbers[1], (uint32_t)numbers[2], c->rates[0], c->rates[1]};
    if (ps_init_check(&init, err) < 0) return PS_EINVAL;
    float *out = c->of[0].buf;
    size_t dim = py_size(c, 'd');
    for (size_t i = 0; i < py_size(c, 'n'); i++) ps_init_row(&init, keys[i], out + i * dim, dim);
    return PS_OK;
}

/* The numbers: seed, table and kind; mean and std. */
PY_FUNCTION(init_rows, run_init, "aakkkff", {"out", PY_F32, "nd", PY_WRITE}, {"keys", PY_U64, "n", PY_READ})

static PyObject *hash_name(PyObject *Py_UNUSED(self), PyObject *arg) {
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
    return Py_BuildValue("{sOsOsOsO}", "avx2", PS_CPU_HAS("avx2") ? Py_True : Py_False, "gpu", Py_False,
                         "double", Py_False, "rdma", Py_False);
}

PyMethodDef ps_kernels_methods[] = {
    {"apply_optim", apply_optim, METH_VARARGS, "Apply one optimizer step to value, in place."},
    {"add", add, METH_VARARGS, "Add g to acc in place."},
    {"sum_squares", sum_squares, METH_VARARGS, "Return the sum of the squares of an array."},
    {"is_finite", is_finite, METH_O, "Return True if no value of an array is NaN or infinite."},
    {"set_floats", set_floats, METH_VARARGS, "Set this thread's treatment of floats; return the one before."},
    {"list_methods", list_methods, METH_NOARGS, "Return name, slots and numbers of each optimizer."},
    {"list_schedules", list_schedules, METH_NOARGS, "Return the name of each schedule of the learning rate."},
    {"find_rate", find_rate, METH_VARARGS, "Return the learning rate of an update."},
    {"init_rows", init_rows, METH_VARARGS, "Write the initial values of the rows `keys` to out."},
    {"hash_name", hash_name, METH_O, "Return the 64-bit FNV-1a hash of a parameter's name."},
    {"get_features", get_features, METH_NOARGS, "Return the features of this build on this machine."},
    {NULL, NULL, 0, NULL},
};
