/* Lookups in embedding tables as functions of pslaunch.runtime._core; see _core.pyi. */
#ifndef PY_LOOKUP_H
#define PY_LOOKUP_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef ps_lookup_methods[];

#endif
