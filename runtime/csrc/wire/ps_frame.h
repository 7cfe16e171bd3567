/* Frames between trainers and shards: a header of fixed size, then a body. Pure: encodes and decodes
 * bytes, knows no sockets. docs/protocol.md documents it; a test compares the two. All
 * numbers are little endian. */
#ifndef PS_FRAME_H
#define PS_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "tables/ps_entry.h"
#include "base/ps_err.h"
#include "tables/ps_init.h"
#include "kernels/ps_optim.h"
#include "tables/ps_schedule.h"

#define PS_MAGIC UINT32_C(0x314c5350) /* "PSL1" */
#define PS_VERSION 5
#define PS_HEADER_BYTES 64
#define PS_CREATE_BYTES 132 /* in the body of CREATE, before segments and name */
#define PS_SEGMENT_BYTES 16

/* Every length and number from the wire is compared with one of these. */
#define PS_MAX_TRAINERS 4096
#define PS_MAX_OBJECTS 65536
#define PS_MAX_DENSE_BYTES (UINT64_C(1) << 34) /* values of a dense object on one shard */
#define PS_MAX_ROWS_BYTES (UINT64_C(1) << 20)  /* keys and rows in a frame of more than one row */
#define PS_MAX_DIM 65536                       /* values in a row */
#define PS_MAX_NAME 512
#define PS_MAX_SAMPLES UINT32_MAX /* of a push */
#define PS_MAX_TEXT 1024          /* of an error */

/* Arguments for %.*s: the name of an object in a message, cut to 64 bytes. */
#define PS_NAME(spec) ps_fit((spec)->name, 64), (spec)->name
#define PS_MAX_CREATE (PS_CREATE_BYTES + PS_SEGMENT_BYTES * PS_MAX_SEGMENTS + PS_MAX_NAME)
#define PS_MAX_ROW_FRAME (PS_MAX_ROWS_BYTES + 8 + 4 * (uint64_t)PS_MAX_DIM)

/* Operation of a frame. Requests come from trainers, each gets one answer of the same sequence. */
enum {
    PS_CREATE = 1,    /* an object; created by the first trainer, equal for the others */
    PS_INIT = 2,      /* values of a dense object from trainer 0; without a body: wait for them */
    PS_SET_ROWS = 3,  /* rows of a table, from trainer 0 */
    PS_PUSH = 4,      /* a gradient of a dense object, for step `version` */
    PS_PUSH_ROWS = 5, /* row gradients of a table, for step `version` */
    PS_PULL = 6,      /* values of a dense object */
    PS_PULL_ROWS = 7, /* rows of a table */
    PS_END_PASS = 8,  /* no further push in pass `version` */
    PS_BARRIER = 9,   /* wait until every trainer is at barrier `version` */
    PS_FINISH = 10,   /* no further request at all */
    PS_SHRINK = 11,   /* give back rows of a table, from trainer 0 */
    PS_CUT = 12,      /* cut the shard when `count` objects have made step `version`, from trainer 0 */
    PS_DONE = 64,     /* success, without a body */
    PS_VALUES = 65,   /* values of a dense object */
    PS_ROWS = 66,     /* rows, in the order of the keys asked for */
    PS_VERSIONS = 67, /* steps of each object: count entries of u32 object, u32 zero, u64 version */
    PS_ERROR = 127,   /* error; the body is its text in UTF-8. Ends the connection */
};

enum {
    PS_WANT = 1,    /* of PUSH: answer with the new values when the step is complete */
    PS_MORE = 2,    /* of PUSH_ROWS: further frames of the same push follow */
    PS_AFTER = 4,   /* of PULL_ROWS: answer when step `version` is complete */
    PS_DROPPED = 8, /* of the answer to a push: it was not applied, because it came too late */
    PS_IN_CUT = 16, /* of the answer to a push: the shard is cut after step `version` */
    PS_EXPORT = 32, /* of CUT: of values alone, and of tables the rows changed since the last such CUT */
    PS_ALL = 64,    /* of such a CUT: of all rows */
};

typedef struct ps_header {
    uint16_t op;
    uint32_t epoch;    /* of the job */
    uint32_t trainer;  /* the requesting trainer */
    uint32_t samples;  /* of a push: in the batch that gave the gradient */
    float factor;      /* of a push: of the learning rate; in other frames 0 */
    uint64_t sequence; /* of the request on this shard, from 1 */
    uint32_t object;
    uint32_t flags;
    uint64_t version; /* of the object, the pass or the barrier */
    uint64_t length;  /* bytes of the body */
    uint32_t count;   /* keys or entries in the body */
} ps_header;

/* The steps of an object. */
enum {
    PS_SYNC = 0,       /* a step has a gradient of every trainer */
    PS_HALF_ASYNC = 1, /* from here on each push is a step: its trainer waits for its answer alone, */
    PS_ASYNC = 2,      /* or for none, */
    PS_GEO = 3,        /* or pushes the difference of several steps of its own */
    PS_MODES = 4,
};

/* The body of CREATE. */
typedef struct ps_create {
    uint32_t sparse; /* 0 dense, 1 a table */
    uint32_t dim;    /* values in a row; of a dense object 0 */
    uint64_t size;   /* floats of a dense object on this shard; of a table 0 */
    uint64_t total;  /* floats of a dense object on all shards, rows of a table; 0: never kept in files */
    ps_optim optim;
    ps_schedule schedule; /* of the learning rate */
    uint32_t mode;        /* PS_SYNC, ... */
    uint32_t discard;     /* drop a push this many updates after its values were read; 0: never */
    ps_entry entry;       /* of a table: the rule by which a key gets a row */
    ps_init init;         /* of a table */
    uint32_t name_length;
    char name[PS_MAX_NAME + 1];
} ps_create;

/* Write the header's PS_HEADER_BYTES to buf. Can't fail. */
void ps_header_encode(const ps_header *h, uint8_t *buf);

/* Read the header at the start of buf[0..n). Returns the bytes it took, PS_EAGAIN if it is
 * incomplete, PS_EPROTO if it is invalid (then err has the cause): wrong magic, version or check, an unknown
 * op, a flag that the op lacks, a length above the op's limit. */
int64_t ps_header_decode(const uint8_t *buf, size_t n, ps_header *h, ps_err *err);

/* What frames of an op are: its name, as in docs/protocol.md, the longest body, and the flags that they may
 * have. */
typedef struct ps_form {
    const char *name;
    uint64_t limit;
    uint32_t flags;
} ps_form;

/* Return the form of an op; of an unknown one "?", 0, 0. */
ps_form ps_form_of(uint16_t op);

/* Return the name of an op. */
const char *ps_op_name(uint16_t op);

/* Return the floats of a row in a push: shows and clicks if the entry rule wants them, and the gradient. */
uint32_t ps_push_floats(const ps_create *c);

/* Write the body of CREATE; buf has room for PS_MAX_CREATE. Returns its length. */
size_t ps_create_encode(const ps_create *c, uint8_t *buf);

/* Read a whole body of CREATE. PS_OK or PS_EPROTO. */
int ps_create_decode(const uint8_t *buf, size_t n, ps_create *c, ps_err *err);

/* Compare two trainers' descriptions of one object. Returns 0 if they agree; else 1, and `text` names the
 * first difference with both values. */
int ps_create_differs(const ps_create *a, const ps_create *b, char *text, size_t size);

/* Return the number of rows of so many floats that fit in one frame: at least 1. */
size_t ps_rows_per_frame(uint32_t floats);

/* Return the shard of a key among n: the same for everybody. */
uint32_t ps_key_shard(uint64_t key, uint32_t n);

#endif
