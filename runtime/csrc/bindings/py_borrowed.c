/* Which borrowed arrays share memory. */
#include "bindings/py_borrowed.h"

#include <stdlib.h>

static uintptr_t get_begin(const py_borrowed *b) {
    return (uintptr_t)b->view.buf;
}

static uintptr_t get_end(const py_borrowed *b) {
    return get_begin(b) + (size_t)b->view.len;
}

static int compare_begins(const void *a, const void *b) {
    uintptr_t x = get_begin(a), y = get_begin(b);
    return (x > y) - (x < y);
}

static bool may_share(const py_borrowed *a, const py_borrowed *b) {
    return a->call == b->call ? !a->written && !b->written : !a->values && !b->values;
}

const py_borrowed *py_find_shared(py_borrowed *views, size_t n, uint64_t own, bool *same) {
    /* Of each kind the array that reaches furthest so far: what a kind may share is the same for all of it.
     */
    const py_borrowed *furthest[6] = {NULL};
    if (n > 1) qsort(views, n, sizeof *views, compare_begins);
    for (const py_borrowed *b = views; b < views + n; b++) {
        if (b->view.len == 0) continue;
        for (size_t i = 0; i < 6; i++) {
            const py_borrowed *a = furthest[i];
            if (a == NULL || get_end(a) <= get_begin(b) || may_share(a, b)) continue;
            *same = a->call == b->call;
            return b->call != own || (*same && a->turn > b->turn) ? a : b;
        }
        const py_borrowed **kind = &furthest[3 * (b->call == own) + b->values + b->written];
        if (*kind == NULL || get_end(b) > get_end(*kind)) *kind = b;
    }
    return NULL;
}
