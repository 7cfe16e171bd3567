/* Optimizers: update of values by a gradient. Element by element, so that the bits do not depend on
 * the division of values into blocks, rows or vectors. tests/support/reference.py specifies it in numpy.
 *
 * docs/optimizers.md has the formulas: those of PaddlePaddle v2 (sgd, momentum, adagrad, decayed_adagrad,
 * adadelta, rmsprop, adam, adamax), in which L1 moves a value towards 0 after its step, but not beyond; those
 * of PaddlePaddle 2 and Fluid, in which it is in the gradient; and row_adagrad, ours.
 *
 * Sources: PaddlePaddle v2, paddle/parameter/ParameterUpdateFunctions.cpp (sgdUpdateCpu),
 * paddle/math/TrainingAlgorithmOp.cu, paddle/parameter/FirstOrderOptimizer.cpp,
 * paddle/parameter/Regularizer.h; PaddlePaddle 2.6, paddle/phi/kernels. They differ in the order of
 * roundings: decay is multiplied by the rate first there, and the root's reciprocal is taken; Paddle moves h
 * of AdaGrad to a second buffer each 16384 steps, which keeps more digits of it; v2 shrinks values by L2
 * after the update if the method is Adam or L1 is given too; for rows of a table it catches up on the steps
 * between, and has a first step for each. */
#ifndef PS_OPTIM_H
#define PS_OPTIM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/ps_err.h"

/* Methods by their rows in the table of ps_optim.c, which grows at its end: files have these numbers. Others
 * are known by their names. */
enum {
    PS_SGD = 0,
    PS_MOMENTUM = 1,
    PS_ADAGRAD = 2,
    PS_FLEET_ADAGRAD = 3,
    PS_ADAM = 4,
    PS_FLEET_MOMENTUM = 5,
    PS_ROW_ADAGRAD = 21,
    PS_LAMB = 22,
    PS_METHODS = 23,
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

/* A number of a method. */
typedef struct ps_number {
    const char *name; /* NULL: no further one */
    double usual;
} ps_number;

/* Description of a method. */
typedef struct ps_method {
    const char *name;
    uint32_t slots; /* floats of state per value, all zero before the first step */
    ps_number numbers[PS_NUMBERS];
} ps_method;

/* Rates of one step. */
typedef struct ps_rate {
    float rate;   /* of the values */
    float second; /* a further number, of some methods */
} ps_rate;

/* Return the description of a method; NULL for an unknown one. */
const ps_method *ps_optim_method(uint32_t method);

/* Return the floats of state of a row of n values, or of a dense parameter; 0 for an unknown method. */
size_t ps_optim_state(uint32_t method, size_t n);

/* Return true for a method of rows, with a state for each row: it has no dense parameters. */
bool ps_optim_by_row(uint32_t method);

/* Return true for a method whose steps have a second part, ps_optim_finish(), over a whole dense parameter:
 * it has no tables. */
bool ps_optim_whole(uint32_t method);

/* Check `o`: PS_OK, or PS_EINVAL if the method is unknown or a number is out of range; the text names it. */
int ps_optim_check(const ps_optim *o, ps_err *err);

/* Return the rates of this step, from 1. `o` has passed ps_optim_check(). */
ps_rate ps_optim_rate(const ps_optim *o, uint64_t step);

/* Apply one step to value[0..n), in place. slots: the state, in place; slot k of value i is
 * slots[k * stride + i], NULL without state; of a method of rows, value is one row and its state slots[0].
 * The arrays must not overlap. rate: from ps_optim_rate(). `o` has passed ps_optim_check(). Can't fail. */
void ps_optim_apply(const ps_optim *o, ps_rate rate, float *restrict value, float *restrict slots,
                    size_t stride, const float *restrict grad, size_t n);

/* End a step of a dense parameter, after ps_optim_apply() for all of its values. Can't fail. */
void ps_optim_finish(const ps_optim *o, ps_rate rate, float *restrict value, const float *restrict slots,
                     size_t n);

/* Return the sum of the squares of p[0..n), in chains of doubles whose order depends on n alone. */
double ps_squares(const float *p, size_t n);

/* Return true if none of p[0..n) is NaN or infinite. Can't fail. */
bool ps_finite(const float *p, size_t n);

/* Add g[0..n) to acc[0..n). They must not overlap. Can't fail. */
void ps_add(float *restrict acc, const float *restrict g, size_t n);

#endif
