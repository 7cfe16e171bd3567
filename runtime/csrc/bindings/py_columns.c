/* Samples of a reader as arrays, as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_args.h"

#include <string.h>

#include "kernels/ps_lookup.h"
#include "tables/ps_init.h"

/* The column of all samples' items: ids, or vectors of floats. */
typedef struct column {
    int64_t *ids;  /* [n]; NULL: floats */
    float *floats; /* [n, dim] */
    size_t n, dim; /* of ids: 1 */
    bool text;     /* ids are hashes of text, which begin with `start` */
    uint64_t start;
    Py_ssize_t half; /* of a pair, 0 or 1, that each item of a sequence is; -1: the item itself */
} column;

/* Return a new reference to an item, or NULL without an exception. */
static PyObject *get_item(PyObject *items, Py_ssize_t i) {
    PyObject *found;
    if (PyList_Check(items)) found = Py_XNewRef(PyList_GetItem(items, i));
    else if (PyTuple_Check(items)) found = Py_XNewRef(PyTuple_GetItem(items, i));
    else found = PySequence_GetItem(items, i);
    if (found == NULL) PyErr_Clear();
    return found;
}

/* The same for an item of a sample, which may be gone after it: code of an item may change its list. */
static PyObject *get_sample_item(PyObject *samples, Py_ssize_t sample, Py_ssize_t place) {
    PyObject *items = get_item(samples, sample);
    PyObject *found = items == NULL ? NULL : get_item(items, place);
    Py_XDECREF(items);
    return found;
}

/* Return the number of items, or -1 without an exception if `items` has no length, or is text. */
static Py_ssize_t count(PyObject *items) {
    Py_ssize_t n = PyUnicode_Check(items) || PyBytes_Check(items) ? -1 : PyObject_Size(items);
    PyErr_Clear();
    return n;
}

static void narrow(float *to, const char *doubles, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double one;
        memcpy(&one, doubles + i * sizeof one, sizeof one);
        to[i] = (float)one;
    }
}

static bool copy_array(const column *c, const Py_buffer *view, size_t at, size_t n) {
    size_t values = n * c->dim;
    bool wide = c->ids == NULL && py_has_items(view, PY_F64);
    bool fits = c->ids == NULL ? py_has_items(view, PY_F32)
                               : py_has_items(view, PY_I64) || py_has_items(view, PY_U64);
    if ((!wide && !fits) || py_items(view) != values) return false;
    if (wide) narrow(c->floats + at * c->dim, view->buf, values);
    else
        memcpy(c->ids != NULL ? (void *)(c->ids + at) : c->floats + at * c->dim, view->buf,
               (size_t)view->len);
    return true;
}

/* Read n items from an array; false if it is none that fits. */
static bool read_array(const column *c, PyObject *array, size_t at, size_t n) {
    Py_buffer view;
    if (!PyObject_CheckBuffer(array)) return false;
    if (PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
        PyErr_Clear();
        return false;
    }
    bool read = copy_array(c, &view, at, n);
    PyBuffer_Release(&view);
    return read;
}

static bool read_id(const column *c, PyObject *item, size_t at) {
    int overflow;
    PyObject *whole = PyLong_Check(item) ? Py_NewRef(item) : PyNumber_Index(item);
    if (whole == NULL) {
        PyErr_Clear();
        return false;
    }
    c->ids[at] = PyLong_AsLongLongAndOverflow(whole, &overflow);
    if (overflow > 0) c->ids[at] = (int64_t)PyLong_AsUnsignedLongLong(whole);
    bool read = overflow >= 0 && PyErr_Occurred() == NULL;
    PyErr_Clear();
    Py_DECREF(whole);
    return read;
}

static bool read_text(const column *c, PyObject *item, size_t at) {
    char *bytes = NULL;
    Py_ssize_t n = 0;
    if (PyBytes_Check(item)) (void)PyBytes_AsStringAndSize(item, &bytes, &n);
    else if (PyUnicode_Check(item)) bytes = (char *)PyUnicode_AsUTF8AndSize(item, &n);
    PyErr_Clear();
    if (bytes != NULL) c->ids[at] = (int64_t)ps_hash_more(c->start, bytes, (size_t)n);
    return bytes != NULL;
}

static bool read_float(PyObject *item, float *to) {
    *to = (float)PyFloat_AsDouble(item);
    bool read = *to != -1 || PyErr_Occurred() == NULL;
    PyErr_Clear();
    return read;
}

static bool read_vector(const column *c, PyObject *item, size_t at) {
    float *to = c->floats + at * c->dim;
    if (c->dim == 1 && read_float(item, to)) return true;
    bool read = count(item) == (Py_ssize_t)c->dim;
    for (size_t i = 0; read && i < c->dim; i++) {
        PyObject *one = get_item(item, (Py_ssize_t)i);
        read = one != NULL && read_float(one, to + i);
        Py_XDECREF(one);
    }
    return read;
}

static bool read_item(const column *c, PyObject *item, size_t at) {
    if (c->text) return read_text(c, item, at);
    if (c->ids == NULL) return read_array(c, item, at, 1) || read_vector(c, item, at);
    return read_id(c, item, at) || read_array(c, item, at, 1);
}

static bool read_half(const column *c, PyObject *pair, size_t at) {
    PyObject *item = count(pair) == 2 ? get_item(pair, c->half) : NULL;
    bool read = item != NULL && read_item(c, item, at);
    Py_XDECREF(item);
    return read;
}

static bool read_sequence(const column *c, PyObject *items, size_t at, size_t n) {
    if (c->text && n == 1 && read_text(c, items, at)) return true;
    if (c->half < 0 && !c->text && read_array(c, items, at, n)) return true;
    bool read = count(items) == (Py_ssize_t)n;
    for (size_t i = 0; read && i < n; i++) {
        PyObject *one = get_item(items, (Py_ssize_t)i);
        read = one != NULL && (c->half < 0 ? read_item(c, one, at + i) : read_half(c, one, at + i));
        Py_XDECREF(one);
    }
    return read;
}

/* Check that each sample has its range of the column's n items. */
static int check_offsets(const Py_buffer *view, size_t n) {
    const int64_t *offsets = view->buf;
    size_t samples = py_items(view) - 1;
    bool fits = view->len > 0 && offsets[0] == 0 && (size_t)offsets[samples] == n;
    for (size_t i = 0; fits && i < samples; i++) fits = offsets[i] <= offsets[i + 1];
    if (fits) return 0;
    PyErr_SetString(PyExc_ValueError, "offsets: expected numbers that ascend from 0 to the number of items");
    return -1;
}

/* Return the number of samples before the first that does not fit, which is left to the caller. */
static PyObject *read_column(const column *c, PyObject *samples, Py_ssize_t place, const int64_t *offsets,
                             size_t n) {
    size_t sample = 0;
    for (bool read = true; sample < n; sample += read) {
        PyObject *item = get_sample_item(samples, (Py_ssize_t)sample, place);
        if (item == NULL) break;
        read = offsets == NULL ? read_item(c, item, sample)
                               : read_sequence(c, item, (size_t)offsets[sample],
                                               (size_t)(offsets[sample + 1] - offsets[sample]));
        Py_DECREF(item);
        if (!read) break;
    }
    return PyLong_FromSize_t(sample);
}

static PyObject *read_items(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *samples, *out, *starts;
    int kind;
    Py_ssize_t place, half = -1;
    unsigned long long start;
    const int64_t *offsets = NULL;
    py_call all = {0};
    if (!PyArg_ParseTuple(args, "OniKOO|n", &samples, &place, &kind, &start, &out, &starts, &half))
        return NULL;
    bool ids = kind != PY_COLUMN_FLOATS;
    column c = {.half = half, .text = kind == PY_COLUMN_TEXT, .start = start};
    const py_want want = {"out", ids ? PY_I64 : PY_F32, ids ? "n" : "nd", PY_WRITE};
    const Py_buffer *view = py_take_as(&all, out, &want), *own = NULL;
    if (view == NULL) return py_release(&all);
    size_t n = c.n = (size_t)view->shape[0];
    c.dim = ids ? 1 : (size_t)view->shape[1];
    c.ids = ids ? view->buf : NULL, c.floats = ids ? NULL : view->buf;
    if (starts != Py_None) {
        own = py_take_as(&all, starts, &(py_want){"offsets", PY_I64, "_", PY_READ});
        if (own == NULL || check_offsets(own, c.n) < 0) return py_release(&all);
        offsets = own->buf, n = py_items(own) - 1;
    }
    PyObject *result = read_column(&c, samples, place, offsets, n);
    py_release(&all);
    return result;
}

static PyObject *count_items(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *samples, *out;
    Py_ssize_t place, sample = 0, n = 0;
    Py_buffer view = {0};
    if (!PyArg_ParseTuple(args, "OnO", &samples, &place, &out)) return NULL;
    if (py_array(out, &view, PY_I64, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE, "offsets") < 0) return NULL;
    int64_t *offsets = view.buf;
    for (size_t i = 0; i < py_items(&view) && n >= 0; i++) {
        offsets[i] = i == 0 ? 0 : offsets[i - 1] + n;
        if (i + 1 == py_items(&view)) break;
        PyObject *item = get_sample_item(samples, (Py_ssize_t)i, place);
        n = item == NULL ? -1 : count(item);
        Py_XDECREF(item);
        sample += n >= 0;
    }
    PyBuffer_Release(&view);
    return PyLong_FromSsize_t(sample);
}

/* Return the first array with an id that is out of its range, and its place there. */
static PyObject *find_outside(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *columns, *array;
    unsigned long long below;
    if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &columns)) return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(columns); i++) {
        Py_buffer view = {0};
        if (!PyArg_ParseTuple(PyList_GetItem(columns, i), "OK", &array, &below)) return NULL;
        if (py_array(array, &view, PY_I64, PyBUF_C_CONTIGUOUS, "ids") < 0) return NULL;
        size_t n = py_items(&view), at = below == 0 ? n : ps_find_outside(view.buf, n, below); /* 0: 2^64 */
        PyBuffer_Release(&view);
        if (at < n) return Py_BuildValue("(nn)", i, (Py_ssize_t)at);
    }
    return Py_NewRef(Py_None);
}

PyMethodDef ps_columns_methods[] = {
    {"read_items", read_items, METH_VARARGS, "Write one item of each sample to an array."},
    {"count_items", count_items, METH_VARARGS, "Write the starts of the sequences of samples to offsets."},
    {"find_outside", find_outside, METH_VARARGS, "Return the place of the first id that is out of range."},
    {NULL, NULL, 0, NULL},
};
