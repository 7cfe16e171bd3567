/* What requests of a client are made of. */
#ifndef PS_REQUEST_H
#define PS_REQUEST_H

#include "wire/ps_conn.h"

#define PS_MAX_SHARDS 4096

typedef struct ps_client ps_client;

/* Floats [start, start + length) of a dense object, or rows of a table, on this shard. */
typedef struct ps_piece {
    uint64_t shard, start, length;
} ps_piece;

/* The batch that gave a gradient. */
typedef struct ps_batch {
    unsigned long long samples; /* up to PS_MAX_SAMPLES */
    float factor;               /* of the learning rate: finite, not negative */
} ps_batch;

#endif
