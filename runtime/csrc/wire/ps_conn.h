/* One connected socket, non-blocking, with a small input buffer: headers and short bodies need
 * one system call, long bodies go straight to their destination. Used by both shard and client.
 * One thread at a time. */
#ifndef PS_CONN_H
#define PS_CONN_H

#include <stdbool.h>
#include <sys/uio.h>

#include "wire/ps_frame.h"

#define PS_CONN_BUFFER 16384

typedef struct ps_conn {
    int fd;          /* owned; -1: none */
    bool dry;        /* the last read left nothing; to be reset when poll or epoll reports input */
    bool batched;    /* ps_conn_await(): poll waits for many bytes */
    size_t from, to; /* unread part of `in` */
    uint8_t in[PS_CONN_BUFFER];
} ps_conn;

/* Return the milliseconds of the monotonic clock. */
int64_t ps_now_ms(void);

/* Initialise without a socket. Can't fail. */
void ps_conn_init(ps_conn *c);

/* Take over a connected TCP socket, closing the previous one: non-blocking, no delay, keep-alive to
 * detect dead peers. `patient`: the other side may leave bytes unread for long, because it is not
 * our turn; otherwise that means that it is dead. PS_OK, or PS_ESYS; then fd is closed. */
int ps_conn_open(ps_conn *c, int fd, bool patient, ps_err *err);

/* Close the socket, if any, and discard what was read. Can't fail. */
void ps_conn_close(ps_conn *c);

/* Read the next header. PS_OK, PS_EAGAIN, PS_ECONN (closed or reset) or PS_EPROTO. */
int ps_conn_header(ps_conn *c, ps_header *h, ps_err *err);

/* Read up to `want` > 0 bytes of a body to dst. Returns the number, PS_EAGAIN or PS_ECONN. */
int64_t ps_conn_body(ps_conn *c, void *dst, size_t want, ps_err *err);

/* Read likewise to iov[0..n) in turn, which together have room. */
int64_t ps_conn_scatter(ps_conn *c, struct iovec *iov, size_t n, ps_err *err);

/* Prepare to wait for more, with `left` bytes missing of the current body: for a long body poll and epoll
 * report many bytes at once, not each packet. Can't fail. */
void ps_conn_await(ps_conn *c, uint64_t left);

/* Collect what follows the first *skip bytes of n pieces, which are taken from it. Returns the number of
 * iovecs, at most `room`. */
size_t ps_conn_collect(const struct iovec *piece, size_t n, uint64_t *skip, struct iovec *iov, size_t room);

/* Send from iov[0..n), n > 0, as much as the socket takes. Returns the number of bytes, PS_EAGAIN or
 * PS_ECONN. Raises no signal. */
int64_t ps_conn_send(ps_conn *c, struct iovec *iov, size_t n, ps_err *err);

#endif
