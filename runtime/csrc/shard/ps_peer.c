#include "shard/ps_peer.h"

#include <stdlib.h>
#include <string.h>

#include "base/ps_room.h"

enum { SEND_AT_ONCE = 32 }; /* answers in one system call */

void ps_peer_init(ps_peer *p, uint32_t trainer) {
    memset(p, 0, sizeof *p);
    p->trainer = trainer;
    ps_conn_init(&p->conn);
}

static void drop_answers(ps_peer *p) {
    for (size_t i = p->out_from; i < p->out_to; i++) free(p->out[i].owned);
    p->out_from = p->out_to = p->out_sent = 0;
    p->out_owned = 0;
}

void ps_peer_close(ps_peer *p) {
    ps_conn_close(&p->conn);
    drop_answers(p);
    free(p->out);
    free(p->rows);
    p->out = NULL;
    p->rows = NULL;
}

void ps_peer_lost(ps_peer *p) {
    ps_conn_close(&p->conn);
    drop_answers(p);
    if (p->in_body && !p->repeated && (p->head.op == PS_PUSH || p->head.op == PS_INIT)) {
        p->part = p->head;
        p->part_got = p->got - p->carried;
    }
    p->in_body = p->paused = p->full = p->hungry = p->repeated = p->dying = false;
    p->skip = p->carried = 0;
    p->heard = 0;
    p->armed = 0;
}

static int grow(ps_peer *p, ps_err *err) {
    if (p->out_from > 0) {
        memmove(p->out, p->out + p->out_from, (p->out_to - p->out_from) * sizeof *p->out);
        p->out_to -= p->out_from;
        p->out_from = 0;
    }
    if (p->out_to >= PS_MAX_ANSWERS)
        return ps_fail(err, PS_ELIMIT, 0, "trainer %u leaves %u answers unread", p->trainer, PS_MAX_ANSWERS);
    if (ps_room(&p->out, p->out_to + 1, &p->out_cap, sizeof *p->out)) return PS_OK;
    return ps_fail(err, PS_ENOMEM, 0, "answers of trainer %u", p->trainer);
}

int ps_peer_answer(ps_peer *p, const ps_header *head, const void *body, void *owned, ps_err *err) {
    int code = p->out_to == p->out_cap ? grow(p, err) : PS_OK;
    if (code < 0) {
        free(owned);
        return code;
    }
    ps_reply *r = &p->out[p->out_to++];
    ps_header_encode(head, r->header);
    r->body = body;
    r->length = (size_t)head->length;
    r->owned = owned;
    if (owned != NULL) p->out_owned += r->length;
    return PS_OK;
}

/* Collect the unsent parts of the first answers as iovecs. Returns their number. */
static size_t gather(const ps_peer *p, struct iovec *iov) {
    size_t n = 0;
    uint64_t skip = p->out_sent;
    for (size_t i = p->out_from; i < p->out_to && i < p->out_from + SEND_AT_ONCE; i++) {
        ps_reply *r = &p->out[i];
        const struct iovec parts[] = {{r->header, PS_HEADER_BYTES}, {(void *)r->body, r->length}};
        n += ps_conn_collect(parts, 2, &skip, iov + n, 2 * SEND_AT_ONCE - n);
    }
    return n;
}

static void advance(ps_peer *p, size_t sent) {
    p->out_sent += sent;
    while (p->out_from < p->out_to) {
        ps_reply *r = &p->out[p->out_from];
        if (p->out_sent < PS_HEADER_BYTES + r->length) return;
        p->out_sent -= PS_HEADER_BYTES + r->length;
        if (r->owned != NULL) p->out_owned -= r->length;
        free(r->owned);
        p->out_from++;
    }
    p->out_from = p->out_to = 0;
}

int ps_peer_flush(ps_peer *p, ps_err *err) {
    struct iovec iov[2 * SEND_AT_ONCE];
    while (ps_peer_unsent(p)) {
        int64_t sent = ps_conn_send(&p->conn, iov, gather(p, iov), err);
        if (sent < 0) return (int)sent;
        advance(p, (size_t)sent);
    }
    return PS_OK;
}

uint64_t ps_peer_left(const ps_peer *p) {
    return p->skip + (p->repeated ? 0 : p->head.length - p->got);
}

bool ps_peer_owes(const ps_peer *p, const void *body) {
    for (size_t i = p->out_from; i < p->out_to; i++)
        if (p->out[i].body == body && p->out[i].length > 0) return true;
    return false;
}

bool ps_peer_unsent(const ps_peer *p) {
    return p->out_from < p->out_to;
}

bool ps_peer_full(const ps_peer *p) {
    return p->out_owned > PS_MAX_ANSWER_BYTES;
}
