#include "shard/ps_first.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int read_at(int fd, void *to, uint64_t size, uint64_t at, ps_err *err) {
    for (uint64_t done = 0; done < size;) {
        ssize_t n = pread(fd, (char *)to + done, (size_t)(size - done), (off_t)(at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return ps_fail(err, PS_ESYS, n < 0 ? errno : EIO, "reading saved values");
        done += (uint64_t)n;
    }
    return PS_OK;
}

static int read_dense(const ps_first *f, ps_object *o, ps_err *err) {
    ps_dense *d = &o->dense;
    uint64_t done = 0, all = 0;
    for (size_t i = 0; i < f->n; i++) all += f->parts[i].count;
    if (all != d->n)
        return ps_fail(err, PS_EPROTO, 0, "'%.*s' has %zu values on this shard, but %" PRIu64 " are loaded",
                       PS_NAME(&o->spec), d->n, all);
    for (const ps_stored *p = f->parts; p < f->parts + f->n; done += p++->count) {
        uint64_t size = p->count * sizeof *d->values;
        int code = read_at(p->fd, d->values + done, size, p->at, err);
        for (uint32_t s = 0; code == PS_OK && s < f->slots; s++)
            code = read_at(p->fd, d->slots + s * d->n + done, size, p->at + (s + 1) * p->stride, err);
        if (code < 0) return code;
    }
    d->ready = true;
    return PS_OK;
}

/* Buffers for as many rows as a frame has. */
typedef struct batch {
    uint64_t *keys;
    float *rows;
    ps_counts *counts;
    size_t most, width; /* rows; floats of a row that are taken */
} batch;

/* Keep those of the n rows that belong to this shard. Returns their number. */
static size_t keep_own(const ps_first *f, const batch *b, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (ps_key_shard(b->keys[i], f->shards) != f->shard) continue;
        b->keys[kept] = b->keys[i];
        memmove(b->rows + kept * b->width, b->rows + i * f->floats, b->width * sizeof *b->rows);
        b->counts[kept++] = b->counts[i];
    }
    return kept;
}

/* Take rows of a part, or its keys that wait. */
static int read_rows(const ps_first *f, const ps_stored *p, bool waiting, ps_sparse *t, const batch *b,
                     ps_err *err) {
    size_t row = f->floats * sizeof *b->rows;
    uint64_t n = waiting ? p->waiting : p->count, before = waiting ? p->count : 0;
    const ps_counts *counts = f->counted ? b->counts : NULL;
    int code = PS_OK;
    for (uint64_t i = before; code == PS_OK && i < before + n; i += b->most) {
        size_t k = before + n - i < b->most ? (size_t)(before + n - i) : b->most;
        code = read_at(p->fd, b->keys, k * sizeof *b->keys, p->keys_at + i * sizeof *b->keys, err);
        if (code == PS_OK && !waiting) code = read_at(p->fd, b->rows, k * row, p->at + i * row, err);
        if (code == PS_OK && f->counted)
            code = read_at(p->fd, b->counts, k * sizeof *b->counts,
                           p->at + p->count * row + i * sizeof *b->counts, err);
        if (code < 0) return code;
        k = keep_own(f, b, k);
        code = ps_sparse_load(t, b->keys, waiting ? NULL : b->rows, b->width, counts, k, err);
    }
    return code;
}

static int read_table(const ps_first *f, ps_object *o, ps_err *err) {
    size_t state = f->slots > 0 ? ps_optim_state(o->spec.optim.method, o->spec.dim) : 0;
    if (f->floats < o->spec.dim + state)
        return ps_fail(err, PS_EPROTO, 0, "'%.*s' has more values in a row than the %u loaded ones",
                       PS_NAME(&o->spec), f->floats);
    batch b = {.most = ps_rows_per_frame(f->floats), .width = o->spec.dim + state};
    b.keys = malloc(b.most * sizeof *b.keys);
    b.rows = calloc(b.most * f->floats, sizeof *b.rows);
    b.counts = calloc(b.most, sizeof *b.counts);
    int code = b.keys != NULL && b.rows != NULL && b.counts != NULL
                   ? PS_OK
                   : ps_fail(err, PS_ENOMEM, 0, "rows of '%.*s'", PS_NAME(&o->spec));
    for (size_t i = 0; code == PS_OK && i < f->n; i++) {
        code = read_rows(f, &f->parts[i], false, o->sparse, &b, err);
        if (code == PS_OK && f->counted && ps_entry_waits(&o->spec.entry))
            code = read_rows(f, &f->parts[i], true, o->sparse, &b, err);
    }
    free(b.keys);
    free(b.rows);
    free(b.counts);
    return code;
}

int ps_first_apply(const ps_finder *from, ps_object *o, uint64_t pass, ps_err *err) {
    ps_first f = {0};
    int code = from->find == NULL ? PS_OK : from->find(from->owner, &o->spec, &f, err);
    if (code < 0 || f.parts == NULL) return code;
    o->step.version = f.steps;
    o->samples = f.samples;
    o->passes = f.passes;
    o->given = true;
    f.counted = f.counted && o->spec.entry.rule != PS_ENTRY_ANY;
    ps_object_begin(o, pass);
    if (o->sparse != NULL && (code = ps_init_check(&f.init, err)) < 0) return code;
    if (o->sparse != NULL) ps_sparse_start(o->sparse, &f.init);
    return o->sparse == NULL ? read_dense(&f, o, err) : read_table(&f, o, err);
}
