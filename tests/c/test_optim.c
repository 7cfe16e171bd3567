#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "ps_optim.h"

enum { N = 100 };

static const ps_optim some = {
    .method = PS_ADAGRAD, .learning_rate = 0.1F, .momentum = 0.9F, .decay = 0.01F, .epsilon = 1e-6F};

/* Floats of all sizes and both signs, also subnormal ones, but no NaN or infinity. */
static void fill(float *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)harness_random();
        if ((bits >> 23 & 0xff) == 0xff) bits ^= 1U << 30;
        memcpy(&p[i], &bits, sizeof bits);
    }
}

static float *some_floats(size_t n) {
    float *p = malloc(n * sizeof *p + 1); /* its own block: a step past the end is seen */
    CHECK(p != NULL);
    fill(p, n);
    return p;
}

static float *copy(const float *from, size_t n) {
    float *p = some_floats(n);
    memcpy(p, from, n * sizeof *p);
    return p;
}

/* NaN's payload is nobody's promise. */
static bool same(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(a[i] != a[i] && b[i] != b[i])) return false;
    return true;
}

static void check_isas(ps_optim o, size_t n) {
    float *value = some_floats(n), *slots = some_floats(n), *grad = some_floats(n);
    for (size_t i = 0; i < n && o.method == PS_ADAGRAD; i++)
        if (slots[i] < 0) slots[i] = -slots[i];
    float *base = copy(value, n), *base_slots = copy(slots, n);
    float *avx2 = copy(value, n), *avx2_slots = copy(slots, n);
    ps_optim_apply_isa(PS_ISA_BASE, &o, base, ps_optim_slots(o.method) ? base_slots : NULL, grad, n);
    ps_optim_apply_isa(PS_ISA_AVX2, &o, avx2, ps_optim_slots(o.method) ? avx2_slots : NULL, grad, n);
    ps_optim_apply(&o, value, ps_optim_slots(o.method) ? slots : NULL, grad, n);
    CHECK(same(base, avx2, n) && same(base, value, n));
    CHECK(same(base_slots, avx2_slots, n) && same(base_slots, slots, n));

    ps_add_isa(PS_ISA_BASE, base, grad, n);
    ps_add_isa(PS_ISA_AVX2, avx2, grad, n);
    ps_add(value, grad, n);
    CHECK(same(base, avx2, n) && same(base, value, n));
    free(value), free(slots), free(grad), free(base), free(base_slots), free(avx2), free(avx2_slots);
}

TEST(optim_has_the_same_bits_in_every_build) {
    ps_optim o = some;
    for (o.method = 0; o.method < PS_METHODS; o.method++)
        for (size_t n = 0; n < N; n++) check_isas(o, n);
    for (o.method = 0; o.method < PS_METHODS; o.method++) check_isas(o, 10007);
}

TEST(optim_formulas_by_hand) {
    float p = 1, m = 2, h = 3, g = 1;
    ps_optim o = {.method = PS_SGD, .learning_rate = 0.5F, .momentum = 0.5F, .decay = 1, .epsilon = 0};
    ps_optim_apply(&o, &p, NULL, &g, 1);
    CHECK(p == 0); /* 1 - 0.5 * (1 + 1 * 1) */
    o.method = PS_MOMENTUM, p = 1;
    ps_optim_apply(&o, &p, &m, &g, 1);
    CHECK(m == 0 && p == 1); /* m = 0.5 * 2 - 0.5 * 2 */
    o.method = PS_ADAGRAD, p = 1;
    ps_optim_apply(&o, &p, &h, &g, 1);
    CHECK(h == 4 && p == 0.5F); /* 1 - 0.5 * 2 / sqrt(4) */
}

/* A fused multiply-add keeps digits of a product that rounding drops: then these would not be 0. */
TEST(optim_rounds_every_product) {
    float x = 1 + 0x1p-12F, square = x * x, values[9], slots[9], grad[9];
    for (uint32_t method = 0; method < PS_METHODS; method++) {
        for (int i = 0; i < 9; i++) values[i] = x, slots[i] = 0, grad[i] = -square;
        ps_optim o = {.method = method, .learning_rate = 1, .momentum = 1, .decay = x, .epsilon = 1};
        ps_optim_apply(&o, values, ps_optim_slots(method) ? slots : NULL, grad, 9);
        CHECK(values[0] == x && values[8] == x);
    }
    for (int i = 0; i < 9; i++) slots[i] = -square, grad[i] = x;
    ps_optim o = {.method = PS_ADAGRAD, .epsilon = 1};
    ps_optim_apply(&o, values, slots, grad, 9);
    CHECK(slots[0] == 0 && slots[8] == 0);
}

TEST(optim_slots_by_method) {
    CHECK(ps_optim_slots(PS_SGD) == 0 && ps_optim_slots(PS_MOMENTUM) == 1 && ps_optim_slots(PS_ADAGRAD) == 1);
    CHECK(ps_optim_slots(99) == 0);
}

TEST(optim_check_names_what_is_wrong) {
    ps_err err;
    ps_optim o = some;
    CHECK(ps_optim_check(&o, &err) == PS_OK);
    o.method = 3;
    CHECK(ps_optim_check(&o, &err) == PS_EINVAL && strstr(err.text, "method 3") != NULL);
    o = some, o.decay = (float)(1e300 * 1e300);
    CHECK(ps_optim_check(&o, &err) == PS_EINVAL && strstr(err.text, "decay inf") != NULL);
    o = some, o.epsilon = -1;
    CHECK(ps_optim_check(&o, &err) == PS_EINVAL && strstr(err.text, "epsilon -1") != NULL);
}

static int apply_rows(const uint64_t *rows, size_t k, float *value, float *slots) {
    float grad[4 * 3];
    for (int i = 0; i < 12; i++) grad[i] = (float)i;
    ps_err err;
    return ps_optim_apply_rows(&some, value, slots, 5, 3, rows, grad, k, &err);
}

TEST(optim_rows_are_all_applied_or_none) {
    float value[15] = {0}, slots[15] = {0}, zero[15] = {0};
    const uint64_t bad[][4] = {{0, 1, 2, 5}, {0, 1, 1, 2}, {4, 3, 2, 4}, {1, 0, 9, 2}, {0, UINT64_MAX, 1, 2}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(apply_rows(bad[i], 4, value, slots) == PS_EINVAL);
    CHECK(memcmp(value, zero, sizeof zero) == 0 && memcmp(slots, zero, sizeof zero) == 0);

    const uint64_t good[] = {4, 0, 3, 1};
    harness_fail_alloc(1);
    CHECK(apply_rows(good, 4, value, slots) == PS_ENOMEM);
    CHECK(harness_fail_alloc(0) && memcmp(value, zero, sizeof zero) == 0);
    CHECK(apply_rows(good, 4, value, slots) == PS_OK);
    CHECK(value[4 * 3] == 0 && value[4 * 3 + 1] < 0); /* the first gradient is 0, the second 1 */
    CHECK(memcmp(value + 6, zero, 3 * sizeof *zero) == 0);
    CHECK(slots[1 * 3] == 81);
    CHECK(apply_rows(good, 0, value, slots) == PS_OK);
}

TEST(optim_rows_in_any_order) {
    enum { ROWS = 200 };
    uint64_t rows[ROWS];
    float value[ROWS], grad[ROWS];
    ps_optim o = {.method = PS_SGD, .learning_rate = 1};
    for (size_t i = 0; i < ROWS; i++) rows[i] = ROWS - 1 - i, value[i] = 0, grad[i] = (float)i;
    CHECK(ps_optim_apply_rows(&o, value, NULL, ROWS, 1, rows, grad, ROWS, NULL) == PS_OK);
    for (size_t i = 0; i < ROWS; i++) CHECK(value[rows[i]] == -(float)i);
    rows[150] = rows[20];
    CHECK(ps_optim_apply_rows(&o, value, NULL, ROWS, 1, rows, grad, ROWS, NULL) == PS_EINVAL);
}
