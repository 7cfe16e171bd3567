/* Numbered items as they were at one moment: each is copied before its first change, until the walk over all
 * has passed it. Knows no keys. */
#ifndef PS_KEEP_H
#define PS_KEEP_H

#include "tables/ps_pool.h"

typedef struct ps_keep {
    uint32_t n;      /* the items 1..n are kept */
    uint32_t passed; /* of these 1..passed are not needed any more */
    uint32_t *place; /* [n + 1]: the item's number in `copies`; 0: none, it has not changed */
    ps_pool copies;
    bool failed; /* there was no memory for a copy */
} ps_keep;

#define PS_KEEP_ABSENT UINT32_MAX /* a place: the item was not in use */

/* Begin to keep items of this size in *out, all of them unchanged. PS_OK or PS_ENOMEM; then *out is NULL. */
int ps_keep_new(ps_keep **out, size_t n, size_t floats, size_t head_words, ps_err *err);

/* Release all copies. NULL is allowed. Can't fail. */
void ps_keep_free(ps_keep *k);

/* Return the number of a new copy, for the caller to fill before it changes the item; 0: none is needed, or
 * there is no memory, which `failed` says. */
uint32_t ps_keep_take(ps_keep *k, size_t number);

#endif
