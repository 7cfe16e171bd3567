#include "shard/ps_peer.h"

#include <stdlib.h>

enum { PIECES = 64 }; /* iovecs in one system call */

static void drop_first(ps_peer *p) {
    ps_reply *r = p->out;
    if (r->owned != NULL) p->out_owned -= r->length;
    p->out = r->next;
    p->out_n--;
    free(r->owned);
    free(r);
}

void ps_peer_lost(ps_peer *p) {
    ps_conn_close(&p->conn);
    while (p->out != NULL) drop_first(p);
    p->out_sent = 0;
    if (p->in_body && !p->repeated && (p->head.op == PS_PUSH || p->head.op == PS_INIT)) {
        p->part = p->head;
        p->part_got = p->got - p->carried;
    }
    p->in_body = p->paused = p->full = p->hungry = p->repeated = p->dying = false;
    p->skip = p->carried = 0;
    p->heard = 0;
    p->armed = 0;
}

int ps_peer_answer(ps_peer *p, const ps_header *head, const void *body, void *owned, ps_err *err) {
    ps_reply *r = p->out_n < PS_MAX_ANSWERS ? malloc(sizeof *r) : NULL;
    if (r == NULL) {
        free(owned);
        if (p->out_n < PS_MAX_ANSWERS) return ps_fail(err, PS_ENOMEM, 0, "answers of trainer %u", p->trainer);
        return ps_fail(err, PS_ELIMIT, 0, "trainer %u leaves %u answers unread", p->trainer, PS_MAX_ANSWERS);
    }
    *r = (ps_reply){.body = body, .length = (size_t)head->length, .owned = owned};
    ps_header_encode(head, r->header);
    if (owned != NULL) p->out_owned += r->length;
    if (p->out == NULL) p->out = r;
    else p->out_last->next = r;
    p->out_last = r;
    p->out_n++;
    return PS_OK;
}

/* Collect the unsent parts of the first answers as iovecs. Returns their number. */
static size_t gather(const ps_peer *p, struct iovec *iov) {
    size_t n = 0;
    uint64_t skip = p->out_sent;
    for (ps_reply *r = p->out; r != NULL && n < PIECES - 1; r = r->next) {
        const struct iovec parts[] = {{r->header, PS_HEADER_BYTES}, {(void *)r->body, r->length}};
        n += ps_conn_collect(parts, 2, &skip, iov + n, PIECES - n);
    }
    return n;
}

int ps_peer_flush(ps_peer *p, ps_err *err) {
    struct iovec iov[PIECES];
    while (p->out != NULL) {
        int64_t sent = ps_conn_send(&p->conn, iov, gather(p, iov), err);
        if (sent < 0) return (int)sent;
        p->out_sent += (size_t)sent;
        while (p->out != NULL && p->out_sent >= PS_HEADER_BYTES + p->out->length) {
            p->out_sent -= PS_HEADER_BYTES + p->out->length;
            drop_first(p);
        }
    }
    return PS_OK;
}

uint64_t ps_peer_left(const ps_peer *p) {
    return p->skip + (p->repeated ? 0 : p->head.length - p->got);
}

bool ps_peer_owes(const ps_peer *p, const void *body) {
    for (const ps_reply *r = p->out; r != NULL; r = r->next)
        if (r->body == body && r->length > 0) return true;
    return false;
}
