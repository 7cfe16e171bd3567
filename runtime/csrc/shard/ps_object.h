/* An object on one shard, dense or a table: its description, its step, and the gradients
 * held until their trainer's turn. Knows no sockets and no Python. One thread at a time. */
#ifndef PS_OBJECT_H
#define PS_OBJECT_H

#include "tables/ps_dense.h"
#include "shard/ps_peer.h"
#include "tables/ps_sparse.h"

enum {
    PS_PART_NONE = 0,  /* not begun */
    PS_PART_SUM = 1,   /* being added to the sum: this is the next trainer */
    PS_PART_HELD = 2,  /* held until its turn, incomplete */
    PS_PART_WHOLE = 3, /* held, complete */
    PS_PART_DONE = 4,  /* in the sum */
    PS_PART_LATE = 5,  /* of an asynchronous push: being dropped */
};

/* Turns of the trainers in a synchronous step. Gradients enter the sum in trainer order, whatever order they
 * arrive in; a trainer that has ended the pass is an empty push in its place. */
typedef struct ps_step {
    uint32_t n;       /* trainers */
    uint32_t next;    /* the trainer whose turn it is; n: none */
    uint64_t version; /* steps that are complete */
    uint8_t *part;    /* [n], PS_PART_* */
    uint64_t *waiter; /* [n], sequence of the push to answer when the step is complete, or of the INIT to
                         answer when the values are there; 0: none */
    uint32_t *flags;  /* [n], of that push */
    int64_t since_ms; /* arrival of the open step's first part, or of the first such INIT */
} ps_step;

/* Pushes of a trainer that came too late. */
typedef struct ps_drops {
    uint64_t count;
    uint64_t last; /* sequence of the last one */
    uint64_t told; /* the count in the last event */
} ps_drops;

/* Frames in order. */
typedef struct ps_line {
    ps_held *first, *last; /* last: undefined if there is no first */
} ps_line;

typedef struct ps_object {
    ps_create spec;
    uint32_t creator; /* the trainer that created it */
    ps_step step;
    uint64_t samples;  /* of all pushes that have begun */
    uint64_t passes;   /* complete ones before those of this training */
    float factor;      /* of the learning rate, from the trainer `rated_by` */
    uint32_t rated_by; /* the first in order whose push of this step has begun; of an asynchronous object
                          the last that began */
    uint64_t shrunk;   /* rows given back by SHRINK */
    ps_dense dense;    /* of a dense object */
    ps_sparse *sparse; /* of a table; else NULL */
    bool given;        /* it has values of files (ps_first.h): trainer 0 sets none */
    ps_line *held;     /* [trainers] */
    uint32_t held_n;   /* trainers with held frames */
    ps_line *parked;   /* [trainers], keys of reads that wait for a step */
    ps_drops *drops;   /* [trainers] */
} ps_object;

/* Make an object for `trainers` in *out. PS_OK, PS_ENOMEM, PS_EINVAL; then *out is NULL. */
int ps_object_new(ps_object **out, const ps_create *spec, uint32_t creator, uint32_t trainers, ps_err *err);

/* Release all. NULL is allowed. Can't fail. */
void ps_object_free(ps_object *o);

/* Pass the turn on over all trainers in the sum or, by ended[n], at the end of the pass without a push.
 * Returns the trainer whose turn it is, n if none is left: then the step is complete if it is open. O(n). */
uint32_t ps_step_turn(ps_step *s, const uint8_t *ended);

/* Return true if it is `trainer`'s turn and it is the last. O(n). */
bool ps_step_last(ps_step *s, const uint8_t *ended, uint32_t trainer);

/* Return true if a part of the incomplete step has arrived. */
bool ps_step_open(const ps_step *s);

/* Allocate a buffer for a body of this length. NULL on failure. */
ps_held *ps_held_new(uint64_t bytes, uint32_t count);

/* Append `h` to the trainer's held frames; the object owns it then. Can't fail. */
void ps_object_hold(ps_object *o, uint32_t trainer, ps_held *h);

/* Add all held frames of the trainer whose turn it is to the sum, and free them; *held shrinks by their
 * charge. PS_OK, or an error of the table; then the remaining ones stay held. */
int ps_object_take(ps_object *o, const uint8_t *ended, uint32_t trainer, uint64_t *held, ps_err *err);

/* Count a push that begins. The learning rate follows from the samples of all pushes of a step, the factor of
 * the first trainer's and the pass, so it is known when the last push of the step has begun. Can't fail. */
void ps_object_count(ps_object *o, const ps_header *push, uint64_t pass);

/* Give the learning rate, step and pass to the values, before they change. Can't fail. */
void ps_object_begin(ps_object *o, uint64_t pass);

/* Apply the complete step. Can't fail. */
void ps_object_commit(ps_object *o);

/* Return true if each push is a step of its own, applied as it comes. */
bool ps_object_async(const ps_object *o);

/* Return true if some values have a gradient that others still lack. */
bool ps_object_torn(const ps_object *o);

/* Return the bytes of values, state and keys. */
uint64_t ps_object_bytes(const ps_object *o);

/* Keep a read until its step is complete; the object owns it then. Can't fail. */
void ps_object_park(ps_object *o, uint32_t trainer, ps_held *h);

/* Take back the trainer's first kept read that can be answered now; the caller owns it then. NULL: there is
 * none. Can't fail. */
ps_held *ps_object_unpark(ps_object *o, uint32_t trainer);

/* Free the trainer's kept reads. Returns their charge. Can't fail. */
uint64_t ps_object_forget_parked(ps_object *o, uint32_t trainer);

#endif
