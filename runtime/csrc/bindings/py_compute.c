/* The kernels of layers as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_parts.h"

#include "kernels/ps_act.h"
#include "kernels/ps_matmul.h"
#include "bindings/py_args.h"

enum { MOST_ARRAYS = 4 };

/* Arrays of one call; zeroed ones may be released. */
typedef struct arrays {
    Py_buffer of[MOST_ARRAYS];
    const char *names[MOST_ARRAYS];
    int n;
} arrays;

static void release(arrays *all) {
    for (int i = all->n - 1; i >= 0; i--) PyBuffer_Release(&all->of[i]);
}

/* Release the arrays; return None, or NULL with the exception of `rc`. */
static PyObject *finish(arrays *all, int rc, const ps_err *err) {
    release(all);
    return rc == PS_OK ? Py_NewRef(Py_None) : py_raise(err);
}

static PyObject *fail(arrays *all) {
    release(all);
    return NULL;
}

/* Borrow dense arrays of `item`s and `ndim` dimensions, the next in *all. NULL with an exception. */
static Py_buffer *take(arrays *all, PyObject *obj, py_item item, int ndim, bool writable, const char *name) {
    Py_buffer *view = &all->of[all->n];
    if (py_array(obj, view, item, writable, name) < 0) return NULL;
    all->names[all->n++] = name;
    return py_need_ndim(view, ndim, name) < 0 ? NULL : view;
}

/* Borrow a matrix of any strides, the next in *all. NULL with an exception. */
static Py_buffer *take_matrix(arrays *all, PyObject *obj, const char *name, ps_matrix *m) {
    Py_buffer *view = &all->of[all->n];
    if (py_matrix(obj, view, name) < 0) return NULL;
    all->names[all->n++] = name;
    *m = (ps_matrix){view->buf, view->strides[0] / 4, view->strides[1] / 4};
    return view;
}

static int need_shape(const Py_buffer *view, Py_ssize_t rows, Py_ssize_t cols, const char *name) {
    if (view->shape[0] == rows && view->shape[1] == cols) return 0;
    PyErr_Format(PyExc_ValueError, "%s is [%zd, %zd], expected [%zd, %zd]", name, view->shape[0],
                 view->shape[1], rows, cols);
    return -1;
}

/* Return -1 with ValueError if `out` shares memory with another array; those that are only read may. */
static int need_out_apart(const arrays *all, const Py_buffer *out) {
    return py_need_alone(all->of, all->names, all->n, (int)(out - all->of));
}

/* start: None, `out` itself, or [1, n]. */
static int get_start(arrays *all, PyObject *start, PyObject *out, ps_product *p) {
    if (start == Py_None) return 0;
    if (start == out) {
        p->start = p->out;
        return 0;
    }
    Py_buffer *view = take_matrix(all, start, "start", &p->start);
    if (view == NULL || need_shape(view, 1, (Py_ssize_t)p->n, "start") < 0) return -1;
    p->start.row = 0;
    return 0;
}

static int get_product(arrays *all, PyObject *const *objs, ps_product *p) {
    enum { A, B, OUT, START };
    Py_buffer *a = take_matrix(all, objs[A], "a", &p->a);
    if (a == NULL) return -1;
    Py_buffer *b = take_matrix(all, objs[B], "b", &p->b);
    if (b == NULL || need_shape(b, a->shape[1], b->shape[1], "b") < 0) return -1;
    Py_buffer *out = take(all, objs[OUT], PY_F32, 2, true, "out");
    if (out == NULL || need_shape(out, a->shape[0], b->shape[1], "out") < 0) return -1;
    p->m = (size_t)a->shape[0], p->n = (size_t)b->shape[1], p->k = (size_t)a->shape[1];
    p->out = (ps_matrix){out->buf, out->shape[1], 1};
    if (get_start(all, objs[START], objs[OUT], p) < 0) return -1;
    return need_out_apart(all, out);
}

static PyObject *matmul(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)self;
    static char *names[] = {"a", "b", "out", "start", "threads", NULL};
    PyObject *objs[4] = {NULL, NULL, NULL, Py_None};
    int rc;
    unsigned threads = 1;
    arrays all = {0};
    ps_product p = {0};
    ps_err err;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|OO&", names, &objs[0], &objs[1], &objs[2], &objs[3],
                                     py_threads, &threads))
        return NULL;
    if (get_product(&all, objs, &p) < 0) return fail(&all);
    Py_BEGIN_ALLOW_THREADS
    rc = ps_matmul(&p, threads, &err);
    Py_END_ALLOW_THREADS
    return finish(&all, rc, &err);
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

static PyObject *activate(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *x;
    int rc;
    unsigned threads;
    ps_act act;
    ps_err err;
    arrays all = {0};
    if (!PyArg_ParseTuple(args, "O&OO&", get_act, &act, &x, py_threads, &threads)) return NULL;
    Py_buffer *view = take(&all, x, PY_F32, 2, true, "x");
    if (view == NULL) return fail(&all);
    Py_BEGIN_ALLOW_THREADS
    rc = ps_act_apply(act, view->buf, (size_t)view->shape[0], (size_t)view->shape[1], threads, &err);
    Py_END_ALLOW_THREADS
    return finish(&all, rc, &err);
}

static PyObject *undo_activation(PyObject *self, PyObject *args) {
    (void)self;
    static const char *const names[] = {"y", "grad", "out"};
    PyObject *objs[3];
    int rc;
    unsigned threads;
    ps_act act;
    ps_err err;
    arrays all = {0};
    if (!PyArg_ParseTuple(args, "O&OOOO&", get_act, &act, &objs[0], &objs[1], &objs[2], py_threads, &threads))
        return NULL;
    for (int i = 0; i < 3; i++) {
        Py_buffer *view = take(&all, objs[i], PY_F32, 2, i == 2, names[i]);
        if (view == NULL || need_shape(view, all.of[0].shape[0], all.of[0].shape[1], names[i]) < 0)
            return fail(&all);
    }
    if (py_need_apart(all.of, all.names, 3) < 0) return fail(&all);
    Py_BEGIN_ALLOW_THREADS
    rc = ps_act_undo(act, all.of[0].buf, all.of[1].buf, all.of[2].buf, (size_t)all.of[0].shape[0],
                     (size_t)all.of[0].shape[1], threads, &err);
    Py_END_ALLOW_THREADS
    return finish(&all, rc, &err);
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

static PyObject *cross_entropy(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *objs[3];
    int rc;
    unsigned threads;
    size_t errors;
    ps_err err;
    arrays all = {0};
    if (!PyArg_ParseTuple(args, "OOOO&", &objs[0], &objs[1], &objs[2], py_threads, &threads)) return NULL;
    Py_buffer *scores = take(&all, objs[0], PY_F32, 2, true, "scores");
    if (scores == NULL) return fail(&all);
    Py_buffer *labels = take(&all, objs[1], PY_I64, 1, false, "labels");
    if (labels == NULL || check_labels(labels, scores->shape[1]) < 0) return fail(&all);
    Py_buffer *cost = take(&all, objs[2], PY_F32, 1, true, "cost");
    if (cost == NULL || py_need_apart(all.of, all.names, 3) < 0) return fail(&all);
    if (py_need_items(labels, (size_t)scores->shape[0], "labels", "scores, one for each row,") < 0)
        return fail(&all);
    if (py_need_items(cost, (size_t)scores->shape[0], "cost", "scores, one for each row,") < 0)
        return fail(&all);
    Py_BEGIN_ALLOW_THREADS
    rc = ps_cross_entropy(scores->buf, labels->buf, cost->buf, (size_t)scores->shape[0],
                          (size_t)scores->shape[1], &errors, threads, &err);
    Py_END_ALLOW_THREADS
    PyObject *done = finish(&all, rc, &err);
    if (done == NULL) return NULL;
    Py_DECREF(done);
    return PyLong_FromSize_t(errors);
}

static PyObject *sum_columns(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *objs[2];
    int rc;
    unsigned threads;
    ps_err err;
    arrays all = {0};
    if (!PyArg_ParseTuple(args, "OOO&", &objs[0], &objs[1], py_threads, &threads)) return NULL;
    Py_buffer *x = take(&all, objs[0], PY_F32, 2, false, "x");
    if (x == NULL) return fail(&all);
    Py_buffer *out = take(&all, objs[1], PY_F32, 2, true, "out");
    if (out == NULL || need_shape(out, 1, x->shape[1], "out") < 0 || py_need_apart(all.of, all.names, 2) < 0)
        return fail(&all);
    Py_BEGIN_ALLOW_THREADS
    rc = ps_sum_columns(x->buf, out->buf, (size_t)x->shape[0], (size_t)x->shape[1], threads, &err);
    Py_END_ALLOW_THREADS
    return finish(&all, rc, &err);
}

static PyObject *dot_rows(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *objs[3];
    int rc;
    unsigned threads;
    ps_err err;
    arrays all = {0};
    if (!PyArg_ParseTuple(args, "OOOO&", &objs[0], &objs[1], &objs[2], py_threads, &threads)) return NULL;
    Py_buffer *x = take(&all, objs[0], PY_F32, 2, false, "x");
    if (x == NULL) return fail(&all);
    Py_buffer *y = take(&all, objs[1], PY_F32, 2, false, "y");
    if (y == NULL || need_shape(y, x->shape[0], x->shape[1], "y") < 0) return fail(&all);
    Py_buffer *out = take(&all, objs[2], PY_F32, 1, true, "out");
    if (out == NULL || py_need_items(out, (size_t)x->shape[0], "out", "x, one for each row,") < 0)
        return fail(&all);
    if (need_out_apart(&all, out) < 0) return fail(&all);
    Py_BEGIN_ALLOW_THREADS
    rc = ps_dot_rows(x->buf, y->buf, out->buf, (size_t)x->shape[0], (size_t)x->shape[1], threads, &err);
    Py_END_ALLOW_THREADS
    return finish(&all, rc, &err);
}

static PyObject *take_logs(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *x;
    int rc;
    unsigned threads;
    ps_err err;
    arrays all = {0};
    if (!PyArg_ParseTuple(args, "OO&", &x, py_threads, &threads)) return NULL;
    Py_buffer *view = take(&all, x, PY_F32, 1, true, "x");
    if (view == NULL) return fail(&all);
    Py_BEGIN_ALLOW_THREADS
    rc = ps_take_logs(view->buf, py_items(view), threads, &err);
    Py_END_ALLOW_THREADS
    return finish(&all, rc, &err);
}

static PyObject *choose_build(PyObject *self, PyObject *arg) {
    (void)self;
    long isa = PyLong_AsLong(arg);
    if (isa == -1 && PyErr_Occurred()) return NULL;
    if (isa < PS_ISA_BEST || isa > PS_ISA_AVX512)
        return PyErr_Format(PyExc_ValueError, "unknown isa %ld", isa);
    ps_build_choose((ps_isa)isa);
    return Py_NewRef(Py_None);
}

static PyObject *get_build(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return PyUnicode_FromString(ps_build_name());
}

/* Cast from Python's documentation: a function that takes keywords, as its flags say. */
PyMethodDef ps_compute_methods[] = {
    {"matmul", (PyCFunction)(void (*)(void))matmul, METH_VARARGS | METH_KEYWORDS,
     "Write start + a b to out."},
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
