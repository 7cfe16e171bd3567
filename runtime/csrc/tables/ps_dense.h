/* A dense object on one shard: values, the optimizer's state, and the sum of the open step. Gradients
 * come in trainer order (ps_step), each in pieces as they arrive. Knows no sockets and no Python. One
 * thread at a time. */
#ifndef PS_DENSE_H
#define PS_DENSE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/ps_optim.h"

typedef struct ps_dense {
    size_t n; /* floats */
    ps_optim optim;
    bool ready;           /* the values are set */
    bool sum_empty;       /* no gradient of this step is in `sum` */
    bool applied;         /* the last gradient of this step went straight into the values */
    float *values;        /* [n] */
    float *slots;         /* [ps_optim_state()], slot by slot; NULL if that is 0 */
    float *sum;           /* [n], NULL until a step needs it */
    struct ps_keep *keep; /* chunks of values and state as they were before; NULL: nobody asks for them */
} ps_dense;

#define PS_DENSE_CHUNK 16384 /* floats of values, the last chunk has fewer */

/* Initialise with zero values, not ready. `optim` has passed ps_optim_check(). PS_OK or PS_ENOMEM; then *d
 * is zeroed. */
int ps_dense_init(ps_dense *d, size_t n, const ps_optim *optim, ps_err *err);

/* Release the contents of `d`; a zeroed one is allowed. Can't fail. */
void ps_dense_close(ps_dense *d);

/* Return the buffer for the first gradient of a step, [n]; when it is complete d->sum_empty becomes false.
 * NULL if there is no memory. */
float *ps_dense_sum(ps_dense *d);

/* Apply the piece [at, at + k) of the last gradient of this step, counted from 1, at once, so that the sum
 * need not be read again. After all pieces, ps_dense_commit() or ps_dense_end() ends the step. Can't fail. */
void ps_dense_apply(ps_dense *d, uint64_t step, size_t at, const float *grad, size_t k);

/* End a step whose last gradient went through ps_dense_apply(). Can't fail. */
void ps_dense_end(ps_dense *d, uint64_t step);

/* End the step: apply the optimizer, unless all went through ps_dense_apply(). Can't fail. */
void ps_dense_commit(ps_dense *d, uint64_t step);

/* Keep all values and state as they are now for ps_dense_kept(), until ps_keep_end(&d->keep): steps may
 * change them meanwhile. PS_OK or PS_ENOMEM. */
int ps_dense_keep(ps_dense *d, ps_err *err);

/* Find the kept chunk `number`, from 1, of the values (slot 0) or of a slot of the state, from 1. `last`:
 * those before it are not needed any more. Returns its length in floats; 0: there is none. */
size_t ps_dense_kept(const ps_dense *d, uint32_t slot, bool last, uint32_t number, const float **floats);

#endif
