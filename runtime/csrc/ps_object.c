/* An object on one shard. */
#include "ps_object.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 16384 }; /* floats of a held gradient added at a time: they stay in the cache */

int ps_object_new(ps_object **out, const ps_create *spec, uint32_t creator, uint32_t trainers, ps_err *err) {
    *out = NULL;
    ps_object *o = calloc(1, sizeof *o);
    if (o == NULL) return ps_fail(err, PS_ENOMEM, 0, "object '%.64s'", spec->name);
    o->spec = *spec;
    o->creator = creator;
    int code = ps_step_init(&o->step, trainers, err);
    if (code == PS_OK && spec->sparse)
        code = ps_sparse_new(&o->sparse, spec->dim, &spec->optim, &spec->init, err);
    if (code == PS_OK && !spec->sparse)
        code = ps_dense_init(&o->dense, (size_t)spec->size, &spec->optim, err);
    o->held = calloc(trainers, sizeof *o->held);
    o->init_waits = calloc(trainers, sizeof *o->init_waits);
    if (code == PS_OK && (o->held == NULL || o->init_waits == NULL))
        code = ps_fail(err, PS_ENOMEM, 0, "object '%.64s'", spec->name);
    if (code < 0) {
        ps_object_free(o);
        return code;
    }
    *out = o;
    return PS_OK;
}

void ps_object_free(ps_object *o) {
    if (o == NULL) return;
    for (uint32_t t = 0; o->held != NULL && t < o->step.n; t++) {
        while (o->held[t] != NULL) {
            ps_held *h = o->held[t];
            o->held[t] = h->next;
            free(h);
        }
    }
    free(o->held);
    free(o->init_waits);
    ps_sparse_free(o->sparse);
    ps_dense_close(&o->dense);
    ps_step_close(&o->step);
    free(o);
}

ps_held *ps_held_new(uint64_t bytes, uint32_t count) {
    if (bytes > PS_MAX_DENSE_BYTES) return NULL;
    ps_held *h = malloc(sizeof *h + (size_t)bytes);
    if (h == NULL) return NULL;
    *h = (ps_held){.bytes = bytes, .count = count};
    return h;
}

void ps_object_hold(ps_object *o, uint32_t trainer, ps_held *h) {
    ps_held **end = &o->held[trainer];
    if (*end == NULL) o->held_n++;
    while (*end != NULL) end = &(*end)->next;
    *end = h;
}

static void take_dense(ps_object *o, bool last, const float *grad) {
    ps_dense *d = &o->dense;
    for (size_t at = 0; at < d->n; at += PIECE) {
        size_t k = d->n - at < PIECE ? d->n - at : PIECE;
        if (last) ps_dense_apply(d, at, grad + at, k);
        else if (d->sum_empty) memcpy(d->sum + at, grad + at, k * sizeof *grad);
        else ps_dense_add(d, at, grad + at, k);
    }
    if (!last) ps_dense_first(d);
}

static int take_one(ps_object *o, bool last, const ps_held *h, ps_err *err) {
    if (o->sparse == NULL) {
        if (!last && ps_dense_sum(&o->dense) == NULL)
            return ps_fail(err, PS_ENOMEM, 0, "the sum of '%.64s'", o->spec.name);
        take_dense(o, last, (const float *)h->data);
        return PS_OK;
    }
    const float *rows = (const float *)(h->data + h->count);
    return ps_sparse_add(o->sparse, h->data, rows, h->count, err);
}

int ps_object_take(ps_object *o, const uint8_t *ended, uint32_t trainer, uint64_t *freed, ps_err *err) {
    bool last = ps_step_last(&o->step, ended, trainer);
    while (o->held[trainer] != NULL) {
        ps_held *h = o->held[trainer];
        int code = take_one(o, last, h, err);
        if (code < 0) return code;
        o->held[trainer] = h->next;
        if (h->counted) *freed += h->bytes;
        free(h);
        if (o->held[trainer] == NULL) o->held_n--;
    }
    return PS_OK;
}

void ps_object_commit(ps_object *o) {
    if (o->sparse != NULL) ps_sparse_commit(o->sparse);
    else ps_dense_commit(&o->dense);
    ps_step_commit(&o->step);
}
