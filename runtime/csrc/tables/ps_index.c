#include "tables/ps_index.h"

#include <stdlib.h>
#include <string.h>

#include "tables/ps_init.h"

enum { FIRST_CAP = 16 };

/* Return the keys that fit into a part. */
static size_t most_in(const ps_part *p) {
    return (size_t)p->cap / 8 * 7;
}

/* Return the keys from which a part of this number grows: parts have different ones, a half to three
 * quarters, so that they do not all grow at the same time. */
static size_t grows_from(const ps_part *p, size_t number) {
    return (size_t)p->cap / 2 + (size_t)p->cap * number / (4 * PS_INDEX_PARTS);
}

int ps_index_init(ps_index *x, ps_err *err) {
    for (ps_part *p = x->parts; p < x->parts + PS_INDEX_PARTS; p++) {
        p->places = calloc(FIRST_CAP, sizeof *p->places);
        if (p->places == NULL) return ps_fail(err, PS_ENOMEM, 0, "sparse table: its index");
        p->cap = FIRST_CAP;
    }
    return PS_OK;
}

void ps_index_clear(ps_index *x) {
    for (ps_part *p = x->parts; p < x->parts + PS_INDEX_PARTS; p++) {
        memset(p->places, 0, p->cap * sizeof *p->places);
        p->used = 0;
    }
}

void ps_index_close(ps_index *x) {
    for (ps_part *p = x->parts; p < x->parts + PS_INDEX_PARTS; p++) free(p->places);
    *x = (ps_index){0};
}

/* Double a part. */
static int grow_part(ps_part *p, ps_err *err) {
    uint32_t cap = 2 * p->cap;
    ps_place *fresh = calloc(cap, sizeof *fresh), *old = p->places;
    if (fresh == NULL) return ps_fail(err, PS_ENOMEM, 0, "sparse table: a part of %u places", cap);
    for (const ps_place *e = old; e < old + p->cap; e++) {
        if (e->row == 0) continue;
        uint32_t i = e->tag & (cap - 1);
        while (fresh[i].row != 0) i = (i + 1) & (cap - 1);
        fresh[i] = *e;
    }
    p->places = fresh;
    p->cap = cap;
    free(old);
    return PS_OK;
}

int ps_index_reserve(ps_index *x, const uint32_t *more, ps_err *err) {
    int rc = PS_OK;
    for (ps_part *p = x->parts; p < x->parts + PS_INDEX_PARTS; p++, more++)
        while (rc == PS_OK && (size_t)p->used + *more > most_in(p)) rc = grow_part(p, err);
    return rc;
}

void ps_index_grow_ahead(ps_index *x, size_t n) {
    for (size_t looks = n / 8 + 1; looks > 0; looks--) {
        size_t number = x->next_part++ % PS_INDEX_PARTS;
        if (x->parts[number].used <= grows_from(&x->parts[number], number)) continue;
        (void)grow_part(&x->parts[number], NULL);
        return;
    }
}

void ps_index_remove(ps_part *p, const ps_place *place) {
    uint32_t mask = p->cap - 1, gap = (uint32_t)(place - p->places);
    for (uint32_t i = (gap + 1) & mask; p->places[i].row != 0; i = (i + 1) & mask) {
        if (((i - p->places[i].tag) & mask) < ((i - gap) & mask)) continue;
        p->places[gap] = p->places[i];
        gap = i;
    }
    p->places[gap].row = 0;
    p->used--;
}

void ps_index_keys(uint32_t *places, size_t cap, const uint64_t *keys, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t at = (size_t)ps_key_hash(keys[i]) & (cap - 1);
        while (places[at] != 0) at = (at + 1) & (cap - 1);
        places[at] = (uint32_t)(i + 1);
    }
}
