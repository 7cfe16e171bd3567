/* Activations of layers, costs, and sums. Rows are samples, [rows, cols] and dense. Sums over a row are taken
 * in 16 lanes and then by a fixed tree, those over a column in the order of the rows: the same bits on every
 * processor and for any number of threads. */
#ifndef PS_ACT_H
#define PS_ACT_H

#include <stdatomic.h>

#include "kernels/ps_compute.h"

typedef enum ps_act { PS_SIGMOID, PS_TANH, PS_RELU, PS_SOFTMAX, PS_EXPONENTIAL, PS_ACTS } ps_act;

typedef enum ps_act_kind {
    PS_APPLY,         /* apply `act` to x */
    PS_UNDO,          /* out: the gradient of the input of `act`; y: its output, grad: the gradient of that */
    PS_CROSS_ENTROPY, /* replace scores x by their softmax; out: -log(probability of the label) of each row */
    PS_SUM_COLUMNS,   /* out: the sum of each column of y, in the order of the rows */
    PS_DOT_ROWS,      /* out: the sum of the products of each row of y with that of grad */
    PS_TAKE_LOGS,     /* replace each value of x by its logarithm */
} ps_act_kind;

/* A computation, with the arrays that its kind names. */
typedef struct ps_act_op {
    ps_act_kind kind;
    ps_act act;
    size_t rows, cols;
    float *x; /* changed in place */
    const float *y, *grad;
    float *out;
    const int64_t *labels; /* one out of range is wrong */
    atomic_size_t wrong;   /* result: rows in which another score is higher, or one is NaN */
} ps_act_op;

/* Run a computation. PS_OK, or PS_ENOMEM; then nothing was written. */
int ps_act_run(ps_act_op *o, unsigned threads, ps_err *err);

#endif
