/* Samples of a reader as arrays, as functions of pslaunch.runtime._core; see _core.pyi. */
#ifndef PY_COLUMNS_H
#define PY_COLUMNS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef ps_columns_methods[];

#endif
