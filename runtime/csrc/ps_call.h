/* A client's call, built and run. Inner header of ps_client.c (objects, requests on dense ones,
 * connections), ps_client_rows.c (requests on tables) and ps_client_run.c (sending and receiving). */
#ifndef PS_CALL_H
#define PS_CALL_H

#include <poll.h>

#include "ps_client.h"

#define PS_NONE UINT32_MAX

/* One request, and the destination of its answer. */
typedef struct ps_request {
    ps_header head;
    uint8_t raw[PS_HEADER_BYTES];
    uint16_t expect; /* op of the answer */
    bool answered;
    uint32_t next;        /* to the same shard */
    size_t out_at, out_n; /* iovecs of the body */
    size_t in_at, in_n;   /* iovecs of the answer's body */
    uint64_t in_bytes;
} ps_request;

/* The client's state of one shard. */
typedef struct ps_link {
    ps_conn conn;
    uint64_t sequence;    /* of the last request */
    uint64_t told;        /* of the last request sent at least in part */
    uint64_t told_whole;  /* of the last request sent whole */
    uint32_t first, last; /* requests of this call, PS_NONE: none */
    uint32_t sending;     /* the request being sent */
    uint64_t sent;        /* bytes of it, header included */
    uint32_t reading;     /* the request whose answer is being received */
    uint64_t got;         /* bytes of the answer's body */
    size_t got_iov, got_at;
    uint32_t open; /* requests not answered */
    bool refusing; /* the text of an error is being received */
    uint32_t text_length, text_got;
    char text[PS_MAX_TEXT + 1];
} ps_link;

typedef struct ps_known {
    ps_create spec;
    ps_piece *pieces; /* [pieces_n], of a dense object, in the order of shards */
    size_t pieces_n;
    uint32_t first, n; /* shards of a table */
    uint64_t version;
} ps_known;

/* Memory that lives as long as the call. */
typedef struct ps_stage {
    struct ps_stage *next;
    uint64_t data[];
} ps_stage;

/* Received rows grouped by shard, and their destination. */
typedef struct ps_scatter {
    const float *rows;
    const size_t *order; /* [n] */
    size_t n;
    uint32_t dim;
    float *out;
} ps_scatter;

struct ps_client {
    uint32_t shards, epoch, trainer;
    uint64_t incarnation;
    ps_link *links;       /* [shards] */
    struct pollfd *polls; /* [shards] */
    ps_known *objects;
    uint32_t objects_n, objects_cap;
    ps_request *requests;
    uint32_t requests_n, requests_cap, open;
    struct iovec *iovs;
    size_t iovs_n, iovs_cap;
    ps_stage *stages;
    ps_scatter *scatters;
    size_t scatters_n, scatters_cap;
};

/* Report that memory is exhausted. Returns PS_ENOMEM. */
int ps_call_no_memory(ps_err *err);

/* Make room for one more item of `size` bytes in *array, which has n of *cap; `array` is the address of
 * a pointer. PS_OK or PS_ENOMEM. */
int ps_call_room(void *array, size_t n, size_t *cap, size_t size, ps_err *err);

/* Allocate n items of `size` bytes until the end of the call. NULL on failure. */
void *ps_call_stage(ps_client *c, size_t n, size_t size);

/* Add a piece of a body. PS_OK or PS_ENOMEM. */
int ps_call_iov(ps_client *c, void *base, size_t length, ps_err *err);

/* Add a request to one shard; its iovecs are those added since `iovs`: first `outs` for the body, then
 * those for the answer. PS_OK or PS_ENOMEM. */
int ps_call_request(ps_client *c, uint32_t shard, ps_header head, uint16_t expect, size_t iovs, size_t outs,
                    ps_err *err);

/* Find the object of this id and kind. PS_OK or PS_EINVAL. */
int ps_call_find(const ps_client *c, uint32_t id, uint32_t sparse, ps_known **o, ps_err *err);

#endif
