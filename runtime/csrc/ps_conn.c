/* One connected socket. */
#include "ps_conn.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { KEEP_IDLE_S = 15, KEEP_INTERVAL_S = 5, KEEP_COUNT = 3, USER_TIMEOUT_MS = 30000 };

void ps_conn_init(ps_conn *c) {
    c->fd = -1;
    c->dry = true;
    c->from = c->to = 0;
}

static void set_option(int fd, int level, int name, int value) {
    (void)setsockopt(fd, level, name, &value, sizeof value); /* a Unix socket has none of these */
}

int ps_conn_open(ps_conn *c, int fd, bool patient, ps_err *err) {
    ps_conn_close(c);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        int sys = errno;
        close(fd);
        return ps_fail(err, PS_ESYS, sys, "making a connection non-blocking");
    }
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEP_INTERVAL_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEP_COUNT);
    /* It also counts time in which the window is closed. */
    if (!patient) set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS);
    c->fd = fd;
    c->dry = false;
    return PS_OK;
}

void ps_conn_close(ps_conn *c) {
    if (c->fd >= 0) close(c->fd);
    ps_conn_init(c);
}

void ps_conn_ready(ps_conn *c) {
    c->dry = false;
}

static int64_t receive(ps_conn *c, void *dst, size_t want, ps_err *err) {
    if (c->fd < 0) return ps_fail(err, PS_ECONN, 0, "not connected");
    if (c->dry) return PS_EAGAIN;
    ssize_t got = recv(c->fd, dst, want, 0);
    if (got == 0) return ps_fail(err, PS_ECONN, 0, "the connection was closed");
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        c->dry = errno != EINTR;
        return PS_EAGAIN;
    }
    if (got < 0) return ps_fail(err, PS_ECONN, errno, "receiving");
    if ((size_t)got < want) c->dry = true; /* saves the read that would find nothing */
    return got;
}

static int64_t refill(ps_conn *c, ps_err *err) {
    if (c->from > 0) {
        memmove(c->in, c->in + c->from, c->to - c->from);
        c->to -= c->from;
        c->from = 0;
    }
    int64_t got = receive(c, c->in + c->to, sizeof c->in - c->to, err);
    if (got > 0) c->to += (size_t)got;
    return got;
}

int ps_conn_header(ps_conn *c, ps_header *h, ps_err *err) {
    for (;;) {
        int64_t used = ps_header_decode(c->in + c->from, c->to - c->from, h, err);
        if (used > 0) {
            c->from += (size_t)used;
            return PS_OK;
        }
        if (used != PS_EAGAIN) return (int)used;
        int64_t got = refill(c, err);
        if (got < 0) return (int)got;
    }
}

int64_t ps_conn_body(ps_conn *c, void *dst, size_t want, ps_err *err) {
    if (c->from == c->to) {
        if (want >= sizeof c->in) return receive(c, dst, want, err);
        int64_t got = refill(c, err);
        if (got < 0) return got;
    }
    size_t n = c->to - c->from < want ? c->to - c->from : want;
    memcpy(dst, c->in + c->from, n);
    c->from += n;
    return (int64_t)n;
}

bool ps_conn_buffered(const ps_conn *c) {
    return c->from < c->to;
}

int64_t ps_conn_send(ps_conn *c, struct iovec *iov, size_t n, ps_err *err) {
    if (c->fd < 0) return ps_fail(err, PS_ECONN, 0, "not connected");
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n};
    ssize_t sent = sendmsg(c->fd, &msg, MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return PS_EAGAIN;
    return ps_fail(err, PS_ECONN, errno, "sending");
}
