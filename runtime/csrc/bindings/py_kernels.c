/* The kernels as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_parts.h"

#include "tables/ps_init.h"
#include "kernels/ps_optim.h"
#include "tables/ps_schedule.h"
#include "bindings/py_args.h"

/* The arrays of one optimizer call; zeroed ones may be released. */
enum { VALUE, SLOTS, GRAD, ROWS, ARRAYS };
static const char *const array_names[ARRAYS] = {"value", "slots", "grad", "rows"};

static void release(Py_buffer *views, int n) {
    for (int i = n - 1; i >= 0; i--) PyBuffer_Release(&views[i]);
}

static int check_optim(const ps_optim *o) {
    ps_err err;
    if (ps_optim_check(o, &err) == PS_OK) return 0;
    py_raise(&err);
    return -1;
}

/* Get value, slots and gradient with types and sizes that match, except for the gradient's size. The value
 * has rows if `by_rows`, else it is one. */
static int get_arrays(const ps_optim *o, bool by_rows, PyObject *const *objs, Py_buffer *views) {
    if (py_array(objs[VALUE], &views[VALUE], PY_F32, true, "value") < 0) return -1;
    if (py_array(objs[GRAD], &views[GRAD], PY_F32, false, "grad") < 0) return -1;
    if (by_rows && py_need_ndim(&views[VALUE], 2, "value") < 0) return -1;
    size_t rows = by_rows ? (size_t)views[VALUE].shape[0] : 1;
    size_t dim = by_rows ? (size_t)views[VALUE].shape[1] : py_items(&views[VALUE]);
    if (objs[SLOTS] == Py_None) {
        if (ps_optim_state(o->method, 1) == 0) return 0;
        PyErr_Format(PyExc_ValueError, "slots: optimizer %s needs an array, not None",
                     ps_optim_method(o->method)->name);
        return -1;
    }
    if (py_array(objs[SLOTS], &views[SLOTS], PY_F32, true, "slots") < 0) return -1;
    return py_need_items(&views[SLOTS], rows * ps_optim_state(o->method, dim), "slots",
                         "value with this method");
}

static PyObject *apply_optim(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)self;
    static char *names[] = {"rule", "step", "value", "slots", "grad", NULL};
    ps_optim o = {0};
    unsigned long long step;
    PyObject *objs[ARRAYS], *result = NULL;
    Py_buffer views[ARRAYS] = {{0}};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&KOOO", names, py_optim, &o, &step, &objs[VALUE],
                                     &objs[SLOTS], &objs[GRAD]))
        return NULL;
    if (check_optim(&o) < 0) return NULL;
    if (get_arrays(&o, false, objs, views) < 0) goto done;
    if (py_need_items(&views[GRAD], py_items(&views[VALUE]), "grad", "value") < 0) goto done;
    if (py_need_apart(views, array_names, ARRAYS) < 0) goto done;
    Py_BEGIN_ALLOW_THREADS
    unsigned floats = ps_floats_set(PS_FLOATS_IEEE);
    size_t n = py_items(&views[VALUE]);
    ps_rate rate = ps_optim_rate(&o, step);
    ps_optim_apply(&o, rate, views[VALUE].buf, views[SLOTS].buf, n, views[GRAD].buf, n);
    ps_optim_finish(&o, rate, views[VALUE].buf, views[SLOTS].buf, n);
    ps_floats_set(floats);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    release(views, ARRAYS);
    return result;
}

/* Check the shapes of apply_sparse: value [rows, dim], rows [k], grad [k, dim]. */
static int check_rows_shapes(const Py_buffer *views) {
    if (py_need_ndim(&views[GRAD], 2, "grad") < 0) return -1;
    if (py_need_ndim(&views[ROWS], 1, "rows") < 0) return -1;
    if (views[GRAD].shape[0] != views[ROWS].shape[0] || views[GRAD].shape[1] != views[VALUE].shape[1]) {
        PyErr_Format(PyExc_ValueError, "grad is [%zd, %zd], but rows and value need [%zd, %zd]",
                     views[GRAD].shape[0], views[GRAD].shape[1], views[ROWS].shape[0], views[VALUE].shape[1]);
        return -1;
    }
    return 0;
}

static PyObject *apply_sparse(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)self;
    static char *names[] = {"rule", "step", "value", "slots", "rows", "grad", NULL};
    ps_optim o = {0};
    ps_err err;
    unsigned long long step;
    int rc = PS_OK;
    PyObject *objs[ARRAYS], *result = NULL;
    Py_buffer views[ARRAYS] = {{0}};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&KOOOO", names, py_optim, &o, &step, &objs[VALUE],
                                     &objs[SLOTS], &objs[ROWS], &objs[GRAD]))
        return NULL;
    if (check_optim(&o) < 0 || get_arrays(&o, true, objs, views) < 0) goto done;
    if (py_array(objs[ROWS], &views[ROWS], PY_U64, false, "rows") < 0) goto done;
    if (check_rows_shapes(views) < 0 || py_need_apart(views, array_names, ARRAYS) < 0) goto done;
    size_t rows_n = (size_t)views[VALUE].shape[0], dim = (size_t)views[VALUE].shape[1];
    Py_BEGIN_ALLOW_THREADS
    unsigned floats = ps_floats_set(PS_FLOATS_IEEE);
    rc = ps_optim_apply_rows(&o, ps_optim_rate(&o, step), views[VALUE].buf, views[SLOTS].buf, rows_n, dim,
                             views[ROWS].buf, views[GRAD].buf, py_items(&views[ROWS]), &err);
    ps_floats_set(floats);
    Py_END_ALLOW_THREADS
    result = rc == PS_OK ? Py_NewRef(Py_None) : py_raise(&err);
done:
    release(views, ARRAYS);
    return result;
}

static PyObject *add(PyObject *self, PyObject *args) {
    (void)self;
    static const char *const buffers[] = {"acc", "g"};
    PyObject *acc, *g, *result = NULL;
    Py_buffer views[2] = {{0}};
    if (!PyArg_ParseTuple(args, "OO", &acc, &g)) return NULL;
    if (py_array(acc, &views[0], PY_F32, true, "acc") < 0) goto done;
    if (py_array(g, &views[1], PY_F32, false, "g") < 0) goto done;
    if (py_need_items(&views[1], py_items(&views[0]), "g", "acc") < 0) goto done;
    if (py_need_apart(views, buffers, 2) < 0) goto done;
    Py_BEGIN_ALLOW_THREADS
    unsigned floats = ps_floats_set(PS_FLOATS_IEEE);
    ps_add(views[0].buf, views[1].buf, py_items(&views[0]));
    ps_floats_set(floats);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    release(views, 2);
    return result;
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

static void init_all(const ps_init *init, const uint64_t *keys, size_t n, float *out, size_t dim) {
    for (size_t i = 0; i < n; i++) ps_init_row(init, keys[i], out + i * dim, dim);
}

static PyObject *init_rows(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)self;
    static char *names[] = {"out", "keys", "seed", "table", "kind", "mean", "std", NULL};
    static const char *const buffers[] = {"out", "keys"};
    ps_init init;
    int kind;
    PyObject *out, *keys, *seed, *table, *result = NULL;
    Py_buffer views[2] = {{0}};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOiff", names, &out, &keys, &seed, &table, &kind,
                                     &init.mean, &init.std))
        return NULL;
    if (get_init(&init, seed, table, kind) < 0) return NULL;
    if (py_array(out, &views[0], PY_F32, true, "out") < 0) goto done;
    if (py_array(keys, &views[1], PY_U64, false, "keys") < 0) goto done;
    if (py_need_ndim(&views[0], 2, "out") < 0 || py_need_ndim(&views[1], 1, "keys") < 0) goto done;
    if (py_need_items(&views[1], (size_t)views[0].shape[0], "keys", "out, one for each row,") < 0) goto done;
    if (py_need_apart(views, buffers, 2) < 0) goto done;
    Py_BEGIN_ALLOW_THREADS
    unsigned floats = ps_floats_set(PS_FLOATS_IEEE);
    init_all(&init, views[1].buf, py_items(&views[1]), views[0].buf, (size_t)views[0].shape[1]);
    ps_floats_set(floats);
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    release(views, 2);
    return result;
}

static PyObject *hash_name(PyObject *self, PyObject *arg) {
    (void)self;
    if (!PyUnicode_Check(arg)) return PyErr_Format(PyExc_TypeError, "hash_name: expected a string");
    Py_ssize_t n;
    const char *name = PyUnicode_AsUTF8AndSize(arg, &n);
    return name == NULL ? NULL : PyLong_FromUnsignedLongLong(ps_table_id(name, (size_t)n));
}

static PyObject *set_floats(PyObject *self, PyObject *args) {
    (void)self;
    unsigned mode = PS_FLOATS_IEEE;
    return PyArg_ParseTuple(args, "|I", &mode) ? PyLong_FromUnsignedLong(ps_floats_set(mode)) : NULL;
}

/* Return name, slots, kind and numbers of each optimizer. */
static PyObject *list_methods(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
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
static PyObject *list_schedules(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < PS_SCHEDULES; i++) {
        PyObject *name = PyUnicode_FromString(ps_schedule_name(i));
        if (name == NULL || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *find_rate(PyObject *self, PyObject *args) {
    (void)self;
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
static PyObject *get_features(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return Py_BuildValue("{sOsOsOsO}", "avx2", ps_cpu_avx2() ? Py_True : Py_False, "gpu", Py_False, "double",
                         Py_False, "rdma", Py_False);
}

/* Cast from Python's documentation: these functions take keywords, as their flags say. */
#define KEYWORDS(f) (PyCFunction)(void (*)(void))(f), METH_VARARGS | METH_KEYWORDS

PyMethodDef ps_kernels_methods[] = {
    {"apply_optim", KEYWORDS(apply_optim), "Apply one optimizer step to value, in place."},
    {"apply_sparse", KEYWORDS(apply_sparse), "Apply one optimizer step to some rows of value, in place."},
    {"add", add, METH_VARARGS, "Add g to acc in place."},
    {"set_floats", set_floats, METH_VARARGS, "Set this thread's treatment of floats; return the one before."},
    {"list_methods", list_methods, METH_NOARGS, "Return name, slots and numbers of each optimizer."},
    {"list_schedules", list_schedules, METH_NOARGS, "Return the name of each schedule of the learning rate."},
    {"find_rate", find_rate, METH_VARARGS, "Return the learning rate of an update."},
    {"init_rows", KEYWORDS(init_rows), "Write the initial values of the rows `keys` to out."},
    {"hash_name", hash_name, METH_O, "Return the 64-bit FNV-1a hash of a parameter's name."},
    {"get_features", get_features, METH_NOARGS, "Return the features of this build on this machine."},
    {NULL, NULL, 0, NULL},
};
