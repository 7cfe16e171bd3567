/* Activations of layers, costs, and sums. Rows are samples, [rows, cols] and dense. Sums over a row are taken
 * in 16 lanes and then by a fixed tree, those over a column in the order of the rows: the same bits on every
 * processor and for any number of threads. All return PS_OK, or PS_ENOMEM; then nothing was written. */
#ifndef PS_ACT_H
#define PS_ACT_H

#include "kernels/ps_compute.h"

typedef enum ps_act { PS_SIGMOID, PS_TANH, PS_RELU, PS_SOFTMAX, PS_EXPONENTIAL, PS_ACTS } ps_act;

/* Apply `act` in place. */
int ps_act_apply(ps_act act, float *x, size_t rows, size_t cols, unsigned threads, ps_err *err);

/* Write the gradient of the input of `act`. y: its output, grad: the gradient of that. */
int ps_act_undo(ps_act act, const float *y, const float *grad, float *out, size_t rows, size_t cols,
                unsigned threads, ps_err *err);

/* Replace scores by their softmax and write -log(probability of the label) of each row. labels: each below
 * `cols`. *errors: rows in which another score is higher, or one is NaN. */
int ps_cross_entropy(float *scores, const int64_t *labels, float *cost, size_t rows, size_t cols,
                     size_t *errors, unsigned threads, ps_err *err);

/* Write the sum of each column, in the order of the rows. */
int ps_sum_columns(const float *x, float *out, size_t rows, size_t cols, unsigned threads, ps_err *err);

/* Write the sum of the products of each row of x with that of y. */
int ps_dot_rows(const float *x, const float *y, float *out, size_t rows, size_t cols, unsigned threads,
                ps_err *err);

/* Replace x[0..n) by logarithms. */
int ps_take_logs(float *x, size_t n, unsigned threads, ps_err *err);

#endif
