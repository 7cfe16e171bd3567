#include "shard/ps_object.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 16384 }; /* floats of a held gradient added at a time: they stay in the cache */

int ps_object_new(ps_object **out, const ps_create *spec, uint32_t creator, uint32_t trainers, ps_err *err) {
    *out = NULL;
    ps_object *o = calloc(1, sizeof *o);
    if (o == NULL) return ps_fail(err, PS_ENOMEM, 0, "object '%.*s'", PS_NAME(spec));
    o->spec = *spec;
    o->creator = creator;
    o->rated_by = UINT32_MAX;
    o->step.n = trainers;
    int code;
    if (spec->sparse)
        code = ps_sparse_new(&o->sparse, spec->dim, &spec->optim, &spec->init, &spec->entry, false, err);
    else code = ps_dense_init(&o->dense, (size_t)spec->size, &spec->optim, err);
    o->step.part = calloc(trainers, sizeof *o->step.part);
    o->step.waiter = calloc(trainers, sizeof *o->step.waiter);
    o->step.flags = calloc(trainers, sizeof *o->step.flags);
    o->held = calloc(trainers, sizeof *o->held);
    o->parked = calloc(trainers, sizeof *o->parked);
    o->drops = calloc(trainers, sizeof *o->drops);
    bool whole = o->step.part != NULL && o->step.waiter != NULL && o->step.flags != NULL && o->held != NULL &&
                 o->parked != NULL && o->drops != NULL;
    if (code == PS_OK && !whole) code = ps_fail(err, PS_ENOMEM, 0, "object '%.*s'", PS_NAME(spec));
    if (code < 0) {
        ps_object_free(o);
        return code;
    }
    *out = o;
    return PS_OK;
}

/* Free all frames. Returns their charge. */
static uint64_t free_all(ps_line *line) {
    uint64_t charge = 0;
    for (ps_held *h; (h = line->first) != NULL; free(h)) {
        charge += h->charge;
        line->first = h->next;
    }
    return charge;
}

void ps_object_free(ps_object *o) {
    if (o == NULL) return;
    for (uint32_t t = 0; t < o->step.n; t++) {
        if (o->held != NULL) (void)free_all(&o->held[t]);
        if (o->parked != NULL) (void)free_all(&o->parked[t]);
    }
    free(o->step.part);
    free(o->step.waiter);
    free(o->step.flags);
    free(o->held);
    free(o->parked);
    free(o->drops);
    ps_sparse_free(o->sparse);
    ps_dense_close(&o->dense);
    free(o);
}

uint32_t ps_step_turn(ps_step *s, const uint8_t *ended) {
    while (s->next < s->n) {
        uint8_t part = s->part[s->next];
        if (part != PS_PART_DONE && !(part == PS_PART_NONE && ended[s->next])) break;
        s->next++;
    }
    return s->next;
}

bool ps_step_last(ps_step *s, const uint8_t *ended, uint32_t trainer) {
    if (ps_step_turn(s, ended) != trainer) return false;
    for (uint32_t t = trainer + 1; t < s->n; t++)
        if (!ended[t] || s->part[t] != PS_PART_NONE) return false;
    return true;
}

bool ps_step_open(const ps_step *s) {
    for (uint32_t t = 0; t < s->n; t++)
        if (s->part[t] != PS_PART_NONE) return true;
    return false;
}

ps_held *ps_held_new(uint64_t bytes, uint32_t count) {
    if (bytes > PS_MAX_DENSE_BYTES) return NULL;
    ps_held *h = malloc(sizeof *h + (size_t)bytes);
    if (h == NULL) return NULL;
    *h = (ps_held){.bytes = bytes, .count = count};
    return h;
}

static void append(ps_line *line, ps_held *h) {
    if (line->first == NULL) line->first = h;
    else line->last->next = h;
    line->last = h;
}

void ps_object_hold(ps_object *o, uint32_t trainer, ps_held *h) {
    if (o->held[trainer].first == NULL) o->held_n++;
    append(&o->held[trainer], h);
}

void ps_object_park(ps_object *o, uint32_t trainer, ps_held *h) {
    append(&o->parked[trainer], h);
}

ps_held *ps_object_unpark(ps_object *o, uint32_t trainer) {
    ps_held *h = o->parked[trainer].first;
    if (h == NULL || h->version > o->step.version) return NULL;
    o->parked[trainer].first = h->next;
    h->next = NULL;
    return h;
}

uint64_t ps_object_forget_parked(ps_object *o, uint32_t trainer) {
    return free_all(&o->parked[trainer]);
}

static void take_dense(ps_object *o, bool last, const float *grad) {
    ps_dense *d = &o->dense;
    for (size_t at = 0; at < d->n; at += PIECE) {
        size_t k = d->n - at < PIECE ? d->n - at : PIECE;
        if (last) ps_dense_apply(d, o->step.version + 1, at, grad + at, k);
        else if (d->sum_empty) memcpy(d->sum + at, grad + at, k * sizeof *grad);
        else ps_add(d->sum + at, grad + at, k);
    }
    if (!last) d->sum_empty = false;
}

static int take_one(ps_object *o, bool last, const ps_held *h, ps_err *err) {
    if (o->sparse == NULL) {
        if (!last && ps_dense_sum(&o->dense) == NULL)
            return ps_fail(err, PS_ENOMEM, 0, "the sum of '%.*s'", PS_NAME(&o->spec));
        take_dense(o, last, (const float *)h->data);
        return PS_OK;
    }
    const float *rows = (const float *)(h->data + h->count);
    return ps_sparse_add(o->sparse, h->data, rows, h->count, err);
}

int ps_object_take(ps_object *o, const uint8_t *ended, uint32_t trainer, uint64_t *held, ps_err *err) {
    bool last = ps_step_last(&o->step, ended, trainer);
    for (ps_held *h; (h = o->held[trainer].first) != NULL;) {
        int code = take_one(o, last, h, err);
        if (code < 0) return code;
        o->held[trainer].first = h->next;
        *held -= h->charge;
        free(h);
        if (o->held[trainer].first == NULL) o->held_n--;
    }
    return PS_OK;
}

void ps_object_count(ps_object *o, const ps_header *push, uint64_t pass) {
    o->samples += push->samples;
    if (ps_object_async(o) || push->trainer <= o->rated_by) {
        o->rated_by = push->trainer;
        o->factor = push->factor;
    }
    ps_object_begin(o, pass);
}

void ps_object_begin(ps_object *o, uint64_t pass) {
    float base = o->spec.optim.learning_rate * o->factor;
    float rate = ps_schedule_rate(&o->spec.schedule, base, o->samples, o->passes + pass);
    if (o->sparse != NULL) ps_sparse_begin(o->sparse, rate, o->step.version + 1);
    else o->dense.optim.learning_rate = rate;
}

void ps_object_commit(ps_object *o) {
    uint64_t step = o->step.version + 1;
    if (o->sparse != NULL) ps_sparse_commit(o->sparse, step);
    else ps_dense_commit(&o->dense, step);
    memset(o->step.part, PS_PART_NONE, o->step.n);
    o->step.next = 0;
    o->step.version++;
    o->rated_by = UINT32_MAX;
}

bool ps_object_async(const ps_object *o) {
    return o->spec.mode != PS_SYNC;
}

bool ps_object_torn(const ps_object *o) {
    if (!ps_object_async(o)) return o->dense.applied;
    for (uint32_t t = 0; t < o->step.n; t++)
        if (o->step.part[t] == PS_PART_SUM) return true;
    return false;
}

uint64_t ps_object_bytes(const ps_object *o) {
    size_t n = o->sparse == NULL ? o->dense.n : o->spec.dim;
    uint64_t bytes = sizeof(float) * (n + ps_optim_state(o->spec.optim.method, n));
    return o->sparse == NULL ? bytes : ps_sparse_rows(o->sparse) * (sizeof(uint64_t) + bytes);
}
