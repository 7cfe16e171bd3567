#include "wire/ps_conn.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { KEEP_IDLE_S = 15, KEEP_INTERVAL_S = 5, KEEP_COUNT = 3, USER_TIMEOUT_MS = 30000 };
enum { BATCH_BYTES = 512 << 10 };

void ps_conn_init(ps_conn *c) {
    c->fd = -1;
    c->dry = true;
    c->batched = false;
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
    /* It also counts the time in which the window is closed. */
    if (!patient) set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS);
    c->fd = fd;
    c->dry = false;
    return PS_OK;
}

void ps_conn_close(ps_conn *c) {
    if (c->fd >= 0) close(c->fd);
    ps_conn_init(c);
}

int64_t ps_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool is_for_later(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static size_t bytes_of(const struct iovec *iov, size_t n) {
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) bytes += iov[i].iov_len;
    return bytes;
}

static int64_t receive(ps_conn *c, struct iovec *iov, size_t n, ps_err *err) {
    if (c->fd < 0) return ps_fail(err, PS_ECONN, 0, "not connected");
    if (c->dry) return PS_EAGAIN;
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n};
    ssize_t got = recvmsg(c->fd, &msg, 0);
    if (got == 0) return ps_fail(err, PS_ECONN, 0, "the connection was closed");
    if (got < 0 && is_for_later(errno)) {
        c->dry = errno != EINTR;
        return PS_EAGAIN;
    }
    if (got < 0) return ps_fail(err, PS_ECONN, errno, "receiving");
    if ((size_t)got < bytes_of(iov, n)) c->dry = true; /* saves a read without result */
    return got;
}

static int64_t refill(ps_conn *c, ps_err *err) {
    if (c->from > 0) {
        memmove(c->in, c->in + c->from, c->to - c->from);
        c->to -= c->from;
        c->from = 0;
    }
    struct iovec rest = {c->in + c->to, sizeof c->in - c->to};
    int64_t got = receive(c, &rest, 1, err);
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

int64_t ps_conn_scatter(ps_conn *c, struct iovec *iov, size_t n, ps_err *err) {
    if (c->from == c->to) {
        if (bytes_of(iov, n) >= sizeof c->in) return receive(c, iov, n, err);
        int64_t got = refill(c, err);
        if (got < 0) return got;
    }
    size_t taken = 0;
    for (size_t i = 0; i < n && c->from < c->to; i++) {
        size_t k = c->to - c->from < iov[i].iov_len ? c->to - c->from : iov[i].iov_len;
        memcpy(iov[i].iov_base, c->in + c->from, k);
        c->from += k;
        taken += k;
    }
    return (int64_t)taken;
}

int64_t ps_conn_body(ps_conn *c, void *dst, size_t want, ps_err *err) {
    return ps_conn_scatter(c, &(struct iovec){dst, want}, 1, err);
}

void ps_conn_await(ps_conn *c, uint64_t left) {
    bool batched = left >= BATCH_BYTES;
    if (c->fd < 0 || c->batched == batched) return;
    c->batched = batched;
    set_option(c->fd, SOL_SOCKET, SO_RCVLOWAT, batched ? BATCH_BYTES : 1);
}

size_t ps_conn_collect(const struct iovec *piece, size_t n, uint64_t *skip, struct iovec *iov, size_t room) {
    size_t used = 0;
    for (; n > 0 && used < room; piece++, n--) {
        size_t past = *skip < piece->iov_len ? (size_t)*skip : piece->iov_len;
        *skip -= past;
        if (past < piece->iov_len)
            iov[used++] = (struct iovec){(uint8_t *)piece->iov_base + past, piece->iov_len - past};
    }
    return used;
}

int64_t ps_conn_send(ps_conn *c, struct iovec *iov, size_t n, ps_err *err) {
    if (c->fd < 0) return ps_fail(err, PS_ECONN, 0, "not connected");
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n};
    ssize_t sent = sendmsg(c->fd, &msg, MSG_NOSIGNAL);
    if (sent >= 0) return sent;
    return is_for_later(errno) ? PS_EAGAIN : ps_fail(err, PS_ECONN, errno, "sending");
}
