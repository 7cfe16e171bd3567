/* One trainer as a shard sees it: its connection, the request that is coming in, the answers that go
 * out, and what must survive a broken connection. One thread at a time. */
#ifndef PS_PEER_H
#define PS_PEER_H

#include <stdbool.h>

#include "ps_conn.h"

#define PS_MAX_ANSWERS 65536                    /* that a trainer leaves unread */
#define PS_MAX_ANSWER_BYTES (UINT64_C(4) << 20) /* made for a trainer; beyond it nothing more is read */

/* Rows or a gradient that is held: the body of one frame as it came. */
typedef struct ps_held {
    struct ps_held *next; /* further frames of the same push */
    uint64_t bytes;       /* of the body */
    uint32_t count;       /* keys */
    bool counted;         /* in the shard's held_bytes */
    uint64_t data[];      /* the body */
} ps_held;

/* Where the body that is coming in goes. */
typedef enum ps_sink {
    PS_SINK_DROP,  /* nowhere */
    PS_SINK_BYTES, /* to `mem` */
    PS_SINK_ADD,   /* piece by piece to the sum of a dense object */
    PS_SINK_APPLY, /* piece by piece, and at once applied */
} ps_sink;

/* An answer on its way. */
typedef struct ps_reply {
    uint8_t header[PS_HEADER_BYTES];
    const uint8_t *body; /* borrowed from an object, or `owned` */
    size_t length;
    void *owned; /* freed when the answer has gone */
} ps_reply;

typedef struct ps_peer {
    uint32_t trainer;
    uint64_t incarnation; /* 0: never connected */
    ps_conn conn;

    int64_t active_ms; /* when something of a request last came that is no repetition */

    /* What survives a broken connection. */
    uint64_t done;     /* sequence of the last request that came whole */
    ps_header part;    /* the gradient or initial values that came in part; its op is 0: none */
    uint64_t part_got; /* bytes of its body that were taken */

    /* What does not. */
    ps_header head; /* the request that is coming in */
    uint64_t heard; /* its sequence, or that of the last one */
    bool in_body;   /* the header is there and its body was begun */
    bool paused;    /* the header is there, and its body must wait for the trainer's turn */
    bool full;      /* nothing is read until it has taken some of its answers */
    bool repeated;  /* a request that came whole before */
    ps_sink sink;
    uint8_t *mem;     /* of PS_SINK_BYTES; borrowed */
    ps_held *rows;    /* the body of a request on a table; owned */
    uint64_t got;     /* bytes of the body that were taken */
    bool dying;       /* an error was sent: what still comes is dropped until the other side closes */
    int64_t dead_ms;  /* then: when to close anyway */
    uint64_t skip;    /* bytes of the body still to drop: they were taken before */
    uint8_t carry[4]; /* the bytes of a float that came in part */
    size_t carried;
    uint32_t armed; /* events that epoll watches */

    ps_reply *out; /* [out_cap] */
    size_t out_from, out_to, out_cap;
    size_t out_sent;                               /* bytes of the first */
    uint64_t out_owned;                            /* bytes of bodies that are not borrowed */
    uint8_t create[PS_CREATE_BYTES + PS_MAX_NAME]; /* the body of CREATE */
} ps_peer;

/* A trainer that never connected. Can't fail. */
void ps_peer_init(ps_peer *p, uint32_t trainer);

/* Release all; the socket is closed. Can't fail. */
void ps_peer_close(ps_peer *p);

/* The connection is gone: forget what does not survive it. Of a dense gradient or initial values the
 * bytes that were taken stay taken. Can't fail. */
void ps_peer_lost(ps_peer *p);

/* Queue an answer to the request `to`; takes over `owned` in any case. PS_OK, PS_ENOMEM, or PS_ELIMIT
 * beyond PS_MAX_ANSWERS. */
int ps_peer_answer(ps_peer *p, const ps_header *head, const void *body, void *owned, ps_err *err);

/* Send what is queued, as far as the socket takes it; values go through `pipe`. PS_OK (all went), PS_EAGAIN
 * or PS_ECONN. */
int ps_peer_flush(ps_peer *p, ps_pipe *pipe, ps_err *err);

/* Bytes of the body that is coming in which did not come yet; what came before is sent again, and counts. */
uint64_t ps_peer_left(const ps_peer *p);

/* Whether answers wait to be sent. */
bool ps_peer_unsent(const ps_peer *p);

/* Whether no more is to be read until the trainer has taken some of its answers. Values go out of their
 * object and need no memory; rows do. */
bool ps_peer_full(const ps_peer *p);

#endif
