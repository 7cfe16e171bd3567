#include "tables/ps_dense.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tables/ps_pool.h"

enum { MANY = 1 << 20 }; /* floats: two huge pages */

/* Allocate [n] zeros; large ones in huge pages, which need fewer address look-ups. */
static float *take(size_t n) {
    if (n < MANY) return calloc(n + 1, sizeof(float)); /* one more: n may be 0 */
    void *p = mmap(NULL, n * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    (void)madvise(p, n * sizeof(float), MADV_HUGEPAGE); /* a system may have none */
    return p;
}

static void give_back(float *p, size_t n) {
    if (n < MANY) free(p);
    else if (p != NULL) munmap(p, n * sizeof(float));
}

int ps_dense_init(ps_dense *d, size_t n, const ps_optim *optim, ps_err *err) {
    size_t state = ps_optim_state(optim->method, n);
    *d = (ps_dense){.n = n, .optim = *optim, .sum_empty = true};
    d->values = take(n);
    if (state > 0) d->slots = take(state);
    if (d->values != NULL && (state == 0 || d->slots != NULL)) return PS_OK;
    ps_dense_close(d);
    return ps_fail(err, PS_ENOMEM, 0, "a dense object of %zu values", n);
}

void ps_dense_close(ps_dense *d) {
    ps_keep_end(&d->keep);
    give_back(d->values, d->n);
    give_back(d->slots, ps_optim_state(d->optim.method, d->n));
    give_back(d->sum, d->n);
    *d = (ps_dense){0};
}

float *ps_dense_sum(ps_dense *d) {
    if (d->sum == NULL) d->sum = take(d->n);
    return d->sum;
}

/* Return the length of a chunk. */
static size_t chunk_floats(const ps_dense *d, size_t number) {
    size_t left = d->n - (number - 1) * PS_DENSE_CHUNK;
    return left < PS_DENSE_CHUNK ? left : PS_DENSE_CHUNK;
}

/* Copy a chunk that is about to change, its state behind its values. */
static void keep_chunk(ps_dense *d, size_t number) {
    size_t slots = ps_optim_state(d->optim.method, 1);
    uint32_t copy = ps_keep_take(d->keep, number);
    size_t at = (number - 1) * PS_DENSE_CHUNK, k = chunk_floats(d, number);
    if (copy == 0) return;
    float *to = ps_pool_item(&d->keep->copies, copy);
    memcpy(to, d->values + at, k * sizeof *to);
    for (size_t s = 0; s < slots; s++)
        memcpy(to + (s + 1) * (size_t)PS_DENSE_CHUNK, d->slots + s * d->n + at, k * sizeof *to);
}

static void apply(ps_dense *d, uint64_t step, size_t at, const float *grad, size_t k) {
    for (size_t c = at / PS_DENSE_CHUNK; d->keep != NULL && c * PS_DENSE_CHUNK < at + k; c++)
        keep_chunk(d, c + 1);
    float *slots = d->slots == NULL ? NULL : d->slots + at;
    ps_optim_apply(&d->optim, ps_optim_rate(&d->optim, step), d->values + at, slots, d->n, grad, k);
}

void ps_dense_apply(ps_dense *d, uint64_t step, size_t at, const float *grad, size_t k) {
    d->applied = true;
    if (d->sum_empty) {
        apply(d, step, at, grad, k);
        return;
    }
    ps_add(d->sum + at, grad, k);
    apply(d, step, at, d->sum + at, k);
}

void ps_dense_end(ps_dense *d, uint64_t step) {
    ps_optim_finish(&d->optim, ps_optim_rate(&d->optim, step), d->values, d->slots, d->n);
    d->applied = false;
    d->sum_empty = true;
}

void ps_dense_commit(ps_dense *d, uint64_t step) {
    if (!d->applied) apply(d, step, 0, d->sum, d->n);
    ps_dense_end(d, step);
}

int ps_dense_keep(ps_dense *d, ps_err *err) {
    size_t floats = (size_t)PS_DENSE_CHUNK * (1 + ps_optim_state(d->optim.method, 1));
    return ps_keep_new(&d->keep, (d->n + PS_DENSE_CHUNK - 1) / PS_DENSE_CHUNK, floats, 2, err);
}

size_t ps_dense_kept(const ps_dense *d, uint32_t slot, bool last, uint32_t number, const float **floats) {
    ps_keep *k = d->keep;
    if (number > k->n) return 0;
    if (last) k->passed = number - 1;
    if (k->place[number] != 0)
        *floats = ps_pool_item(&k->copies, k->place[number]) + slot * (size_t)PS_DENSE_CHUNK;
    else
        *floats =
            (slot == 0 ? d->values : d->slots + (slot - 1) * d->n) + (number - 1) * (size_t)PS_DENSE_CHUNK;
    return chunk_floats(d, number);
}
