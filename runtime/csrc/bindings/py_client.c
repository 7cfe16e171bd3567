/* The type Client of pslaunch.runtime._core. */
#include "bindings/py_args.h"

#include <stdlib.h>
#include <string.h>

#include "base/ps_room.h"
#include "client/ps_client.h"

/* An array of the caller's, borrowed until its call is complete. */
typedef struct borrowed {
    Py_buffer view;
    uint64_t call;
    const char *name;     /* of the argument */
    size_t turn;          /* grows within a call */
    uint32_t id;          /* of the object */
    bool values, written; /* float32; by the call */
} borrowed;

typedef struct client {
    PyObject_HEAD ps_client *core;
    borrowed *views; /* [views_cap] */
    size_t views_n, views_cap;
    bool running; /* a thread is in the core, without the GIL */
} client;

static void release_views(client *self) {
    for (size_t i = 0; i < self->views_n; i++) PyBuffer_Release(&self->views[i].view);
    self->views_n = 0;
}

/* Release the arrays of complete calls, and of `cancelled`, if not 0. */
static void release_done(client *self, uint64_t cancelled) {
    size_t kept = 0;
    for (size_t i = 0; i < self->views_n; i++) {
        borrowed *b = &self->views[i];
        if (b->call == cancelled || ps_client_done(self->core, b->call)) PyBuffer_Release(&b->view);
        else if (i != kept++) self->views[kept - 1] = *b; /* a view may be moved: nothing points to it */
    }
    self->views_n = kept;
}

static int ready(const client *self) {
    if (self->core == NULL) PyErr_SetString(PyExc_ValueError, "the client is closed");
    else if (self->running) PyErr_SetString(PyExc_RuntimeError, "only one thread at a time may use a client");
    else return 0;
    return -1;
}

static uintptr_t get_begin(const borrowed *b) {
    return (uintptr_t)b->view.buf;
}

static uintptr_t get_end(const borrowed *b) {
    return get_begin(b) + (size_t)b->view.len;
}

static int compare_begins(const void *a, const void *b) {
    uintptr_t x = get_begin(a), y = get_begin(b);
    return (x > y) - (x < y);
}

static bool may_share(const borrowed *a, const borrowed *b) {
    return a->call == b->call ? !a->written && !b->written : !a->values && !b->values;
}

/* Sort arrays by address. Return one of the call being built that shares memory with an array that the same
 * call writes (*same), or with one of another call, unless both are keys: its values would be sent, or come,
 * while the other call has them. NULL: none does. O(n log n). */
static const borrowed *find_shared(client *self, bool *same) {
    /* Of each kind the array that reaches furthest so far: all of a kind may share the same. */
    const borrowed *furthest[6] = {NULL};
    uint64_t own = ps_client_building(self->core);
    if (self->views_n > 1) qsort(self->views, self->views_n, sizeof *self->views, compare_begins);
    for (const borrowed *b = self->views; b < self->views + self->views_n; b++) {
        if (b->view.len == 0) continue;
        for (size_t i = 0; i < 6; i++) {
            const borrowed *a = furthest[i];
            if (a == NULL || get_end(a) <= get_begin(b) || may_share(a, b)) continue;
            *same = a->call == b->call;
            return b->call != own || (*same && a->turn > b->turn) ? a : b;
        }
        const borrowed **kind = &furthest[3 * (b->call == own) + b->values + b->written];
        if (*kind == NULL || get_end(b) > get_end(*kind)) *kind = b;
    }
    return NULL;
}

/* Return NULL with ValueError for an array that find_shared() has found. named: with its object. */
static PyObject *refuse_shared(const client *self, const borrowed *b, bool same, bool named) {
    const ps_create *spec = ps_client_spec(self->core, b->id);
    PyObject *object = PyUnicode_FromStringAndSize(spec->name, named ? (Py_ssize_t)spec->name_length : 0);
    if (object == NULL) return NULL;
    PyErr_Format(PyExc_ValueError, "%U%s%s shares memory with another array of %s", object, named ? ": " : "",
                 b->name, same ? "this call" : "a call on its way: wait for that one first, or give a copy");
    Py_DECREF(object);
    return NULL;
}

/* Keep the array of `obj` for the call. NULL with an exception. */
static Py_buffer *keep(client *self, uint32_t id, PyObject *obj, py_item item, bool writable,
                       const char *name) {
    if (!ps_room(&self->views, self->views_n + 1, &self->views_cap, sizeof *self->views)) {
        PyErr_NoMemory();
        return NULL;
    }
    borrowed *b = &self->views[self->views_n];
    *b = (borrowed){.call = ps_client_building(self->core), .name = name, .turn = self->views_n, .id = id};
    b->values = item == PY_F32, b->written = writable;
    if (py_array(obj, &b->view, item, PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0), name) < 0)
        return NULL;
    self->views_n++;
    return &b->view;
}

/* Get a dense object's array, or *values = NULL for None. */
static int dense_array(client *self, uint32_t id, PyObject *obj, bool writable, const char *name,
                       float **values) {
    *values = NULL;
    if (obj == Py_None) return 0;
    Py_buffer *view = keep(self, id, obj, PY_F32, writable, name);
    if (view == NULL) return -1;
    *values = view->buf;
    return py_need_items(view, (size_t)ps_client_spec(self->core, id)->total, name, "the object");
}

static PyObject *done(int code, const ps_err *err) {
    return code < 0 ? py_raise(err) : Py_NewRef(Py_None);
}

/* End a call with arrays: those that can't be used are a more useful error than one of the core. */
static PyObject *added(client *self, uint32_t id, int code, const ps_err *err) {
    bool same;
    if (code == PS_OK) return Py_NewRef(Py_None);
    const borrowed *b = find_shared(self, &same);
    return b != NULL && b->id == id ? refuse_shared(self, b, same, false) : py_raise(err);
}

static PyObject *client_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    unsigned int shards, epoch, trainer;
    ps_err err = {0};
    if (!PyArg_ParseTuple(args, "III", &shards, &epoch, &trainer)) return NULL;
    PyObject *obj = PyType_GenericNew(type, args, kwargs);
    if (obj == NULL || ps_client_new(&((client *)obj)->core, shards, epoch, trainer, &err) == PS_OK)
        return obj;
    Py_DECREF(obj);
    return py_raise(&err);
}

static void client_dealloc(PyObject *obj) {
    client *self = (client *)obj;
    ps_client_free(self->core);
    release_views(self);
    free(self->views);
    py_free(obj);
}

static PyObject *client_close(PyObject *obj, PyObject *Py_UNUSED(none)) {
    client *self = (client *)obj;
    if (self->core != NULL && ready(self) < 0) return NULL;
    ps_client_free(self->core);
    self->core = NULL;
    release_views(self);
    return Py_NewRef(Py_None);
}

static int set_name(ps_create *spec, const char *name, Py_ssize_t length) {
    if (length > PS_MAX_NAME) {
        PyObject *start = PyUnicode_FromStringAndSize(name, ps_fit(name, 64));
        if (start != NULL)
            PyErr_Format(PyExc_ValueError, "the name %U... has more than %d bytes", start, PS_MAX_NAME);
        Py_XDECREF(start);
        return -1;
    }
    memcpy(spec->name, name, (size_t)length);
    spec->name_length = (uint32_t)length;
    return 0;
}

static PyObject *client_add(PyObject *obj, PyObject *args) {
    client *self = (client *)obj;
    ps_create spec = {.sparse = PyTuple_Size(args) > 7};
    const char *name;
    Py_ssize_t length;
    unsigned long long total, seed = 0;
    PyObject *pieces;
    Py_buffer view = {0};
    uint32_t id = 0;
    ps_err err = {0};
    if (!PyArg_ParseTuple(args, "s#KO&O&IIO|(I(Iff)KIff)", &name, &length, &total, py_optim, &spec.optim,
                          py_schedule, &spec.schedule, &spec.mode, &spec.discard, &pieces, &spec.dim,
                          &spec.entry.rule, &spec.entry.numbers[0], &spec.entry.numbers[1], &seed,
                          &spec.init.kind, &spec.init.mean, &spec.init.std))
        return NULL;
    spec.total = total;
    spec.init.seed = seed;
    if (spec.sparse) spec.init.table = ps_table_id(name, (size_t)length);
    if (ready(self) < 0 || set_name(&spec, name, length) < 0 ||
        py_array(pieces, &view, PY_U64, PyBUF_C_CONTIGUOUS, "pieces") < 0)
        return NULL;
    int code = ps_client_create(self->core, &spec, view.buf, (size_t)view.len / sizeof(ps_piece), &id, &err);
    PyBuffer_Release(&view);
    return code < 0 ? py_raise(&err) : PyLong_FromUnsignedLong(id);
}

/* init_dense, push and pull: an array to send, one for new values, and the batch of a push. */
static PyObject *dense_call(PyObject *obj, PyObject *args, uint16_t op) {
    client *self = (client *)obj;
    unsigned int id;
    PyObject *from_obj = Py_None, *to_obj = Py_None;
    float *from, *to;
    ps_batch batch = {0, 1};
    ps_err err = {0};
    int parsed = op == PS_PULL ? PyArg_ParseTuple(args, "IO", &id, &to_obj)
                               : PyArg_ParseTuple(args, op == PS_PUSH ? "IOO|Kf" : "IO", &id, &from_obj,
                                                  &to_obj, &batch.samples, &batch.factor);
    if (!parsed || ready(self) < 0 ||
        dense_array(self, id, from_obj, false, op == PS_PUSH ? "grad" : "values", &from) < 0 ||
        dense_array(self, id, to_obj, true, "out", &to) < 0)
        return NULL;
    if (op == PS_PUSH && from == NULL)
        return PyErr_Format(PyExc_TypeError, "grad: expected an array of float32");
    return added(self, id, ps_client_use(self->core, op, id, &batch, from, to, &err), &err);
}

/* set_rows, push_rows and pull_rows: keys [n] and rows, as many floats as the operation needs. */
static PyObject *rows_call(PyObject *obj, PyObject *args, uint16_t op) {
    client *self = (client *)obj;
    unsigned int id;
    PyObject *keys_obj, *rows_obj;
    int code;
    ps_batch batch = {0, 1};
    ps_err err = {0};
    if (!PyArg_ParseTuple(args, op == PS_PUSH_ROWS ? "IOO|Kf" : "IOO", &id, &keys_obj, &rows_obj,
                          &batch.samples, &batch.factor) ||
        ready(self) < 0)
        return NULL;
    const Py_buffer *view = keep(self, id, keys_obj, PY_U64, false, "keys");
    if (view == NULL) return NULL;
    const uint64_t *keys = view->buf;
    size_t n = py_items(view);
    view = keep(self, id, rows_obj, PY_F32, op == PS_PULL_ROWS, "rows");
    if (view == NULL) return NULL;
    float *rows = view->buf;
    const ps_create *spec = ps_client_spec(self->core, id);
    size_t floats = op == PS_PUSH_ROWS ? ps_push_floats(spec) : spec->dim;
    if (py_need_items(view, n * floats, "rows", "these keys") < 0) return NULL;
    self->running = true;
    Py_BEGIN_ALLOW_THREADS
    code = ps_client_use_rows(self->core, op, id, &batch, keys, n, rows, &err);
    Py_END_ALLOW_THREADS
    self->running = false;
    return added(self, id, code, &err);
}

/* A method that adds requests of this op. */
#define REQUEST(name, call, op)                                     \
    static PyObject *client_##name(PyObject *obj, PyObject *args) { \
        return call(obj, args, op);                                 \
    }
REQUEST(init_dense, dense_call, PS_INIT)
REQUEST(push, dense_call, PS_PUSH)
REQUEST(pull, dense_call, PS_PULL)
REQUEST(set_rows, rows_call, PS_SET_ROWS)
REQUEST(push_rows, rows_call, PS_PUSH_ROWS)
REQUEST(pull_rows, rows_call, PS_PULL_ROWS)

static PyObject *client_shrink(PyObject *obj, PyObject *args) {
    client *self = (client *)obj;
    unsigned int id;
    ps_shrink how;
    ps_err err = {0};
    if (!PyArg_ParseTuple(args, "IffI", &id, &how.decay, &how.score, &how.unseen) || ready(self) < 0)
        return NULL;
    return done(ps_client_shrink(self->core, id, &how, &err), &err);
}

static PyObject *client_tell(PyObject *obj, PyObject *args) {
    client *self = (client *)obj;
    const char *what;
    unsigned long long number;
    ps_err err = {0};
    if (!PyArg_ParseTuple(args, "sK", &what, &number) || ready(self) < 0) return NULL;
    for (uint16_t op = PS_END_PASS; op <= PS_FINISH; op++)
        if (strcmp(what, ps_op_name(op)) == 0)
            return done(ps_client_tell(self->core, op, number, &err), &err);
    return PyErr_Format(PyExc_ValueError, "'%s' is not END_PASS, BARRIER or FINISH", what);
}

/* Return what a connection reports: kind, shard, text. */
static PyObject *report(int code, uint32_t shard, const ps_err *err) {
    const char *kind = code == PS_ECONN ? "broken" : code == PS_EREMOTE ? "refused" : "failed";
    PyObject *text = PyUnicode_DecodeUTF8(err->text, (Py_ssize_t)strlen(err->text), "replace");
    return text == NULL ? NULL : Py_BuildValue("(sIN)", kind, shard, text);
}

static PyObject *client_run(PyObject *obj, PyObject *args) {
    client *self = (client *)obj;
    int timeout_ms, code;
    unsigned long long call = 0;
    uint32_t shard = UINT32_MAX;
    ps_err err = {0};
    if (!PyArg_ParseTuple(args, "i|K", &timeout_ms, &call) || ready(self) < 0) return NULL;
    self->running = true;
    Py_BEGIN_ALLOW_THREADS
    code = ps_client_run(self->core, timeout_ms, call, &shard, &err);
    Py_END_ALLOW_THREADS
    self->running = false;
    release_done(self, 0);
    if (code == PS_OK) return Py_NewRef(Py_None);
    if (code == PS_EAGAIN) {
        shard = ps_client_waits_for(self->core); /* a signal handler may close the client */
        return PyErr_CheckSignals() < 0 ? NULL : Py_BuildValue("(sIs)", "wait", shard, "");
    }
    return report(code, shard, &err);
}

static PyObject *client_begin(PyObject *obj, PyObject *Py_UNUSED(none)) {
    client *self = (client *)obj;
    bool same;
    if (ready(self) < 0) return NULL;
    const borrowed *b = find_shared(self, &same);
    if (b != NULL) return refuse_shared(self, b, same, true);
    return PyLong_FromUnsignedLongLong(ps_client_begin(self->core));
}

static PyObject *client_progress(PyObject *obj, PyObject *Py_UNUSED(none)) {
    client *self = (client *)obj;
    uint32_t shard = UINT32_MAX;
    ps_err err = {0};
    if (ready(self) < 0) return NULL;
    int code = ps_client_progress(self->core, &shard, &err); /* does not wait: the GIL is kept */
    release_done(self, 0);
    return code == PS_OK ? Py_NewRef(Py_None) : report(code, shard, &err);
}

/* A method of up to two whole numbers, a and b, as `format` says: `result` is made of them and of `core`. */
#define OF_NUMBERS(name, format, result)                                             \
    static PyObject *client_##name(PyObject *obj, PyObject *args) {                  \
        client *self = (client *)obj;                                                \
        ps_client *core = self->core;                                                \
        unsigned long long a, b;                                                     \
        ps_err err PS_UNUSED = {0};                                                  \
        if (!PyArg_ParseTuple(args, format, &a, &b) || ready(self) < 0) return NULL; \
        return result;                                                               \
    }
OF_NUMBERS(attach, "KK", done(ps_client_attach(core, (uint32_t)a, (int)b, &err), &err))
OF_NUMBERS(cancel, "",
           (ps_client_cancel(core), release_done(self, ps_client_building(core)), Py_NewRef(Py_None)))
OF_NUMBERS(clear, "", (ps_client_clear(core), release_views(self), Py_NewRef(Py_None)))
OF_NUMBERS(cut, "KK", done(ps_client_cut(core, a != 0, (uint32_t)b, &err), &err))
OF_NUMBERS(mark, "K", (ps_client_mark(core, a != 0), Py_NewRef(Py_None)))
OF_NUMBERS(let_go, "K", (ps_client_let_go(core, (uint32_t)a), Py_NewRef(Py_None)))
OF_NUMBERS(is_done, "K", PyBool_FromLong(ps_client_done(core, a)))
OF_NUMBERS(is_sent, "K", PyBool_FromLong(ps_client_sent(core, (uint32_t)a)))
OF_NUMBERS(get_cut_step, "", PyLong_FromUnsignedLongLong(ps_client_cut_step(core)))
OF_NUMBERS(get_version, "KK", PyLong_FromUnsignedLongLong(ps_client_version(core, (uint32_t)a, (uint32_t)b)))
OF_NUMBERS(count_dropped, "K", PyLong_FromUnsignedLongLong(ps_client_dropped(core, (uint32_t)a)))
OF_NUMBERS(count_shrunk, "K", PyLong_FromUnsignedLongLong(ps_client_shrunk(core, (uint32_t)a)))

static PyMethodDef client_methods[] = {
    {"attach", client_attach, METH_VARARGS, "Take over a connected socket for a shard."},
    {"add", client_add, METH_VARARGS, "Create a dense object, or a table."},
    {"init_dense", client_init_dense, METH_VARARGS, "Set or wait for initial values."},
    {"push", client_push, METH_VARARGS, "Push a gradient, and take new values."},
    {"pull", client_pull, METH_VARARGS, "Take values."},
    {"set_rows", client_set_rows, METH_VARARGS, "Set rows."},
    {"push_rows", client_push_rows, METH_VARARGS, "Push row gradients."},
    {"pull_rows", client_pull_rows, METH_VARARGS, "Take rows."},
    {"tell", client_tell, METH_VARARGS, "Add END_PASS, BARRIER or FINISH."},
    {"cut", client_cut, METH_VARARGS, "Add the requests for a cut after the next step, or now."},
    {"get_cut_step", client_get_cut_step, METH_VARARGS, "Return the last step with a cut."},
    {"cancel", client_cancel, METH_VARARGS, "Forget the call being built."},
    {"begin", client_begin, METH_NOARGS,
     "Begin the call that was built, if its arrays are free; return its number."},
    {"progress", client_progress, METH_NOARGS, "Send and receive without waiting."},
    {"is_done", client_is_done, METH_VARARGS, "Return True if a call is complete."},
    {"run", client_run, METH_VARARGS, "Carry out a call, or all."},
    {"clear", client_clear, METH_VARARGS, "Clear all calls."},
    {"mark", client_mark, METH_VARARGS, "Note that gradients are computed from the values read last."},
    {"get_version", client_get_version, METH_VARARGS, "Return the version of an object on a shard."},
    {"count_dropped", client_count_dropped, METH_VARARGS, "Return the pushes that came too late."},
    {"shrink", client_shrink, METH_VARARGS, "Add the requests that give back rows of a table."},
    {"count_shrunk", client_count_shrunk, METH_VARARGS, "Return the rows of a table that were given back."},
    {"is_sent", client_is_sent, METH_VARARGS, "Return True if a shard was sent the whole call."},
    {"let_go", client_let_go, METH_VARARGS, "Stop waiting for answers of a shard."},
    {"close", client_close, METH_NOARGS, "Close all connections."},
    {NULL, NULL, 0, NULL},
};

PY_TYPE(client, "Client", "A trainer's connections to all shards; see ps_client.h.")
