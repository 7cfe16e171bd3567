#include "kernels/ps_optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ps_compute.h"
#include "kernels/ps_lookup.h"

/* --- The kernels. `full`: with clipping and L1; constant in each build, so that training without them does
 * not pay. --- */

#define PARAMS                                                                          \
    const ps_optim *o, float rate, float *restrict p, float *restrict s, size_t stride, \
        const float *restrict g, size_t n

PS_INLINE float clipped(const ps_optim *o, float g, bool full) {
    float most = o->clip;
    if (!full || most == 0) return g;
    return g > most ? most : g < -most ? -most : g;
}

/* Move a value towards 0. */
PS_INLINE float shrunk(const ps_optim *o, float p, float by, bool full) {
    if (!full || o->l1 == 0) return p;
    return p > by ? p - by : p < -by ? p + by : 0 * p; /* a NaN stays one */
}

PS_INLINE void sgd(PARAMS, bool full) {
    const ps_optim r = *o;
    float by = rate * r.l1;
    (void)s, (void)stride;
    for (size_t i = 0; i < n; i++) {
        p[i] -= rate * (clipped(&r, g[i], full) + r.l2 * p[i]);
        p[i] = shrunk(&r, p[i], by, full);
    }
}

PS_INLINE void momentum(PARAMS, bool full) {
    const ps_optim r = *o;
    float by = rate * r.l1;
    (void)stride;
    for (size_t i = 0; i < n; i++) {
        s[i] = r.numbers[0] * s[i] - rate * (clipped(&r, g[i], full) + r.l2 * p[i]);
        p[i] += s[i];
        p[i] = shrunk(&r, p[i], by, full);
    }
}

PS_INLINE void fleet_momentum(PARAMS, bool full) {
    const ps_optim r = *o;
    float by = rate * r.l1;
    (void)stride;
    for (size_t i = 0; i < n; i++) {
        s[i] = r.numbers[0] * s[i] + (clipped(&r, g[i], full) + r.l2 * p[i]);
        p[i] -= rate * s[i];
        p[i] = shrunk(&r, p[i], by, full);
    }
}

/* sqrtf becomes a vector instruction only with -fno-math-errno: several times faster. */
PS_INLINE void adagrad(PARAMS, bool full) {
    const ps_optim r = *o;
    float by = rate * r.l1;
    (void)stride;
    for (size_t i = 0; i < n; i++) {
        float own = clipped(&r, g[i], full);
        s[i] += own * own;
        float root = sqrtf(s[i] + r.numbers[0]);
        p[i] -= rate * (own + r.l2 * p[i]) / root;
        p[i] = shrunk(&r, p[i], by / root, full);
    }
}

PS_INLINE void fleet_adagrad(PARAMS, bool full) {
    const ps_optim r = *o;
    float by = rate * r.l1;
    (void)stride;
    for (size_t i = 0; i < n; i++) {
        float own = clipped(&r, g[i], full) + r.l2 * p[i];
        s[i] += own * own;
        p[i] -= rate * own / (sqrtf(s[i]) + r.numbers[0]);
        p[i] = shrunk(&r, p[i], by, full);
    }
}

PS_INLINE void adam(PARAMS, bool full) {
    const ps_optim r = *o;
    float beta1 = r.numbers[0], beta2 = r.numbers[1], by = r.learning_rate * r.l1;
    float *restrict m = s, *restrict v = s + stride;
    for (size_t i = 0; i < n; i++) {
        float own = clipped(&r, g[i], full) + r.l2 * p[i];
        m[i] = beta1 * m[i] + (1 - beta1) * own;
        v[i] = beta2 * v[i] + (1 - beta2) * (own * own);
        p[i] -= m[i] * rate / (sqrtf(v[i]) + r.numbers[2]);
        p[i] = shrunk(&r, p[i], by, full);
    }
}

PS_INLINE void add(float *restrict acc, const float *restrict g, size_t n) {
    for (size_t i = 0; i < n; i++) acc[i] += g[i];
}

/* --- Their builds: the compiler makes vectors as wide as the build allows. --- */

typedef void kernel(PARAMS);

#define BUILD(method, suffix, target)                                            \
    target static void method##suffix(PARAMS) {                                  \
        if (o->clip > 0 || o->l1 > 0) method(o, rate, p, s, stride, g, n, true); \
        else method(o, rate, p, s, stride, g, n, false);                         \
    }

#if PS_HAVE_AVX2
#define BUILDS(method) BUILD(method, _base, ) BUILD(method, _avx2, PS_TARGET_AVX2)
#define KERNELS(method) {method##_base, method##_avx2}
#else
#define BUILDS(method) BUILD(method, _base, )
#define KERNELS(method) {method##_base, method##_base}
#endif

BUILDS(sgd)
BUILDS(momentum)
BUILDS(adagrad)
BUILDS(fleet_adagrad)
BUILDS(adam)
BUILDS(fleet_momentum)

/* --- The table: a further method is a row here, a kernel above and an oracle in tests/support/reference.py.
 * --- */

static const struct {
    ps_method method;
    kernel *kernels[2]; /* for any machine, with AVX2 */
} table[PS_METHODS] = {
    [PS_SGD] = {{"sgd", 0, {NULL}}, KERNELS(sgd)},
    [PS_MOMENTUM] = {{"momentum", 1, {"momentum"}}, KERNELS(momentum)},
    [PS_ADAGRAD] = {{"adagrad", 1, {"epsilon"}}, KERNELS(adagrad)},
    [PS_FLEET_ADAGRAD] = {{"fleet_adagrad", 1, {"epsilon"}}, KERNELS(fleet_adagrad)},
    [PS_ADAM] = {{"adam", 2, {"beta1", "beta2", "epsilon"}}, KERNELS(adam)},
    [PS_FLEET_MOMENTUM] = {{"fleet_momentum", 1, {"momentum"}}, KERNELS(fleet_momentum)},
};

const ps_method *ps_optim_method(uint32_t method) {
    return method < PS_METHODS ? &table[method].method : NULL;
}

uint32_t ps_optim_slots(uint32_t method) {
    return method < PS_METHODS ? table[method].method.slots : 0;
}

static int bad_number(const char *name, float number, const char *expected, ps_err *err) {
    return ps_fail(err, PS_EINVAL, 0, "optimizer: %s %g, expected %s", name, (double)number, expected);
}

int ps_optim_check(const ps_optim *o, ps_err *err) {
    if (o->method >= PS_METHODS) return ps_fail(err, PS_EINVAL, 0, "unknown optimizer method %u", o->method);
    const ps_method *m = &table[o->method].method;
    const char *const names[] = {"l1", "l2", "clip"};
    const float rates[] = {o->l1, o->l2, o->clip};
    if (!isfinite(o->learning_rate))
        return bad_number("learning_rate", o->learning_rate, "a finite number", err);
    for (int i = 0; i < 3; i++)
        if (!isfinite(rates[i]) || rates[i] < 0)
            return bad_number(names[i], rates[i], "a finite number, not negative", err);
    for (int i = 0; i < PS_NUMBERS; i++) {
        float number = o->numbers[i];
        if (m->numbers[i] == NULL) {
            if (number != 0) return bad_number(m->name, number, "0 after its own numbers", err);
        } else if (!isfinite(number) || number < 0) {
            return bad_number(m->numbers[i], number, "a finite number, not negative", err);
        } else if (o->method == PS_ADAM && i < 2 && number >= 1) {
            return bad_number(m->numbers[i], number, "less than 1", err);
        }
    }
    return PS_OK;
}

/* Products of doubles alone, in a fixed order: no function of a library, which differ. */
static double power(double base, uint64_t exponent) {
    double result = 1;
    for (; exponent > 0; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

float ps_optim_rate(const ps_optim *o, uint64_t step) {
    if (o->method != PS_ADAM) return o->learning_rate;
    double first = 1 - power((double)o->numbers[0], step), second = 1 - power((double)o->numbers[1], step);
    return (float)((double)o->learning_rate * sqrt(second) / first);
}

void ps_optim_apply(const ps_optim *o, float rate, float *restrict value, float *restrict slots,
                    size_t stride, const float *restrict grad, size_t n) {
    table[o->method].kernels[ps_build() != PS_ISA_BASE](o, rate, value, slots, stride, grad, n);
}

/* Check that rows[0..k) are in the matrix and that none is repeated. */
static int check_rows(const uint64_t *rows, size_t k, size_t rows_n, ps_err *err) {
    uint64_t *keys = calloc(k + 1, sizeof *keys);
    int64_t *index = calloc(k + 1, sizeof *index);
    ps_lookup l = {.ids = (const int64_t *)rows, .n = k, .rows = rows_n, .keys = keys, .index = index};
    int rc;
    if (keys == NULL || index == NULL) rc = ps_fail(err, PS_ENOMEM, 0, "a check of %zu rows", k);
    else rc = ps_lookup_run(&l, 1, 1, err);
    if (rc == PS_OK && l.bad < k)
        rc = ps_fail(err, PS_EINVAL, 0, "rows[%zu] is %llu, but there are %zu rows", l.bad,
                     (unsigned long long)rows[l.bad], rows_n);
    for (size_t i = 0; rc == PS_OK && l.k < k && i < k; i++)
        if (index[i] < (int64_t)i)
            rc =
                ps_fail(err, PS_EINVAL, 0, "rows[%zu]: row %llu is repeated", i, (unsigned long long)rows[i]);
    free(keys);
    free(index);
    return rc;
}

int ps_optim_apply_rows(const ps_optim *o, float rate, float *restrict value, float *restrict slots,
                        size_t rows_n, size_t dim, const uint64_t *restrict rows, const float *restrict grad,
                        size_t k, ps_err *err) {
    int rc = check_rows(rows, k, rows_n, err);
    if (rc != PS_OK) return rc;
    for (size_t i = 0; i < k; i++) {
        size_t at = (size_t)rows[i] * dim;
        ps_optim_apply(o, rate, value + at, slots == NULL ? NULL : slots + at, rows_n * dim, grad + i * dim,
                       dim);
    }
    return PS_OK;
}

#if PS_HAVE_AVX2
PS_TARGET_AVX2 static void add_avx2(float *restrict acc, const float *restrict g, size_t n) {
    add(acc, g, n);
}
#endif

void ps_add(float *restrict acc, const float *restrict g, size_t n) {
#if PS_HAVE_AVX2
    if (ps_build() != PS_ISA_BASE) {
        add_avx2(acc, g, n);
        return;
    }
#endif
    add(acc, g, n);
}
