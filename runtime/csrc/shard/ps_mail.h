/* Between a shard and its owner: its configuration, the records of its mailbox and of its events. It gets
 * only authenticated sockets, through a pipe, and reports through another. */
#ifndef PS_MAIL_H
#define PS_MAIL_H

#include <stdatomic.h>

#include "shard/ps_first.h"

#define PS_MAX_HELD 4                          /* held gradients per dense object */
#define PS_MAX_HELD_BYTES (UINT64_C(64) << 20) /* held per shard; beyond it a trainer waits for its turn */
#define PS_EVENT_TEXT 232

#define PS_MAIL_SAVE UINT32_MAX
#define PS_MAIL_CUT (UINT32_MAX - 1)

/* Records for the owner on `cut_fd`: u32 length and so many bytes of a cut's body, or one of these. */
#define PS_CUT_WHOLE UINT32_C(0)           /* the end of the cut */
#define PS_CUT_LOST UINT32_MAX             /* its end too: it is not to be used */
#define PS_CUT_BEGINS (UINT32_MAX - 1)     /* u64 follows: the step of CUT, or the owner's number, or this: */
#define PS_CUT_LAST UINT64_MAX             /* the content at the end of the shard */
#define PS_CUT_EXPORTS (UINT64_C(1) << 62) /* in the number of a CUT with PS_EXPORT */

/* A record of the mailbox, written whole: a connected socket, which the shard then owns. */
typedef struct ps_mail {
    int32_t fd;           /* -1: stop */
    uint32_t trainer;     /* if so: PS_MAIL_SAVE: cut before stopping; PS_MAIL_CUT: do not stop, only cut */
    uint64_t incarnation; /* number of that cut */
} ps_mail;

enum {
    PS_EVENT_CONNECTED = 1,
    PS_EVENT_GONE = 2,     /* the connection broke; text: cause */
    PS_EVENT_FINISHED = 3, /* the trainer reported finished */
    PS_EVENT_STALLED = 4,  /* a: milliseconds; text: the step and the missing trainers */
    PS_EVENT_RESUMED = 5,  /* the stalled step continues; a: milliseconds of waiting */
    PS_EVENT_ERROR = 6,    /* a request was refused; text: cause */
    PS_EVENT_STATS = 7,    /* text: counters; a: bytes that a save writes */
    PS_EVENT_DROPPED = 8,  /* a: pushes of the trainer that came too late so far; text: the object */
};

/* A record of the event pipe. */
typedef struct ps_event {
    uint32_t kind;
    uint32_t trainer;
    uint64_t a;
    char text[PS_EVENT_TEXT]; /* ends with a zero byte */
} ps_event;

/* What a shard counts: words of its owner, who reads them at any time, without a message or a lock. The
 * shard's thread alone writes them. Each is whole at any time; two need not be of one moment.
 * Of the shard, a trainer, an object, as in counters.py. AT: by the monotonic clock, 0: never. */
enum { PS_S_OBJECTS, PS_S_PASSES, PS_S_HELD_BYTES, PS_S_CUTS, PS_S_LOST_CUTS, PS_S_CUT_AT };
enum { PS_T_IN_BYTES, PS_T_OUT_BYTES, PS_T_WAITS_FOR_TURN, PS_T_WAITED_MS, PS_T_WAIT_AT, PS_T_DROPPED };
enum { PS_O_UPDATES, PS_O_UPDATE_AT, PS_O_ROWS, PS_O_KEYS, PS_O_BYTES, PS_O_DROPPED, PS_O_PUSHES, PS_O_AGES };
#define PS_COUNTERS 8 /* words of each: a cache line */

typedef _Atomic uint64_t ps_counter;

/* Set a word. */
static inline void ps_counter_set(ps_counter *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_relaxed);
}

/* Return a word; any thread may. */
static inline uint64_t ps_counter_get(const ps_counter *word) {
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* Add to a word, as cheaply as to any other: only this thread writes it. */
static inline void ps_counter_add(ps_counter *word, uint64_t n) {
    ps_counter_set(word, ps_counter_get(word) + n);
}

typedef struct ps_shard_config {
    uint32_t trainers;      /* 1..PS_MAX_TRAINERS */
    uint32_t epoch;         /* of the job */
    int mailbox_fd;         /* read end; borrowed */
    int event_fd;           /* write end; borrowed */
    int64_t stall_after_ms; /* report a longer wait, and again each time it doubles; 0: never */
    ps_finder finder;       /* knows files with values; may be empty */
    int cut_fd;             /* write end of a pipe for cuts, which does not block; borrowed. -1: none */
    ps_counter (*counters)[PS_COUNTERS]; /* [1 + trainers + PS_MAX_OBJECTS], zero at first; borrowed */
} ps_shard_config;

/* Serve until the mailbox says stop or is closed; then close all connections, and save if requested.
 * Blocks; needs no Python. Returns PS_OK, or the error that prevented serving or saving. */
int ps_shard_run(const ps_shard_config *config, ps_err *err);

#endif
