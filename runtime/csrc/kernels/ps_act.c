#include "kernels/ps_act.h"

#include <stdatomic.h>

#include "kernels/ps_exp.h"

enum { LANES = 16 };

/* Values for a thread: fewer do not pay for it. */
enum { LEAST_WORK = 1 << 14 };

typedef enum kind { APPLY, UNDO, CROSS_ENTROPY, SUM_COLUMNS, DOT_ROWS, LOGS } kind;

typedef struct op {
    kind kind;
    ps_act act;
    size_t rows, cols;
    float *x; /* changed in place */
    const float *y, *grad;
    float *out;
    const int64_t *labels;
    atomic_size_t *errors;
} op;

PS_INLINE float add_lanes(float *lanes) {
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

PS_INLINE float dot(const float *restrict x, const float *restrict y, size_t n) {
    float lanes[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lanes[l] = fmaf(x[i + (size_t)l], y[i + (size_t)l], lanes[l]);
    for (int l = 0; i < n; i++, l++) lanes[l] = fmaf(x[i], y[i], lanes[l]);
    return add_lanes(lanes);
}

PS_INLINE float find_highest(const float *x, size_t n) {
    float lanes[LANES], highest = -INFINITY;
    for (int l = 0; l < LANES; l++) lanes[l] = highest;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lanes[l] = x[i + (size_t)l] > lanes[l] ? x[i + (size_t)l] : lanes[l];
    for (int l = 0; l < LANES; l++) highest = lanes[l] > highest ? lanes[l] : highest;
    for (; i < n; i++) highest = x[i] > highest ? x[i] : highest;
    return highest;
}

/* Replace x by exp(x - highest); return the sum. */
PS_INLINE float exponentiate(float *x, size_t n, float highest) {
    float lanes[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float e = ps_exp(x[i + (size_t)l] - highest);
            x[i + (size_t)l] = e, lanes[l] += e;
        }
    for (int l = 0; i < n; i++, l++) x[i] = ps_exp(x[i] - highest), lanes[l] += x[i];
    return add_lanes(lanes);
}

PS_INLINE void scale(float *x, size_t n, float by) {
    for (size_t i = 0; i < n; i++) x[i] *= by;
}

PS_INLINE void apply_row(ps_act act, float *x, size_t n) {
    if (act == PS_SIGMOID)
        for (size_t i = 0; i < n; i++) x[i] = ps_sigmoid(x[i]);
    else if (act == PS_TANH)
        for (size_t i = 0; i < n; i++) x[i] = ps_tanh(x[i]);
    else if (act == PS_RELU)
        for (size_t i = 0; i < n; i++) x[i] = x[i] < 0.0F ? 0.0F : x[i];
    else if (act == PS_EXPONENTIAL)
        for (size_t i = 0; i < n; i++) x[i] = ps_exp(x[i]);
    else scale(x, n, 1.0F / exponentiate(x, n, find_highest(x, n)));
}

/* The derivatives are in terms of the output. */
PS_INLINE void undo_row(ps_act act, const float *restrict y, const float *restrict grad, float *restrict out,
                        size_t n) {
    if (act == PS_SIGMOID)
        for (size_t i = 0; i < n; i++) out[i] = grad[i] * (y[i] - y[i] * y[i]);
    else if (act == PS_TANH)
        for (size_t i = 0; i < n; i++) out[i] = grad[i] * (1.0F - y[i] * y[i]);
    else if (act == PS_RELU)
        for (size_t i = 0; i < n; i++) out[i] = y[i] > 0.0F ? grad[i] : 0.0F;
    else if (act == PS_EXPONENTIAL)
        for (size_t i = 0; i < n; i++) out[i] = grad[i] * y[i];
    else {
        float inner = dot(grad, y, n);
        for (size_t i = 0; i < n; i++) out[i] = y[i] * (grad[i] - inner);
    }
}

/* Exact near probabilities of 0 and 1: from scores, not from the logarithm of a rounded probability.
 * A label out of range costs infinity: another thread of the program may change labels after their check. */
PS_INLINE bool cross_entropy_row(float *x, size_t n, size_t label, float *cost) {
    float highest = find_highest(x, n), picked = label < n ? x[label] : -INFINITY;
    float total = exponentiate(x, n, highest);
    *cost = ps_log(total) - (picked - highest);
    scale(x, n, 1.0F / total);
    return label < n && picked >= highest && total == total;
}

PS_INLINE size_t cross_entropy(const op *o, size_t begin, size_t end) {
    size_t errors = 0;
    for (size_t i = begin; i < end; i++)
        errors += !cross_entropy_row(o->x + i * o->cols, o->cols, (size_t)o->labels[i], &o->out[i]);
    return errors;
}

/* Four rows at a time: the sums are read and written once for them. */
PS_INLINE void sum_columns(const op *o, size_t begin, size_t end) {
    float *restrict out = o->out;
    size_t i = 0, cols = o->cols;
    memset(out + begin, 0, (end - begin) * sizeof *out);
    for (; i + 4 <= o->rows; i += 4) {
        const float *y = o->y + i * cols;
        for (size_t j = begin; j < end; j++)
            out[j] = out[j] + y[j] + y[cols + j] + y[2 * cols + j] + y[3 * cols + j];
    }
    for (; i < o->rows; i++)
        for (size_t j = begin; j < end; j++) out[j] += o->y[i * cols + j];
}

/* Body of every build, for some rows, or columns of SUM_COLUMNS. */
PS_INLINE void run(const op *o, size_t begin, size_t end) {
    size_t cols = o->cols;
    if (o->kind == SUM_COLUMNS) sum_columns(o, begin, end);
    else if (o->kind == CROSS_ENTROPY) atomic_fetch_add(o->errors, cross_entropy(o, begin, end));
    else if (o->kind == APPLY)
        for (size_t i = begin; i < end; i++) apply_row(o->act, o->x + i * cols, cols);
    else if (o->kind == UNDO)
        for (size_t i = begin; i < end; i++)
            undo_row(o->act, o->y + i * cols, o->grad + i * cols, o->out + i * cols, cols);
    else if (o->kind == DOT_ROWS)
        for (size_t i = begin; i < end; i++) o->out[i] = dot(o->y + i * cols, o->grad + i * cols, cols);
    else
        for (size_t i = begin; i < end; i++) o->x[i] = ps_log(o->x[i]);
}

PS_TARGET_FMA static void run_avx2(const op *o, size_t begin, size_t end) {
    run(o, begin, end);
}

PS_TARGET_AVX512 static void run_avx512(const op *o, size_t begin, size_t end) {
    run(o, begin, end);
}

static size_t count_items(const op *o) {
    return o->kind == SUM_COLUMNS ? o->cols : o->rows;
}

static void run_part(const void *arg, unsigned part, unsigned parts, float *scratch) {
    (void)scratch;
    const op *o = arg;
    size_t n = count_items(o), begin = ps_part_begin(n, part, parts), end = ps_part_begin(n, part + 1, parts);
    ps_isa isa = ps_build();
    if (isa == PS_ISA_AVX512) run_avx512(o, begin, end);
    else if (isa == PS_ISA_AVX2) run_avx2(o, begin, end);
    else run(o, begin, end);
}

static int run_all(const op *o, unsigned threads, ps_err *err) {
    unsigned parts = ps_parts(o->rows * o->cols, LEAST_WORK, threads);
    if (parts > count_items(o)) parts = count_items(o) > 0 ? (unsigned)count_items(o) : 1;
    return ps_compute(parts, 0, run_part, o, err);
}

int ps_act_apply(ps_act act, float *x, size_t rows, size_t cols, unsigned threads, ps_err *err) {
    return run_all(&(op){.kind = APPLY, .act = act, .rows = rows, .cols = cols, .x = x}, threads, err);
}

int ps_act_undo(ps_act act, const float *y, const float *grad, float *out, size_t rows, size_t cols,
                unsigned threads, ps_err *err) {
    return run_all(
        &(op){.kind = UNDO, .act = act, .rows = rows, .cols = cols, .y = y, .grad = grad, .out = out},
        threads, err);
}

int ps_cross_entropy(float *scores, const int64_t *labels, float *cost, size_t rows, size_t cols,
                     size_t *errors, unsigned threads, ps_err *err) {
    atomic_size_t found = 0;
    op o = {.kind = CROSS_ENTROPY, .rows = rows, .cols = cols, .x = scores, .out = cost, .labels = labels};
    o.errors = &found;
    int rc = run_all(&o, threads, err);
    *errors = atomic_load(&found);
    return rc;
}

int ps_sum_columns(const float *x, float *out, size_t rows, size_t cols, unsigned threads, ps_err *err) {
    return run_all(&(op){.kind = SUM_COLUMNS, .rows = rows, .cols = cols, .y = x, .out = out}, threads, err);
}

int ps_dot_rows(const float *x, const float *y, float *out, size_t rows, size_t cols, unsigned threads,
                ps_err *err) {
    return run_all(&(op){.kind = DOT_ROWS, .rows = rows, .cols = cols, .y = x, .grad = y, .out = out},
                   threads, err);
}

int ps_take_logs(float *x, size_t n, unsigned threads, ps_err *err) {
    return run_all(&(op){.kind = LOGS, .rows = n, .cols = 1, .x = x}, threads, err);
}
