/* Arrays that grow. */
#ifndef PS_ROOM_H
#define PS_ROOM_H

#include <stdlib.h>
#include <string.h>

#include "base/ps_cpu.h"

/* Make room for n items of `size` bytes in *array, which has room for *cap; `array` is the address of a
 * pointer that free() takes. Room for more comes with it, so that items one by one cost O(1) each. Returns
 * false without memory; then nothing has changed. */
static inline bool ps_room(void *array, size_t n, size_t *cap, size_t size) {
    size_t more = n + n / 2, bytes;
    void *p;
    if (n <= *cap) return true;
    memcpy(&p, array, sizeof p);
    if (ps_mul_overflows(more, size, &bytes) || (p = realloc(p, bytes)) == NULL) return false;
    memcpy(array, &p, sizeof p);
    *cap = more;
    return true;
}

#endif
