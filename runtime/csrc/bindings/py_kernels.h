/* The kernels as functions of pslaunch.runtime._core; see _core.pyi. */
#ifndef PY_KERNELS_H
#define PY_KERNELS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef ps_kernels_methods[];

#endif
