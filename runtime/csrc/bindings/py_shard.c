/* The shard loop and the protocol's constants as functions of pslaunch.runtime._core. */
#include "bindings/py_parts.h"

#include "shard/ps_cut.h"
#include "shard/ps_shard.h"
#include "bindings/py_args.h"

/* Copy the tuple of one object's first values: name, array, dim, shard, shards. */
static int get_first(PyObject *tuple, ps_first *f) {
    PyObject *array;
    Py_buffer view = {0};
    ps_err err = {0};
    const char *name;
    unsigned int dim, shard, shards;
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "first: expected tuples of name, values, dim, shard and shards");
        return -1;
    }
    if (!PyArg_ParseTuple(tuple, "sOIII", &name, &array, &dim, &shard, &shards)) return -1;
    if (py_array(array, &view, PY_F32, false, name) < 0) return -1;
    int code = ps_first_copy(f, name, view.buf, py_items(&view), dim, shard, shards, &err);
    PyBuffer_Release(&view);
    if (code < 0) py_raise(&err);
    return code;
}

/* Serve with the first values of `list`, which is emptied: the shard has copies until objects have them. */
static PyObject *run_with(ps_shard_config *config, PyObject *list) {
    PyObject *result = NULL;
    size_t n = (size_t)PyList_Size(list);
    ps_err err = {0};
    int code = 0;
    ps_first *first = PyMem_Calloc(n + 1, sizeof *first);
    if (first == NULL) PyErr_NoMemory(), code = -1;
    for (size_t i = 0; code == 0 && i < n; i++)
        code = get_first(PyList_GetItem(list, (Py_ssize_t)i), &first[i]);
    if (code == 0 && PyList_SetSlice(list, 0, (Py_ssize_t)n, NULL) == 0) {
        config->first = first, config->first_n = n;
        Py_BEGIN_ALLOW_THREADS
        code = ps_shard_run(config, &err);
        Py_END_ALLOW_THREADS
        result = code < 0 ? py_raise(&err) : Py_NewRef(Py_None);
    }
    for (size_t i = 0; first != NULL && i < n; i++) ps_first_release(&first[i]);
    PyMem_Free(first);
    return result;
}

static PyObject *run_shard(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)self;
    static char *names[] = {"trainers",      "epoch", "mailbox_fd", "event_fd",
                            "stall_after_s", "first", "cut_fd",     NULL};
    ps_shard_config config = {0};
    double stall_after_s;
    PyObject *first;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "IIiidO!i", names, &config.trainers, &config.epoch,
                                     &config.mailbox_fd, &config.event_fd, &stall_after_s, &PyList_Type,
                                     &first, &config.cut_fd))
        return NULL;
    if (!(stall_after_s >= 0 && stall_after_s < 1e9)) {
        PyErr_SetString(PyExc_ValueError, "stall_after_s: expected 0 to 1e9");
        return NULL;
    }
    config.stall_after_ms = (int64_t)(stall_after_s * 1000);
    return run_with(&config, first);
}

static int put(PyObject *dict, const char *name, unsigned long long value) {
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    if (number == NULL) return -1;
    int code = PyDict_SetItemString(dict, name, number);
    Py_DECREF(number);
    return code;
}

static int put_ops(PyObject *dict) {
    char name[40];
    for (uint16_t op = 1; op < 128; op++) {
        if (ps_op_name(op)[0] == '?') continue;
        PyOS_snprintf(name, sizeof name, "op %s", ps_op_name(op));
        if (put(dict, name, op) < 0) return -1;
    }
    return 0;
}

static PyObject *get_protocol(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    const struct {
        const char *name;
        unsigned long long value;
    } constants[] = {
        {"PS_MAGIC", PS_MAGIC},
        {"PS_VERSION", PS_VERSION},
        {"PS_HEADER_BYTES", PS_HEADER_BYTES},
        {"PS_CREATE_BYTES", PS_CREATE_BYTES},
        {"PS_MAX_TRAINERS", PS_MAX_TRAINERS},
        {"PS_MAX_OBJECTS", PS_MAX_OBJECTS},
        {"PS_MAX_DENSE_BYTES", PS_MAX_DENSE_BYTES},
        {"PS_MAX_ROWS_BYTES", PS_MAX_ROWS_BYTES},
        {"PS_MAX_ROW_FRAME", PS_MAX_ROW_FRAME},
        {"PS_MAX_DIM", PS_MAX_DIM},
        {"PS_MAX_NAME", PS_MAX_NAME},
        {"PS_MAX_SEGMENTS", PS_MAX_SEGMENTS},
        {"PS_MAX_SAMPLES", PS_MAX_SAMPLES},
        {"PS_MAX_TEXT", PS_MAX_TEXT},
        {"PS_MAX_ANSWERS", PS_MAX_ANSWERS},
        {"PS_MAX_ANSWER_BYTES", PS_MAX_ANSWER_BYTES},
        {"PS_MAX_HELD", PS_MAX_HELD},
        {"PS_MAX_HELD_BYTES", PS_MAX_HELD_BYTES},
        {"PS_WANT", PS_WANT},
        {"PS_MORE", PS_MORE},
        {"PS_AFTER", PS_AFTER},
        {"PS_DROPPED", PS_DROPPED},
        {"PS_IN_CUT", PS_IN_CUT},
        {"PS_SYNC", PS_SYNC},
        {"PS_HALF_ASYNC", PS_HALF_ASYNC},
        {"PS_ASYNC", PS_ASYNC},
        {"PS_GEO", PS_GEO},
        {"PS_MAIL_SAVE", PS_MAIL_SAVE},
        {"PS_MAIL_RESTORE", PS_MAIL_RESTORE},
        {"PS_CUT_WHOLE", PS_CUT_WHOLE},
        {"PS_CUT_LOST", PS_CUT_LOST},
        {"PS_CUT_BEGINS", PS_CUT_BEGINS},
        {"PS_CUT_LAST", PS_CUT_LAST},
        {"PS_SAVE_HEAD_BYTES", PS_SAVE_HEAD_BYTES},
        {"PS_SAVE_TORN", PS_SAVE_TORN},
        {"event bytes", sizeof(ps_event)},
        {"mail bytes", sizeof(ps_mail)},
    };
    PyObject *dict = PyDict_New();
    if (dict == NULL) return NULL;
    int code = put_ops(dict);
    for (size_t i = 0; code == 0 && i < sizeof constants / sizeof *constants; i++)
        code = put(dict, constants[i].name, constants[i].value);
    if (code == 0) return dict;
    Py_DECREF(dict);
    return NULL;
}

PyMethodDef ps_shard_methods[] = {
    {"run_shard", (PyCFunction)(void (*)(void))run_shard, METH_VARARGS | METH_KEYWORDS,
     "Serve one shard until its mailbox says stop."},
    {"get_protocol", get_protocol, METH_NOARGS, "Return the constants of the protocol, by name."},
    {NULL, NULL, 0, NULL},
};
