#include "shard/ps_save.h"

#include <string.h>

enum { ALIGN = 8 };

/* The bytes for the owner: small pieces gather in the buffer, which it takes when it is full. */
typedef struct sink {
    const ps_save *to;
    uint8_t *buffer;
    size_t size, used;
    uint64_t pass;
} sink;

static int flush(sink *s, ps_err *err) {
    size_t n = s->used;
    s->used = 0;
    return n == 0 ? PS_OK : s->to->put(s->to->owner, s->buffer, n, err);
}

static int put(sink *s, const void *data, size_t n, ps_err *err) {
    const uint8_t *from = data;
    while (n > 0) {
        size_t k = s->size - s->used < n ? s->size - s->used : n;
        memcpy(s->buffer + s->used, from, k);
        s->used += k;
        from += k;
        n -= k;
        if (s->used < s->size) continue;
        int code = flush(s, err);
        if (code < 0) return code;
    }
    return PS_OK;
}

static int align(sink *s, ps_err *err) {
    const uint8_t zeros[ALIGN] = {0};
    return put(s, zeros, -s->used % ALIGN, err);
}

static int put_floats(sink *s, const float *values, size_t n, ps_err *err) {
    return n == 0 ? PS_OK : put(s, values, n * sizeof *values, err);
}

/* --- An object. --- */

static void put_number(uint8_t *p, int bytes, uint64_t x) {
    for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(x >> (8 * i));
}

static int save_head(sink *s, const ps_object *o, uint64_t count, uint64_t waiting, ps_err *err) {
    uint8_t raw[PS_SAVE_HEAD_BYTES + PS_MAX_CREATE];
    ps_create spec = o->spec;
    if (o->sparse != NULL) spec.init = ps_sparse_init(o->sparse);
    size_t create = ps_create_encode(&spec, raw + PS_SAVE_HEAD_BYTES);
    put_number(raw, 4, ps_object_torn(o) ? PS_SAVE_TORN : 0);
    put_number(raw + 4, 4, create);
    put_number(raw + 8, 8, o->step.version);
    put_number(raw + 16, 8, count);
    put_number(raw + 24, 8, o->samples);
    put_number(raw + 32, 8, o->passes + s->pass);
    put_number(raw + 40, 8, waiting);
    int code = put(s, raw, PS_SAVE_HEAD_BYTES + create, err);
    return code == PS_OK ? align(s, err) : code;
}

static int save_dense(sink *s, const ps_object *o, ps_err *err) {
    const ps_dense *d = &o->dense;
    int code = save_head(s, o, d->n, 0, err);
    if (code == PS_OK) code = put_floats(s, d->values, d->n, err);
    if (code == PS_OK) code = put_floats(s, d->slots, ps_optim_state(d->optim.method, d->n), err);
    return code == PS_OK ? align(s, err) : code;
}

enum { KEYS, ROWS, COUNTS };

/* Put one field of all rows, or of all keys without one. */
static int put_field(sink *s, const ps_sparse *t, bool waiting, int field, ps_err *err) {
    ps_sparse_item item;
    int code = PS_OK;
    for (size_t at = 0; code == PS_OK && ps_sparse_next(t, waiting, &at, &item);) {
        uint8_t key[sizeof item.key];
        put_number(key, sizeof key, item.key);
        if (field == KEYS) code = put(s, key, sizeof key, err);
        else if (field == ROWS) code = put_floats(s, item.row, ps_sparse_stride(t), err);
        else if (item.counts != NULL) code = put(s, item.counts, sizeof *item.counts, err);
    }
    return code;
}

static int save_table(sink *s, const ps_object *o, ps_err *err) {
    const ps_sparse *t = o->sparse;
    int code = save_head(s, o, ps_sparse_rows(t), ps_sparse_waiting(t), err);
    if (code == PS_OK) code = put_field(s, t, false, KEYS, err);
    if (code == PS_OK) code = put_field(s, t, true, KEYS, err);
    if (code == PS_OK) code = put_field(s, t, false, ROWS, err);
    if (code == PS_OK) code = put_field(s, t, false, COUNTS, err);
    if (code == PS_OK) code = put_field(s, t, true, COUNTS, err);
    return code == PS_OK ? align(s, err) : code;
}

int ps_save_objects(const ps_save *to, ps_object *const *objects, uint32_t n, uint64_t pass, void *buffer,
                    size_t size, ps_err *err) {
    sink s = {.to = to, .buffer = buffer, .size = size, .pass = pass};
    int code = PS_OK;
    for (uint32_t i = 0; i < n; i++)
        if (objects[i]->dense.n > 0 && !objects[i]->dense.ready)
            return ps_fail(err, PS_EINVAL, 0, "'%.*s' has no values yet", PS_NAME(&objects[i]->spec));
    for (uint32_t i = 0; code == PS_OK && i < n; i++)
        code = objects[i]->sparse != NULL ? save_table(&s, objects[i], err) : save_dense(&s, objects[i], err);
    return code == PS_OK ? flush(&s, err) : code;
}
