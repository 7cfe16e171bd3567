/* The parts of pslaunch.runtime._core, each in a file of its name. */
#ifndef PY_PARTS_H
#define PY_PARTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef ps_columns_methods[];
extern PyMethodDef ps_compute_methods[];
extern PyMethodDef ps_kernels_methods[];
extern PyMethodDef ps_lookup_methods[];
extern PyMethodDef ps_shard_methods[];
extern PyMethodDef ps_slots_methods[];

/* Add the type Client to the module. 0, or -1 with an exception. */
int py_client_add(PyObject *module);

/* Add the type Table likewise. */
int py_table_add(PyObject *module);

/* What a column has: text becomes ids, the FNV-1a of its bytes behind a start. */
enum { PY_COLUMN_FLOATS, PY_COLUMN_IDS, PY_COLUMN_TEXT };

#endif
