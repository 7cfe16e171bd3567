#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "kernels/ps_compute.h"
#include "kernels/ps_optim.h"

static const ps_optim some = {.method = PS_ADAGRAD, .learning_rate = 0.1F, .l2 = 0.01F, .numbers = {1e-6F}};

/* A rule of each method, with all that a rule may have. */
static ps_optim rule_of(uint32_t method, bool full) {
    ps_optim o = {.method = method, .learning_rate = 0.1F, .l2 = 0.01F};
    for (int i = 0; i < PS_NUMBERS; i++) o.numbers[i] = (float)ps_optim_method(method)->numbers[i].usual;
    if (full) o.l1 = 0.02F, o.clip = 3;
    return o;
}

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

static float apply_one(const ps_optim *o, float p, float *slots, float g) {
    ps_optim_apply(o, ps_optim_rate(o, 1), &p, slots, 1, &g, 1);
    return p;
}

TEST(optim_formulas_by_hand) {
    float m = 2, h = 3, state[2] = {0, 0};
    ps_optim o = {.method = PS_SGD, .learning_rate = 0.5F, .l2 = 1};
    CHECK(apply_one(&o, 1, NULL, 1) == 0); /* 1 - 0.5 * (1 + 1 * 1) */
    o.method = PS_MOMENTUM, o.numbers[0] = 0.5F;
    CHECK(apply_one(&o, 1, &m, 1) == 1 && m == 0); /* m = 0.5 * 2 - 0.5 * 2 */
    o.method = PS_ADAGRAD, o.numbers[0] = 0;
    CHECK(apply_one(&o, 1, &h, 1) == 0.5F && h == 4); /* 1 - 0.5 * 2 / sqrt(4) */
    o.method = PS_FLEET_ADAGRAD, o.numbers[0] = 1, h = 5;
    CHECK(apply_one(&o, 1, &h, 1) == 0.75F && h == 9); /* d = 2; 1 - 0.5 * 2 / (sqrt(9) + 1) */
    o.method = PS_FLEET_MOMENTUM, o.numbers[0] = 0.5F, m = 2;
    CHECK(apply_one(&o, 1, &m, 1) == -0.5F && m == 3); /* m = 0.5 * 2 + 2; 1 - 0.5 * 3 */
    o = (ps_optim){.method = PS_ADAM, .learning_rate = 0.5F, .numbers = {0.5F, 0.75F, 0}};
    CHECK(apply_one(&o, 1, state, 4) == 0.5F); /* the first step of Adam is the rate, whatever the gradient */
    CHECK(state[0] == 2 && state[1] == 4);
}

TEST(a_row_has_one_state_and_lamb_the_length_of_the_whole) {
    float row[2] = {1, 1}, h = 0, grad[2] = {2, -2}, p[2] = {1, -1}, state[4] = {0};
    ps_optim o = {.method = PS_ROW_ADAGRAD, .learning_rate = 0.5F};
    ps_optim_apply(&o, ps_optim_rate(&o, 1), row, &h, 2, grad, 2);
    CHECK(h == 4 && row[0] == 0.5F && row[1] == 1.5F); /* the mean of 4 and 4; 0.5 / sqrt(4) * 2 */
    o = (ps_optim){.method = PS_LAMB, .learning_rate = 0.5F, .l2 = 1, .numbers = {0.5F, 0.75F, 0}};
    ps_optim_apply(&o, ps_optim_rate(&o, 1), p, state, 2, grad, 2);
    CHECK(p[0] == 1 && state[0] == 1 && state[2] == 1);
    ps_optim_finish(&o, ps_optim_rate(&o, 1), p, state, 2);
    CHECK(p[0] == 0.5F && p[1] == -0.5F); /* c = 0.5 * (1 + 1), as long as p: by lr */
}

TEST(the_rate_of_adam_is_made_of_products) {
    ps_optim o = {.method = PS_ADAM, .learning_rate = 1, .numbers = {0.5F, 0.5F, 0}};
    double power = 1;
    for (uint64_t step = 1; step < 60; step++) {
        power /= 2; /* exact, in any order */
        CHECK(ps_optim_rate(&o, step).rate == (float)(sqrt(1 - power) / (1 - power)));
    }
    CHECK(ps_optim_rate(&o, UINT64_MAX).rate == 1);
}

TEST(pieces_of_any_size_give_the_same_bits) {
    enum { M = 50 };
    for (uint32_t method = 0; method < PS_METHODS; method++) {
        ps_optim o = rule_of(method, true);
        if (ps_optim_by_row(method)) continue; /* its pieces are rows */
        float *value = some_floats(M), *slots = some_floats(3 * M), *grad = some_floats(M);
        for (size_t i = 0; i < 3 * M; i++)
            if (slots[i] < 0) slots[i] = -slots[i];
        float *parts = copy(value, M), *part_slots = copy(slots, 3 * M);
        ps_optim_apply(&o, ps_optim_rate(&o, 3), value, slots, M, grad, M);
        for (size_t at = 0, k = 1; at < M; at += k, k = k * 2 < M - at ? k * 2 : M - at)
            ps_optim_apply(&o, ps_optim_rate(&o, 3), parts + at, part_slots + at, M, grad + at,
                           k < M - at ? k : M - at);
        CHECK(same(value, parts, M) && same(slots, part_slots, 3 * M));
        free(value), free(slots), free(grad), free(parts), free(part_slots);
    }
}

static void check_refusal(ps_optim o, const char *words) {
    ps_err err;
    CHECK(ps_optim_check(&o, &err) == PS_EINVAL && strstr(err.text, words) != NULL);
}

TEST(optim_check_names_what_is_wrong) {
    ps_err err;
    ps_optim o;
    for (uint32_t method = 0; method < PS_METHODS; method++) {
        o = rule_of(method, true);
        CHECK(ps_optim_check(&o, &err) == PS_OK);
    }
    o = some, o.method = PS_METHODS, check_refusal(o, "method 23");
    o = some, o.l2 = (float)(1e300 * 1e300), check_refusal(o, "l2 inf");
    o = some, o.numbers[0] = -1, check_refusal(o, "epsilon -1");
    o = some, o.clip = -1, check_refusal(o, "clip -1");
    o = some, o.numbers[2] = 1, check_refusal(o, "adagrad 1, expected 0 after its own numbers");
    o = rule_of(PS_ADAM, false), o.numbers[1] = 1, check_refusal(o, "beta2 1, expected less than 1");
}

/* A library that another program loads may have set these for its own speed. */
TEST(floats_of_a_thread_are_ieee_on_request) {
    volatile float tiny = 0x1p-120F, half = 0x1p-20F;
    unsigned before = ps_floats_set(PS_FLOATS_IEEE);
#if defined(__x86_64__)
    ps_floats_set(0x8040);
    CHECK(tiny * half == 0);
#elif defined(__aarch64__)
    ps_floats_set(1U << 24);
    CHECK(tiny * half == 0);
#endif
    ps_floats_set(PS_FLOATS_IEEE);
    CHECK(tiny * half != 0);
    ps_floats_set(before);
}
