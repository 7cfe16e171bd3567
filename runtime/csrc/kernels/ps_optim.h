/* Optimizers: update of values by a gradient. Element by element, so that the bits do not depend on
 * the division of values into blocks, rows or vectors. tests/support/reference.py specifies it in numpy.
 *
 * With p the value, G the gradient summed over all trainers, rate that of the step (ps_optim_rate):
 *   g = min(max(G, -clip), clip) if clip > 0, else G                          (clipping by value)
 *   PS_SGD            p -= rate * (g + l2 * p)
 *   PS_MOMENTUM       m = momentum * m - rate * (g + l2 * p);  p += m
 *   PS_ADAGRAD        h += g * g;  p -= rate * (g + l2 * p) / sqrt(h + epsilon)          (no l2 in h)
 *   PS_FLEET_ADAGRAD  d = g + l2 * p;  h += d * d;  p -= rate * d / (sqrt(h) + epsilon)
 *   PS_ADAM           d = g + l2 * p;  m = beta1 * m + (1 - beta1) * d;
 *                     v = beta2 * v + (1 - beta2) * (d * d);  p -= m * rate / (sqrt(v) + epsilon)
 *   PS_FLEET_MOMENTUM m = momentum * m + (g + l2 * p);  p -= rate * m
 * then, if l1 > 0, p moves towards 0 by learning_rate * l1, but not
 * beyond (soft threshold); with PS_ADAGRAD by learning_rate * l1 / sqrt(h + epsilon) Sources: PaddlePaddle
 * v2, paddle/parameter/ParameterUpdateFunctions.cpp (sgdUpdateCpu), paddle/math/TrainingAlgorithmOp.cu
 * (adagradApply; Duchi, Hazan, Singer, JMLR 12, 2011; adamApply; Kingma, Ba, ICLR 2015, end of section 2),
 * paddle/parameter/Regularizer.h (L1), paddle/parameter/FirstOrderOptimizer.cpp
 * (OptimizerWithGradientClipping); PaddlePaddle Fluid, paddle/fluid/operators/optimizers/adagrad_op.h,
 * momentum_op.h. They differ in the order of roundings: decay is multiplied by the rate first there, and the
 * root's reciprocal is taken; Paddle moves h to a second buffer each 16384 steps, which keeps more digits of
 * it; v2 shrinks values by L2 after the update if the method is Adam or L1 is given too; and for rows of a
 * table it catches up on the steps between (OptimizerWithRegularizerSparse). */
#ifndef PS_OPTIM_H
#define PS_OPTIM_H

#include <stdint.h>

#include "base/ps_err.h"

enum {
    PS_SGD = 0,
    PS_MOMENTUM = 1,
    PS_ADAGRAD = 2,
    PS_FLEET_ADAGRAD = 3,
    PS_ADAM = 4,
    PS_FLEET_MOMENTUM = 5,
    PS_METHODS = 6,
};

#define PS_NUMBERS 3 /* at most, of a method */

/* Update rule of one parameter. */
typedef struct ps_optim {
    uint32_t method;           /* PS_SGD, ... */
    float learning_rate;       /* global rate times the parameter's own */
    float l1, l2;              /* rates of regularization */
    float clip;                /* greatest magnitude of a gradient's value; 0: none */
    float numbers[PS_NUMBERS]; /* the method's own, in the order of its row; the others 0 */
} ps_optim;

/* Description of a method. */
typedef struct ps_method {
    const char *name;
    uint32_t slots;                  /* floats of state per value, all zero before the first step */
    const char *numbers[PS_NUMBERS]; /* names of its own numbers; NULL: no further one */
} ps_method;

/* Return the description of a method; NULL for an unknown one. */
const ps_method *ps_optim_method(uint32_t method);

/* Return the floats of state per value; 0 for an unknown method. */
uint32_t ps_optim_slots(uint32_t method);

/* Check `o`: PS_OK, or PS_EINVAL if the method is unknown or a number is out of range; the text names it. */
int ps_optim_check(const ps_optim *o, ps_err *err);

/* Return the rate of this step, from 1: the learning rate, of Adam
 * learning_rate * sqrt(1 - beta2^step) / (1 - beta1^step). `o` has passed ps_optim_check(). */
float ps_optim_rate(const ps_optim *o, uint64_t step);

/* Apply one step to value[0..n), in place. slots: the state, in place; slot k of value i is
 * slots[k * stride + i], NULL without state. The arrays must not overlap. rate: from ps_optim_rate().
 * `o` has passed ps_optim_check(). Can't fail. */
void ps_optim_apply(const ps_optim *o, float rate, float *restrict value, float *restrict slots,
                    size_t stride, const float *restrict grad, size_t n);

/* Apply one step to some rows of a matrix. value: [rows_n, dim], slots: [slots, rows_n, dim] or
 * NULL, rows: [k] row numbers, grad: [k, dim]. The arrays must not overlap. Returns PS_OK; PS_EINVAL
 * if a row number is out of range or repeated, PS_ENOMEM; then nothing was written. O(k * dim). */
int ps_optim_apply_rows(const ps_optim *o, float rate, float *restrict value, float *restrict slots,
                        size_t rows_n, size_t dim, const uint64_t *restrict rows, const float *restrict grad,
                        size_t k, ps_err *err);

/* Add g[0..n) to acc[0..n). They must not overlap. Can't fail. */
void ps_add(float *restrict acc, const float *restrict g, size_t n);

#endif
