/* The kernels as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_args.h"

#include <malloc.h>

#include "kernels/ps_act.h"
#include "kernels/ps_matmul.h"
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
            {"slots", PY_F32, NULL, PY_WRITE}, {"grad", PY_F32, "*n", PY_READ})

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

/* --- Layers. --- */

static int run_op(py_call *c, ps_act_op *o, ps_err *err) {
    int rc = ps_act_run(o, c->threads, err);
    c->found = o->wrong;
    return rc;
}

/* A computation as a function of Python, from the forms of its arguments, its description and the arrays. In
 * the description A, B and C are the memory of the arrays, N and K the sizes of the letters n and k. */
#define KERNEL(name, forms, op, ...)                 \
    static int run_##name(py_call *c, ps_err *err) { \
        return run_op(c, &op, err);                  \
    }                                                \
    PY_FUNCTION(name, run_##name, forms, __VA_ARGS__)
#define OP(...) ((ps_act_op){.act = c->act, .rows = N, __VA_ARGS__})
#define A c->of[0].buf
#define B c->of[1].buf
#define C c->of[2].buf
#define N py_size(c, 'n')
#define K py_size(c, 'k')

KERNEL(activate, "xat", OP(.kind = PS_APPLY, .cols = K, .x = A), {"x", PY_F32, "nk", PY_WRITE})
KERNEL(undo_activation, "xaaat", OP(.kind = PS_UNDO, .cols = K, .y = A, .grad = B, .out = C),
       {"y", PY_F32, "nk", PY_READ}, {"grad", PY_F32, "nk", PY_READ}, {"out", PY_F32, "nk", PY_WRITE})
KERNEL(cross_entropy, "aaat=k", OP(.kind = PS_CROSS_ENTROPY, .cols = K, .x = A, .labels = B, .out = C),
       {"scores", PY_F32, "nk", PY_WRITE}, {"labels", PY_I64, "n", PY_READ}, {"cost", PY_F32, "n", PY_WRITE})
KERNEL(sum_columns, "aat", OP(.kind = PS_SUM_COLUMNS, .cols = K, .y = A, .out = B),
       {"x", PY_F32, "nk", PY_READ}, {"out", PY_F32, "1k", PY_WRITE})
KERNEL(dot_rows, "aaat", OP(.kind = PS_DOT_ROWS, .cols = K, .y = A, .grad = B, .out = C),
       {"x", PY_F32, "nk", PY_READ}, {"y", PY_F32, "nk", PY_READ}, {"out", PY_F32, "n", PY_WRITE})
KERNEL(take_logs, "at", OP(.kind = PS_TAKE_LOGS, .cols = 1, .x = A), {"x", PY_F32, "n", PY_WRITE})

static ps_matrix as_matrix(const Py_buffer *view) {
    return (ps_matrix){view->buf, view->strides[0] / 4, view->strides[1] / 4};
}

static int run_matmul(py_call *c, ps_err *err) {
    return ps_matmul(c->own, c->threads, err);
}

/* start: None, `out` itself, or [1, n]. */
static PyObject *matmul(PyObject *Py_UNUSED(self), PyObject *args) {
    static const py_want wants[] = {{"a", PY_F32, "mk", PY_STRIDED},
                                    {"b", PY_F32, "kn", PY_STRIDED},
                                    {"out", PY_F32, "mn", PY_WRITE},
                                    {"start", PY_F32, "1n", PY_STRIDED}};
    PyObject *start;
    ps_product p;
    py_call c = {.wants = wants, .own = &p};
    if (!PyArg_ParseTuple(args, "O&O&O&OO&", py_take, &c, py_take, &c, py_take, &c, &start, py_threads,
                          &c.threads))
        return py_release(&c);
    p = (ps_product){py_size(&c, 'm'),    py_size(&c, 'n'),    py_size(&c, 'k'),
                     as_matrix(&c.of[0]), as_matrix(&c.of[1]), {0},
                     as_matrix(&c.of[2])};
    if (start == c.of[2].obj) {
        p.start = p.out;
    } else if (start != Py_None) {
        if (!py_take(start, &c)) return py_release(&c);
        p.start = (ps_matrix){c.of[3].buf, 0, c.of[3].strides[1] / 4};
    }
    return py_run(&c, run_matmul);
}

static PyObject *choose_build(PyObject *Py_UNUSED(self), PyObject *arg) {
    long isa = PyLong_AsLong(arg);
    if (isa == -1 && PyErr_Occurred()) return NULL;
    if (isa < PS_ISA_BEST || isa > PS_ISA_AVX512)
        return PyErr_Format(PyExc_ValueError, "unknown isa %ld", isa);
    ps_build_choose((ps_isa)isa);
    return Py_NewRef(Py_None);
}

static PyObject *get_build(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
    return PyUnicode_FromString(ps_build_name());
}

/* Without it the C library returns memory after a step and gets it back, page by page, in the next one. */
static PyObject *keep_memory(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
#ifdef __GLIBC__
    (void)mallopt(M_TRIM_THRESHOLD, 64 << 20);
    (void)mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the most that it takes */
#endif
    return Py_NewRef(Py_None);
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
    {"matmul", matmul, METH_VARARGS, "Write start + a b to out."},
    {"activate", activate, METH_VARARGS, "Apply an activation to x in place."},
    {"undo_activation", undo_activation, METH_VARARGS, "Write the gradient of an activation's input to out."},
    {"cross_entropy", cross_entropy, METH_VARARGS,
     "Replace scores by their softmax, write the cost of each row."},
    {"sum_columns", sum_columns, METH_VARARGS, "Write the sum of each column of x to out."},
    {"dot_rows", dot_rows, METH_VARARGS, "Write the sum of the products of each row of x and y to out."},
    {"take_logs", take_logs, METH_VARARGS, "Replace x by its logarithms."},
    {"choose_build", choose_build, METH_O, "Use the best build up to `isa`; 0: the best."},
    {"get_build", get_build, METH_NOARGS, "Return the name of the build in use."},
    {"keep_memory", keep_memory, METH_NOARGS,
     "Let freed memory stay with this process, in arrays below 32 MiB."},
    {NULL, NULL, 0, NULL},
};
