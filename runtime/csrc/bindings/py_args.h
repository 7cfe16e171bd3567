/* Conversion of Python's arguments and the core's errors. For py_*.c. */
#ifndef PY_ARGS_H
#define PY_ARGS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/ps_err.h"
#include "kernels/ps_optim.h"
#include "tables/ps_schedule.h"

/* Required item type of an array. */
typedef enum py_item { PY_F32, PY_F64, PY_U64, PY_I64 } py_item;

/* Borrow the C-contiguous memory of `obj` in *view, a zeroed one; release it with PyBuffer_Release(),
 * which a zeroed view allows too. `name` is for messages. -1 with TypeError (other items, or
 * not a buffer), ValueError (misaligned), or the object's own exception (read-only, strided). */
int py_array(PyObject *obj, Py_buffer *view, py_item item, bool writable, const char *name);

/* Borrow a matrix of float32 with any strides, in the same way. */
int py_matrix(PyObject *obj, Py_buffer *view, const char *name);

/* Return true if these are the items, in this machine's byte order. Can't fail. */
bool py_has_items(const Py_buffer *view, py_item item);

/* Return the number of items. Can't fail. */
size_t py_items(const Py_buffer *view);

/* Return -1 with ValueError unless the array has `ndim` dimensions. */
int py_need_ndim(const Py_buffer *view, int ndim, const char *name);

/* Return -1 with ValueError unless the array has `n` items; `like` names the origin of that number. */
int py_need_items(const Py_buffer *view, size_t n, const char *name, const char *like);

/* Return -1 with ValueError if two of views[0..n) share memory; names: one for each. */
int py_need_apart(const Py_buffer *views, const char *const *names, int n);

/* Return -1 with ValueError if views[which] shares memory with another one of views[0..n). */
int py_need_alone(const Py_buffer *views, const char *const *names, int n, int which);

/* Converter for "O&": a number of threads, at least 1, to an unsigned. 1, or 0 with an exception. */
int py_threads(PyObject *obj, void *threads);

/* Converter for "O&": a rule (method, learning_rate, l1, l2, clip, and PS_NUMBERS of the method) to a
 * ps_optim, which is not checked. 1, or 0 with an exception. */
int py_optim(PyObject *obj, void *optim);

/* Converter for "O&": a schedule (kind, a, b, segments of (last, factor)) to a ps_schedule, which is not
 * checked. 1, or 0 with an exception. */
int py_schedule(PyObject *obj, void *schedule);

/* Raise the exception for `err`: ValueError, MemoryError, OSError with its errno, or RuntimeError. NULL. */
PyObject *py_raise(const ps_err *err);

#endif
