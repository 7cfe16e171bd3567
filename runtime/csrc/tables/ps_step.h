/* Turns of the trainers in a synchronous step of one object. Gradients enter the sum in trainer order,
 * whatever order they arrive in; a trainer that has ended the pass is an empty push in its place.
 * Pure: no sockets, no gradients. */
#ifndef PS_STEP_H
#define PS_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/ps_err.h"

enum {
    PS_PART_NONE = 0,  /* not begun */
    PS_PART_SUM = 1,   /* being added to the sum: this is the next trainer */
    PS_PART_HELD = 2,  /* held until its turn, incomplete */
    PS_PART_WHOLE = 3, /* held, complete */
    PS_PART_DONE = 4,  /* in the sum */
    PS_PART_LATE = 5,  /* of an asynchronous push: being dropped */
};

typedef struct ps_step {
    uint32_t n;       /* trainers */
    uint32_t next;    /* the trainer whose turn it is; n: none */
    uint64_t version; /* steps that are complete */
    uint8_t *part;    /* [n], PS_PART_* */
    uint64_t *waiter; /* [n], sequence of the push to answer when the step is complete; 0: none */
    uint32_t *flags;  /* [n], of that push */
    int64_t since_ms; /* arrival of the open step's first part */
} ps_step;

/* Initialise a step of `n` trainers, version 0. PS_OK or PS_ENOMEM. */
int ps_step_init(ps_step *s, uint32_t n, ps_err *err);

/* Release the contents of `s`; a zeroed one is allowed. Can't fail. */
void ps_step_close(ps_step *s);

/* Pass the turn on over all trainers in the sum or, by ended[n], at the end of the pass without a push.
 * Returns the trainer whose turn it is, n if none is left: then the step is complete if it is open. O(n). */
uint32_t ps_step_turn(ps_step *s, const uint8_t *ended);

/* Return true if it is `trainer`'s turn and it is the last. O(n). */
bool ps_step_last(ps_step *s, const uint8_t *ended, uint32_t trainer);

/* Return true if a part of the incomplete step has arrived. */
bool ps_step_open(const ps_step *s);

/* Note that the step was applied: one version more, nothing arrived for the next. Waiters stay. */
void ps_step_commit(ps_step *s);

#endif
