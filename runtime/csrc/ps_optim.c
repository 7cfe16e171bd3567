#include "ps_optim.h"

#include <math.h>
#include <stdlib.h>

int ps_optim_check(const ps_optim *o, ps_err *err) {
    if (o->method >= PS_METHODS) return ps_fail(err, PS_EINVAL, 0, "unknown optimizer method %u", o->method);
    if (!isfinite(o->learning_rate) || !isfinite(o->momentum) || !isfinite(o->decay) || !isfinite(o->epsilon))
        return ps_fail(err, PS_EINVAL, 0,
                       "optimizer: learning_rate %g, momentum %g, decay %g, epsilon %g: not all finite",
                       (double)o->learning_rate, (double)o->momentum, (double)o->decay, (double)o->epsilon);
    if (o->epsilon < 0)
        return ps_fail(err, PS_EINVAL, 0, "optimizer: epsilon %g is negative", (double)o->epsilon);
    return PS_OK;
}

uint32_t ps_optim_slots(uint32_t method) {
    return method == PS_MOMENTUM || method == PS_ADAGRAD ? 1 : 0;
}

PS_INLINE void sgd(ps_optim o, float *restrict p, const float *restrict g, size_t n) {
    for (size_t i = 0; i < n; i++) p[i] -= o.learning_rate * (g[i] + o.decay * p[i]);
}

PS_INLINE void momentum(ps_optim o, float *restrict p, float *restrict m, const float *restrict g, size_t n) {
    for (size_t i = 0; i < n; i++) {
        m[i] = o.momentum * m[i] - o.learning_rate * (g[i] + o.decay * p[i]);
        p[i] += m[i];
    }
}

/* sqrtf becomes a vector instruction only with -fno-math-errno: several times faster. */
PS_INLINE void adagrad(ps_optim o, float *restrict p, float *restrict h, const float *restrict g, size_t n) {
    for (size_t i = 0; i < n; i++) {
        h[i] += g[i] * g[i];
        p[i] -= o.learning_rate * (g[i] + o.decay * p[i]) / sqrtf(h[i] + o.epsilon);
    }
}

/* Body of every build: the compiler makes vectors as wide as the build allows. */
PS_INLINE void apply(const ps_optim *o, float *restrict p, float *restrict s, const float *restrict g,
                     size_t n) {
    if (o->method == PS_ADAGRAD) adagrad(*o, p, s, g, n);
    else if (o->method == PS_MOMENTUM) momentum(*o, p, s, g, n);
    else sgd(*o, p, g, n);
}

PS_INLINE void add(float *restrict acc, const float *restrict g, size_t n) {
    for (size_t i = 0; i < n; i++) acc[i] += g[i];
}

#if PS_HAVE_AVX2
PS_TARGET_AVX2 static void apply_avx2(const ps_optim *o, float *restrict p, float *restrict s,
                                      const float *restrict g, size_t n) {
    apply(o, p, s, g, n);
}

PS_TARGET_AVX2 static void add_avx2(float *restrict acc, const float *restrict g, size_t n) {
    add(acc, g, n);
}
#endif

void ps_optim_apply_isa(ps_isa isa, const ps_optim *o, float *restrict value, float *restrict slots,
                        const float *restrict grad, size_t n) {
#if PS_HAVE_AVX2
    if (isa != PS_ISA_BASE && ps_cpu_avx2()) {
        apply_avx2(o, value, slots, grad, n);
        return;
    }
#endif
    (void)isa;
    apply(o, value, slots, grad, n);
}

void ps_optim_apply(const ps_optim *o, float *restrict value, float *restrict slots,
                    const float *restrict grad, size_t n) {
    ps_optim_apply_isa(PS_ISA_BEST, o, value, slots, grad, n);
}

/* Return true if rows[0..k) are all below rows_n and ascending, as from np.unique. */
static bool ascending(const uint64_t *rows, size_t k, size_t rows_n) {
    if (k > 0 && rows[k - 1] >= rows_n) return false;
    for (size_t i = 1; i < k; i++)
        if (rows[i - 1] >= rows[i]) return false;
    return true;
}

/* Check in the slower way: a bit for each row of the matrix. */
static int check_rows(const uint64_t *rows, size_t k, size_t rows_n, ps_err *err) {
    if (ascending(rows, k, rows_n)) return PS_OK;
    uint64_t *seen = calloc(rows_n / 64 + 1, sizeof *seen);
    if (seen == NULL) return ps_fail(err, PS_ENOMEM, 0, "rows: a bit for each of %zu rows", rows_n);

    int rc = PS_OK;
    for (size_t i = 0; i < k && rc == PS_OK; i++) {
        uint64_t row = rows[i], bit = UINT64_C(1) << (row & 63);
        if (row >= rows_n)
            rc = ps_fail(err, PS_EINVAL, 0, "rows[%zu] is %llu, but there are %zu rows", i,
                         (unsigned long long)row, rows_n);
        else if (seen[row / 64] & bit)
            rc = ps_fail(err, PS_EINVAL, 0, "rows[%zu]: row %llu is repeated", i, (unsigned long long)row);
        else seen[row / 64] |= bit;
    }
    free(seen);
    return rc;
}

int ps_optim_apply_rows(const ps_optim *o, float *restrict value, float *restrict slots, size_t rows_n,
                        size_t dim, const uint64_t *restrict rows, const float *restrict grad, size_t k,
                        ps_err *err) {
    int rc = check_rows(rows, k, rows_n, err);
    if (rc != PS_OK) return rc;
    size_t state = dim * ps_optim_slots(o->method);
    for (size_t i = 0; i < k; i++) {
        float *own = slots == NULL ? NULL : slots + rows[i] * state;
        ps_optim_apply(o, value + rows[i] * dim, own, grad + i * dim, dim);
    }
    return PS_OK;
}

void ps_add_isa(ps_isa isa, float *restrict acc, const float *restrict g, size_t n) {
#if PS_HAVE_AVX2
    if (isa != PS_ISA_BASE && ps_cpu_avx2()) {
        add_avx2(acc, g, n);
        return;
    }
#endif
    (void)isa;
    add(acc, g, n);
}

void ps_add(float *restrict acc, const float *restrict g, size_t n) {
    ps_add_isa(PS_ISA_BEST, acc, g, n);
}
