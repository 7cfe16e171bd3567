#include "shard/ps_first.h"

#include <stdlib.h>
#include <string.h>

int ps_first_copy(ps_first *f, const char *name, const float *values, size_t n, uint32_t dim, uint32_t shard,
                  uint32_t shards, ps_err *err) {
    size_t row = dim > 0 ? dim : n, own = 0;
    *f = (ps_first){.n = n, .dim = dim, .shard = shard, .shards = shards};
    for (uint64_t key = 0; dim > 0 && key < n / dim; key++) own += ps_key_shard(key, shards) == shard;
    f->name = strdup(name);
    f->values = malloc((dim > 0 ? own * dim : n) * sizeof *values + 1);
    if (f->name == NULL || f->values == NULL) return ps_fail(err, PS_ENOMEM, 0, "values of '%s'", name);
    float *to = f->values;
    for (uint64_t key = 0; row > 0 && key < n / row; key++) {
        if (dim > 0 && ps_key_shard(key, shards) != shard) continue;
        memcpy(to, values + key * row, row * sizeof *values);
        to += row;
    }
    return PS_OK;
}

void ps_first_release(ps_first *f) {
    free(f->name);
    free(f->values);
    f->name = NULL, f->values = NULL;
}

static ps_first *find(ps_first *first, size_t n, const ps_create *spec) {
    for (size_t i = 0; i < n; i++)
        if (first[i].values != NULL && strlen(first[i].name) == spec->name_length &&
            memcmp(first[i].name, spec->name, spec->name_length) == 0)
            return &first[i];
    return NULL;
}

/* Set those of the rows that differ from their present values. `scratch` has room for all. */
static int set_batch(ps_sparse *t, uint64_t *keys, const float *rows, size_t n, float *scratch, ps_err *err) {
    size_t dim = ps_sparse_dim(t), m = 0;
    ps_sparse_read(t, keys, n, scratch);
    for (size_t i = 0; i < n; i++) {
        if (memcmp(scratch + i * dim, rows + i * dim, dim * sizeof *rows) == 0) continue;
        memcpy(scratch + m * dim, rows + i * dim, dim * sizeof *rows);
        keys[m++] = keys[i];
    }
    return ps_sparse_set(t, keys, scratch, m, err);
}

static int set_rows(const ps_first *f, ps_object *o, uint64_t pass, ps_err *err) {
    size_t most = ps_rows_per_frame(f->dim), n = 0;
    uint64_t *keys = malloc(most * sizeof *keys);
    float *scratch = malloc(most * f->dim * sizeof *scratch);
    const float *rows = f->values;
    int code = keys != NULL && scratch != NULL
                   ? PS_OK
                   : ps_fail(err, PS_ENOMEM, 0, "rows of '%.*s'", PS_NAME(&o->spec));
    ps_object_begin(o, pass);
    for (uint64_t key = 0, end = f->n / f->dim; code == PS_OK && key < end; key++) {
        if (ps_key_shard(key, f->shards) == f->shard) keys[n++] = key;
        if (n < most && key + 1 < end) continue;
        code = set_batch(o->sparse, keys, rows, n, scratch, err);
        rows += n * f->dim;
        n = 0;
    }
    free(keys);
    free(scratch);
    return code;
}

int ps_first_apply(ps_first *first, size_t n, ps_object *o, uint64_t pass, ps_err *err) {
    ps_first *f = find(first, n, &o->spec);
    if (f == NULL) return PS_OK;
    size_t size = o->sparse == NULL ? o->dense.n : (size_t)o->spec.total * f->dim;
    if (f->dim != o->spec.dim || f->n != size)
        return ps_fail(
            err, PS_EPROTO, 0,
            "'%.*s' has %zu values on this shard, rows of %u, but this pserver has loaded %zu, rows of %u",
            PS_NAME(&o->spec), size, o->spec.dim, f->n, f->dim);
    if (o->sparse != NULL) {
        int code = set_rows(f, o, pass, err);
        if (code < 0) return code;
    } else {
        if (f->n > 0) memcpy(o->dense.values, f->values, f->n * sizeof *f->values);
        o->dense.ready = true;
    }
    o->given = true;
    ps_first_release(f);
    return PS_OK;
}
