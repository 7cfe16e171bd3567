/* Optimizers: update of values by a gradient. Element by element, so that the bits do not depend on
 * the division of values into blocks, rows or vectors. runtime/reference.py specifies it in numpy.
 *
 * With g the gradient, p the value and L2 added to the gradient as PaddlePaddle v2 does it:
 *   PS_SGD       p -= lr * (g + decay * p)
 *   PS_MOMENTUM  m = momentum * m - lr * (g + decay * p);  p += m
 *   PS_ADAGRAD   h += g * g;  p -= lr * (g + decay * p) / sqrt(h + epsilon)      (no decay in h)
 * Sources: PaddlePaddle v2, paddle/parameter/ParameterUpdateFunctions.cpp (sgdUpdateCpu) and
 * paddle/math/TrainingAlgorithmOp.cu (adagradApply; Duchi, Hazan, Singer, JMLR 12, 2011). They differ
 * in the order of roundings: decay is multiplied by lr first there, and the root's reciprocal is
 * taken; Paddle moves h to a second buffer each 16384 steps, which keeps more digits of it; and for rows
 * of a table it catches up on the decay of the steps between (OptimizerWithRegularizerSparse). */
#ifndef PS_OPTIM_H
#define PS_OPTIM_H

#include <stdint.h>

#include "ps_err.h"

enum { PS_SGD = 0, PS_MOMENTUM = 1, PS_ADAGRAD = 2, PS_METHODS = 3 };

/* Update rule of one parameter. */
typedef struct ps_optim {
    uint32_t method;     /* PS_SGD, PS_MOMENTUM or PS_ADAGRAD */
    float learning_rate; /* global rate times the parameter's own */
    float momentum;      /* PS_MOMENTUM only */
    float decay;         /* L2 rate */
    float epsilon;       /* PS_ADAGRAD only, inside the root */
} ps_optim;

/* Check `o`: PS_OK, or PS_EINVAL if the method is unknown, a number is not finite or epsilon is negative. */
int ps_optim_check(const ps_optim *o, ps_err *err);

/* Return the floats of state per value: 0 or 1; 0 for an unknown method. All zero before the first step. */
uint32_t ps_optim_slots(uint32_t method);

/* Apply one step to value[0..n), in place. slots: [n * ps_optim_slots()], in place, NULL if that is 0.
 * The arrays must not overlap. `o` has passed ps_optim_check(). Can't fail. */
void ps_optim_apply(const ps_optim *o, float *restrict value, float *restrict slots,
                    const float *restrict grad, size_t n);

/* Run ps_optim_apply() in a given build of the kernel: for tests. */
void ps_optim_apply_isa(ps_isa isa, const ps_optim *o, float *restrict value, float *restrict slots,
                        const float *restrict grad, size_t n);

/* Apply one step to some rows of a matrix. value: [rows_n, dim], slots: [rows_n, dim * ps_optim_slots()] or
 * NULL, rows: [k] row numbers, grad: [k, dim]. The arrays must not overlap. Returns PS_OK; PS_EINVAL
 * if a row number is out of range or repeated, PS_ENOMEM; then nothing was written. O(k * dim),
 * and O(rows_n / 64) more if `rows` is not ascending. */
int ps_optim_apply_rows(const ps_optim *o, float *restrict value, float *restrict slots, size_t rows_n,
                        size_t dim, const uint64_t *restrict rows, const float *restrict grad, size_t k,
                        ps_err *err);

/* Add g[0..n) to acc[0..n). They must not overlap. Can't fail. */
void ps_add(float *restrict acc, const float *restrict g, size_t n);

/* Run ps_add() in a given build of the kernel: for tests. */
void ps_add_isa(ps_isa isa, float *restrict acc, const float *restrict g, size_t n);

#endif
