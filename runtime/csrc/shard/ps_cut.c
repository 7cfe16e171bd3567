#include "shard/ps_cut.h"

#include <stdlib.h>
#include <string.h>

#include "tables/ps_pool.h"

enum { ALIGN = 8, COUNT_BYTES = 12 };

/* What the body has of an object, in this order: parts of numbered items. */
enum {
    HEAD,         /* one item */
    VALUES,       /* of a dense object: chunks of the values, then of the state slot by slot */
    KEYS,         /* of a table: of its rows, */
    WAITING_KEYS, /* and of those that only wait */
    ROWS,
    COUNTS, /* of a table with an entry rule */
    WAITING_COUNTS,
    PADDING, /* one item */
    PARTS,
};

/* What is before an object's CREATE. */
typedef struct head {
    uint32_t flags;  /* PS_SAVE_... */
    uint32_t create; /* bytes of CREATE */
    uint64_t steps, count, samples, passes, waiting;
} head;

_Static_assert(sizeof(head) == PS_SAVE_HEAD_BYTES, "heads are written as they are");

/* An object as it was. */
typedef struct whole {
    ps_object *o;
    head head;
} whole;

struct ps_cut {
    whole *objects; /* [n] */
    uint32_t n, object;
    bool exports; /* values alone */
    int part;
    uint32_t number; /* of the item, from 1 */
    size_t used;     /* bytes of it that were read */
    uint64_t bytes;  /* of all items */
    bool lost;
    uint8_t small[PS_SAVE_HEAD_BYTES + PS_MAX_CREATE + ALIGN]; /* an item that is in no object */
};

_Static_assert(sizeof(ps_counts) == COUNT_BYTES, "counts are written as they are");

/* Let an object change again without copies. */
static void let_go(ps_cut *c, ps_object *o) {
    c->lost |= !(o->sparse != NULL ? ps_sparse_forget(o->sparse) : ps_keep_end(&o->dense.keep));
}

/* Keep an object, and note what it is now. */
static int keep(whole *w, ps_object *o, uint64_t pass, uint32_t flags, ps_err *err) {
    bool all = (flags & PS_ALL) != 0;
    *w = (whole){o, {.steps = o->step.version, .samples = o->samples, .passes = o->passes + pass}};
    head *h = &w->head;
    h->flags = ps_object_torn(o) ? PS_SAVE_TORN : 0;
    h->count = o->sparse == NULL ? o->dense.n : ps_sparse_rows(o->sparse);
    if (o->sparse == NULL) return ps_dense_keep(&o->dense, err);
    if (!(flags & PS_EXPORT)) {
        h->waiting = ps_sparse_waiting(o->sparse);
        return ps_sparse_keep(o->sparse, err);
    }
    int code = ps_sparse_keep_changed(o->sparse, &all, &h->count, err);
    if (!all) h->flags |= PS_SAVE_CHANGED;
    return code;
}

int ps_cut_begin(ps_cut **out, ps_object *const *objects, uint32_t n, uint64_t pass, uint32_t flags,
                 ps_err *err) {
    int code = PS_OK;
    *out = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (objects[i]->dense.n > 0 && !objects[i]->dense.ready)
            return ps_fail(err, PS_EINVAL, 0, "'%.*s' has no values yet", PS_NAME(&objects[i]->spec));
    ps_cut *c = calloc(1, sizeof *c);
    if (c != NULL) {
        *c = (ps_cut){.number = 1, .exports = (flags & PS_EXPORT) != 0};
        c->objects = calloc(n + 1, sizeof *c->objects);
    }
    if (c == NULL || c->objects == NULL) code = ps_fail(err, PS_ENOMEM, 0, "a cut of %u objects", n);
    for (uint32_t i = 0; code == PS_OK && i < n; i++) {
        if (objects[i]->sparse != NULL && objects[i]->spec.total == 0) continue; /* messages */
        code = keep(&c->objects[c->n], objects[i], pass, flags, err);
        if (code == PS_OK) c->n++;
    }
    if (code == PS_OK) *out = c;
    else ps_cut_end(c);
    return code;
}

bool ps_cut_end(ps_cut *c) {
    if (c == NULL) return true;
    for (; c->object < c->n; c->object++) let_go(c, c->objects[c->object].o);
    bool kept = !c->lost;
    free(c->objects);
    free(c);
    return kept;
}

/* --- The next item. --- */

static size_t encode_head(uint8_t *raw, whole *w, bool exports) {
    ps_create spec = w->o->spec;
    if (exports) {
        spec.optim = (ps_optim){.method = PS_SGD, .learning_rate = spec.optim.learning_rate};
        spec.entry = (ps_entry){0};
    }
    if (w->o->sparse != NULL) spec.init = ps_sparse_init(w->o->sparse);
    w->head.create = (uint32_t)ps_create_encode(&spec, raw + sizeof(head));
    memcpy(raw, &w->head, sizeof(head));
    size_t n = sizeof(head) + w->head.create;
    memset(raw + n, 0, ALIGN);
    return n + -n % ALIGN;
}

/* Find the item `number` of this part. Returns its length in bytes; 0: there is none. */
static size_t find_single(ps_cut *c, whole *w, const void **from) {
    *from = c->small;
    if (c->number > 1) return 0;
    if (c->part == HEAD) return encode_head(c->small, w, c->exports);
    memset(c->small, 0, ALIGN);
    return (size_t)(-(c->bytes - c->used) % ALIGN);
}

static size_t find_chunk(ps_cut *c, ps_dense *d, const void **from) {
    uint32_t chunks = (uint32_t)((d->n + PS_DENSE_CHUNK - 1) / PS_DENSE_CHUNK), at = c->number - 1;
    size_t slots = c->exports ? 0 : ps_optim_state(d->optim.method, 1);
    const float *floats;
    if (chunks == 0 || at / chunks > slots) return 0;
    size_t n = ps_dense_kept(d, at / chunks, at / chunks == slots, at % chunks + 1, &floats);
    *from = floats;
    return n * sizeof *floats;
}

/* The next row, or waiting key, may have a higher number. */
static size_t find_row(ps_cut *c, const ps_object *o, const void **from) {
    ps_row row;
    bool waiting = c->part == WAITING_KEYS || c->part == WAITING_COUNTS;
    bool ruled = o->spec.entry.rule != PS_ENTRY_ANY && !c->exports;
    bool last = c->part >= (ruled ? COUNTS : ROWS);
    uint32_t number = c->number - 1;
    if (c->exports && waiting) return 0;
    if ((!ruled && c->part > ROWS) || !ps_sparse_kept(o->sparse, waiting, last, &number, &row)) return 0;
    c->number = number;
    *from = row.key;
    if (c->part == KEYS || c->part == WAITING_KEYS) return sizeof(uint64_t);
    *from = c->part == ROWS ? (const void *)row.values : row.counts;
    if (c->part != ROWS) return COUNT_BYTES;
    size_t state = c->exports ? 0 : ps_optim_state(o->spec.optim.method, o->spec.dim);
    return sizeof(float) * (o->spec.dim + state);
}

static size_t find(ps_cut *c, const void **from) {
    whole *w = &c->objects[c->object];
    bool table = w->o->sparse != NULL;
    if (c->part == HEAD || c->part == PADDING) return find_single(c, w, from);
    if (c->part == VALUES) return table ? 0 : find_chunk(c, &w->o->dense, from);
    return table ? find_row(c, w->o, from) : 0;
}

/* Go on to the next part, or object. */
static void next_part(ps_cut *c) {
    c->number = 1;
    if (++c->part < PARTS) return;
    let_go(c, c->objects[c->object++].o);
    c->part = HEAD;
}

size_t ps_cut_read(ps_cut *c, void *to, size_t size) {
    size_t got = 0;
    while (got < size && c->object < c->n) {
        const void *from = NULL;
        size_t n = find(c, &from);
        if (n == 0) {
            next_part(c);
            continue;
        }
        size_t k = n - c->used < size - got ? n - c->used : size - got;
        memcpy((uint8_t *)to + got, (const uint8_t *)from + c->used, k);
        got += k;
        c->bytes += k;
        c->used += k;
        if (c->used < n) continue;
        c->used = 0;
        c->number++;
    }
    return got;
}
