/* The type Client of pslaunch.runtime._core. */
#ifndef PY_CLIENT_H
#define PY_CLIENT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Add the type to the module. 0, or -1 with an exception. */
int py_client_add(PyObject *module);

#endif
