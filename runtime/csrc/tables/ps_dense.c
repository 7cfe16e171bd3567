/* A dense object on one shard. */
#include "tables/ps_dense.h"

#include <stdlib.h>
#include <sys/mman.h>

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
    give_back(d->values, d->n);
    give_back(d->slots, ps_optim_state(d->optim.method, d->n));
    give_back(d->sum, d->n);
    *d = (ps_dense){0};
}

float *ps_dense_sum(ps_dense *d) {
    if (d->sum == NULL) d->sum = take(d->n);
    return d->sum;
}

void ps_dense_first(ps_dense *d) {
    d->sum_empty = false;
}

void ps_dense_add(ps_dense *d, size_t at, const float *grad, size_t k) {
    ps_add(d->sum + at, grad, k);
}

static void apply(ps_dense *d, uint64_t step, size_t at, const float *grad, size_t k) {
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
