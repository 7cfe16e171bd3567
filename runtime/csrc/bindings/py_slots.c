/* Text of slots as arrays, as functions of pslaunch.runtime._core; see _core.pyi. */
#include "bindings/py_args.h"

#include "tables/ps_init.h"

/* The rest of a line. A bytes object has a zero after its end. */
typedef struct cursor {
    const char *at, *end;
} cursor;

/* Values of one slot: ids, or floats. each: values in a line; negative: any multiple of -each. */
typedef struct column {
    PyObject *memory; /* a bytearray, which grows with the text: the sum of all is bounded by it */
    void *values;     /* that memory, with room for `size` */
    size_t used, size;
    int64_t each;
    int kind;
    uint64_t start; /* of the hashes of text */
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

/* Take a whole number of 64 bits, of digits, perhaps after a sign; one from 2**63 on is one below 0. */
static bool take_whole(cursor *c, int64_t *to) {
    const char *word;
    uint64_t found = 0;
    if (!take_word(c, &word)) return false;
    bool minus = *word == '-';
    word += (minus || *word == '+') && c->at - word > 1;
    for (; word < c->at; word++) {
        if (*word < '0' || *word > '9') return false;
        uint64_t digit = (uint64_t)(*word - '0');
        if (found > (UINT64_MAX - digit) / 10) return false;
        found = found * 10 + digit;
    }
    *to = (int64_t)(minus ? 0 - found : found);
    return !minus || found <= (uint64_t)INT64_MAX + 1;
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
    const char *word;
    if (to->kind == PY_COLUMN_FLOATS) return take_float(c, (float *)to->values + at);
    int64_t *id = (int64_t *)to->values + at;
    if (to->kind == PY_COLUMN_IDS) return take_whole(c, id);
    if (!take_word(c, &word)) return false;
    *id = (int64_t)ps_hash_more(to->start, word, (size_t)(c->at - word));
    return true;
}

/* Make room for `size` values, no matter how many there was. False with an exception. */
static bool resize_column(column *c, size_t size) {
    size_t bytes = size * (c->kind != PY_COLUMN_FLOATS ? sizeof(int64_t) : sizeof(float));
    if (PyByteArray_Resize(c->memory, (Py_ssize_t)bytes) < 0) return false;
    c->values = PyByteArray_AsString(c->memory);
    c->size = size;
    return true;
}

/* Append the values of each slot to its column, and write their number, at a distance of `lines`. False: the
 * line does not fit, or there is an exception. */
static bool read_line(cursor c, column *columns, size_t slots, int64_t *counts, size_t lines) {
    const char *word;
    for (size_t i = 0; i < slots; i++) {
        column *to = &columns[i];
        int64_t n;
        if (!take_whole(&c, &n) || n < 0 || (to->each > 0 ? n != to->each : n % to->each != 0)) return false;
        if (n > (c.end - c.at) / 2) return false; /* a value is a space and a character at least */
        size_t need = to->used + (size_t)n;
        if (need > to->size && !resize_column(to, need + to->used / 2)) return false;
        counts[i * lines] = n;
        for (; n > 0; n--)
            if (!take_value(&c, to)) return false;
    }
    return !take_word(&c, &word);
}

/* Begin a column without values; `memories` keeps its memory. -1 with an exception. */
static int begin_column(column *c, PyObject *memories, size_t place) {
    c->memory = PyByteArray_FromStringAndSize(NULL, 0);
    if (c->memory == NULL || PyList_SetItem(memories, (Py_ssize_t)place, c->memory) < 0) return -1;
    if (c->each != 0 && c->each >= -INT32_MAX) return 0;
    PyErr_SetString(PyExc_ValueError, "sizes: expected numbers other than 0, from -(2**31 - 1)");
    return -1;
}

static PyObject *read_slots(PyObject *Py_UNUSED(self), PyObject *args) {
    static const py_want wants[] = {{"sizes", PY_I64, "s", PY_READ},
                                    {"starts", PY_U64, "s", PY_READ},
                                    {"counts", PY_I64, "sn", PY_WRITE}};
    PyObject *lines, *memories = NULL, *result = NULL;
    const char *kinds;
    Py_ssize_t slots;
    py_call all = {.wants = wants};
    column *columns = NULL;
    if (!PyArg_ParseTuple(args, "O!y#O&O&O&", &PyList_Type, &lines, &kinds, &slots, py_take, &all, py_take,
                          &all, py_take, &all))
        return py_release(&all);
    size_t s = (size_t)slots, n = (size_t)PyList_Size(lines), line = 0;
    if (py_need_items(&all.of[0], s, "sizes", "kinds") < 0 ||
        py_need_items(&all.of[2], s * n, "counts", "kinds and lines") < 0)
        goto done;
    memories = PyList_New(slots);
    columns = PyMem_Calloc(s, sizeof *columns);
    if (memories == NULL || columns == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (size_t i = 0; i < s; i++) {
        columns[i].each = ((int64_t *)all.of[0].buf)[i];
        columns[i].kind = kinds[i];
        columns[i].start = ((uint64_t *)all.of[1].buf)[i];
        if (begin_column(&columns[i], memories, i) < 0) goto done;
    }
    for (cursor c; line < n; line++) {
        if (begin_line(lines, (Py_ssize_t)line, &c) < 0) goto done;
        if (!read_line(c, columns, s, (int64_t *)all.of[2].buf + line, n)) break;
    }
    for (size_t i = 0; i < s; i++)
        if (PyErr_Occurred() != NULL || !resize_column(&columns[i], columns[i].used)) goto done;
    result = Py_BuildValue("(nO)", (Py_ssize_t)line, memories);
done:
    py_release(&all);
    PyMem_Free(columns);
    Py_XDECREF(memories);
    return result;
}

PyMethodDef ps_slots_methods[] = {
    {"read_slots", read_slots, METH_VARARGS, "Return the values of each slot in all lines."},
    {NULL, NULL, 0, NULL},
};
