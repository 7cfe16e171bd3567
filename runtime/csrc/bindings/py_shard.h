/* The shard loop, the protocol's constants and the frame decoder as functions of pslaunch.runtime._core. */
#ifndef PY_SHARD_H
#define PY_SHARD_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef ps_shard_methods[];

#endif
