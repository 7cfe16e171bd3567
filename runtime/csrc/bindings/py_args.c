#include "bindings/py_args.h"

#include <limits.h>
#include <string.h>

#include "base/ps_cpu.h"

/* By py_item: name, format letters of the struct module, and bytes. */
static const struct {
    const char *name, *letters;
    Py_ssize_t size;
} items[] = {{"float32", "f", 4}, {"float64", "d", 8}, {"uint64", "QL", 8}, {"int64", "ql", 8}};

bool py_has_items(const Py_buffer *view, py_item item) {
    const char *format = view->format == NULL ? "B" : view->format;
    if (*format == '@' || *format == '=' || *format == '<') format++; /* the core is little endian */
    return strlen(format) == 1 && strchr(items[item].letters, *format) != NULL &&
           view->itemsize == items[item].size;
}

int py_array(PyObject *obj, Py_buffer *view, py_item item, int flags, const char *name) {
    if (!PyObject_CheckBuffer(obj)) {
        PyErr_Format(PyExc_TypeError, "%s: expected an array of %s", name, items[item].name);
        return -1;
    }
    if (PyObject_GetBuffer(obj, view, flags | PyBUF_FORMAT) < 0) return -1;
    if (!py_has_items(view, item)) {
        PyErr_Format(PyExc_TypeError, "%s: expected items of %s, got the format '%s'", name, items[item].name,
                     view->format == NULL ? "B" : view->format);
    } else if ((uintptr_t)view->buf % (size_t)view->itemsize != 0) {
        PyErr_Format(PyExc_ValueError, "%s: the array is not aligned to its items", name);
    } else {
        return 0;
    }
    PyBuffer_Release(view);
    return -1;
}

size_t py_items(const Py_buffer *view) {
    return (size_t)(view->len / view->itemsize);
}

int py_need_tuple(PyObject *obj, const char *expected) {
    if (PyTuple_Check(obj)) return 0;
    PyErr_SetString(PyExc_TypeError, expected);
    return -1;
}

int py_need_items(const Py_buffer *view, size_t n, const char *name, const char *like) {
    if (py_items(view) == n) return 0;
    PyErr_Format(PyExc_ValueError, "%s has %zu items, but %s needs %zu", name, py_items(view), like, n);
    return -1;
}

/* Bounds of an array's memory: [*begin, *end). */
static void get_bounds(const Py_buffer *view, uintptr_t *begin, uintptr_t *end) {
    *begin = (uintptr_t)view->buf, *end = *begin + (size_t)view->itemsize;
    for (int i = 0; i < view->ndim; i++) {
        Py_ssize_t way = (view->shape[i] - 1) * view->strides[i];
        if (way < 0) *begin -= (size_t)-way;
        else *end += (size_t)way;
    }
}

static bool overlap(const Py_buffer *a, const Py_buffer *b) {
    if (a->len == 0 || b->len == 0) return false;
    uintptr_t from[2], to[2];
    get_bounds(a, &from[0], &to[0]);
    get_bounds(b, &from[1], &to[1]);
    return from[0] < to[1] && from[1] < to[0];
}

int py_room(py_call *all, size_t n) {
    all->of = PyMem_Calloc(n, sizeof *all->of);
    all->taken = PyMem_Calloc(n, sizeof *all->taken);
    if (all->of != NULL && all->taken != NULL) return 0;
    PyErr_NoMemory();
    return -1;
}

/* Return the size that an axis of this letter must have: that of the first such one. */
static Py_ssize_t fix_size(py_call *all, char letter, Py_ssize_t own) {
    if (letter == '1') return 1;
    if (letter == '_') return own;
    unsigned at = (unsigned)(letter - 'a');
    if (!(all->known >> at & 1)) all->sizes[at] = own, all->known |= 1U << at;
    return all->sizes[at];
}

static int check_shape(py_call *all, const Py_buffer *view, const py_want *want) {
    bool whole = *want->shape == '*';
    const char *letters = want->shape + whole;
    int ndim = (int)strlen(letters);
    Py_ssize_t own[2] = {0}, expected[2] = {0};
    if (!whole && view->ndim != ndim) {
        PyErr_Format(PyExc_ValueError, "%s: expected %d dimensions, got %d", want->name, ndim, view->ndim);
        return -1;
    }
    for (int i = 0; i < ndim; i++) {
        own[i] = whole ? (Py_ssize_t)py_items(view) : view->shape[i];
        expected[i] = fix_size(all, letters[i], own[i]);
    }
    if (own[0] == expected[0] && own[1] == expected[1]) return 0;
    if (ndim == 1)
        PyErr_Format(PyExc_ValueError, "%s has %zd items, expected %zd", want->name, own[0], expected[0]);
    else
        PyErr_Format(PyExc_ValueError, "%s is [%zd, %zd], expected [%zd, %zd]", want->name, own[0], own[1],
                     expected[0], expected[1]);
    return -1;
}

Py_buffer *py_take_as(py_call *all, PyObject *obj, const py_want *want) {
    static const int flags[] = {PyBUF_C_CONTIGUOUS, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE, PyBUF_STRIDES,
                                PyBUF_STRIDES | PyBUF_WRITABLE};
    if (all->of == NULL) all->of = all->few, all->taken = all->few_taken;
    Py_buffer *view = &all->of[all->n];
    if (py_array(obj, view, want->item, flags[want->access], want->name) < 0) return NULL;
    all->taken[all->n++] = *want;
    if (want->shape != NULL && check_shape(all, view, want) < 0) return NULL;
    if (want->access < PY_STRIDED || (view->strides[0] % 4 == 0 && view->strides[1] % 4 == 0)) return view;
    PyErr_Format(PyExc_ValueError, "%s: the array is not aligned to its items", want->name);
    return NULL;
}

int py_take(PyObject *obj, void *arrays) {
    py_call *all = arrays;
    return py_take_as(all, obj, &all->wants[all->n]) != NULL;
}

PyObject *py_release(py_call *all) {
    while (all->n > 0) PyBuffer_Release(&all->of[--all->n]);
    if (all->of != all->few) {
        PyMem_Free(all->of);
        PyMem_Free(all->taken);
    }
    return NULL;
}

/* Parts, which may share memory, are many: others are compared with them, and what is written with all. */
int py_need_apart(const py_call *all) {
    bool has_parts = all->n > 0 && all->taken[all->n - 1].access == PY_PART;
    for (int i = 0; i < all->n; i++) {
        py_access own = all->taken[i].access;
        bool written = own == PY_WRITE;
        if (own == PY_PART || (!written && !has_parts)) continue;
        for (int j = 0; j < all->n; j++) {
            if (j == i || (!written && all->taken[j].access != PY_PART)) continue;
            if (!overlap(&all->of[i], &all->of[j])) continue;
            PyErr_Format(PyExc_ValueError, "%s and %s share memory", all->taken[i < j ? i : j].name,
                         all->taken[i < j ? j : i].name);
            return -1;
        }
    }
    return 0;
}

PyObject *py_run(py_call *c, py_kernel *run) {
    ps_err err;
    int rc;
    if (py_need_apart(c) < 0) return py_release(c);
    Py_BEGIN_ALLOW_THREADS
    unsigned floats = ps_floats_set(PS_FLOATS_IEEE);
    rc = run(c, &err);
    ps_floats_set(floats);
    Py_END_ALLOW_THREADS
    py_release(c);
    return rc == PS_OK ? Py_NewRef(Py_None) : py_raise(&err);
}

int py_threads(PyObject *obj, void *threads) {
    long n = PyLong_AsLong(obj);
    if (PyErr_Occurred()) return 0;
    *(unsigned *)threads = (unsigned)n;
    if (n >= 1 && n <= INT_MAX) return 1;
    PyErr_Format(PyExc_ValueError, "threads=%ld: expected at least 1", n);
    return 0;
}

/* Converter: the name of an activation to a ps_act. */
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

/* Read an argument of this form. 1, or 0 with an exception. */
static int take_argument(py_call *c, char form, PyObject *obj) {
    switch (form) {
    case 'a':
        return py_take(obj, c);
    case 't':
        return py_threads(obj, &c->threads);
    case 'r':
        return py_optim(obj, &c->rule);
    case 'x':
        return get_act(obj, &c->act);
    case 'f':
        c->rates[c->rates_n++] = (float)PyFloat_AsDouble(obj);
        return PyErr_Occurred() == NULL;
    default:
        c->numbers[c->numbers_n++] = PyLong_AsUnsignedLongLong(obj);
        return PyErr_Occurred() == NULL;
    }
}

PyObject *py_apply(PyObject *own, PyObject *args, const char *forms, const py_want *wants, py_kernel *run) {
    py_call c = {.wants = wants, .own = own};
    Py_ssize_t n = (Py_ssize_t)strcspn(forms, "=");
    if (PyTuple_Size(args) != n) return PyErr_Format(PyExc_TypeError, "expected %zd arguments", n);
    for (Py_ssize_t i = 0; i < n; i++)
        if (!take_argument(&c, forms[i], PyTuple_GetItem(args, i))) return py_release(&c);
    PyObject *none = py_run(&c, run);
    if (none == NULL || forms[n] == '\0') return none;
    Py_DECREF(none);
    return forms[n + 1] == 'f' ? PyFloat_FromDouble(c.sum) : PyLong_FromSize_t(c.found);
}

int py_optim(PyObject *obj, void *optim) {
    ps_optim *o = optim;
    if (py_need_tuple(obj, "rule: expected a tuple of a method and its numbers") < 0) return 0;
    return PyArg_ParseTuple(obj, "Ifffffff;rule: expected a method and 7 numbers", &o->method,
                            &o->learning_rate, &o->l1, &o->l2, &o->clip, &o->numbers[0], &o->numbers[1],
                            &o->numbers[2]);
}

int py_schedule(PyObject *obj, void *schedule) {
    ps_schedule *s = schedule;
    PyObject *segments;
    if (py_need_tuple(obj, "schedule: expected a tuple of a kind and its numbers") < 0) return 0;
    if (!PyArg_ParseTuple(obj, "IddO!;schedule: expected a kind, two numbers and segments", &s->kind, &s->a,
                          &s->b, &PyTuple_Type, &segments))
        return 0;
    Py_ssize_t n = PyTuple_Size(segments);
    if (n > PS_MAX_SEGMENTS) {
        PyErr_Format(PyExc_ValueError, "schedule: %zd segments, the limit is %d", n, PS_MAX_SEGMENTS);
        return 0;
    }
    s->segments_n = (uint32_t)n;
    for (Py_ssize_t i = 0; i < n; i++) {
        unsigned long long last;
        PyObject *one = PyTuple_GetItem(segments, i);
        if (py_need_tuple(one, "schedule: expected segments of an end and a factor") < 0) return 0;
        if (!PyArg_ParseTuple(one, "Kd;schedule: expected an end and a factor", &last,
                              &s->segments[i].factor))
            return 0;
        s->segments[i].last = last;
    }
    return 1;
}

static PyObject *raise_os_error(const ps_err *err) {
    PyObject *args = Py_BuildValue("(is)", err->sys, err->text);
    if (args != NULL) PyErr_SetObject(PyExc_OSError, args); /* OSError picks the subclass by errno */
    Py_XDECREF(args);
    return NULL;
}

PyObject *py_raise(const ps_err *err) {
    if (err->code == PS_ESYS && err->sys != 0) return raise_os_error(err);
    PyObject *type = PyExc_RuntimeError;
    if (err->code == PS_EINVAL || err->code == PS_ELIMIT) type = PyExc_ValueError;
    else if (err->code == PS_ENOMEM) type = PyExc_MemoryError;
    else if (err->code == PS_ECONN) type = PyExc_ConnectionError;
    PyErr_SetString(type, err->text);
    return NULL;
}

void py_free(PyObject *obj) {
    PyTypeObject *type = Py_TYPE(obj);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(obj);
    Py_DECREF(type);
}
