/* Handling of the frames of a shard's trainers. Inner header of ps_shard.c (the loop),
 * ps_answer.c, ps_begin.c, ps_event.c, ps_serve.c and ps_waits.c. */
#ifndef PS_SERVE_H
#define PS_SERVE_H

#include "shard/ps_cut.h"
#include "shard/ps_mail.h"
#include "shard/ps_object.h"

#define PS_PIECE_BYTES 131072
#define PS_CUT_KEY (UINT64_MAX - 1) /* of epoll */
#define PS_SCRATCH_BYTES 262144     /* a piece of a gradient on its way into the sum: fits the cache */

/* The end of a pass, or a barrier: over when all trainers are there. */
typedef struct ps_meeting {
    uint64_t number;  /* of complete ones */
    uint8_t *there;   /* [trainers], arrived, or finished */
    uint64_t *waits;  /* [trainers], sequence of the request to answer */
    int64_t since_ms; /* when the first trainer arrived; 0: none */
} ps_meeting;

typedef struct ps_shard {
    ps_shard_config config;
    int epoll_fd;
    bool saves; /* at the end */
    int64_t now_ms;
    ps_peer *peers; /* [trainers] */
    ps_object **objects;
    uint32_t objects_n;
    size_t objects_cap;
    uint64_t held_bytes; /* of PS_MAX_HELD_BYTES */
    uint32_t paused_n;   /* trainers that wait for their turn */

    ps_meeting pass, barrier;

    int64_t reported_ms; /* length of the wait at the last report; 0: not reported */
    ps_counter (*of_trainer)[PS_COUNTERS], (*of_object)[PS_COUNTERS]; /* in the owner's memory */

    ps_header cut_said; /* the last CUT; its version is 0: none */
    bool cut_due;       /* it has not begun */
    ps_cut *cut;        /* being sent to the owner */
    uint64_t cut_asked; /* number of a cut that the owner wants; 0: none */
    uint8_t *piece;     /* [PS_PIECE_BYTES], the records being sent */
    size_t piece_n, piece_sent;
    bool cut_watched; /* by epoll */

    ps_event *backlog; /* [backlog_cap], events not yet written to the pipe */
    size_t backlog_n, backlog_cap;
    uint64_t scratch[PS_SCRATCH_BYTES / 8];
} ps_shard;

/* Send the owner an event. Never blocks. Those that carry a trainer's state are kept until the pipe takes
 * them; of the others only the first MAX_BACKLOG. */
void ps_event_report(ps_shard *s, uint32_t kind, uint32_t trainer, uint64_t a, const char *text);

/* Write events that the pipe has not taken. Never blocks. */
void ps_event_retry(ps_shard *s);

/* Send what is left to an owner that reads until the end; one that has not for long is gone. */
void ps_event_flush(ps_shard *s);

/* Close the trainer's connection and tell the owner why. Can't fail. */
void ps_serve_drop(ps_shard *s, ps_peer *p, const char *why);

/* Decide on the request whose header is in p->head, and on the destination of its body.
 * PS_OK: the body comes next. PS_EAGAIN: the trainer must wait for its turn; call again
 * then. Else it is refused, and err has the reason. */
int ps_serve_begin(ps_shard *s, ps_peer *p, ps_err *err);

/* Answer the trainer; `head` has op, sequence and what the answer says. owned: memory to free when the body
 * is sent, or NULL. */
void ps_answer(ps_shard *s, ps_peer *p, ps_header head, const void *body, void *owned);

/* Answer with DONE. */
void ps_answer_done(ps_shard *s, ps_peer *p, uint64_t sequence, uint32_t object, uint64_t version,
                    uint32_t flags);

/* Answer with the values of a dense object. */
void ps_answer_values(ps_shard *s, ps_peer *p, uint64_t sequence, uint32_t object, uint32_t flags);

/* Answer a read with the rows of these keys. PS_OK or PS_ENOMEM. */
int ps_answer_rows(ps_shard *s, ps_peer *p, uint32_t object, const ps_held *keys, ps_err *err);

/* Answer with the steps of every object. */
void ps_answer_versions(ps_shard *s, ps_peer *p, uint64_t sequence);

/* Answer with an error, the last frame of the connection. */
void ps_answer_error(ps_shard *s, ps_peer *p, const ps_err *why);

/* End a connection that can't be answered: the trainer connects again. */
void ps_answer_failed(ps_shard *s, ps_peer *p, const ps_err *why);

/* Read and carry out the trainer's input, up to a fair share. PS_OK, or PS_ECONN if the connection
 * is gone. Errors of the trainer are answered and reported, not returned. */
int ps_serve_input(ps_shard *s, ps_peer *p, ps_err *err);

/* Continue trainers whose turn has come. Call it after ps_serve_input() and ps_serve_lost(). */
void ps_serve_resume(ps_shard *s);

/* Note that the trainer's connection is gone, and its pending answers with it. Can't fail. */
void ps_serve_lost(ps_shard *s, ps_peer *p);

/* Note a CUT: it begins when its step is complete. Can't fail. */
void ps_stream_ask(ps_shard *s, const ps_header *cut);

/* Note a cut that the owner wants: it begins at once, or after the one that is being sent. Can't fail. */
void ps_stream_want(ps_shard *s, uint64_t number);

/* Return true if a cut has not begun although it could: it waits for pushes in flight, which are in it as a
 * whole. */
bool ps_stream_due(const ps_shard *s);

/* Begin the cut that is due. Call it after a step. Can't fail. */
void ps_stream_begin(ps_shard *s);

/* Send the owner some of the cut. Never blocks. */
void ps_stream_send(ps_shard *s);

/* Give up the cut that is being sent; send the owner another one of now, PS_CUT_LAST, and wait until it has
 * it. PS_OK, or the error of ps_cut_begin() or of the pipe. */
int ps_stream_last(ps_shard *s, ps_err *err);

/* Tell the owner what an object is now. Can't fail. */
void ps_serve_note(ps_shard *s, uint32_t object);

/* Return the asynchronous pushes that have begun, of trainers that are `here`: in flight, or torn. */
uint64_t ps_serve_pushes(const ps_shard *s, bool here);

/* Put the sequence of a request into *slot, where its trainer waits until others let it be answered; 0: the
 * wait is over. Returns what was there. */
uint64_t ps_serve_wait(ps_shard *s, uint32_t trainer, uint64_t *slot, uint64_t sequence);

/* Report a wait for trainers without input for long, and its end. Input of other trainers meanwhile does not
 * count. */
void ps_serve_watch(ps_shard *s);

#endif
