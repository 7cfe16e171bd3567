/* The kernels of layers as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_parts.h"

#include "kernels/ps_act.h"
#include "kernels/ps_matmul.h"
#include "bindings/py_args.h"

static ps_matrix as_matrix(const Py_buffer *view) {
    return (ps_matrix){view->buf, view->strides[0] / 4, view->strides[1] / 4};
}

static int need_shape(const py_arrays *all, int which, Py_ssize_t rows, Py_ssize_t cols) {
    const Py_ssize_t *shape = all->of[which].shape;
    if (shape[0] == rows && shape[1] == cols) return 0;
    PyErr_Format(PyExc_ValueError, "%s is [%zd, %zd], expected [%zd, %zd]", all->names[which], shape[0],
                 shape[1], rows, cols);
    return -1;
}

/* The arrays of a product. `out` may share memory with no other one; those that are only read may. */
enum { A, B, OUT, START };

/* start: None, `out` itself, or [1, n]. */
static int get_start(py_arrays *all, PyObject *start, ps_product *p) {
    if (start == Py_None) return 0;
    if (start == all->of[OUT].obj) {
        p->start = p->out;
        return 0;
    }
    if (!py_take(start, all) || need_shape(all, START, 1, (Py_ssize_t)p->n) < 0) return -1;
    p->start = as_matrix(&all->of[START]);
    p->start.row = 0;
    return 0;
}

static int get_product(py_arrays *all, PyObject *start, ps_product *p) {
    const Py_buffer *a = &all->of[A], *b = &all->of[B];
    if (need_shape(all, B, a->shape[1], b->shape[1]) < 0) return -1;
    if (need_shape(all, OUT, a->shape[0], b->shape[1]) < 0) return -1;
    p->m = (size_t)a->shape[0], p->n = (size_t)b->shape[1], p->k = (size_t)a->shape[1];
    p->a = as_matrix(a), p->b = as_matrix(b);
    p->out = (ps_matrix){all->of[OUT].buf, b->shape[1], 1};
    return get_start(all, start, p) < 0 ? -1 : py_need_alone(all, OUT);
}

static PyObject *matmul(PyObject *Py_UNUSED(self), PyObject *args, PyObject *kwargs) {
    static char *names[] = {"a", "b", "out", "start", "threads", NULL};
    static const py_want wants[] = {{"a", PY_F32, 2, PY_STRIDED},
                                    {"b", PY_F32, 2, PY_STRIDED},
                                    {"out", PY_F32, 2, PY_WRITE},
                                    {"start", PY_F32, 2, PY_STRIDED}};
    PyObject *start = Py_None;
    int rc;
    unsigned threads = 1;
    py_arrays all = {.wants = wants};
    ps_product p = {0};
    ps_err err;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&O&|OO&", names, py_take, &all, py_take, &all, py_take,
                                     &all, &start, py_threads, &threads) ||
        get_product(&all, start, &p) < 0)
        return py_release(&all);
    Py_BEGIN_ALLOW_THREADS
    rc = ps_matmul(&p, threads, &err);
    Py_END_ALLOW_THREADS
    return py_finish(&all, rc, &err);
}

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

static PyObject *activate(PyObject *Py_UNUSED(self), PyObject *args) {
    static const py_want wants[] = {{"x", PY_F32, 2, PY_WRITE}};
    int rc;
    unsigned threads;
    ps_act act;
    ps_err err;
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&O&", get_act, &act, py_take, &all, py_threads, &threads))
        return py_release(&all);
    const Py_buffer *x = all.of;
    Py_BEGIN_ALLOW_THREADS
    rc = ps_act_apply(act, x->buf, (size_t)x->shape[0], (size_t)x->shape[1], threads, &err);
    Py_END_ALLOW_THREADS
    return py_finish(&all, rc, &err);
}

static PyObject *undo_activation(PyObject *Py_UNUSED(self), PyObject *args) {
    static const py_want wants[] = {
        {"y", PY_F32, 2, PY_READ}, {"grad", PY_F32, 2, PY_READ}, {"out", PY_F32, 2, PY_WRITE}};
    int rc;
    unsigned threads;
    ps_act act;
    ps_err err;
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&O&O&O&", get_act, &act, py_take, &all, py_take, &all, py_take, &all,
                          py_threads, &threads))
        return py_release(&all);
    const Py_buffer *y = all.of, *grad = y + 1, *out = y + 2;
    if (need_shape(&all, 1, y->shape[0], y->shape[1]) < 0 ||
        need_shape(&all, 2, y->shape[0], y->shape[1]) < 0 || py_need_apart(&all) < 0)
        return py_release(&all);
    Py_BEGIN_ALLOW_THREADS
    rc = ps_act_undo(act, y->buf, grad->buf, out->buf, (size_t)y->shape[0], (size_t)y->shape[1], threads,
                     &err);
    Py_END_ALLOW_THREADS
    return py_finish(&all, rc, &err);
}

static int check_labels(const Py_buffer *labels, Py_ssize_t classes) {
    const int64_t *label = labels->buf;
    for (size_t i = 0; i < py_items(labels); i++)
        if (label[i] < 0 || label[i] >= classes) {
            PyErr_Format(PyExc_ValueError, "labels[%zu] is %lld, but there are %zd classes", i,
                         (long long)label[i], classes);
            return -1;
        }
    return 0;
}

static PyObject *cross_entropy(PyObject *Py_UNUSED(self), PyObject *args) {
    static const py_want wants[] = {
        {"scores", PY_F32, 2, PY_WRITE}, {"labels", PY_I64, 1, PY_READ}, {"cost", PY_F32, 1, PY_WRITE}};
    int rc;
    unsigned threads;
    size_t errors;
    ps_err err;
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&O&O&", py_take, &all, py_take, &all, py_take, &all, py_threads,
                          &threads))
        return py_release(&all);
    const Py_buffer *scores = all.of, *labels = scores + 1, *cost = scores + 2;
    size_t rows = (size_t)scores->shape[0], cols = (size_t)scores->shape[1];
    if (check_labels(labels, scores->shape[1]) < 0 || py_need_apart(&all) < 0 ||
        py_need_items(labels, rows, "labels", "scores, one for each row,") < 0 ||
        py_need_items(cost, rows, "cost", "scores, one for each row,") < 0)
        return py_release(&all);
    Py_BEGIN_ALLOW_THREADS
    rc = ps_cross_entropy(scores->buf, labels->buf, cost->buf, rows, cols, &errors, threads, &err);
    Py_END_ALLOW_THREADS
    py_release(&all);
    return rc == PS_OK ? PyLong_FromSize_t(errors) : py_raise(&err);
}

static PyObject *sum_columns(PyObject *Py_UNUSED(self), PyObject *args) {
    static const py_want wants[] = {{"x", PY_F32, 2, PY_READ}, {"out", PY_F32, 2, PY_WRITE}};
    int rc;
    unsigned threads;
    ps_err err;
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&O&", py_take, &all, py_take, &all, py_threads, &threads))
        return py_release(&all);
    const Py_buffer *x = all.of, *out = x + 1;
    if (need_shape(&all, 1, 1, x->shape[1]) < 0 || py_need_apart(&all) < 0) return py_release(&all);
    Py_BEGIN_ALLOW_THREADS
    rc = ps_sum_columns(x->buf, out->buf, (size_t)x->shape[0], (size_t)x->shape[1], threads, &err);
    Py_END_ALLOW_THREADS
    return py_finish(&all, rc, &err);
}

static PyObject *dot_rows(PyObject *Py_UNUSED(self), PyObject *args) {
    static const py_want wants[] = {
        {"x", PY_F32, 2, PY_READ}, {"y", PY_F32, 2, PY_READ}, {"out", PY_F32, 1, PY_WRITE}};
    int rc;
    unsigned threads;
    ps_err err;
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&O&O&", py_take, &all, py_take, &all, py_take, &all, py_threads,
                          &threads))
        return py_release(&all);
    const Py_buffer *x = all.of, *y = x + 1, *out = x + 2;
    size_t rows = (size_t)x->shape[0], cols = (size_t)x->shape[1];
    if (need_shape(&all, 1, x->shape[0], x->shape[1]) < 0 ||
        py_need_items(out, rows, "out", "x, one for each row,") < 0 || py_need_alone(&all, 2) < 0)
        return py_release(&all);
    Py_BEGIN_ALLOW_THREADS
    rc = ps_dot_rows(x->buf, y->buf, out->buf, rows, cols, threads, &err);
    Py_END_ALLOW_THREADS
    return py_finish(&all, rc, &err);
}

static PyObject *take_logs(PyObject *Py_UNUSED(self), PyObject *args) {
    static const py_want wants[] = {{"x", PY_F32, 1, PY_WRITE}};
    int rc;
    unsigned threads;
    ps_err err;
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O&O&", py_take, &all, py_threads, &threads)) return py_release(&all);
    Py_BEGIN_ALLOW_THREADS
    rc = ps_take_logs(all.of->buf, py_items(all.of), threads, &err);
    Py_END_ALLOW_THREADS
    return py_finish(&all, rc, &err);
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
    {"matmul", PY_KEYWORDS(matmul), "Write start + a b to out."},
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
