#include "ps_first.h"

#include <stdlib.h>
#include <string.h>

static const ps_first *find(const ps_first *first, size_t n, const ps_create *spec) {
    for (size_t i = 0; i < n; i++)
        if (strlen(first[i].name) == spec->name_length &&
            memcmp(first[i].name, spec->name, spec->name_length) == 0)
            return &first[i];
    return NULL;
}

static int set_row(ps_sparse *t, uint64_t key, const float *row, float *scratch, size_t dim, ps_err *err) {
    ps_sparse_read(t, &key, 1, scratch);
    return memcmp(scratch, row, dim * sizeof *row) == 0 ? PS_OK : ps_sparse_set(t, &key, row, 1, err);
}

static int set_rows(const ps_first *f, ps_object *o, ps_err *err) {
    float *scratch = malloc(f->dim * sizeof *scratch);
    if (scratch == NULL) return ps_fail(err, PS_ENOMEM, 0, "a row of '%.*s'", PS_NAME(&o->spec));
    int code = PS_OK;
    ps_object_count(o, 0, 0);
    for (uint64_t key = 0; code == PS_OK && key < f->n / f->dim; key++)
        if (ps_key_shard(key, f->shards) == f->shard)
            code = set_row(o->sparse, key, f->values + key * f->dim, scratch, f->dim, err);
    free(scratch);
    return code;
}

int ps_first_apply(const ps_first *first, size_t n, ps_object *o, ps_err *err) {
    const ps_first *f = find(first, n, &o->spec);
    if (f == NULL) return PS_OK;
    size_t size = o->sparse == NULL ? o->dense.n : (size_t)o->spec.total * f->dim;
    if (f->dim != o->spec.dim || f->n != size)
        return ps_fail(
            err, PS_EPROTO, 0,
            "'%.*s' has %zu values on this shard, rows of %u, but this pserver has loaded %zu, rows of %u",
            PS_NAME(&o->spec), size, o->spec.dim, f->n, f->dim);
    o->given = true;
    if (o->sparse != NULL) return set_rows(f, o, err);
    if (f->n > 0) memcpy(o->dense.values, f->values, f->n * sizeof *f->values);
    o->dense.ready = true;
    return PS_OK;
}
