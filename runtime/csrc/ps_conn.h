/* One connected socket, non-blocking, with a small input buffer: headers and short bodies come with
 * one system call, long bodies go straight to their place. Both the shard and the client stand on it.
 * One thread at a time. */
#ifndef PS_CONN_H
#define PS_CONN_H

#include <stdbool.h>
#include <sys/uio.h>

#include "ps_frame.h"

#define PS_CONN_BUFFER 16384

typedef struct ps_conn {
    int fd;          /* owned; -1: none */
    bool dry;        /* the last read left nothing; ps_conn_ready() says that there is more */
    bool batched;    /* ps_conn_await(): poll waits for much at once */
    size_t from, to; /* what of `in` is not taken yet */
    uint8_t in[PS_CONN_BUFFER];
} ps_conn;

/* What pages go through from memory to a socket; empty between two calls, so that one thread needs one. */
typedef struct ps_pipe {
    int in, out; /* owned; -1: none */
    bool unfit;  /* here copying is cheaper, or all there is */
} ps_pipe;

/* Not open yet. Can't fail. */
void ps_pipe_init(ps_pipe *p);

/* Release it; it may be used again. Can't fail. */
void ps_pipe_close(ps_pipe *p);

/* No socket. Can't fail. */
void ps_conn_init(ps_conn *c);

/* Take over a connected TCP socket, closing the one before: non-blocking, no delay, dead peers found
 * by keep-alive. `patient`: the other side may leave what is sent unread for long, because it is not
 * our turn; else that means that it is dead. PS_OK, or PS_ESYS; then fd is closed. */
int ps_conn_open(ps_conn *c, int fd, bool patient, ps_err *err);

/* Close the socket, if there is one, and forget what was read. Can't fail. */
void ps_conn_close(ps_conn *c);

/* poll or epoll says that there is something to read. Can't fail. */
void ps_conn_ready(ps_conn *c);

/* The next header. PS_OK, PS_EAGAIN, PS_ECONN (closed or reset) or PS_EPROTO. */
int ps_conn_header(ps_conn *c, ps_header *h, ps_err *err);

/* Up to `want` > 0 bytes of a body to dst. Returns how many, PS_EAGAIN or PS_ECONN. */
int64_t ps_conn_body(ps_conn *c, void *dst, size_t want, ps_err *err);

/* The same to iov[0..n) in turn, which together have room. */
int64_t ps_conn_scatter(ps_conn *c, struct iovec *iov, size_t n, ps_err *err);

/* Before waiting for more, of which `left` bytes belong to what comes in now: of a long body poll and epoll
 * tell when there is much, not of each packet. Can't fail. */
void ps_conn_await(ps_conn *c, uint64_t left);

/* Whether bytes were read that nobody took. */
bool ps_conn_buffered(const ps_conn *c);

/* Send from iov[0..n), n > 0, as much as the socket takes. `more`: something follows at once. Returns how
 * many bytes, PS_EAGAIN or PS_ECONN. Raises no signal. */
int64_t ps_conn_send(ps_conn *c, struct iovec *iov, size_t n, bool more, ps_err *err);

/* Send src[0..n), n > 0, as much as the socket takes, without a copy where that is possible: the other side
 * reads what src holds when it reads. Returns how many bytes, PS_EAGAIN or PS_ECONN. May raise SIGPIPE, which
 * Python ignores. */
int64_t ps_conn_lend(ps_conn *c, ps_pipe *pipe, const void *src, size_t n, ps_err *err);

#endif
