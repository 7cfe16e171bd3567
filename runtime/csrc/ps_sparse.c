#include "ps_sparse.h"

#include <stdlib.h>
#include <string.h>

#define BATCH 32              /* keys whose cache lines are fetched at once */
#define SLAB_BYTES (1U << 20) /* approximately; a slab has at least one row. Untouched pages cost nothing */
#define LINE 64               /* bytes of a cache line */

/* Keys that were dealt over shards by ps_mix64() must still scatter here. */
#define SALT UINT64_C(0x5851f42d4c957f2d)

/* A place of the hash table. `sum` may be outdated: it counts only if sum_row[sum] is `row`. */
typedef struct entry {
    uint64_t key;
    uint32_t row; /* 1 + number of the row; 0: free */
    uint32_t sum; /* index of this row in the step's sum */
} entry;

struct ps_sparse {
    uint32_t dim;
    uint32_t stride; /* floats of a row: dim values, then the state slot by slot */
    ps_optim optim;
    ps_init init;

    entry *entries; /* [cap], open addressing with linear probing, at most 3/4 full */
    size_t cap;     /* a power of two */
    size_t rows;

    float **slabs; /* [slabs_n]: 2^shift rows of `stride` floats each; rows never move */
    size_t slabs_n, slabs_cap;
    unsigned shift;

    float *sum;        /* [sum_cap, dim]: the step's gradients so far */
    uint32_t *sum_row; /* [sum_cap]: 1 + number of each entry's row */
    size_t sum_n, sum_cap;
};

static size_t home(const ps_sparse *t, uint64_t key) {
    return (size_t)ps_mix64(key ^ SALT) & (t->cap - 1);
}

/* Return the entry of `key`, or the free one for it. */
static entry *probe(const ps_sparse *t, uint64_t key) {
    size_t i = home(t, key);
    while (t->entries[i].row != 0 && t->entries[i].key != key) i = (i + 1) & (t->cap - 1);
    return &t->entries[i];
}

/* row: 1 + its number. */
static float *row_at(const ps_sparse *t, uint32_t row) {
    size_t at = row - 1;
    return t->slabs[at >> t->shift] + (at & (((size_t)1 << t->shift) - 1)) * t->stride;
}

static size_t slab_bytes(const ps_sparse *t) {
    size_t bytes = ((size_t)t->stride * sizeof(float)) << t->shift;
    return (bytes + LINE - 1) / LINE * LINE;
}

int ps_sparse_new(ps_sparse **out, uint32_t dim, const ps_optim *optim, const ps_init *init, ps_err *err) {
    *out = NULL;
    if (dim == 0 || dim > PS_SPARSE_MAX_DIM)
        return ps_fail(err, PS_EINVAL, 0, "sparse table: dim %u, expected 1 to %u", dim, PS_SPARSE_MAX_DIM);
    int rc = ps_optim_check(optim, err);
    if (rc == PS_OK) rc = ps_init_check(init, err);
    if (rc != PS_OK) return rc;

    ps_sparse *t = calloc(1, sizeof *t);
    if (t == NULL) goto oom;
    *t = (ps_sparse){
        .dim = dim, .stride = dim * (1 + ps_optim_slots(optim->method)), .optim = *optim, .init = *init};
    while (slab_bytes(t) * 2 <= SLAB_BYTES) t->shift++;
    t->cap = 64;
    t->entries = calloc(t->cap, sizeof *t->entries);
    if (t->entries == NULL) goto oom;
    *out = t;
    return PS_OK;
oom:
    ps_sparse_free(t);
    return ps_fail(err, PS_ENOMEM, 0, "sparse table of dim %u", dim);
}

void ps_sparse_free(ps_sparse *t) {
    if (t == NULL) return;
    for (size_t i = 0; i < t->slabs_n; i++) free(t->slabs[i]);
    free(t->slabs);
    free(t->entries);
    free(t->sum);
    free(t->sum_row);
    free(t);
}

/* Make room in the hash table for `rows` rows. */
static int reserve_entries(ps_sparse *t, size_t rows, ps_err *err) {
    size_t cap = t->cap;
    while (cap / 4 * 3 < rows) cap *= 2; /* ends: rows <= PS_SPARSE_MAX_ROWS */
    if (cap == t->cap) return PS_OK;
    entry *fresh = calloc(cap, sizeof *fresh);
    if (fresh == NULL) return ps_fail(err, PS_ENOMEM, 0, "sparse table: index of %zu places", cap);

    entry *old = t->entries, *end = old + t->cap;
    t->entries = fresh;
    t->cap = cap;
    for (const entry *e = old; e < end; e++)
        if (e->row != 0) *probe(t, e->key) = *e;
    free(old);
    return PS_OK;
}

/* Allocate memory for `rows` rows. Slabs left behind by a failure are used by the next call. */
static int reserve_slabs(ps_sparse *t, size_t rows, ps_err *err) {
    size_t need = rows == 0 ? 0 : ((rows - 1) >> t->shift) + 1;
    if (need > t->slabs_cap) {
        size_t cap = need + need / 2 + 8;
        float **slabs = realloc(t->slabs, cap * sizeof *slabs);
        if (slabs == NULL) goto oom;
        t->slabs = slabs;
        t->slabs_cap = cap;
    }
    while (t->slabs_n < need) {
        float *slab = aligned_alloc(LINE, slab_bytes(t));
        if (slab == NULL) goto oom;
        t->slabs[t->slabs_n++] = slab;
    }
    return PS_OK;
oom:
    return ps_fail(err, PS_ENOMEM, 0, "sparse table: %zu rows of %u floats", rows, t->stride);
}

/* Make room in the sum for `n` gradients. */
static int reserve_sum(ps_sparse *t, size_t n, ps_err *err) {
    if (n <= t->sum_cap) return PS_OK;
    size_t cap = n + n / 2, bytes;
    if (ps_mul_overflows(cap, t->dim * sizeof(float), &bytes)) goto oom;
    float *sum = realloc(t->sum, bytes);
    if (sum == NULL) goto oom;
    t->sum = sum;
    uint32_t *sum_row = realloc(t->sum_row, cap * sizeof *sum_row);
    if (sum_row == NULL) goto oom;
    t->sum_row = sum_row;
    t->sum_cap = cap;
    return PS_OK;
oom:
    return ps_fail(err, PS_ENOMEM, 0, "sparse table: a step's sum of %zu rows of %u floats", n, t->dim);
}

/* Return the size of the next batch when `left` keys are left. */
static size_t batch(size_t left) {
    return left < BATCH ? left : BATCH;
}

static void prefetch_homes(const ps_sparse *t, const uint64_t *keys, size_t n) {
    for (size_t i = 0; i < n; i++) ps_prefetch(&t->entries[home(t, keys[i])]);
}

/* Count keys of keys[0..n) without a row; repeated ones count each time. */
static size_t count_missing(const ps_sparse *t, const uint64_t *keys, size_t n) {
    size_t missing = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % BATCH == 0) prefetch_homes(t, keys + i, batch(n - i));
        missing += probe(t, keys[i])->row == 0;
    }
    return missing;
}

/* Make room for the rows of n keys: all that can fail fails here, before any change. Counts new keys only
 * if all keys being new would need more memory. */
static int reserve_rows(ps_sparse *t, const uint64_t *keys, size_t n, ps_err *err) {
    if (n > PS_SPARSE_MAX_ROWS)
        return ps_fail(err, PS_ELIMIT, 0, "sparse table: %zu keys at once, limit %u", n, PS_SPARSE_MAX_ROWS);
    size_t rows = t->rows + n;
    if (rows <= t->cap / 4 * 3 && rows <= t->slabs_n << t->shift) return PS_OK;
    rows = t->rows + count_missing(t, keys, n);
    if (rows > PS_SPARSE_MAX_ROWS)
        return ps_fail(err, PS_ELIMIT, 0, "sparse table: more than %u rows", PS_SPARSE_MAX_ROWS);
    int rc = reserve_entries(t, rows, err);
    return rc == PS_OK ? reserve_slabs(t, rows, err) : rc;
}

/* Return the entry of `key`, with a row, made if necessary; there is room. */
static entry *touch(ps_sparse *t, uint64_t key) {
    entry *e = probe(t, key);
    if (e->row == 0) {
        *e = (entry){.key = key, .row = (uint32_t)++t->rows};
        float *row = row_at(t, e->row);
        ps_init_row(&t->init, key, row, t->dim);
        memset(row + t->dim, 0, (t->stride - t->dim) * sizeof *row);
    }
    return e;
}

static void prefetch_floats(const float *p, size_t n) {
    for (size_t i = 0; i < n && i < 4 * LINE; i += LINE / sizeof *p) ps_prefetch(p + i);
}

/* ps_sparse_read() of at most BATCH keys: first all index lines, then all rows, then the copies. */
static void read_batch(const ps_sparse *t, const uint64_t *keys, size_t n, float *out) {
    const float *from[BATCH];
    prefetch_homes(t, keys, n);
    for (size_t i = 0; i < n; i++) {
        uint32_t row = probe(t, keys[i])->row;
        from[i] = row == 0 ? NULL : row_at(t, row);
        if (row != 0) prefetch_floats(from[i], t->dim);
    }
    for (size_t i = 0; i < n; i++, out += t->dim) {
        if (from[i] == NULL) ps_init_row(&t->init, keys[i], out, t->dim);
        else memcpy(out, from[i], t->dim * sizeof *out);
    }
}

void ps_sparse_read(const ps_sparse *t, const uint64_t *keys, size_t n, float *out) {
    for (size_t i = 0; i < n; i += BATCH) read_batch(t, keys + i, batch(n - i), out + i * t->dim);
}

static void add_one(ps_sparse *t, uint64_t key, const float *grad) {
    entry *e = touch(t, key);
    if (e->sum < t->sum_n && t->sum_row[e->sum] == e->row) {
        ps_add(t->sum + (size_t)e->sum * t->dim, grad, t->dim);
        return;
    }
    e->sum = (uint32_t)t->sum_n++;
    t->sum_row[e->sum] = e->row;
    memcpy(t->sum + (size_t)e->sum * t->dim, grad, t->dim * sizeof *grad);
}

int ps_sparse_add(ps_sparse *t, const uint64_t *keys, const float *grads, size_t n, ps_err *err) {
    int rc = reserve_rows(t, keys, n, err);
    if (rc == PS_OK) rc = reserve_sum(t, t->sum_n + n, err); /* no overflow: both are below 2^32 */
    if (rc != PS_OK) return rc;
    for (size_t i = 0; i < n; i++) {
        if (i % BATCH == 0) prefetch_homes(t, keys + i, batch(n - i));
        add_one(t, keys[i], grads + i * t->dim);
    }
    return PS_OK;
}

void ps_sparse_commit(ps_sparse *t, uint64_t step) {
    float rate = ps_optim_rate(&t->optim, step);
    for (size_t i = 0; i < t->sum_n; i++) {
        if (i + BATCH / 4 < t->sum_n) prefetch_floats(row_at(t, t->sum_row[i + BATCH / 4]), t->stride);
        float *row = row_at(t, t->sum_row[i]);
        float *slots = t->stride == t->dim ? NULL : row + t->dim;
        ps_optim_apply(&t->optim, rate, row, slots, t->dim, t->sum + i * t->dim, t->dim);
    }
    t->sum_n = 0;
}

int ps_sparse_set(ps_sparse *t, const uint64_t *keys, const float *values, size_t n, ps_err *err) {
    int rc = reserve_rows(t, keys, n, err);
    if (rc != PS_OK) return rc;
    for (size_t i = 0; i < n; i++) {
        if (i % BATCH == 0) prefetch_homes(t, keys + i, batch(n - i));
        memcpy(row_at(t, touch(t, keys[i])->row), values + i * t->dim, t->dim * sizeof *values);
    }
    return PS_OK;
}

bool ps_sparse_next(const ps_sparse *t, size_t *at, uint64_t *key, const float **row) {
    while (*at < t->cap && t->entries[*at].row == 0) ++*at;
    if (*at == t->cap) return false;
    const entry *e = &t->entries[(*at)++];
    *key = e->key;
    *row = row_at(t, e->row);
    return true;
}

uint32_t ps_sparse_dim(const ps_sparse *t) {
    return t->dim;
}

size_t ps_sparse_rows(const ps_sparse *t) {
    return t->rows;
}

size_t ps_sparse_bytes(const ps_sparse *t) {
    size_t slabs = t->slabs_n * slab_bytes(t) + t->slabs_cap * sizeof *t->slabs;
    size_t sum = t->sum_cap * (t->dim * sizeof *t->sum + sizeof *t->sum_row);
    return sizeof *t + t->cap * sizeof *t->entries + slabs + sum;
}
