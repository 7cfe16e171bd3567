#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "kernels/ps_act.h"
#include "kernels/ps_exp.h"

enum { ROWS = 37, COLS = 53, N = ROWS * COLS };

static float x[N], y[N];
static int64_t labels[ROWS];

static void fill(float *p, size_t n, float size) {
    for (size_t i = 0; i < n; i++) p[i] = ((float)(int)(harness_random() % 2001) / 1000 - 1) * size;
}

/* Returns the wrong rows. */
static size_t run_one(ps_act_op op, unsigned threads) {
    op.rows = ROWS, op.cols = COLS;
    CHECK(ps_act_run(&op, threads, NULL) == PS_OK);
    return op.wrong;
}

/* All kernels one after the other: a change of one changes what follows. */
static void run_all(ps_isa isa, unsigned threads, float *out) {
    float *back = out + N, *rows = back + N, *cols = rows + ROWS;
    ps_build_choose(isa);
    for (ps_act act = 0; act < PS_ACTS; act++) {
        memcpy(out, x, sizeof x);
        run_one((ps_act_op){.kind = PS_APPLY, .act = act, .x = out}, threads);
        run_one((ps_act_op){.kind = PS_UNDO, .act = act, .y = out, .grad = y, .out = back}, threads);
        out = back + N, back = out + N, rows = back + N, cols = rows + ROWS;
    }
    memcpy(out, x, sizeof x);
    ps_act_op cost = {.kind = PS_CROSS_ENTROPY, .x = out, .labels = labels, .out = rows};
    size_t wrong = run_one(cost, threads);
    run_one((ps_act_op){.kind = PS_SUM_COLUMNS, .y = x, .out = cols}, threads);
    run_one((ps_act_op){.kind = PS_DOT_ROWS, .y = x, .grad = y, .out = back}, threads);
    run_one((ps_act_op){.kind = PS_TAKE_LOGS, .x = out}, threads);
    out[0] = (float)wrong;
    ps_build_choose(PS_ISA_BEST);
}

TEST(act_has_the_same_bits_in_every_build_and_for_any_number_of_threads) {
    enum { ALL = 13 * N };
    float *first = calloc(ALL, sizeof *first), *other = calloc(ALL, sizeof *other);
    for (float size = 1; size < 1000; size *= 30) {
        fill(x, N, size), fill(y, N, size);
        for (size_t i = 0; i < ROWS; i++) labels[i] = (int64_t)(harness_random() % COLS);
        run_all(PS_ISA_BASE, 1, first);
        for (unsigned threads = 1; threads < 4; threads++) {
            run_all(PS_ISA_AVX2, threads, other);
            CHECK(memcmp(first, other, ALL * sizeof *first) == 0);
        }
    }
    free(first), free(other);
}

static double off_by(float found, double expected) {
    if ((float)expected == found) return 0;
    int exponent = fabs(expected) < 0x1p-126 ? -126 : ilogbf((float)expected);
    return fabs((double)found - expected) / ldexp(1, exponent - 23);
}

TEST(functions_are_within_3_units_of_the_last_place) {
    for (uint64_t bits = 0; bits < UINT32_MAX; bits += 40009) {
        float v = ps_float_of((uint32_t)bits);
        if (v != v) continue;
        CHECK(off_by(ps_exp(v), exp((double)v)) < 3);
        CHECK(off_by(ps_tanh(v), tanh((double)v)) < 3);
        if (v > -80) CHECK(off_by(ps_sigmoid(v), 1 / (1 + exp(-(double)v))) < 3);
        if (v > 0) CHECK(off_by(ps_log(v), log((double)v)) < 3);
    }
}

TEST(functions_keep_to_their_ends) {
    float nan = NAN;
    CHECK(ps_exp(INFINITY) == INFINITY && ps_exp(-INFINITY) == 0 && ps_exp(0) == 1 &&
          ps_exp(nan) != ps_exp(nan));
    CHECK(ps_exp(88.7F) < INFINITY && ps_exp(88.8F) == INFINITY && ps_exp(-103.9F) > 0);
    CHECK(ps_tanh(INFINITY) == 1 && ps_tanh(-INFINITY) == -1 && ps_tanh(nan) != ps_tanh(nan));
    CHECK(signbit(ps_tanh(-0.0F)) && ps_sigmoid(INFINITY) == 1 && ps_sigmoid(-INFINITY) == 0);
    CHECK(ps_log(0) == -INFINITY && ps_log(1) == 0 && ps_log(INFINITY) == INFINITY);
    CHECK(ps_log(-1) != ps_log(-1) && ps_log(nan) != ps_log(nan));
}

TEST(cross_entropy_by_hand) {
    float scores[] = {0, 0, 1000, 0, NAN, 1}, cost[3];
    int64_t label[] = {0, 1, 1};
    ps_act_op op = {
        .kind = PS_CROSS_ENTROPY, .rows = 3, .cols = 2, .x = scores, .labels = label, .out = cost};
    CHECK(ps_act_run(&op, 1, NULL) == PS_OK);
    CHECK(fabsf(cost[0] - 0.6931472F) < 1e-6F && cost[1] == 1000 && cost[2] != cost[2]);
    CHECK(scores[0] == 0.5F && scores[1] == 0.5F && scores[2] == 1 && scores[3] == 0);
    CHECK(op.wrong == 2); /* a tie is right, NaN is wrong */
}

TEST(label_out_of_range_is_an_error_and_costs_infinity) {
    float scores[] = {0, 1, 2, 3}, cost[2];
    int64_t label[] = {2, -1};
    ps_act_op op = {
        .kind = PS_CROSS_ENTROPY, .rows = 2, .cols = 2, .x = scores, .labels = label, .out = cost};
    CHECK(ps_act_run(&op, 1, NULL) == PS_OK);
    CHECK(op.wrong == 2 && cost[0] == INFINITY && cost[1] == INFINITY);
}
