/* The shard loop and the protocol's constants as functions of pslaunch.runtime._core. */
#include "bindings/py_args.h"

#include "shard/ps_cut.h"
#include "shard/ps_mail.h"
#include "tables/ps_index.h"

/* A function of the owner, called in the thread that runs the shard. */
typedef struct callbacks {
    PyObject *find;
    PyObject *parts; /* bytes that the last find() has returned */
} callbacks;

/* Make an error of the exception that is set, and clear it. */
static int take_exception(ps_err *err) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value == NULL ? NULL : PyObject_Str(value);
    const char *words = text == NULL ? NULL : PyUnicode_AsUTF8AndSize(text, NULL);
    int code = ps_fail(err, PS_EPROTO, 0, "%s", words == NULL ? "the pserver failed" : words);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
    return code;
}

static int read_first(callbacks *c, PyObject *found, ps_first *f) {
    unsigned long long steps, samples, passes, seed;
    int counted;
    char *parts;
    Py_ssize_t size;
    if (found == Py_None) return 0;
    if (py_need_tuple(found, "find: expected a tuple or None") < 0) return -1;
    if (!PyArg_ParseTuple(found, "KKKIIp(KIff)IIS", &steps, &samples, &passes, &f->slots, &f->floats,
                          &counted, &seed, &f->init.kind, &f->init.mean, &f->init.std, &f->shard, &f->shards,
                          &c->parts) ||
        PyBytes_AsStringAndSize(c->parts, &parts, &size) < 0)
        return -1;
    f->init.seed = seed, f->steps = steps, f->samples = samples, f->passes = passes,
    f->counted = counted != 0;
    f->parts = (const ps_stored *)(const void *)parts;
    f->n = (size_t)size / sizeof *f->parts;
    return 0;
}

static int find_first(void *owner, const ps_create *spec, ps_first *f, ps_err *err) {
    callbacks *c = owner;
    f->init.table = spec->init.table;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *before = c->parts;
    c->parts = NULL;
    PyObject *found = PyObject_CallFunction(c->find, "s#OIKI", spec->name, (Py_ssize_t)spec->name_length,
                                            spec->sparse ? Py_True : Py_False, spec->dim,
                                            (unsigned long long)spec->total, spec->optim.method);
    int code = found != NULL && read_first(c, found, f) == 0 ? PS_OK : take_exception(err);
    Py_XINCREF(c->parts);
    Py_XDECREF(before);
    Py_XDECREF(found);
    PyGILState_Release(state);
    return code;
}

static PyObject *run_shard(PyObject *Py_UNUSED(self), PyObject *args) {
    ps_shard_config config = {0};
    callbacks c = {0};
    Py_buffer counters;
    double stall_after_s;
    ps_err err = {0};
    if (!PyArg_ParseTuple(args, "IIiidOiw*", &config.trainers, &config.epoch, &config.mailbox_fd,
                          &config.event_fd, &stall_after_s, &c.find, &config.cut_fd, &counters))
        return NULL;
    if (!(stall_after_s >= 0 && stall_after_s < 1e9) ||
        (size_t)counters.len / sizeof *config.counters <= (size_t)config.trainers + PS_MAX_OBJECTS) {
        PyErr_SetString(PyExc_ValueError, "stall_after_s: expected 0 to 1e9; counters: one for each object");
        PyBuffer_Release(&counters);
        return NULL;
    }
    config.counters = counters.buf;
    config.stall_after_ms = (int64_t)(stall_after_s * 1000);
    config.finder = (ps_finder){find_first, &c};
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = ps_shard_run(&config, &err);
    Py_END_ALLOW_THREADS
    Py_XDECREF(c.parts);
    PyBuffer_Release(&counters);
    return code < 0 ? py_raise(&err) : Py_NewRef(Py_None);
}

static PyObject *index_keys(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer keys, places;
    if (!PyArg_ParseTuple(args, "y*w*", &keys, &places)) return NULL;
    size_t n = (size_t)keys.len / sizeof(uint64_t), cap = (size_t)places.len / sizeof(uint32_t);
    bool fits = n < cap && cap <= UINT32_MAX && (cap & (cap - 1)) == 0;
    Py_BEGIN_ALLOW_THREADS
    if (fits) ps_index_keys(places.buf, cap, keys.buf, n);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&keys);
    PyBuffer_Release(&places);
    if (fits) return Py_NewRef(Py_None);
    PyErr_SetString(PyExc_ValueError, "places: expected a power of two of them, more than keys");
    return NULL;
}

static PyObject *get_protocol(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(none)) {
    return Py_BuildValue("{sIsIsIsIsIsnsn}", "PS_MAX_TRAINERS", PS_MAX_TRAINERS, "PS_MAX_OBJECTS",
                         PS_MAX_OBJECTS, "PS_COUNTERS", PS_COUNTERS, "PS_EXPORT", PS_EXPORT, "PS_ALL", PS_ALL,
                         "event bytes", (Py_ssize_t)sizeof(ps_event), "mail bytes",
                         (Py_ssize_t)sizeof(ps_mail));
}

PyMethodDef ps_shard_methods[] = {
    {"run_shard", run_shard, METH_VARARGS, "Serve one shard until its mailbox says stop."},
    {"index_keys", index_keys, METH_VARARGS, "Fill the index of a part's keys for readers."},
    {"get_protocol", get_protocol, METH_NOARGS, "Return constants that both sides have, by name."},
    {NULL, NULL, 0, NULL},
};
