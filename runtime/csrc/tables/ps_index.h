/* Places of a table's keys, found by hash: an open hash in parts. Knows no keys: where two hashes are equal
 * the table compares. One thread at a time. */
#ifndef PS_INDEX_H
#define PS_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "base/ps_err.h"

enum { PS_INDEX_PARTS = 256 };

/* The tag is the lower half of the key's hash: it gives the home of the place, so that a part grows without a
 * look at keys. */
typedef struct ps_place {
    uint32_t tag;
    uint32_t row; /* the table's; 0: free */
} ps_place;

/* One of the parts, chosen by the upper bits of the hash. Each grows alone, so that no push waits for more
 * than a part. */
typedef struct ps_part {
    ps_place *places; /* [cap], open addressing with linear probing */
    uint32_t cap;     /* a power of two */
    uint32_t used;
} ps_part;

typedef struct ps_index {
    ps_part parts[PS_INDEX_PARTS];
    size_t next_part; /* the next one that is looked at for growth */
} ps_index;

/* Set up an index without keys. PS_OK or PS_ENOMEM; ps_index_close() after both. */
int ps_index_init(ps_index *x, ps_err *err);

/* Release all; a zeroed index is allowed. Can't fail. */
void ps_index_close(ps_index *x);

/* Remove all keys. Memory stays. Can't fail. */
void ps_index_clear(ps_index *x);

/* Make room for more[p] keys in each part p. PS_OK or PS_ENOMEM; then nothing is lost. */
int ps_index_reserve(ps_index *x, const uint32_t *more, ps_err *err);

/* Grow a part that has many keys, of as many as n keys pay for: while memory lasts, long before one is full.
 * Can't fail. */
void ps_index_grow_ahead(ps_index *x, size_t n);

/* Free a place; those behind it move up, so that all are still found. Can't fail. */
void ps_index_remove(ps_part *p, const ps_place *place);

/* Fill an open hash for the readers of a file: places [cap], all 0, get the numbers of keys[0..n) from 1, at
 * ps_key_hash() or behind. cap: a power of two, above n. Can't fail. */
void ps_index_keys(uint32_t *places, size_t cap, const uint64_t *keys, size_t n);

/* Return the number of the part of a hash. */
static inline size_t ps_index_number(uint64_t hash) {
    return (size_t)(hash >> 56);
}

/* Return the first place where a key of this hash may be. */
static inline const ps_place *ps_index_home(const ps_index *x, uint64_t hash) {
    const ps_part *p = &x->parts[ps_index_number(hash)];
    return &p->places[(uint32_t)hash & (p->cap - 1)];
}

/* Return the place with the tag of this hash that follows `last`, NULL: the first; or the free one behind. */
PS_INLINE ps_place *ps_index_find(const ps_index *x, uint64_t hash, const ps_place *last) {
    const ps_part *p = &x->parts[ps_index_number(hash)];
    uint32_t mask = p->cap - 1, tag = (uint32_t)hash;
    uint32_t i = last == NULL ? tag & mask : ((uint32_t)(last - p->places) + 1) & mask;
    while (p->places[i].row != 0 && p->places[i].tag != tag) i = (i + 1) & mask;
    return &p->places[i];
}

#endif
