#include "tables/ps_sparse.h"

#include <stdlib.h>
#include <string.h>

#include "base/ps_room.h"
#include "tables/ps_index.h"
#include "tables/ps_pool.h"

#define BATCH 32             /* keys whose cache lines are fetched at once */
#define LINE 64              /* bytes of a cache line */
#define LOOKS 8              /* look-ups whose rows are remembered: pushes of the same keys follow */
#define LOOK_MOST (1u << 16) /* keys of one that is */

/* Keys that were dealt over shards by ps_mix64() must still scatter here. */
#define SALT UINT64_C(0x5851f42d4c957f2d)

/* What a row has beside its values; in a table with an entry rule ps_counts follow, for keys that only wait
 * too. `sum` may be outdated: it counts only if sum_row[sum] is the row. */
typedef struct head {
    uint32_t sum;    /* index of this row in the step's sum; never PS_POOL_FREE */
    uint32_t key[2]; /* lower and upper half: 12 bytes in all */
} head;

#define WAITING (UINT32_C(1) << 31) /* in a place: the number is that of a key that is only counted */

/* In sum_row, and in `sum` until then: made in this step, after which a late row gets its values. */
#define FRESH (UINT32_C(1) << 31)

/* The rows that a look-up found, 0: none. */
typedef struct look {
    uint32_t *rows; /* [cap] */
    size_t n, cap;
    uint64_t first, last; /* of its keys */
} look;

struct ps_sparse {
    uint32_t dim;
    uint32_t stride; /* floats of a row: dim values, the state slot by slot, and the base if it is `based` */
    bool based;
    ps_optim optim;
    ps_init init;
    ps_entry entry;
    uint64_t step; /* the open one, from 1: of entry rules */

    ps_index index;
    ps_pool rows;
    ps_pool waiting; /* keys without a row that are counted */

    look looks[LOOKS];
    size_t looked; /* the number of the next one */

    float *sum;        /* [sum_cap, dim]: the step's gradients so far */
    uint32_t *sum_row; /* [sum_row_cap]: number of each entry's row */
    size_t sum_n, sum_cap, sum_row_cap;
};

static uint64_t hash_key(uint64_t key) {
    return ps_mix64(key ^ SALT);
}

static float *row_at(const ps_sparse *t, uint32_t row) {
    return ps_pool_item(&t->rows, row);
}

/* Return the base of a row in a table that has them. */
static float *base_at(const ps_sparse *t, uint32_t row) {
    return row_at(t, row) + t->stride - t->dim;
}

/* Return the head of a row, or of a key that waits. */
static head *head_at(const ps_sparse *t, uint32_t row) {
    const ps_pool *p = row & WAITING ? &t->waiting : &t->rows;
    return (head *)(void *)ps_pool_head(p, row & ~WAITING);
}

/* Note that a row, or a key that waits, is about to change. */
static void change(ps_sparse *t, uint32_t row) {
    ps_pool *p = row & WAITING ? &t->waiting : &t->rows;
    if (p->keep != NULL || p->changed.n > 0) ps_pool_change(p, row & ~WAITING);
}

static ps_counts *counts_of(head *h) {
    return (ps_counts *)(void *)(h + 1);
}

static uint64_t key_of(const head *h) {
    return h->key[0] | (uint64_t)h->key[1] << 32;
}

static bool has_key(const head *h, uint64_t key) {
    return memcmp(h->key, (const uint32_t[2]){(uint32_t)key, (uint32_t)(key >> 32)}, sizeof h->key) == 0;
}

/* Return the place of `key`, or the free one for it. */
static ps_place *probe(const ps_sparse *t, uint64_t key) {
    uint64_t hash = hash_key(key);
    ps_place *e = ps_index_find(&t->index, hash, NULL);
    while (e->row != 0 && !has_key(head_at(t, e->row), key)) e = ps_index_find(&t->index, hash, e);
    return e;
}

int ps_sparse_new(ps_sparse **out, uint32_t dim, const ps_optim *optim, const ps_init *init,
                  const ps_entry *admit, bool based, ps_err *err) {
    *out = NULL;
    if (dim == 0 || dim > PS_SPARSE_MAX_DIM)
        return ps_fail(err, PS_EINVAL, 0, "sparse table: dim %u, expected 1 to %u", dim, PS_SPARSE_MAX_DIM);
    int rc = ps_optim_check(optim, err);
    if (rc == PS_OK) rc = ps_init_check(init, err);
    if (rc == PS_OK && admit != NULL) rc = ps_entry_check(admit, err);
    if (rc != PS_OK) return rc;

    ps_sparse *t = calloc(1, sizeof *t);
    if (t == NULL) goto oom;
    *t = (ps_sparse){.dim = dim,
                     .stride = dim + (uint32_t)ps_optim_state(optim->method, dim) + (based ? dim : 0),
                     .based = based,
                     .optim = *optim,
                     .init = *init};
    if (admit != NULL) t->entry = *admit;
    size_t words = sizeof(head) / sizeof(uint32_t);
    if (t->entry.rule != PS_ENTRY_ANY) words += sizeof(ps_counts) / sizeof(uint32_t);
    ps_pool_init(&t->rows, t->stride, words);
    ps_pool_init(&t->waiting, 0, words);
    if (ps_index_init(&t->index, err) < 0) goto oom;
    *out = t;
    return PS_OK;
oom:
    ps_sparse_free(t);
    return ps_fail(err, PS_ENOMEM, 0, "sparse table of dim %u", dim);
}

void ps_sparse_free(ps_sparse *t) {
    if (t == NULL) return;
    ps_pool_close(&t->rows);
    ps_pool_close(&t->waiting);
    ps_index_close(&t->index);
    for (look *l = t->looks; l < t->looks + LOOKS; l++) free(l->rows);
    free(t->sum);
    free(t->sum_row);
    free(t);
}

void ps_sparse_start(ps_sparse *t, const ps_init *init) {
    t->init = *init;
}

ps_init ps_sparse_init(const ps_sparse *t) {
    return t->init;
}

/* Make room in the sum for `n` gradients. */
static int reserve_sum(ps_sparse *t, size_t n, ps_err *err) {
    if (ps_room(&t->sum, n, &t->sum_cap, t->dim * sizeof *t->sum) &&
        ps_room(&t->sum_row, n, &t->sum_row_cap, sizeof *t->sum_row))
        return PS_OK;
    return ps_fail(err, PS_ENOMEM, 0, "sparse table: a step's sum of %zu rows of %u floats", n, t->dim);
}

/* Return the size of the next batch when `left` keys are left. */
static size_t batch(size_t left) {
    return left < BATCH ? left : BATCH;
}

static void prefetch_homes(const ps_sparse *t, const uint64_t *keys, size_t n) {
    for (size_t i = 0; i < n; i++) ps_prefetch(ps_index_home(&t->index, hash_key(keys[i])));
}

static bool is_new(uint32_t row) {
    return row == 0 || row & WAITING;
}

/* Give a key its place in the index: a row, or a place among those that wait. */
static head *put_key(ps_sparse *t, ps_place *e, uint64_t key, uint32_t row) {
    uint64_t hash = hash_key(key);
    if (e->row == 0) t->index.parts[ps_index_number(hash)].used++;
    *e = (ps_place){.tag = (uint32_t)hash, .row = row};
    head *h = head_at(t, row);
    *h = (head){.key = {(uint32_t)key, (uint32_t)(key >> 32)}};
    return h;
}

/* Make a row, whose first `given` floats the caller sets: of none it has the initial values. */
static head *make_row(ps_sparse *t, ps_place *e, uint64_t key, size_t given) {
    uint32_t waited = e->row;
    head *h = put_key(t, e, key, ps_pool_take(&t->rows));
    float *row = row_at(t, e->row);
    if (waited != 0) {
        *counts_of(h) = *counts_of(head_at(t, waited));
        ps_pool_give_back(&t->waiting, waited & ~WAITING);
    } else if (t->entry.rule != PS_ENTRY_ANY) {
        *counts_of(h) = (ps_counts){0};
    }
    if (given == 0) ps_init_row(&t->init, key, row, given = t->dim);
    memset(row + given, 0, (t->stride - given) * sizeof *row);
    return h;
}

/* Return what the head of a row that a push makes has for `sum`. */
static uint32_t sum_of_new(const ps_sparse *t) {
    return t->init.kind < PS_INIT_LATE ? 0 : FRESH;
}

/* Return the row of `key`, made with this `sum` and `given` floats if necessary; there is room. */
static uint32_t touch(ps_sparse *t, uint64_t key, uint32_t sum, size_t given) {
    ps_place *e = probe(t, key);
    if (!is_new(e->row)) return e->row;
    head *h = make_row(t, e, key, given);
    h->sum = sum;
    if (t->entry.rule != PS_ENTRY_ANY) *counts_of(h) = ps_entry_start(&t->entry);
    return e->row;
}

/* Count a push of the key; `said`: its shows and clicks, or one show. Returns its row, made if the table's
 * rule admits it, or 0; there is room. */
static uint32_t enter(ps_sparse *t, uint64_t key, const float *said) {
    ps_place *e = probe(t, key);
    ps_counts now = e->row == 0 ? (ps_counts){0} : *counts_of(head_at(t, e->row));
    now.shows += ps_entry_extra(&t->entry) > 0 ? said[0] : 1;
    now.clicks += ps_entry_extra(&t->entry) > 0 ? said[1] : 0;
    now.unseen = 0;
    bool admitted = !is_new(e->row) || ps_entry_admits(&t->entry, &t->init, key, t->step, &now);
    if (admitted && is_new(e->row)) make_row(t, e, key, 0)->sum = sum_of_new(t);
    else if (e->row == 0 && ps_entry_waits(&t->entry))
        put_key(t, e, key, WAITING | ps_pool_take(&t->waiting));
    if (e->row != 0) {
        change(t, e->row);
        *counts_of(head_at(t, e->row)) = now;
    }
    return admitted ? e->row : 0;
}

static void prefetch_floats(const float *p, size_t n) {
    for (size_t i = 0; i < n && i < 4 * LINE; i += LINE / sizeof *p) ps_prefetch(p + i);
    ps_prefetch(p + n - 1); /* a row may begin in the middle of a line */
}

/* Guess the rows of at most BATCH keys where it has not been done: nearly always the first with the tag is
 * that of the key, which is not looked at. First all index lines are fetched, then all heads, and so many
 * floats of each row. */
static void guess_rows(const ps_sparse *t, const uint64_t *keys, size_t n, size_t floats, uint32_t *rows) {
    uint64_t hashes[BATCH];
    for (size_t i = 0; i < n; i++) {
        if (rows[i] != 0) continue;
        hashes[i] = hash_key(keys[i]);
        ps_prefetch(ps_index_home(&t->index, hashes[i]));
    }
    for (size_t i = 0; i < n; i++) {
        if (rows[i] == 0) rows[i] = ps_index_find(&t->index, hashes[i], NULL)->row;
        if (rows[i] != 0) ps_prefetch(head_at(t, rows[i]));
    }
    for (size_t i = 0; i < n && floats > 0; i++)
        if (!is_new(rows[i])) prefetch_floats(row_at(t, rows[i]), floats);
}

/* Find the rows of at most BATCH keys. */
static void find_rows(const ps_sparse *t, const uint64_t *keys, size_t n, size_t floats, uint32_t *rows) {
    guess_rows(t, keys, n, floats, rows);
    for (size_t i = 0; i < n; i++)
        if (rows[i] != 0 && !has_key(head_at(t, rows[i]), keys[i])) rows[i] = probe(t, keys[i])->row;
}

/* Return the rows that a look-up of these keys has found, most probably: [n]; NULL: none is remembered. */
static uint32_t *recall(const ps_sparse *t, const uint64_t *keys, size_t n) {
    for (size_t i = 1; i <= LOOKS && n > 0; i++) {
        const look *l = &t->looks[(t->looked - i) % LOOKS];
        if (l->n == n && l->first == keys[0] && l->last == keys[n - 1]) return l->rows;
    }
    return NULL;
}

/* Return what recall() does, or else room for it, all 0. NULL: these will not be remembered, as where a rule
 * may refuse keys, which are sought in every push. */
static uint32_t *recall_or_remember(ps_sparse *t, const uint64_t *keys, size_t n) {
    uint32_t *known = recall(t, keys, n);
    look *l = &t->looks[t->looked % LOOKS];
    if (known != NULL || n - 1 >= LOOK_MOST || t->entry.rule != PS_ENTRY_ANY) return known;
    if (!ps_room(&l->rows, n, &l->cap, sizeof *l->rows)) return NULL;
    l->n = n;
    l->first = keys[0];
    l->last = keys[n - 1];
    t->looked++;
    return memset(l->rows, 0, n * sizeof *l->rows);
}

/* Return the rows from key `i` on where so many are remembered, else room for BATCH. */
static uint32_t *pick(uint32_t *known, size_t i, uint32_t *some) {
    return known != NULL ? known + i : memset(some, 0, BATCH * sizeof *some);
}

/* Make room for rows of n keys, of which most may be there: untouched memory costs nothing. All that can fail
 * fails here, before any change. */
static int reserve_rows(ps_sparse *t, const uint64_t *keys, size_t n, ps_err *err) {
    uint32_t more[PS_INDEX_PARTS] = {0};
    if (n > PS_SPARSE_MAX_ROWS)
        return ps_fail(err, PS_ELIMIT, 0, "sparse table: %zu keys at once, limit %u", n, PS_SPARSE_MAX_ROWS);
    for (size_t i = 0; i < n; i++) more[ps_index_number(hash_key(keys[i]))]++;
    ps_index_grow_ahead(&t->index, n);
    int rc = ps_index_reserve(&t->index, more, err);
    if (rc == PS_OK) rc = ps_pool_reserve(&t->rows, n, err);
    if (rc == PS_OK && ps_entry_waits(&t->entry)) rc = ps_pool_reserve(&t->waiting, n, err);
    return rc;
}

void ps_sparse_read(ps_sparse *t, const uint64_t *keys, size_t n, float *out) {
    uint32_t some[BATCH], *known = recall_or_remember(t, keys, n);
    for (size_t i = 0, k; i < n; i += k) {
        uint32_t *rows = pick(known, i, some);
        find_rows(t, keys + i, k = batch(n - i), t->dim, rows);
        for (size_t j = 0; j < k; j++, out += t->dim) {
            if (is_new(rows[j])) ps_init_row(&t->init, keys[i + j], out, t->dim);
            else memcpy(out, row_at(t, rows[j]), t->dim * sizeof *out);
        }
    }
}

size_t ps_sparse_missing(const ps_sparse *t, const uint64_t *keys, size_t n, uint64_t *sorted) {
    uint32_t rows[BATCH];
    size_t missing = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % BATCH == 0) find_rows(t, keys + i, batch(n - i), 0, pick(NULL, i, rows));
        sorted[missing] = sorted[n - 1 - i + missing] = keys[i]; /* one is overwritten: no branch to guess */
        missing += is_new(rows[i % BATCH]);
    }
    return missing;
}

void ps_sparse_changes(const ps_sparse *t, float share, size_t n, uint64_t *keys, float *out) {
    uint32_t row = 0;
    for (size_t i = 0; i < n && (row = ps_pool_next(&t->rows, row)) != 0; i++) {
        const float *own = row_at(t, row), *base = base_at(t, row);
        keys[i] = key_of(head_at(t, row));
        for (uint32_t j = 0; j < t->dim; j++) *out++ = (base[j] - own[j]) / share;
    }
}

static void add_one(ps_sparse *t, uint32_t row, head *h, const float *grad) {
    uint32_t fresh = h->sum & FRESH;
    if (h->sum < t->sum_n && (t->sum_row[h->sum] & ~FRESH) == row) {
        ps_add(t->sum + (size_t)h->sum * t->dim, grad, t->dim);
        return;
    }
    h->sum = (uint32_t)t->sum_n++;
    t->sum_row[h->sum] = row | fresh;
    memcpy(t->sum + (size_t)h->sum * t->dim, grad, t->dim * sizeof *grad);
}

/* Find the rows of at most BATCH pushed keys, for which there is room; 0: the table's rule admits none. */
static void enter_batch(ps_sparse *t, const uint64_t *keys, const float *grads, size_t n, size_t floats,
                        uint32_t *rows) {
    size_t width = t->dim + ps_entry_extra(&t->entry);
    guess_rows(t, keys, n, floats, rows);
    for (size_t i = 0; i < n; i++) {
        if (t->entry.rule != PS_ENTRY_ANY) rows[i] = enter(t, keys[i], grads + i * width);
        else if (rows[i] == 0 || !has_key(head_at(t, rows[i]), keys[i]))
            rows[i] = touch(t, keys[i], sum_of_new(t), 0);
    }
}

int ps_sparse_add(ps_sparse *t, const uint64_t *keys, const float *grads, size_t n, ps_err *err) {
    size_t width = t->dim + ps_entry_extra(&t->entry);
    uint32_t some[BATCH], *known = recall(t, keys, n);
    int rc = reserve_rows(t, keys, n, err);
    if (rc == PS_OK) rc = reserve_sum(t, t->sum_n + n, err); /* no overflow: both are below 2^32 */
    for (size_t i = 0, k; rc == PS_OK && i < n; i += k) {
        uint32_t *rows = pick(known, i, some);
        enter_batch(t, keys + i, grads, k = batch(n - i), 0, rows);
        for (size_t j = 0; j < k; j++, grads += width)
            if (rows[j] != 0) add_one(t, rows[j], head_at(t, rows[j]), grads + width - t->dim);
    }
    return rc;
}

void ps_sparse_begin(ps_sparse *t, float learning_rate, uint64_t step) {
    t->optim.learning_rate = learning_rate;
    t->step = step;
}

/* Apply a gradient to a row, which may be FRESH. */
static void apply(ps_sparse *t, ps_rate rate, uint32_t place, const float *grad) {
    uint32_t number = place & ~FRESH;
    float *row = row_at(t, number);
    head *h = head_at(t, number);
    change(t, number);
    if (place & FRESH) ps_init_new_row(&t->init, key_of(h), row, t->dim), h->sum = 0;
    ps_optim_apply(&t->optim, rate, row, t->stride == t->dim ? NULL : row + t->dim, t->dim, grad, t->dim);
}

void ps_sparse_commit(ps_sparse *t, uint64_t step) {
    ps_rate rate = ps_optim_rate(&t->optim, step);
    for (size_t i = 0; i < t->sum_n; i++) {
        if (i + BATCH / 4 < t->sum_n)
            prefetch_floats(row_at(t, t->sum_row[i + BATCH / 4] & ~FRESH), t->stride);
        apply(t, rate, t->sum_row[i], t->sum + i * t->dim);
    }
    t->sum_n = 0;
}

int ps_sparse_learn(ps_sparse *t, uint64_t step, const uint64_t *keys, const float *grads, size_t n,
                    ps_err *err) {
    size_t width = t->dim + ps_entry_extra(&t->entry);
    uint32_t some[BATCH], *known = recall(t, keys, n);
    ps_rate rate = ps_optim_rate(&t->optim, step);
    int rc = reserve_rows(t, keys, n, err);
    for (size_t i = 0, k; rc == PS_OK && i < n; i += k) {
        uint32_t *rows = pick(known, i, some);
        enter_batch(t, keys + i, grads, k = batch(n - i), t->stride, rows);
        for (size_t j = 0; j < k; j++, grads += width)
            if (rows[j] != 0)
                apply(t, rate, rows[j] | (head_at(t, rows[j])->sum & FRESH), grads + width - t->dim);
    }
    return rc;
}

int ps_sparse_load(ps_sparse *t, const uint64_t *keys, const float *rows, size_t width,
                   const ps_counts *counts, size_t n, ps_err *err) {
    int rc = reserve_rows(t, keys, n, err);
    for (size_t i = 0; rc == PS_OK && i < n; i++) {
        if (i % BATCH == 0) prefetch_homes(t, keys + i, batch(n - i));
        ps_place *e = rows == NULL ? probe(t, keys[i]) : NULL;
        uint32_t row = e == NULL ? touch(t, keys[i], 0, width) : e->row;
        if (row == 0) put_key(t, e, keys[i], row = WAITING | ps_pool_take(&t->waiting));
        change(t, row);
        if (rows != NULL) memcpy(row_at(t, row), rows + i * width, width * sizeof *rows);
        if (t->based && width == t->dim) memcpy(base_at(t, row), rows + i * width, width * sizeof *rows);
        if (counts != NULL) *counts_of(head_at(t, row)) = counts[i];
    }
    return rc;
}

/* Give back what the numbers decide on. Returns their number. */
static size_t shrink_pool(ps_sparse *t, ps_pool *p, const ps_shrink *how) {
    size_t before = p->live;
    for (uint32_t number = 0; (number = ps_pool_next(p, number)) != 0;) {
        head *h = (head *)(void *)ps_pool_head(p, number);
        ps_pool_change(p, number);
        if (!ps_shrink_key(how, &t->entry, counts_of(h))) continue;
        uint64_t key = key_of(h);
        ps_index_remove(&t->index.parts[ps_index_number(hash_key(key))], probe(t, key));
        ps_pool_give_back(p, number);
    }
    return before - p->live;
}

size_t ps_sparse_shrink(ps_sparse *t, const ps_shrink *how) {
    shrink_pool(t, &t->waiting, how);
    return shrink_pool(t, &t->rows, how);
}

int ps_sparse_keep(ps_sparse *t, ps_err *err) {
    int rc = ps_pool_keep(&t->rows, err);
    if (rc == PS_OK) rc = ps_pool_keep(&t->waiting, err);
    if (rc < 0) (void)ps_sparse_forget(t);
    return rc;
}

int ps_sparse_keep_changed(ps_sparse *t, bool *all, size_t *rows, ps_err *err) {
    int rc = ps_pool_keep_changed(&t->rows, *all, err);
    if (rc < 0) (void)ps_sparse_forget(t);
    else *all = t->rows.keep->only.n == 0, *rows = t->rows.keep->count;
    return rc;
}

bool ps_sparse_forget(ps_sparse *t) {
    bool rows = ps_keep_end(&t->rows.keep), waiting = ps_keep_end(&t->waiting.keep);
    return rows && waiting;
}

bool ps_sparse_kept(const ps_sparse *t, bool waiting, bool last, uint32_t *number, ps_row *row) {
    const float *values;
    const uint32_t *head_words;
    if (!ps_pool_kept(waiting ? &t->waiting : &t->rows, last, number, &values, &head_words)) return false;
    head *h = (head *)(uintptr_t)head_words;
    *row = (ps_row){h->key, values, counts_of(h)};
    return true;
}

void ps_sparse_clear(ps_sparse *t) {
    for (look *l = t->looks; l < t->looks + LOOKS; l++) l->n = 0;
    ps_index_clear(&t->index);
    ps_pool_clear(&t->rows);
    ps_pool_clear(&t->waiting);
}

size_t ps_sparse_rows(const ps_sparse *t) {
    return t->rows.live;
}

size_t ps_sparse_waiting(const ps_sparse *t) {
    return t->waiting.live;
}
