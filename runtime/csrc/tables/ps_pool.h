/* Numbered items of equal size that never move: rows of floats, each with a head. Numbers that are given back
 * are used again. Knows no keys. */
#ifndef PS_POOL_H
#define PS_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/ps_err.h"

#define PS_POOL_MOST ((UINT32_C(1) << 31) - 1) /* items */

/* The first word of a head that is not in use; the next word then is the next free number. */
#define PS_POOL_FREE UINT32_MAX

struct ps_keep;

/* A bit for each of the items 1..n; those above count as set. */
typedef struct ps_bits {
    uint64_t *words; /* [n / 64 + 1]; NULL if n is 0 */
    uint32_t n, set; /* n: 0, or one less than a multiple of 64; bits that are set */
} ps_bits;

typedef struct ps_pool {
    size_t floats;     /* of an item; may be 0 */
    size_t head_words; /* of its head, at least 2 */
    float **slabs;     /* [slabs_n]: 2^shift items, then their heads */
    size_t slabs_n, slabs_cap;
    unsigned shift;
    size_t made;          /* numbers that were ever in use */
    size_t live;          /* numbers in use */
    uint32_t free;        /* the number that was given back last; 0: none */
    struct ps_keep *keep; /* the items as they were before; NULL: nobody asks for them */
    ps_bits changed; /* since ps_pool_keep_changed(); of no item before, and if numbers came back since */
} ps_pool;

/* Set up a pool without items. Can't fail. */
void ps_pool_init(ps_pool *p, size_t floats, size_t head_words);

/* Release all items; a zeroed pool is allowed. Can't fail. */
void ps_pool_close(ps_pool *p);

/* Give all numbers back; no item may be kept. Memory stays. Can't fail. */
void ps_pool_clear(ps_pool *p);

/* Allocate memory for `more` items beside those in use. PS_OK, PS_ENOMEM or PS_ELIMIT; memory that a failed
 * call got is used by the next one. */
int ps_pool_reserve(ps_pool *p, size_t more, ps_err *err);

/* Return the number of an item for which there is memory, from 1; its content is undefined. Can't fail. */
uint32_t ps_pool_take(ps_pool *p);

/* Give a number back. Can't fail. */
void ps_pool_give_back(ps_pool *p, uint32_t number);

/* Keep all items as they are now for ps_pool_kept(), until ps_keep_end(&p->keep). PS_OK or PS_ENOMEM. */
int ps_pool_keep(ps_pool *p, ps_err *err);

/* Keep likewise only the items that have changed since the call before; all of them if that is not known, or
 * `all`. Returns PS_ENOMEM, or PS_OK; then p->keep->only says which. */
int ps_pool_keep_changed(ps_pool *p, bool all, ps_err *err);

/* Note that an item, or its head but for the first word, is about to change. Can't fail. */
void ps_pool_change(ps_pool *p, uint32_t number);

/* Find the first kept item above `number`, or where nothing is kept the first as it is now: its number,
 * floats and head, borrowed until the pool is changed. `last`: those before it are not needed any more.
 * Returns false after the last. */
bool ps_pool_kept(const ps_pool *p, bool last, uint32_t *number, const float **item, const uint32_t **head);

/* Numbered items as they were at one moment: each is copied before its first change, until the walk over all
 * has passed it. */
typedef struct ps_keep {
    uint32_t n;      /* the items 1..n are kept */
    uint32_t passed; /* of these 1..passed are not needed any more */
    uint32_t *place; /* [n + 1]: the item's number in `copies`; 0: none, it has not changed */
    ps_bits only;    /* only these items are kept */
    size_t count;    /* of them, in use */
    ps_pool copies;
    bool failed; /* there was no memory for a copy */
} ps_keep;

#define PS_KEEP_ABSENT UINT32_MAX /* a place: the item was not in use */

/* Begin to keep items of this size in *out, all of them unchanged. PS_OK or PS_ENOMEM; then *out is NULL. */
int ps_keep_new(ps_keep **out, size_t n, size_t floats, size_t head_words, ps_err *err);

/* Release all copies and set *keep to NULL, which is allowed before. Returns false if there was no memory to
 * keep something that has changed. */
bool ps_keep_end(ps_keep **keep);

/* Return the number of a new copy, for the caller to fill before it changes the item; 0: none is needed, or
 * there is no memory, which `failed` says. */
uint32_t ps_keep_take(ps_keep *k, size_t number);

/* Return the floats of an item. */
static inline float *ps_pool_item(const ps_pool *p, uint32_t number) {
    size_t at = number - 1;
    return p->slabs[at >> p->shift] + (at & (((size_t)1 << p->shift) - 1)) * p->floats;
}

/* Return its head. */
static inline uint32_t *ps_pool_head(const ps_pool *p, uint32_t number) {
    size_t at = number - 1, per_slab = (size_t)1 << p->shift;
    uint32_t *heads = (uint32_t *)(void *)(p->slabs[at >> p->shift] + per_slab * p->floats);
    return heads + (at & (per_slab - 1)) * p->head_words;
}

/* Return the smallest number in use above `number`; 0: there is none. */
static inline uint32_t ps_pool_next(const ps_pool *p, size_t number) {
    while (++number <= p->made)
        if (ps_pool_head(p, (uint32_t)number)[0] != PS_POOL_FREE) return (uint32_t)number;
    return 0;
}

#endif
