/* First values of objects, from files that the owner of a shard knows: used in place of those of trainer 0.
 * Read piece by piece, so that they take no memory beside the object. Knows no sockets and no Python. */
#ifndef PS_FIRST_H
#define PS_FIRST_H

#include "shard/ps_object.h"

/* A part of an object in a file: numbers of bytes from its begin. */
typedef struct ps_stored {
    int fd;           /* borrowed */
    uint64_t keys_at; /* of a table, the keys: of `count` rows, then of `waiting` without one */
    uint64_t at;      /* of a table: rows, then counts; of a dense object: values */
    uint64_t stride;  /* of a dense object: from a value to its state, and from slot to slot */
    uint64_t count;   /* rows, or values */
    uint64_t waiting;
} ps_stored;

/* All parts that have something of an object. */
typedef struct ps_first {
    uint64_t steps, samples, passes;
    uint32_t slots;         /* of state that is taken */
    uint32_t floats;        /* of a table: of a row in the files */
    bool counted;           /* of a table: the files have counts */
    ps_init init;           /* of a table: initial values of all other rows */
    uint32_t shard, shards; /* of a table: this one, of so many */
    const ps_stored *parts; /* [n], borrowed; of a dense object in the order of its values */
    size_t n;
} ps_first;

/* The owner finds the parts of a new object. PS_OK; f->parts is NULL if there are none, else borrowed until
 * the next call. Or the code that refuses the object, with `err`. */
typedef struct ps_finder {
    int (*find)(void *owner, const ps_create *spec, ps_first *f, ps_err *err);
    void *owner;
} ps_finder;

/* Set values, state and steps of a new object of this pass, if the finder, which may be empty, has them.
 * PS_OK; PS_EPROTO if the sizes differ, PS_ESYS if a file can't be read, PS_ENOMEM, PS_ELIMIT, or the
 * finder's code. */
int ps_first_apply(const ps_finder *from, ps_object *o, uint64_t pass, ps_err *err);

#endif
