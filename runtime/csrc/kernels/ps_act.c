#include "kernels/ps_act.h"

#include "kernels/ps_exp.h"

enum { LANES = 16 };

/* Values for a thread: fewer do not pay for it. */
enum { LEAST_WORK = 1 << 14 };

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

PS_INLINE size_t cross_entropy(const ps_act_op *o, size_t begin, size_t end) {
    size_t wrong = 0;
    for (size_t i = begin; i < end; i++)
        wrong += !cross_entropy_row(o->x + i * o->cols, o->cols, (size_t)o->labels[i], &o->out[i]);
    return wrong;
}

/* Four rows at a time: the sums are read and written once for them. */
PS_INLINE void sum_columns(const ps_act_op *o, size_t begin, size_t end) {
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

/* Body of every build, for some rows, or columns of PS_SUM_COLUMNS. Returns the wrong ones. */
PS_INLINE size_t run(const ps_act_op *o, size_t begin, size_t end) {
    size_t cols = o->cols;
    if (o->kind == PS_CROSS_ENTROPY) return cross_entropy(o, begin, end);
    if (o->kind == PS_SUM_COLUMNS) sum_columns(o, begin, end);
    else if (o->kind == PS_APPLY)
        for (size_t i = begin; i < end; i++) apply_row(o->act, o->x + i * cols, cols);
    else if (o->kind == PS_UNDO)
        for (size_t i = begin; i < end; i++)
            undo_row(o->act, o->y + i * cols, o->grad + i * cols, o->out + i * cols, cols);
    else if (o->kind == PS_DOT_ROWS)
        for (size_t i = begin; i < end; i++) o->out[i] = dot(o->y + i * cols, o->grad + i * cols, cols);
    else
        for (size_t i = begin * cols; i < end * cols; i++) o->x[i] = ps_log(o->x[i]);
    return 0;
}

PS_TARGET_FMA static size_t run_avx2(const ps_act_op *o, size_t begin, size_t end) {
    return run(o, begin, end);
}

PS_TARGET_AVX512 static size_t run_avx512(const ps_act_op *o, size_t begin, size_t end) {
    return run(o, begin, end);
}

static size_t count_items(const ps_act_op *o) {
    return o->kind == PS_SUM_COLUMNS ? o->cols : o->rows;
}

static void run_part(void *job, unsigned part, unsigned parts, float *scratch PS_UNUSED) {
    ps_act_op *o = job;
    size_t n = count_items(o), begin = ps_part_begin(n, part, parts), end = ps_part_begin(n, part + 1, parts);
    ps_isa isa = ps_build();
    size_t wrong = isa == PS_ISA_AVX512 ? run_avx512(o, begin, end)
                   : isa == PS_ISA_AVX2 ? run_avx2(o, begin, end)
                                        : run(o, begin, end);
    atomic_fetch_add(&o->wrong, wrong);
}

int ps_act_run(ps_act_op *o, unsigned threads, ps_err *err) {
    unsigned parts = ps_parts(o->rows * o->cols, LEAST_WORK, threads);
    if (parts > count_items(o)) parts = count_items(o) > 0 ? (unsigned)count_items(o) : 1;
    atomic_init(&o->wrong, 0);
    return ps_compute(parts, 0, run_part, o, err);
}
