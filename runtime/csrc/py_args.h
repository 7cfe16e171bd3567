/* Between Python's arguments and the core's: arrays in, errors out. For py_*.c. */
#ifndef PY_ARGS_H
#define PY_ARGS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "ps_err.h"

/* What the items of an array must be. */
typedef enum py_item { PY_F32, PY_U64 } py_item;

/* Borrow the C-contiguous memory of `obj` in *view, a zeroed one; give it back with PyBuffer_Release(),
 * which a zeroed view allows too. `name` is for messages. -1 with TypeError (items are others, or it
 * is no buffer), ValueError (misaligned), or what the object itself raises (read-only, strided). */
int py_array(PyObject *obj, Py_buffer *view, py_item item, bool writable, const char *name);

/* Number of items. Can't fail. */
size_t py_items(const Py_buffer *view);

/* -1 with ValueError unless the array has `ndim` dimensions. */
int py_need_ndim(const Py_buffer *view, int ndim, const char *name);

/* -1 with ValueError unless the array has `n` items; `like` says whose number that is. */
int py_need_items(const Py_buffer *view, size_t n, const char *name, const char *like);

/* -1 with ValueError if two of views[0..n) share memory; names: one for each. */
int py_need_apart(const Py_buffer *views, const char *const *names, int n);

/* Raise what `err` tells: ValueError, MemoryError, OSError with its errno, or RuntimeError. NULL. */
PyObject *py_raise(const ps_err *err);

#endif
