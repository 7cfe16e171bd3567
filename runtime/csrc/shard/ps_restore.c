/* The content of a shard, from the body of a file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "shard/ps_cut.h"

enum { ALIGN = 8, KEYS_AT_ONCE = 8192 };

/* The body as far as it was read. */
typedef struct body {
    FILE *from;
    uint64_t bytes;
    uint8_t small[PS_SAVE_HEAD_BYTES + PS_MAX_CREATE + ALIGN];
    uint64_t keys[KEYS_AT_ONCE];
} body;

static int get(body *b, void *to, size_t n, ps_err *err) {
    for (size_t got = 0; got < n;) {
        size_t k = fread((uint8_t *)to + got, 1, n - got, b->from);
        got += k;
        b->bytes += k;
        if (got < n && feof(b->from)) return ps_fail(err, PS_EPROTO, 0, "the values end within an object");
        if (got < n && errno != EINTR) return ps_fail(err, PS_ESYS, errno, "reading values");
        if (got < n) clearerr(b->from);
    }
    return PS_OK;
}

static int align(body *b, ps_err *err) {
    return get(b, b->small, (size_t)(-b->bytes % ALIGN), err);
}

/* Return true if nothing follows. */
static bool ended(const body *b) {
    int next = getc(b->from);
    return next == EOF ? !ferror(b->from) : ungetc(next, b->from) == EOF;
}

static uint64_t get_number(const uint8_t *p, int bytes) {
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint64_t)p[i] << (8 * i);
    return x;
}

typedef struct head {
    uint64_t count, pass, waiting;
} head;

/* Read the head, and make the object. */
static int get_head(body *b, uint32_t trainers, ps_object **o, head *h, ps_err *err) {
    ps_create spec = {0};
    int code = get(b, b->small, PS_SAVE_HEAD_BYTES, err);
    if (code < 0) return code;
    uint64_t length = get_number(b->small + 4, 4), steps = get_number(b->small + 8, 8);
    uint64_t samples = get_number(b->small + 24, 8);
    bool torn = b->small[0] & PS_SAVE_TORN;
    *h = (head){get_number(b->small + 16, 8), get_number(b->small + 32, 8), get_number(b->small + 40, 8)};
    if (length > PS_MAX_CREATE) return ps_fail(err, PS_EPROTO, 0, "an object's description is too long");
    code = get(b, b->small, (size_t)length, err);
    if (code == PS_OK) code = ps_create_decode(b->small, (size_t)length, &spec, err);
    if (code == PS_OK && ((torn && spec.mode == PS_SYNC) || (!spec.sparse && h->count != spec.size)))
        code = ps_fail(err, PS_EPROTO, 0, "'%.*s' is torn, or of another size", PS_NAME(&spec));
    if (code == PS_OK) code = ps_object_new(o, &spec, 0, trainers, err);
    if (code < 0) return code;
    (*o)->step.version = steps;
    (*o)->samples = samples;
    (*o)->given = (*o)->dense.ready = true;
    return align(b, err);
}

static int get_keys(body *b, ps_sparse *t, bool waiting, uint64_t count, ps_err *err) {
    int code = PS_OK;
    for (uint64_t n, at = 0; code == PS_OK && at < count; at += n) {
        n = count - at < KEYS_AT_ONCE ? count - at : KEYS_AT_ONCE;
        code = get(b, b->keys, (size_t)n * sizeof *b->keys, err);
        if (code == PS_OK) code = ps_sparse_fill(t, waiting, b->keys, (size_t)n, err);
    }
    return code;
}

static int get_counts(body *b, const ps_sparse *t, bool waiting, uint64_t count, ps_err *err) {
    int code = PS_OK;
    for (uint64_t i = 1; code == PS_OK && i <= count; i++)
        code = get(b, ps_sparse_at(t, waiting, (uint32_t)i).counts, sizeof(ps_counts), err);
    return code;
}

static int get_table(body *b, ps_object *o, const head *h, ps_err *err) {
    ps_sparse *t = o->sparse;
    size_t floats = o->spec.dim + ps_optim_state(o->spec.optim.method, o->spec.dim);
    int code = get_keys(b, t, false, h->count, err);
    if (code == PS_OK) code = get_keys(b, t, true, h->waiting, err);
    for (uint64_t i = 1; code == PS_OK && i <= h->count; i++)
        code = get(b, ps_sparse_at(t, false, (uint32_t)i).values, floats * sizeof(float), err);
    if (code < 0 || o->spec.entry.rule == PS_ENTRY_ANY) return code;
    code = get_counts(b, t, false, h->count, err);
    return code == PS_OK ? get_counts(b, t, true, h->waiting, err) : code;
}

static int get_object(body *b, uint32_t trainers, ps_object **o, uint64_t *pass, ps_err *err) {
    head h;
    int code = get_head(b, trainers, o, &h, err);
    if (code < 0) return code;
    *pass = h.pass;
    if ((*o)->sparse != NULL) {
        code = get_table(b, *o, &h, err);
    } else {
        ps_dense *d = &(*o)->dense;
        size_t slots = ps_optim_state(d->optim.method, 1);
        code = get(b, d->values, d->n * sizeof(float), err);
        if (code == PS_OK && slots > 0) code = get(b, d->slots, d->n * slots * sizeof(float), err);
    }
    return code == PS_OK ? align(b, err) : code;
}

int ps_restore(int fd, uint32_t trainers, ps_object ***objects, uint32_t *n, uint64_t *pass, ps_err *err) {
    int code = PS_OK;
    *objects = NULL;
    *n = 0;
    body *b = calloc(1, sizeof *b);
    if (b != NULL) b->from = fdopen(dup(fd), "rb");
    if (b == NULL || b->from == NULL) {
        free(b);
        return ps_fail(err, PS_ENOMEM, 0, "values of a shard");
    }
    while (code == PS_OK && !ended(b)) {
        ps_object **grown = realloc(*objects, (*n + 1) * sizeof *grown);
        if (grown == NULL) code = ps_fail(err, PS_ENOMEM, 0, "objects of a shard");
        else *objects = grown, grown[*n] = NULL;
        if (code == PS_OK) code = get_object(b, trainers, &grown[*n], pass, err);
        if (grown != NULL && grown[*n] != NULL) ++*n;
    }
    fclose(b->from);
    free(b);
    return code;
}
