/* The kernels of layers as functions of pslaunch.runtime._core; see _core.pyi. */
#ifndef PY_COMPUTE_H
#define PY_COMPUTE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef ps_compute_methods[];

#endif
