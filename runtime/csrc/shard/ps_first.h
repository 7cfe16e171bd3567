/* First values of objects that the owner of a shard has loaded: used in place of those of trainer 0. Knows no
 * sockets and no Python. */
#ifndef PS_FIRST_H
#define PS_FIRST_H

#include "shard/ps_object.h"

typedef struct ps_first {
    char *name;    /* of the object, owned; ends with a zero byte */
    float *values; /* owned; of a table this shard's rows in order of keys; NULL once an object has them */
    size_t n;      /* values of a dense object, or of all rows of a table on all shards */
    uint32_t dim;  /* of a table; 0: a dense object */
    uint32_t shard, shards; /* of a table: this one, of so many */
} ps_first;

/* Copy into *f the values that the shard needs of values[0..n), of a table all rows [n / dim, dim] in order
 * of keys from 0. PS_OK or PS_ENOMEM; the caller releases *f in both cases. */
int ps_first_copy(ps_first *f, const char *name, const float *values, size_t n, uint32_t dim, uint32_t shard,
                  uint32_t shards, ps_err *err);

/* Release the memory of *f, which may be all zero. Can't fail. */
void ps_first_release(ps_first *f);

/* Set the values of a new object of this pass if it is among first[0..n), and release them there. Rows that
 * are as they would be without are not made. PS_OK; PS_EPROTO if a trainer describes the object in another
 * way, PS_ENOMEM or PS_ELIMIT. */
int ps_first_apply(ps_first *first, size_t n, ps_object *o, uint64_t pass, ps_err *err);

#endif
