/* First values of objects that the owner of a shard has loaded: used in place of those of trainer 0. Knows no
 * sockets and no Python. */
#ifndef PS_FIRST_H
#define PS_FIRST_H

#include "ps_object.h"

typedef struct ps_first {
    const char *name;    /* of the object; ends with a zero byte */
    const float *values; /* [n], of a table all rows [n / dim, dim] in order of keys from 0 */
    size_t n;
    uint32_t dim;           /* of a table; 0: a dense object */
    uint32_t shard, shards; /* of a table: this one, of so many */
} ps_first;

/* Set the values of a new object if it is among first[0..n). Rows that are as they would be without are not
 * made. PS_OK; PS_EPROTO if a trainer describes the object in another way, PS_ENOMEM or PS_ELIMIT. */
int ps_first_apply(const ps_first *first, size_t n, ps_object *o, ps_err *err);

#endif
