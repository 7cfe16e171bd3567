/* A shard's state of one trainer: its connection, the request being received, the answers being
 * sent, and the part that survives a broken connection. One thread at a time. */
#ifndef PS_PEER_H
#define PS_PEER_H

#include <stdbool.h>

#include "wire/ps_conn.h"

#define PS_MAX_ANSWERS 65536                    /* unread by a trainer */
#define PS_MAX_ANSWER_BYTES (UINT64_C(4) << 20) /* queued for a trainer; beyond it nothing is read */

/* Held rows or a held gradient: the body of one frame as received. */
typedef struct ps_held {
    struct ps_held *next; /* further frames of the same push */
    uint64_t bytes;       /* of the body */
    uint32_t count;       /* keys */
    uint64_t charge;      /* in the shard's held_bytes */
    uint64_t sequence;    /* of a parked read */
    uint64_t version;     /* a parked read waits for this step */
    uint64_t data[];      /* the body */
} ps_held;

/* Destination of the body being received. */
typedef enum ps_sink {
    PS_SINK_DROP,  /* discarded */
    PS_SINK_BYTES, /* to `mem` */
    PS_SINK_ADD,   /* piece by piece to the sum of a dense object */
    PS_SINK_APPLY, /* piece by piece, applied at once */
} ps_sink;

/* An answer being sent. */
typedef struct ps_reply {
    struct ps_reply *next;
    uint8_t header[PS_HEADER_BYTES];
    const uint8_t *body; /* borrowed from an object, or `owned` */
    size_t length;
    void *owned; /* freed when the answer has gone */
} ps_reply;

typedef struct ps_peer {
    uint32_t trainer;
    uint64_t incarnation; /* 0: never connected */
    ps_conn conn;

    int64_t active_ms; /* when new bytes of a request last came */
    uint32_t waits;    /* its requests that others hold up */

    /* Survives a broken connection. */
    uint64_t done;     /* sequence of the last complete request */
    ps_header part;    /* incomplete gradient or initial values; op 0: none */
    uint64_t part_got; /* bytes of its body already taken */
    bool finished;     /* it sends no further request */

    /* Does not survive it. */
    ps_header head; /* the request being received */
    uint64_t heard; /* its sequence, or that of the last one */
    bool in_body;   /* the header is complete and its body was begun */
    bool paused;    /* the header is complete, its body waits for the trainer's turn */
    bool full;      /* nothing is read until it has taken some of its answers */
    bool hungry;    /* it has used up its share, and may have input in our buffer */
    bool repeated;  /* a repetition of a complete request */
    ps_sink sink;
    uint8_t *mem;     /* of PS_SINK_BYTES; borrowed */
    ps_held *rows;    /* the body of CREATE or of a request on a table; owned */
    uint64_t got;     /* bytes of the body already taken */
    bool dying;       /* an error was sent: further input is dropped until the other side closes */
    int64_t dead_ms;  /* then: time to close anyway */
    uint64_t skip;    /* bytes of the body still to drop: they were taken before */
    uint8_t carry[4]; /* bytes of an incomplete float */
    size_t carried;
    uint32_t armed; /* events that epoll watches */

    ps_reply *out, *out_last; /* answers to send; last: undefined if there is no first */
    uint32_t out_n;
    size_t out_sent;    /* bytes of the first */
    uint64_t out_owned; /* bytes of owned bodies, of rows: values are sent from their object */
} ps_peer;

/* Close the socket, and reset the state that does not survive a lost connection, but for `rows`. Bytes of a
 * dense gradient or of initial values already taken stay taken. Can't fail. */
void ps_peer_lost(ps_peer *p);

/* Queue an answer; takes over `owned` in any case. PS_OK, PS_ENOMEM, or PS_ELIMIT beyond PS_MAX_ANSWERS. */
int ps_peer_answer(ps_peer *p, const ps_header *head, const void *body, void *owned, ps_err *err);

/* Return true if a part of this body waits to be sent. */
bool ps_peer_owes(const ps_peer *p, const void *body);

/* Send queued answers as far as the socket takes them. PS_OK (all sent), PS_EAGAIN or PS_ECONN. */
int ps_peer_flush(ps_peer *p, ps_err *err);

/* Return the missing bytes of the body being received; earlier ones are sent again, and count. */
uint64_t ps_peer_left(const ps_peer *p);

#endif
