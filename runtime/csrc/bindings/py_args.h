/* Conversion of Python's arguments and the core's errors. For py_*.c, the parts of pslaunch.runtime._core. */
#ifndef PY_ARGS_H
#define PY_ARGS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/ps_err.h"
#include "kernels/ps_act.h"
#include "kernels/ps_optim.h"
#include "tables/ps_schedule.h"

/* Required item type of an array. */
typedef enum py_item { PY_F32, PY_F64, PY_U64, PY_I64 } py_item;

/* Borrow the memory of `obj`, as PyBUF_... flags say, in *view, a zeroed one; release it with
 * PyBuffer_Release(), which a zeroed view allows too. `name` is for messages. -1 with TypeError (other items,
 * or not a buffer), ValueError (misaligned), or the object's own exception (read-only, strided). */
int py_array(PyObject *obj, Py_buffer *view, py_item item, int flags, const char *name);

/* Return true if these are the items, in this machine's byte order. Can't fail. */
bool py_has_items(const Py_buffer *view, py_item item);

/* Return the number of items. Can't fail. */
size_t py_items(const Py_buffer *view);

/* Return -1 with TypeError, `expected`, unless `obj` is a tuple. */
int py_need_tuple(PyObject *obj, const char *expected);

/* Return -1 with ValueError unless the array has `n` items; `like` names the origin of that number. */
int py_need_items(const Py_buffer *view, size_t n, const char *name, const char *like);

/* Access to an array: dense to read or to write, or with any strides, a matrix of float32; PY_PART is
 * written, and may share memory with its like. */
typedef enum py_access { PY_READ, PY_WRITE, PY_STRIDED, PY_PART } py_access;

/* An array that a call takes. shape: a letter for each axis, equal ones for equal sizes in all arrays of the
 * call, '1' for 1 and '_' for any size; "*n": n items in any number of axes; NULL: any shape. */
typedef struct py_want {
    const char *name; /* for messages */
    py_item item;
    const char *shape;
    py_access access;
} py_want;

/* A call's arrays, which it has borrowed, of[0..n), and its numbers. It begins with `wants`, if py_take() is
 * to read arrays. */
typedef struct py_call {
    const py_want *wants;
    Py_buffer *of; /* `few`, or as py_room() made them */
    py_want *taken;
    int n;
    unsigned known; /* letters whose size is known */
    Py_ssize_t sizes[26];
    Py_buffer few[4];
    py_want few_taken[4];
    void *own; /* `self` of Python, or what the function needs beside */
    unsigned threads;
    uint64_t numbers[3];
    float rates[2];
    int numbers_n, rates_n;
    ps_act act;
    ps_optim rule;
    size_t found;
    double sum;
} py_call;

/* Return the size of the axes of a letter. */
static inline size_t py_size(const py_call *all, char letter) {
    return (size_t)all->sizes[letter - 'a'];
}

/* Make room for n arrays, before the first is taken. -1 with MemoryError. */
int py_room(py_call *all, size_t n);

/* Borrow the next array. NULL with an exception. */
Py_buffer *py_take_as(py_call *all, PyObject *obj, const py_want *want);

/* Converter for "O&": borrow the next array of a py_call as its wants say; None is one without items. 1, or
 * 0 with an exception. */
int py_take(PyObject *obj, void *arrays);

/* Release the arrays. NULL, to return with the exception that is set. */
PyObject *py_release(py_call *all);

/* Return -1 with ValueError if an array that is written shares memory with another one; parts come last. */
int py_need_apart(const py_call *all);

/* A kernel: computes with the arguments of a call. */
typedef int py_kernel(py_call *c, ps_err *err);

/* Run a kernel, if the arrays are apart, without the interpreter and in IEEE mode; release them. None, or
 * NULL with an exception. */
PyObject *py_run(py_call *c, py_kernel *run);

/* Run a kernel with arguments of these forms: 'a' the next of the wanted arrays, 't' threads, 'k' a number,
 * 'f' a rate, 'r' a rule, 'x' an activation. After '=' the result, if it is not None: 'k' what was found, 'f'
 * the sum. NULL with an exception. */
PyObject *py_apply(PyObject *own, PyObject *args, const char *forms, const py_want *wants, py_kernel *run);

/* A function of Python that runs a kernel. */
#define PY_FUNCTION(name, run, forms, ...)                 \
    static PyObject *name(PyObject *own, PyObject *args) { \
        static const py_want wants[] = {__VA_ARGS__};      \
        return py_apply(own, args, forms, wants, run);     \
    }

/* Converter for "O&": a number of threads, at least 1, to an unsigned. 1, or 0 with an exception. */
int py_threads(PyObject *obj, void *threads);

/* Converter for "O&": a rule (method, learning_rate, l1, l2, clip, and PS_NUMBERS of the method) to a
 * ps_optim, which is not checked. 1, or 0 with an exception. */
int py_optim(PyObject *obj, void *optim);

/* Converter for "O&": a schedule (kind, a, b, segments of (last, factor)) to a ps_schedule, which is not
 * checked. 1, or 0 with an exception. */
int py_schedule(PyObject *obj, void *schedule);

/* Free an object whose content is released: the end of a tp_dealloc. */
void py_free(PyObject *obj);

/* Raise the exception for `err`: ValueError, MemoryError, OSError with its errno, or RuntimeError. NULL. */
PyObject *py_raise(const ps_err *err);

/* Functions and types of the parts, each in a file of its name. */
extern PyMethodDef ps_columns_methods[];
extern PyMethodDef ps_kernels_methods[];
extern PyMethodDef ps_lookup_methods[];
extern PyMethodDef ps_shard_methods[];
extern PyMethodDef ps_slots_methods[];
extern PyType_Spec py_client_type, py_table_type;

/* Define a type: a struct with functions and methods of its name. */
#define PY_TYPE(of, name_of_type, doc)                                            \
    static PyType_Slot of##_slots[] = {{Py_tp_doc, (void *)doc},                  \
                                       {Py_tp_new, (void *)of##_new},             \
                                       {Py_tp_dealloc, (void *)of##_dealloc},     \
                                       {Py_tp_methods, of##_methods},             \
                                       {0, NULL}};                                \
    PyType_Spec py_##of##_type = {.name = "pslaunch.runtime._core." name_of_type, \
                                  .basicsize = sizeof(of),                        \
                                  .flags = Py_TPFLAGS_DEFAULT,                    \
                                  .slots = of##_slots};

/* What a column has: text becomes ids, the FNV-1a of its bytes behind a start. */
enum { PY_COLUMN_FLOATS, PY_COLUMN_IDS, PY_COLUMN_TEXT };

#endif
