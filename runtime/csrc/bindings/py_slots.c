/* Text of slots as arrays, as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_parts.h"

#include "bindings/py_args.h"

/* The rest of a line. A bytes object has a zero after its end. */
typedef struct cursor {
    const char *at, *end;
} cursor;

/* Values of one slot: ids, or floats. each: values in a line; negative: any multiple of -each. */
typedef struct column {
    int64_t *ids; /* NULL: floats */
    float *floats;
    size_t used, size;
    int64_t each;
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

static bool take_value(cursor *c, column *to) {
    size_t at = to->used++;
    return to->ids != NULL ? take_whole(c, to->ids + at) : take_float(c, to->floats + at);
}

/* Append the values of each slot to its column, and write their number, at a distance of `lines`. False: the
 * line does not fit. */
static bool read_line(cursor c, column *columns, size_t slots, int64_t *counts, size_t lines) {
    const char *word;
    for (size_t i = 0; i < slots; i++) {
        int64_t n, each = columns[i].each;
        if (!take_whole(&c, &n) || (each > 0 ? n != each : n % each != 0)) return false;
        if ((uint64_t)n > columns[i].size - columns[i].used) return false;
        counts[i * lines] = n;
        for (; n > 0; n--)
            if (!take_value(&c, &columns[i])) return false;
    }
    return !take_word(&c, &word);
}

static int borrow_column(py_arrays *all, PyObject *array, int64_t each, column *to) {
    Py_buffer *ids = py_take_as(all, array, &(py_want){"column", PY_I64, "_", PY_WRITE}), *view = ids;
    if (ids == NULL) {
        PyErr_Clear();
        view = py_take_as(all, array, &(py_want){"column", PY_F32, "_", PY_WRITE});
    }
    if (view == NULL) return -1;
    *to = (column){ids ? view->buf : NULL, ids ? NULL : view->buf, 0, py_items(view), each};
    if (each != 0 && each >= -INT32_MAX) return 0;
    PyErr_SetString(PyExc_ValueError, "sizes: expected numbers other than 0, from -(2**31 - 1)");
    return -1;
}

static PyObject *read_slots(PyObject *Py_UNUSED(self), PyObject *args) {
    static const py_want wants[] = {{"sizes", PY_I64, "s", PY_READ}, {"counts", PY_I64, "sn", PY_WRITE}};
    PyObject *lines, *sizes, *counts, *arrays, *result = NULL;
    py_arrays all = {.wants = wants};
    if (!PyArg_ParseTuple(args, "O!OOO!", &PyList_Type, &lines, &sizes, &counts, &PyList_Type, &arrays))
        return NULL;
    size_t slots = (size_t)PyList_Size(arrays), n = (size_t)PyList_Size(lines), line = 0;
    column *columns = PyMem_Calloc(slots, sizeof *columns);
    if (columns == NULL) return PyErr_NoMemory();
    if (py_room(&all, slots + 2) < 0 || !py_take(sizes, &all) || !py_take(counts, &all)) goto done;
    if (py_need_items(&all.of[0], slots, "sizes", "columns") < 0 ||
        py_need_items(&all.of[1], slots * n, "counts", "columns and lines") < 0)
        goto done;
    for (size_t i = 0; i < slots; i++)
        if (borrow_column(&all, PyList_GetItem(arrays, (Py_ssize_t)i), ((int64_t *)all.of[0].buf)[i],
                          &columns[i]) < 0)
            goto done;
    for (cursor c; line < n; line++) {
        if (begin_line(lines, (Py_ssize_t)line, &c) < 0) goto done;
        if (!read_line(c, columns, slots, (int64_t *)all.of[1].buf + line, n)) break;
    }
    result = PyLong_FromSize_t(line);
done:
    py_release(&all);
    PyMem_Free(columns);
    return result;
}

PyMethodDef ps_slots_methods[] = {
    {"read_slots", read_slots, METH_VARARGS, "Write numbers and values of each slot in all lines to arrays."},
    {NULL, NULL, 0, NULL},
};
