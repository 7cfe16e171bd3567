/* A client's calls, built and run. Inner header of ps_call.c (one call), ps_client.c (objects, requests on
 * dense ones, connections), ps_client_rows.c (requests on tables) and ps_client_run.c (sending and
 * receiving). */
#ifndef PS_CALL_H
#define PS_CALL_H

#include <poll.h>

#include "client/ps_request.h"

struct ps_call;

/* One request, and the destination of its answer. */
typedef struct ps_request {
    ps_header head;
    uint8_t raw[PS_HEADER_BYTES];
    struct ps_call *call;
    struct ps_request *next; /* to the same shard; before the call begins, of the call */
    uint32_t shard;
    uint16_t expect; /* op of the answer */
    bool answered;
    size_t out_n, in_n; /* iovecs of the body, and of the answer's body */
    struct iovec *out, *in;
    uint64_t in_bytes;
} ps_request;

/* The client's state of one shard. */
typedef struct ps_link {
    ps_conn conn;
    uint64_t sequence;        /* of the last request */
    uint64_t told;            /* of the last request sent at least in part */
    uint64_t told_whole;      /* of the last request sent whole */
    ps_request *first, *last; /* requests of all calls */
    ps_request *sending;      /* the request being sent */
    uint64_t sent;            /* bytes of it, header included */
    ps_request *reading;      /* the request whose answer is being received */
    ps_header answer;         /* its header */
    uint64_t got;             /* bytes of the answer's body */
    uint32_t open;            /* requests not answered */
    bool refusing;            /* the text of an error is being received */
    char text[PS_MAX_TEXT];   /* of an error */
} ps_link;

/* Versions of an object on one shard. */
typedef struct ps_seen {
    uint64_t version; /* of the object, as far as answers have it */
    uint64_t values;  /* of the values read last, or of the oldest rows read since the mark */
    uint64_t base;    /* of those that the gradient is computed from: `values` at the mark */
    uint32_t shrunk;  /* rows given back so far */
    bool pushing;     /* a push is not answered yet */
} ps_seen;

typedef struct ps_known {
    ps_create spec;
    ps_piece *pieces; /* [pieces_n], in the order of shards */
    size_t pieces_n;
    ps_seen *seen;    /* [shards of the client] */
    uint64_t dropped; /* pushes that a shard dropped, counted by shard */
} ps_known;

/* Memory that lives as long as the call. */
typedef struct ps_stage {
    struct ps_stage *next;
    uint64_t data[];
} ps_stage;

/* Received rows grouped by shard, and their destination. */
typedef struct ps_scatter {
    struct ps_scatter *next;
    const float *rows;
    const size_t *order; /* [n] */
    size_t n;
    uint32_t dim;
    float *out;
} ps_scatter;

typedef struct ps_call {
    struct ps_call *next;
    uint64_t number;          /* from 1, once it has begun */
    ps_request *first, *last; /* before it begins */
    uint32_t open;            /* requests not answered */
    ps_stage *stages;
    ps_scatter *scatters;
} ps_call;

struct ps_client {
    uint32_t shards, epoch, trainer;
    ps_link *links;       /* [shards] */
    struct pollfd *polls; /* [shards] */
    ps_known *objects;
    uint32_t objects_n;
    size_t objects_cap;
    ps_call *building;  /* the call to which requests are added; NULL: none yet */
    ps_call *calls;     /* those that have begun and are not complete */
    uint64_t begun;     /* number of the last one */
    uint64_t cut_step;  /* ps_client_cut_step() */
    struct iovec *iovs; /* of the request being built */
    size_t iovs_n, iovs_cap;
};

/* Report that memory is exhausted. Returns PS_ENOMEM. */
int ps_call_no_memory(ps_err *err);

/* Allocate n items of `size` bytes until the end of the call being built. NULL on failure. */
void *ps_call_stage(ps_client *c, size_t n, size_t size);

/* Add a piece of a body. PS_OK or PS_ENOMEM. */
int ps_call_iov(ps_client *c, void *base, size_t length, ps_err *err);

/* Add a request to one shard; takes the added iovecs: first `outs` for the body, then those for the answer.
 * PS_OK or PS_ENOMEM. */
int ps_call_request(ps_client *c, uint32_t shard, ps_header head, uint16_t expect, size_t outs, ps_err *err);

/* Note a push of the object to this shard, and set the version that it carries. PS_OK; PS_EINVAL if the
 * object is synchronous and the push before has no answer yet. */
int ps_call_push(ps_known *o, uint32_t shard, uint64_t *version, ps_err *err);

/* Set what a push's header says of its batch. PS_OK; PS_EINVAL if a number is out of range. */
int ps_call_batch(const ps_batch *batch, ps_header *head, ps_err *err);

/* Allocate likewise until the end of a call that has begun. */
void *ps_call_more(ps_call *call, size_t n, size_t size);

/* End a call whose requests are all answered: rows go to their places, and the call is freed. */
void ps_call_complete(ps_client *c, ps_call *call);

/* Remove a call from the client and free it; its requests are in no link any more. */
void ps_call_free(ps_client *c, ps_call *call);

/* Free the call being built, if there is one, and forget the pieces of its next request. */
void ps_call_discard(ps_client *c);

/* Note that so many bytes more were sent: of the requests from `sending` on, without those answered. */
void ps_call_sent(ps_link *l, uint64_t sent);

/* Find the object of this id and kind. PS_OK or PS_EINVAL. */
int ps_call_find(const ps_client *c, uint32_t id, uint32_t sparse, ps_known **o, ps_err *err);

#endif
