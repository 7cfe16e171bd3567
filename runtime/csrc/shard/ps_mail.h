/* Between a shard and its owner: the records of its mailbox and of its events, and its configuration. */
#ifndef PS_MAIL_H
#define PS_MAIL_H

#include "shard/ps_cut.h"
#include "shard/ps_first.h"

#define PS_MAX_HELD 4                          /* held gradients per dense object */
#define PS_MAX_HELD_BYTES (UINT64_C(64) << 20) /* held per shard; beyond it a trainer waits for its turn */
#define PS_EVENT_TEXT 232

#define PS_MAIL_SAVE UINT32_MAX

/* Records for the owner on `cut_fd`: u32 length and so many bytes of a cut's body, or one of these. */
#define PS_CUT_WHOLE UINT32_C(0)       /* the end of the cut */
#define PS_CUT_LOST UINT32_MAX         /* its end too: it is not to be used */
#define PS_CUT_BEGINS (UINT32_MAX - 1) /* u64 step follows */

/* A record of the mailbox, written whole: a connected socket, which the shard then owns. */
typedef struct ps_mail {
    int32_t fd;       /* -1: stop */
    uint32_t trainer; /* PS_MAIL_SAVE: save before stopping */
    uint64_t incarnation;
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

/* Carries out SAVE and LOAD of trainer 0. `answer`: writes the answer to the request, `text`, with a zero
 * byte to reply[0..PS_MAX_TEXT], in UTF-8. A SAVE goes on if that is empty: its content goes to `save`, then
 * `answer` is called with the text NULL. Returns PS_OK, or the code that ends the connection, with `err`. */
typedef struct ps_clerk {
    int (*answer)(void *owner, uint16_t op, const char *text, char *reply, ps_err *err);
    void *owner;
} ps_clerk;

typedef struct ps_shard_config {
    uint32_t trainers;      /* 1..PS_MAX_TRAINERS */
    uint32_t epoch;         /* of the job */
    int mailbox_fd;         /* read end; borrowed */
    int event_fd;           /* write end; borrowed */
    int64_t stall_after_ms; /* report a longer wait, and again each time it doubles; 0: never */
    ps_save save;           /* takes what is saved, in the shard's thread, as all of the owner */
    ps_finder finder;       /* knows files with values; may be empty */
    ps_clerk clerk;         /* carries out what trainer 0 asks for; may be empty if it does not */
    int cut_fd;             /* write end of a pipe for cuts, which does not block; borrowed. -1: none */
} ps_shard_config;

#endif
