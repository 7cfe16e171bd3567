#include "kernels/ps_optim.h"

#include <math.h>
#include <string.h>

#include "kernels/ps_compute.h"

/* --- The kernels: the step of value i, whose state is a[i], b[i] and c[i]. `g` is the clipped gradient.
 * `full`: with clipping and L1; constant in each build, so that training without them does not pay. --- */

#define STEP                                                                                          \
    const ps_optim *o, ps_rate t PS_UNUSED, float *restrict p PS_UNUSED, float *restrict a PS_UNUSED, \
        float *restrict b PS_UNUSED, float *restrict c PS_UNUSED, size_t i, float g, bool full PS_UNUSED

PS_INLINE float clipped(const ps_optim *o, float g) {
    float most = o->clip;
    if (most == 0) return g;
    return g > most ? most : g < -most ? -most : g;
}

/* Return a gradient with the weight decays of PaddlePaddle 2. */
PS_INLINE float decayed(const ps_optim *o, float g, float p, bool full) {
    float d = g + o->l2 * p;
    if (!full || o->l1 == 0) return d;
    return p > 0 ? d + o->l1 : p < 0 ? d - o->l1 : d;
}

/* Return a value moved towards 0 by `by`, the L1 of v2. */
PS_INLINE float shrunk(const ps_optim *o, float p, float by, bool full) {
    if (!full || o->l1 == 0) return p;
    return p > by ? p - by : p < -by ? p + by : 0 * p; /* a NaN stays one */
}

PS_INLINE void mix(float *old, float rho, float x) {
    *old = rho * *old + (1 - rho) * x;
}

PS_INLINE void sgd(STEP) {
    p[i] -= t.rate * (g + o->l2 * p[i]);
    p[i] = shrunk(o, p[i], t.rate * o->l1, full);
}

PS_INLINE void fleet_sgd(STEP) {
    p[i] -= t.rate * decayed(o, g, p[i], full);
}

PS_INLINE void momentum(STEP) {
    a[i] = o->numbers[0] * a[i] - t.rate * (g + o->l2 * p[i]);
    p[i] += a[i];
    p[i] = shrunk(o, p[i], t.rate * o->l1, full);
}

PS_INLINE void fleet_momentum(STEP) {
    a[i] = o->numbers[0] * a[i] + decayed(o, g, p[i], full);
    p[i] -= t.rate * a[i];
}

PS_INLINE void nesterov(STEP) {
    float d = decayed(o, g, p[i], full);
    a[i] = o->numbers[0] * a[i] + d;
    p[i] -= t.rate * (d + o->numbers[0] * a[i]);
}

/* The end of v2's methods with a rate of each value, 1 / root. sqrtf becomes a vector instruction only with
 * -fno-math-errno: several times faster. */
PS_INLINE void move(const ps_optim *o, ps_rate t, float *p, float g, float root, bool full) {
    *p -= t.rate * (g + o->l2 * *p) / root;
    *p = shrunk(o, *p, t.rate * o->l1 / root, full);
}

PS_INLINE void adagrad(STEP) {
    a[i] += g * g;
    move(o, t, &p[i], g, sqrtf(a[i] + o->numbers[0]), full);
}

PS_INLINE void fleet_adagrad(STEP) {
    float d = decayed(o, g, p[i], full);
    a[i] += d * d;
    p[i] -= t.rate * d / (sqrtf(a[i] + o->numbers[1]) + o->numbers[0]);
}

PS_INLINE void decayed_adagrad(STEP) {
    a[i] = o->numbers[0] * a[i] + t.second * (g * g);
    move(o, t, &p[i], g, sqrtf(a[i] + o->numbers[1]), full);
}

PS_INLINE void fleet_decayed_adagrad(STEP) {
    float d = decayed(o, g, p[i], full);
    mix(&a[i], o->numbers[0], d * d);
    p[i] -= t.rate * d / (sqrtf(a[i]) + o->numbers[1]);
}

PS_INLINE void adadelta(STEP) {
    float epsilon = o->numbers[1];
    mix(&a[i], o->numbers[0], g * g);
    float root = sqrtf((a[i] + epsilon) / (b[i] + epsilon)), change = g / root;
    mix(&b[i], o->numbers[0], change * change);
    move(o, t, &p[i], g, root, full);
}

PS_INLINE void fleet_adadelta(STEP) {
    float d = decayed(o, g, p[i], full), epsilon = o->numbers[1];
    mix(&a[i], o->numbers[0], d * d);
    float change = sqrtf((b[i] + epsilon) / (a[i] + epsilon)) * d;
    mix(&b[i], o->numbers[0], change * change);
    p[i] -= t.rate * change;
}

PS_INLINE void rmsprop(STEP) {
    a[i] = o->numbers[0] * a[i] + t.second * (g * g);
    mix(&b[i], o->numbers[0], g);
    move(o, t, &p[i], g, sqrtf(a[i] - b[i] * b[i] + o->numbers[1]), full);
}

PS_INLINE void fleet_rmsprop(STEP) {
    float d = decayed(o, g, p[i], full);
    mix(&a[i], o->numbers[0], d * d);
    b[i] = o->numbers[2] * b[i] + t.rate * d / sqrtf(a[i] + o->numbers[1]);
    p[i] -= b[i];
}

PS_INLINE void centered_rmsprop(STEP) {
    float d = decayed(o, g, p[i], full);
    mix(&a[i], o->numbers[0], d * d);
    mix(&c[i], o->numbers[0], d);
    b[i] = o->numbers[2] * b[i] + t.rate * d / sqrtf(a[i] - c[i] * c[i] + o->numbers[1]);
    p[i] -= b[i];
}

PS_INLINE void moments(const ps_optim *o, float *a, float *b, float d) {
    mix(a, o->numbers[0], d);
    mix(b, o->numbers[1], d * d);
}

PS_INLINE void adam(STEP) {
    moments(o, &a[i], &b[i], g + o->l2 * p[i]);
    p[i] -= a[i] * t.rate / (sqrtf(b[i]) + o->numbers[2]);
    p[i] = shrunk(o, p[i], o->learning_rate * o->l1, full);
}

PS_INLINE void fleet_adam(STEP) {
    moments(o, &a[i], &b[i], decayed(o, g, p[i], full));
    p[i] -= a[i] * t.rate / (sqrtf(b[i]) + o->numbers[2] * t.second);
}

PS_INLINE void lazy_adam(STEP) {
    fleet_adam(o, t, p, a, b, c, i, g, full);
}

PS_INLINE void adamw(STEP) {
    moments(o, &a[i], &b[i], g);
    p[i] -= o->learning_rate * o->l2 * p[i];
    p[i] -= a[i] * t.rate / (sqrtf(b[i]) + o->numbers[2] * t.second);
}

PS_INLINE float larger(float x, float y) {
    return x > y ? x : y;
}

PS_INLINE void adamax(STEP) {
    float d = g + o->l2 * p[i];
    mix(&a[i], o->numbers[0], d);
    b[i] = larger(o->numbers[1] * b[i], fabsf(d));
    p[i] -= b[i] == 0 ? 0 : t.rate * a[i] / b[i];
    p[i] = shrunk(o, p[i], o->learning_rate * o->l1, full);
}

PS_INLINE void fleet_adamax(STEP) {
    float d = decayed(o, g, p[i], full);
    mix(&a[i], o->numbers[0], d);
    b[i] = larger(o->numbers[1] * b[i] + o->numbers[2], fabsf(d));
    p[i] -= t.rate * a[i] / b[i];
}

PS_INLINE void ftrl(STEP) {
    if (t.rate == 0) return; /* it would be divided by */
    float d = decayed(o, g, p[i], full), least = o->numbers[0], old = sqrtf(a[i]);
    a[i] += d * d;
    float root = sqrtf(a[i]);
    b[i] += d - (root - old) / t.rate * p[i];
    float beyond = b[i] > least ? least - b[i] : b[i] < -least ? -least - b[i] : 0 * b[i];
    p[i] = beyond / (root / t.rate + 2 * o->numbers[1]);
}

PS_INLINE void lamb(STEP) {
    moments(o, &a[i], &b[i], g);
}

PS_INLINE void row_adagrad(STEP) {
    fleet_sgd(o, t, p, a, b, c, i, g, full);
}

PS_INLINE void add(float *restrict acc, const float *restrict g, size_t n) {
    for (size_t i = 0; i < n; i++) acc[i] += g[i];
}

PS_INLINE bool all_finite(const float *p, size_t n) {
    uint32_t found = 0, bits;
    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, &p[i], sizeof bits);
        found |= (bits & 0x7fffffff) + 0x00800000; /* sets the first bit if the exponent is all ones */
    }
    return found >> 31 == 0;
}

/* --- Steps in which values are not alone: sums of squares in 8 chains of doubles, then a fixed tree. --- */

enum { CHAINS = 8 };

static double end_chains(const double *s) {
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

double ps_squares(const float *p, size_t n) {
    double sums[CHAINS] = {0};
    for (size_t i = 0; i < n; i++) sums[i % CHAINS] += (double)p[i] * (double)p[i];
    return end_chains(sums);
}

/* Add the mean of the row's squares to its state, and return the rate of its values. */
static ps_rate begin_row_adagrad(const ps_optim *o, ps_rate t, const float *restrict p, float *restrict s,
                                 const float *restrict g, size_t n) {
    double sums[CHAINS] = {0};
    for (size_t i = 0; i < n; i++) {
        double d = (double)decayed(o, clipped(o, g[i]), p[i], true);
        sums[i % CHAINS] += d * d;
    }
    s[0] += (float)(end_chains(sums) / (double)n);
    return (ps_rate){.rate = t.rate / (sqrtf(s[0] + o->numbers[1]) + o->numbers[0])};
}

PS_INLINE float lamb_change(const ps_optim *o, ps_rate t, float p, float a, float b) {
    return a * t.rate / (sqrtf(b) + o->numbers[2] * t.second) + o->learning_rate * o->l2 * p;
}

static void finish_lamb(const ps_optim *o, ps_rate t, float *restrict p, const float *restrict a, size_t n) {
    const float *b = a + n;
    double sums[CHAINS] = {0}, ratio = 1, own = ps_squares(p, n);
    for (size_t i = 0; i < n; i++) {
        double change = (double)lamb_change(o, t, p[i], a[i], b[i]);
        sums[i % CHAINS] += change * change;
    }
    if (o->l2 > 0 && own > 0 && end_chains(sums) > 0)
        ratio = (double)o->learning_rate * sqrt(own) / sqrt(end_chains(sums));
    for (size_t i = 0; i < n; i++) p[i] -= (float)ratio * lamb_change(o, t, p[i], a[i], b[i]);
}

/* --- Rates of a step. --- */

/* Products of doubles alone, in a fixed order: no function of a library, which differ. */
static double power(double base, uint64_t exponent) {
    double result = 1;
    for (; exponent > 0; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

static ps_rate plain_rate(const ps_optim *o, uint64_t step PS_UNUSED) {
    return (ps_rate){.rate = o->learning_rate};
}

/* v2 begins a mean of squares with the first one. */
static ps_rate first_rate(const ps_optim *o, uint64_t step) {
    return (ps_rate){.rate = o->learning_rate, .second = step == 1 ? 1 : 1 - o->numbers[0]};
}

static ps_rate adam_rate(const ps_optim *o, uint64_t step) {
    double first = 1 - power((double)o->numbers[0], step);
    double root = sqrt(1 - power((double)o->numbers[1], step));
    return (ps_rate){(float)((double)o->learning_rate * root / first), (float)root};
}

static ps_rate ahead_rate(const ps_optim *o, uint64_t step) {
    return adam_rate(o, step + 1);
}

static ps_rate adamax_rate(const ps_optim *o, uint64_t step) {
    double first = 1 - power((double)o->numbers[0], step);
    return (ps_rate){.rate = (float)((double)o->learning_rate / first)};
}

/* --- The table: a further method is a row at its end, a kernel above and an oracle in
 * tests/support/reference.py. Kernel, slots, rate of a step, its own numbers with their usual values. --- */

#define RHO {"rho", 0.95}, {"epsilon", 1e-6}
#define BETAS {"beta1", 0.9}, {"beta2", 0.999}
#define METHODS(ROW)                                                     \
    ROW(sgd, 0, plain_rate, {0})                                         \
    ROW(momentum, 1, plain_rate, {"momentum", 0.9})                      \
    ROW(adagrad, 1, plain_rate, {"epsilon", 1e-6})                       \
    ROW(fleet_adagrad, 1, plain_rate, {"epsilon", 1e-6}, {"initial", 0}) \
    ROW(adam, 2, adam_rate, BETAS, {"epsilon", 1e-8})                    \
    ROW(fleet_momentum, 1, plain_rate, {"momentum", 0.9})                \
    ROW(fleet_sgd, 0, plain_rate, {0})                                   \
    ROW(nesterov, 1, plain_rate, {"momentum", 0.9})                      \
    ROW(decayed_adagrad, 1, first_rate, RHO)                             \
    ROW(fleet_decayed_adagrad, 1, plain_rate, RHO)                       \
    ROW(adadelta, 2, plain_rate, RHO)                                    \
    ROW(fleet_adadelta, 2, plain_rate, RHO)                              \
    ROW(rmsprop, 2, first_rate, RHO)                                     \
    ROW(fleet_rmsprop, 2, plain_rate, RHO, {"momentum", 0})              \
    ROW(centered_rmsprop, 3, plain_rate, RHO, {"momentum", 0})           \
    ROW(fleet_adam, 2, adam_rate, BETAS, {"epsilon", 1e-8})              \
    ROW(lazy_adam, 2, ahead_rate, BETAS, {"epsilon", 1e-8})              \
    ROW(adamw, 2, adam_rate, BETAS, {"epsilon", 1e-8})                   \
    ROW(adamax, 2, adamax_rate, BETAS)                                   \
    ROW(fleet_adamax, 2, adamax_rate, BETAS, {"epsilon", 1e-8})          \
    ROW(ftrl, 2, plain_rate, {"l1", 0}, {"l2", 0})                       \
    ROW(row_adagrad, 0, plain_rate, {"epsilon", 1e-6}, {"initial", 0})   \
    ROW(lamb, 2, adam_rate, BETAS, {"epsilon", 1e-6})

/* Builds of a kernel: the compiler makes vectors as wide as the build allows. */

#define PARAMS                                                                         \
    const ps_optim *o, ps_rate t, float *restrict p, float *restrict a, size_t stride, \
        const float *restrict g, size_t n
typedef void kernel(PARAMS);

#define BUILD(name, slots, suffix, target)                                                              \
    target static void name##suffix(PARAMS) {                                                           \
        const ps_optim r = *o;                                                                          \
        float *restrict b = slots > 1 ? a + stride : NULL, *restrict c = slots > 2 ? b + stride : NULL; \
        if (r.clip > 0 || r.l1 > 0)                                                                     \
            for (size_t i = 0; i < n; i++) name(&r, t, p, a, b, c, i, clipped(&r, g[i]), true);         \
        else                                                                                            \
            for (size_t i = 0; i < n; i++) name(&r, t, p, a, b, c, i, g[i], false);                     \
    }

#define BUILDS(name, slots, ...) BUILD(name, slots, _base, ) BUILD(name, slots, _avx2, PS_TARGET_AVX2)
#define KERNELS(name) {name##_base, name##_avx2}

METHODS(BUILDS)

static const struct {
    ps_method method;
    kernel *kernels[2]; /* for any machine, with AVX2 */
    ps_rate (*rate)(const ps_optim *o, uint64_t step);
} table[] = {
#define ROW(name, slots, rate, ...) {{#name, slots, {__VA_ARGS__}}, KERNELS(name), rate},
    METHODS(ROW)
#undef ROW
};
_Static_assert(sizeof(table) / sizeof *table == PS_METHODS, "the header has the number of rows");

const ps_method *ps_optim_method(uint32_t method) {
    return method < PS_METHODS ? &table[method].method : NULL;
}

size_t ps_optim_state(uint32_t method, size_t n) {
    if (method >= PS_METHODS) return 0;
    return ps_optim_by_row(method) ? 1 : n * table[method].method.slots;
}

bool ps_optim_by_row(uint32_t method) {
    return method == PS_ROW_ADAGRAD;
}

bool ps_optim_whole(uint32_t method) {
    return method == PS_LAMB;
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
        const char *name = m->numbers[i].name;
        if (name == NULL) {
            if (number != 0) return bad_number(m->name, number, "0 after its own numbers", err);
        } else if (!isfinite(number) || number < 0) {
            return bad_number(name, number, "a finite number, not negative", err);
        } else if (strncmp(name, "beta", 4) == 0 && number >= 1) {
            return bad_number(name, number, "less than 1", err);
        }
    }
    return PS_OK;
}

ps_rate ps_optim_rate(const ps_optim *o, uint64_t step) {
    return table[o->method].rate(o, step);
}

void ps_optim_apply(const ps_optim *o, ps_rate rate, float *restrict value, float *restrict slots,
                    size_t stride, const float *restrict grad, size_t n) {
    if (ps_optim_by_row(o->method)) rate = begin_row_adagrad(o, rate, value, slots, grad, n);
    table[o->method].kernels[ps_build() != PS_ISA_BASE](o, rate, value, slots, stride, grad, n);
}

void ps_optim_finish(const ps_optim *o, ps_rate rate, float *restrict value, const float *restrict slots,
                     size_t n) {
    if (ps_optim_whole(o->method)) finish_lamb(o, rate, value, slots, n);
}

PS_TARGET_AVX2 static void add_avx2(float *restrict acc, const float *restrict g, size_t n) {
    add(acc, g, n);
}

PS_TARGET_AVX2 static bool all_finite_avx2(const float *p, size_t n) {
    return all_finite(p, n);
}

void ps_add(float *restrict acc, const float *restrict g, size_t n) {
    if (ps_build() != PS_ISA_BASE) add_avx2(acc, g, n);
    else add(acc, g, n);
}

bool ps_finite(const float *p, size_t n) {
    return ps_build() != PS_ISA_BASE ? all_finite_avx2(p, n) : all_finite(p, n);
}
