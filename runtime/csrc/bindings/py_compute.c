/* The kernels of layers as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_args.h"

#include <malloc.h>

#include "kernels/ps_act.h"
#include "kernels/ps_matmul.h"

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
    {"keep_memory", keep_memory, METH_NOARGS, "Let up to 64 MiB that is freed stay with this process."},
    {NULL, NULL, 0, NULL},
};
