/* The kernels of layers as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_parts.h"

#include "kernels/ps_act.h"
#include "kernels/ps_matmul.h"
#include "bindings/py_args.h"

#define NO_RESULT SIZE_MAX

/* What a kernel gets beside its arrays. */
typedef struct options {
    ps_act act;
    unsigned threads;
    size_t errors; /* as the result; NO_RESULT: None */
    ps_product product;
} options;

/* Converter for "O&": the name of an activation to a ps_act. */
static int get_act(PyObject *name, void *act) {
    static const char *const names[PS_ACTS] = {"sigmoid", "tanh", "relu", "softmax", "exp"};
    for (int i = 0; i < PS_ACTS; i++)
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, names[i]) == 0) {
            *(ps_act *)act = (ps_act)i;
            return 1;
        }
    PyErr_Format(PyExc_ValueError, "unknown activation %S", name);
    return 0;
}

/* Run a kernel with the arguments of a call: an activation if it `has_act`, `n` arrays, and threads. */
static PyObject *compute(PyObject *args, bool has_act, const py_want *wants, Py_ssize_t n, py_kernel *run) {
    options own = {.errors = NO_RESULT};
    py_arrays all = {.wants = wants};
    n += has_act;
    if (PyTuple_Size(args) != n + 1) return PyErr_Format(PyExc_TypeError, "expected %zd arguments", n + 1);
    if (has_act && !get_act(PyTuple_GetItem(args, 0), &own.act)) return NULL;
    for (Py_ssize_t i = has_act; i < n; i++)
        if (!py_take(PyTuple_GetItem(args, i), &all)) return py_release(&all);
    if (!py_threads(PyTuple_GetItem(args, n), &own.threads)) return py_release(&all);
    PyObject *done = py_run(&all, run, &own);
    if (done == NULL || own.errors == NO_RESULT) return done;
    Py_DECREF(done);
    return PyLong_FromSize_t(own.errors);
}

/* A kernel as a function of Python, from the call in C and the arrays. In the call o has the options, A, B
 * and C are the memory of the arrays, N and K the sizes of the letters n and k. */
#define KERNEL(name, has_act, call, ...)                                                \
    static int run_##name(const py_arrays *all, void *own, ps_err *err) {               \
        options *o = own;                                                               \
        return call;                                                                    \
    }                                                                                   \
    static PyObject *name(PyObject *Py_UNUSED(self), PyObject *args) {                  \
        static const py_want wants[] = {__VA_ARGS__};                                   \
        return compute(args, has_act, wants, sizeof wants / sizeof *wants, run_##name); \
    }
#define A all->of[0].buf
#define B all->of[1].buf
#define C all->of[2].buf
#define N py_size(all, 'n')
#define K py_size(all, 'k')

KERNEL(activate, true, ps_act_apply(o->act, A, N, K, o->threads, err), {"x", PY_F32, "nk", PY_WRITE})
KERNEL(undo_activation, true, ps_act_undo(o->act, A, B, C, N, K, o->threads, err),
       {"y", PY_F32, "nk", PY_READ}, {"grad", PY_F32, "nk", PY_READ}, {"out", PY_F32, "nk", PY_WRITE})
KERNEL(cross_entropy, false, ps_cross_entropy(A, B, C, N, K, &o->errors, o->threads, err),
       {"scores", PY_F32, "nk", PY_WRITE}, {"labels", PY_I64, "n", PY_READ}, {"cost", PY_F32, "n", PY_WRITE})
KERNEL(sum_columns, false, ps_sum_columns(A, B, N, K, o->threads, err), {"x", PY_F32, "nk", PY_READ},
       {"out", PY_F32, "1k", PY_WRITE})
KERNEL(dot_rows, false, ps_dot_rows(A, B, C, N, K, o->threads, err), {"x", PY_F32, "nk", PY_READ},
       {"y", PY_F32, "nk", PY_READ}, {"out", PY_F32, "n", PY_WRITE})
KERNEL(take_logs, false, ps_take_logs(A, N, o->threads, err), {"x", PY_F32, "n", PY_WRITE})

static ps_matrix as_matrix(const Py_buffer *view) {
    return (ps_matrix){view->buf, view->strides[0] / 4, view->strides[1] / 4};
}

static int run_matmul(const py_arrays *Py_UNUSED(all), void *own, ps_err *err) {
    const options *o = own;
    return ps_matmul(&o->product, o->threads, err);
}

/* start: None, `out` itself, or [1, n]. */
static PyObject *matmul(PyObject *Py_UNUSED(self), PyObject *args) {
    static const py_want wants[] = {{"a", PY_F32, "mk", PY_STRIDED},
                                    {"b", PY_F32, "kn", PY_STRIDED},
                                    {"out", PY_F32, "mn", PY_WRITE},
                                    {"start", PY_F32, "1n", PY_STRIDED}};
    PyObject *start;
    options own = {0};
    ps_product *p = &own.product;
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&O&OO&", py_take, &all, py_take, &all, py_take, &all, &start, py_threads,
                          &own.threads))
        return py_release(&all);
    *p = (ps_product){py_size(&all, 'm'),    py_size(&all, 'n'),    py_size(&all, 'k'),
                      as_matrix(&all.of[0]), as_matrix(&all.of[1]), {0},
                      as_matrix(&all.of[2])};
    if (start == all.of[2].obj) {
        p->start = p->out;
    } else if (start != Py_None) {
        if (!py_take(start, &all)) return py_release(&all);
        p->start = (ps_matrix){all.of[3].buf, 0, all.of[3].strides[1] / 4};
    }
    return py_run(&all, run_matmul, &own);
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

PyMethodDef ps_compute_methods[] = {
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
    {NULL, NULL, 0, NULL},
};
