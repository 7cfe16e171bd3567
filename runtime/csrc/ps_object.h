/* An object on one shard, dense or a table: its description, its step, and the gradients
 * held until their trainer's turn. Knows no sockets and no Python. One thread at a time. */
#ifndef PS_OBJECT_H
#define PS_OBJECT_H

#include "ps_dense.h"
#include "ps_peer.h"
#include "ps_sparse.h"
#include "ps_step.h"

typedef struct ps_object {
    ps_create spec;
    uint32_t creator; /* the trainer that created it */
    ps_step step;
    ps_dense dense;        /* of a dense object */
    ps_sparse *sparse;     /* of a table; else NULL */
    ps_held **held;        /* [trainers], frames in order */
    uint32_t held_n;       /* trainers with held frames */
    uint64_t *init_waits;  /* [trainers], sequence of the INIT to answer when the values are there */
    int64_t init_since_ms; /* when the first trainer began to wait for them; 0: none */
} ps_object;

/* Make an object for `trainers` in *out. PS_OK, PS_ENOMEM, PS_EINVAL; then *out is NULL. */
int ps_object_new(ps_object **out, const ps_create *spec, uint32_t creator, uint32_t trainers, ps_err *err);

/* Release all. NULL is allowed. Can't fail. */
void ps_object_free(ps_object *o);

/* Allocate a buffer for a body of this length. NULL on failure. */
ps_held *ps_held_new(uint64_t bytes, uint32_t count);

/* Append `h` to the trainer's held frames; the object owns it then. Can't fail. */
void ps_object_hold(ps_object *o, uint32_t trainer, ps_held *h);

/* Add all held frames of the trainer whose turn it is to the sum, and free them; *freed grows by their
 * counted bytes. PS_OK, or an error of the table; then the remaining ones stay held. */
int ps_object_take(ps_object *o, const uint8_t *ended, uint32_t trainer, uint64_t *freed, ps_err *err);

/* Apply the complete step. Can't fail. */
void ps_object_commit(ps_object *o);

#endif
