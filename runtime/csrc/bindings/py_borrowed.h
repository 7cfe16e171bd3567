/* The arrays that a client has borrowed, and which of them share memory. */
#ifndef PY_BORROWED_H
#define PY_BORROWED_H

#include <stdbool.h>

#include "bindings/py_args.h"

/* An array of the caller's, borrowed until its call is complete. */
typedef struct py_borrowed {
    Py_buffer view;
    uint64_t call;
    const char *name;     /* of the argument */
    size_t turn;          /* grows within a call */
    uint32_t id;          /* of the object */
    bool values, written; /* float32; by the call */
} py_borrowed;

/* Sort arrays by address. Return one of the call `own` that shares memory with an array that the same call
 * writes (*same), or with one of another call, unless both are keys: its values would be sent, or come, while
 * the other call has them. NULL: none does. O(n log n). */
const py_borrowed *py_find_shared(py_borrowed *views, size_t n, uint64_t own, bool *same);

#endif
