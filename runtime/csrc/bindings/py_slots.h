/* Text of slots as arrays, as functions of pslaunch.runtime._core; see _core.pyi. */
#ifndef PY_SLOTS_H
#define PY_SLOTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef ps_slots_methods[];

#endif
