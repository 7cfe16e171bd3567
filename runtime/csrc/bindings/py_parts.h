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

extern PyType_Spec py_client_type, py_table_type;

/* Define a type: a struct with functions and methods of its name. */
#define PY_TYPE(of, name_of_type, doc)                                            \
    static PyType_Slot of##_slots[] = {{Py_tp_doc, (void *)doc},                  \
                                       {Py_tp_new, (void *)of##_new},             \
                                       {Py_tp_dealloc, (void *)of##_dealloc},     \
                                       {Py_tp_methods, of##_methods},             \
                                       {0, NULL}};                                \
    PyType_Spec py_##of##_type = {.name = "pslaunch.runtime._core." name_of_type, \
                                  .basicsize = sizeof(of),                        \
                                  .flags = Py_TPFLAGS_DEFAULT,                    \
                                  .slots = of##_slots};

/* What a column has: text becomes ids, the FNV-1a of its bytes behind a start. */
enum { PY_COLUMN_FLOATS, PY_COLUMN_IDS, PY_COLUMN_TEXT };

#endif
