/* A dense object on one shard. */
#include "ps_dense.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20, HUGE_BYTES = 4 << 20 };

/* [n] zeros; many of them in huge pages, of which processor and kernel have fewer to look up. */
static void *zeros(size_t n, size_t size) {
    if (n * size < HUGE_BYTES) return calloc(n, size);
    size_t bytes = (n * size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *p = aligned_alloc(HUGE_PAGE, bytes);
    if (p == NULL) return NULL;
    (void)madvise(p, bytes, MADV_HUGEPAGE); /* a system may have none */
    memset(p, 0, bytes);
    return p;
}

int ps_dense_init(ps_dense *d, size_t n, const ps_optim *optim, ps_err *err) {
    uint32_t per_value = ps_optim_slots(optim->method);
    *d = (ps_dense){.n = n, .optim = *optim, .sum_empty = true};
    d->values = zeros(n + 1, sizeof *d->values); /* one more: n may be 0 */
    if (per_value > 0) d->slots = zeros(n + 1, sizeof *d->slots * per_value);
    if (d->values != NULL && (per_value == 0 || d->slots != NULL)) return PS_OK;
    ps_dense_close(d);
    return ps_fail(err, PS_ENOMEM, 0, "a dense object of %zu values", n);
}

void ps_dense_close(ps_dense *d) {
    free(d->values);
    free(d->slots);
    free(d->sum);
    *d = (ps_dense){0};
}

float *ps_dense_sum(ps_dense *d) {
    if (d->sum == NULL) d->sum = zeros(d->n, sizeof *d->sum);
    return d->sum;
}

void ps_dense_first(ps_dense *d) {
    d->sum_empty = false;
}

void ps_dense_add(ps_dense *d, size_t at, const float *grad, size_t k) {
    ps_add(d->sum + at, grad, k);
}

static void apply(ps_dense *d, size_t at, const float *grad, size_t k) {
    uint32_t per_value = ps_optim_slots(d->optim.method);
    ps_optim_apply(&d->optim, d->values + at, per_value ? d->slots + at * per_value : NULL, grad, k);
}

void ps_dense_apply(ps_dense *d, size_t at, const float *grad, size_t k) {
    d->applied = true;
    if (d->sum_empty) {
        apply(d, at, grad, k);
        return;
    }
    ps_add(d->sum + at, grad, k);
    apply(d, at, d->sum + at, k);
}

void ps_dense_commit(ps_dense *d) {
    if (!d->applied) apply(d, 0, d->sum, d->n);
    d->applied = false;
    d->sum_empty = true;
}
