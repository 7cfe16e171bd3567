/* The extension module pslaunch.runtime._core, assembled from its parts. */
#include "bindings/py_args.h"

static int core_exec(PyObject *module) {
    PyMethodDef *const parts[] = {ps_kernels_methods, ps_lookup_methods, ps_columns_methods, ps_slots_methods,
                                  ps_shard_methods};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (PyModule_AddFunctions(module, parts[i]) < 0) return -1;
    PyType_Spec *const types[] = {&py_client_type, &py_table_type};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        PyObject *type = PyType_FromModuleAndSpec(module, types[i], NULL);
        int code = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
        Py_XDECREF(type);
        if (code < 0) return -1;
    }
    return 0;
}

/* Standard C has no pointer to both data and functions; Python's slots need the cast. */
static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, (void *)core_exec},
    {0, NULL},
};

static PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pslaunch.runtime._core",
    .m_doc = "The compiled core: kernels, pserver shards and their client.",
    .m_size = 0,
    .m_slots = core_slots,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void) {
    return PyModuleDef_Init(&core_module);
}
