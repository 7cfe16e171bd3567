/* Text of slots as arrays, as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_parts.h"

#include "bindings/py_args.h"

/* The rest of a line. A bytes object has a zero after its end. */
typedef struct cursor {
    const char *at, *end;
} cursor;

/* Values of one slot: ids, or floats. */
typedef struct column {
    int64_t *ids; /* NULL: floats */
    float *floats;
    size_t used, size;
} column;

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Take the next word; *word is its begin, c->at its end. False at the end of the line. */
static bool take_word(cursor *c, const char **word) {
    while (c->at < c->end && is_space(*c->at)) c->at++;
    *word = c->at;
    while (c->at < c->end && !is_space(*c->at)) c->at++;
    return c->at > *word;
}

/* Take a whole number below 2**63, of digits, perhaps after a plus. */
static bool take_whole(cursor *c, int64_t *to) {
    const char *word;
    uint64_t found = 0;
    if (!take_word(c, &word)) return false;
    word += *word == '+' && c->at - word > 1;
    for (; word < c->at; word++) {
        if (*word < '0' || *word > '9') return false;
        uint64_t digit = (uint64_t)(*word - '0');
        if (found > ((uint64_t)INT64_MAX - digit) / 10) return false;
        found = found * 10 + digit;
    }
    *to = (int64_t)found;
    return true;
}

/* Take a number as Python's float() reads it. */
static bool take_float(cursor *c, float *to) {
    const char *word;
    char *end;
    if (!take_word(c, &word)) return false;
    double found = PyOS_string_to_double(word, &end, NULL);
    if (found == -1 && PyErr_Occurred() != NULL) {
        PyErr_Clear();
        return false;
    }
    *to = (float)found;
    return end == c->at;
}

/* Begin with a line. -1 with an exception if it is no bytes object. */
static int begin_line(PyObject *lines, Py_ssize_t line, cursor *c) {
    char *text;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(PyList_GetItem(lines, line), &text, &size) < 0) return -1;
    *c = (cursor){text, text + size};
    return 0;
}

/* Write the number of values of each slot, at a distance of `lines`. False: the line does not fit. */
static bool count_line(cursor c, const int64_t *sizes, size_t slots, int64_t *counts, size_t lines) {
    const char *word;
    for (size_t i = 0; i < slots; i++) {
        int64_t n;
        if (!take_whole(&c, &n)) return false;
        if (sizes[i] > 0 ? n != sizes[i] : n % -sizes[i] != 0) return false;
        counts[i * lines] = n;
        for (; n > 0; n--)
            if (!take_word(&c, &word)) return false;
    }
    return !take_word(&c, &word);
}

static int check_sizes(const int64_t *sizes, size_t slots) {
    for (size_t i = 0; i < slots; i++) {
        if (sizes[i] != 0 && sizes[i] >= -INT32_MAX) continue;
        PyErr_SetString(PyExc_ValueError, "sizes: expected numbers other than 0, from -(2**31 - 1)");
        return -1;
    }
    return 0;
}

static PyObject *count_slots(PyObject *Py_UNUSED(self), PyObject *args) {
    static const py_want wants[] = {{"sizes", PY_I64, NULL, PY_READ}, {"counts", PY_I64, NULL, PY_WRITE}};
    PyObject *lines;
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O!O&O&", &PyList_Type, &lines, py_take, &all, py_take, &all))
        return py_release(&all);
    const int64_t *sizes = all.of[0].buf;
    int64_t *counts = all.of[1].buf;
    size_t slots = py_items(&all.of[0]), n = (size_t)PyList_Size(lines), line = 0;
    if (py_need_items(&all.of[1], slots * n, "counts", "slots and lines") < 0 || py_need_apart(&all) < 0 ||
        check_sizes(sizes, slots) < 0)
        return py_release(&all);
    for (cursor c; line < n; line++) {
        if (begin_line(lines, (Py_ssize_t)line, &c) < 0) return py_release(&all);
        if (!count_line(c, sizes, slots, counts + line, n)) break;
    }
    py_release(&all);
    return PyLong_FromSize_t(line);
}

static bool take_value(cursor *c, column *to) {
    size_t at = to->used++;
    return to->ids != NULL ? take_whole(c, to->ids + at) : take_float(c, to->floats + at);
}

/* Append the values of each slot to its column. False: the line does not fit. */
static bool read_line(cursor c, column *columns, size_t slots) {
    for (size_t i = 0; i < slots; i++) {
        int64_t n;
        if (!take_whole(&c, &n) || (uint64_t)n > columns[i].size - columns[i].used) return false;
        for (; n > 0; n--)
            if (!take_value(&c, &columns[i])) return false;
    }
    return true;
}

static int borrow_column(py_arrays *all, PyObject *array, column *to) {
    Py_buffer *ids = py_take_as(all, array, &(py_want){"column", PY_I64, NULL, PY_WRITE}), *view = ids;
    if (ids == NULL) {
        PyErr_Clear();
        view = py_take_as(all, array, &(py_want){"column", PY_F32, NULL, PY_WRITE});
    }
    if (view == NULL) return -1;
    *to = (column){ids ? view->buf : NULL, ids ? NULL : view->buf, 0, py_items(view)};
    return 0;
}

static PyObject *read_slots(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *lines, *arrays, *result = NULL;
    py_arrays all = {0};
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &lines, &PyList_Type, &arrays)) return NULL;
    size_t slots = (size_t)PyList_Size(arrays);
    column *columns = PyMem_Calloc(slots, sizeof *columns);
    if (columns == NULL) return PyErr_NoMemory();
    if (py_room(&all, slots) < 0) goto done;
    for (size_t i = 0; i < slots; i++)
        if (borrow_column(&all, PyList_GetItem(arrays, (Py_ssize_t)i), &columns[i]) < 0) goto done;
    Py_ssize_t line = 0;
    for (cursor c; line < PyList_Size(lines); line++) {
        if (begin_line(lines, line, &c) < 0) goto done;
        if (!read_line(c, columns, slots)) break;
    }
    result = PyLong_FromSsize_t(line);
done:
    py_release(&all);
    PyMem_Free(columns);
    return result;
}

PyMethodDef ps_slots_methods[] = {
    {"count_slots", count_slots, METH_VARARGS, "Write the number of values of each slot in each line."},
    {"read_slots", read_slots, METH_VARARGS, "Write the values of each slot in all lines to its array."},
    {NULL, NULL, 0, NULL},
};
