/* Run a call: send and receive on all connections at once. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "client/ps_call.h"
#include "client/ps_client.h"

enum { PIECES = 256 }; /* iovecs in one system call */

/* --- Sending. --- */

/* Collect the unsent rest of the requests from `sending` on as iovecs. Returns their number. */
static size_t gather(const ps_link *l, struct iovec *iov) {
    size_t n = 0;
    uint64_t skip = l->sent;
    for (ps_request *r = l->sending; r != NULL && n < PIECES; r = r->next) {
        if (r->answered) continue;
        n += ps_conn_collect(&(struct iovec){r->raw, PS_HEADER_BYTES}, 1, &skip, iov + n, PIECES - n);
        n += ps_conn_collect(r->out, r->out_n, &skip, iov + n, PIECES - n);
    }
    return n;
}

static int send_link(ps_link *l, ps_err *err) {
    struct iovec iov[PIECES];
    ps_call_sent(l, 0); /* skips requests already answered */
    while (l->sending != NULL) {
        int64_t sent = ps_conn_send(&l->conn, iov, gather(l, iov), err);
        if (sent < 0) return (int)sent;
        ps_call_sent(l, (uint64_t)sent);
    }
    return PS_OK;
}

/* --- Receiving. --- */

static void learn_version(ps_client *c, uint32_t shard, uint32_t id, uint64_t version) {
    if (id < c->objects_n && version > c->objects[id].seen[shard].version)
        c->objects[id].seen[shard].version = version;
}

static void learn_versions(ps_client *c, const ps_request *r) {
    const uint8_t *body = r->in[0].iov_base;
    for (uint64_t at = 0; at + 16 <= r->in_bytes; at += 16) {
        uint32_t id;
        uint64_t version;
        memcpy(&id, body + at, sizeof id);
        memcpy(&version, body + at + 8, sizeof version);
        learn_version(c, r->shard, id, version);
    }
}

/* Learn from an answer about an object. */
static void learn(ps_client *c, const ps_request *r, const ps_header *answer) {
    ps_known *o = &c->objects[r->head.object];
    ps_seen *seen = &o->seen[r->shard];
    bool pushed = (r->head.op == PS_PUSH || r->head.op == PS_PUSH_ROWS) && !(r->head.flags & PS_MORE);
    learn_version(c, r->shard, r->head.object, answer->version);
    if (answer->op == PS_VALUES || r->head.op == PS_CREATE) seen->values = answer->version;
    if (answer->op == PS_ROWS && answer->version < seen->values) seen->values = answer->version;
    if (pushed) seen->pushing = false;
    if (answer->flags & PS_DROPPED) o->dropped++;
    if (answer->flags & PS_IN_CUT && answer->version > c->cut_step) c->cut_step = answer->version;
    if (r->head.op == PS_SHRINK) seen->shrunk = answer->count;
}

static void answered(ps_client *c, ps_link *l, ps_request *r) {
    if (r->expect == PS_VERSIONS) learn_versions(c, r);
    else if (r->head.op <= PS_PULL_ROWS || r->head.op == PS_SHRINK) learn(c, r, &l->answer);
    r->answered = true;
    l->reading = NULL;
    l->open--;
    if (--r->call->open == 0) ps_call_complete(c, r->call);
}

/* The length of this answer is the shard's to say: it has an entry for each object. */
static int expect_versions(ps_request *r, const ps_header *h, ps_err *err) {
    if (h->length > ps_form_of(h->op).limit) return ps_call_no_memory(err);
    void *body = ps_call_more(r->call, 1, (size_t)h->length + sizeof *r->in);
    if (body == NULL) return ps_call_no_memory(err);
    r->in = body;
    r->in[0] = (struct iovec){r->in + 1, (size_t)h->length};
    r->in_n = 1;
    r->in_bytes = h->length;
    return PS_OK;
}

static int begin_answer(ps_client *c, ps_link *l, const ps_header *h, ps_err *err) {
    l->answer = *h;
    l->got = 0;
    l->refusing = h->op == PS_ERROR;
    if (l->refusing) return PS_OK;
    ps_request *r = l->first;
    while (r != NULL && (r->head.sequence != h->sequence || r->answered)) r = r->next;
    if (r == NULL || h->op != r->expect || h->trainer != c->trainer || h->epoch != c->epoch)
        return ps_fail(err, PS_EPROTO, 0, "an unexpected answer %s %" PRIu64, ps_op_name(h->op), h->sequence);
    if (r->expect == PS_VERSIONS) {
        int code = expect_versions(r, h, err);
        if (code < 0) return code;
    }
    if (h->length != r->in_bytes)
        return ps_fail(err, PS_EPROTO, 0, "an answer %s of %" PRIu64 " bytes, expected %" PRIu64,
                       ps_op_name(h->op), h->length, r->in_bytes);
    l->reading = r;
    return PS_OK;
}

static int read_body(ps_client *c, ps_link *l, ps_err *err) {
    ps_request *r = l->reading;
    struct iovec iov[PIECES];
    while (l->got < r->in_bytes) {
        uint64_t skip = l->got;
        size_t room = ps_conn_collect(r->in, r->in_n, &skip, iov, PIECES);
        int64_t n = ps_conn_scatter(&l->conn, iov, room, err);
        if (n < 0) return (int)n;
        l->got += (uint64_t)n;
    }
    answered(c, l, r);
    return PS_OK;
}

static int read_refusal(ps_link *l, ps_err *err) {
    while (l->got < l->answer.length) {
        int64_t n = ps_conn_body(&l->conn, l->text + l->got, (size_t)(l->answer.length - l->got), err);
        if (n < 0) return (int)n;
        l->got += (uint64_t)n;
    }
    return ps_fail(err, PS_EREMOTE, 0, "%.*s", (int)l->answer.length, l->text);
}

/* Process the received bytes. PS_EAGAIN when there are no more. */
static int read_link(ps_client *c, ps_link *l, ps_err *err) {
    for (;;) {
        ps_header head;
        int code = PS_OK;
        if (l->refusing) return read_refusal(l, err);
        if (l->reading == NULL) {
            code = ps_conn_header(&l->conn, &head, err);
            if (code == PS_OK) code = begin_answer(c, l, &head, err);
        }
        if (code == PS_OK && l->reading != NULL) code = read_body(c, l, err);
        if (code < 0) return code;
    }
}

/* --- Running a call. --- */

static int serve_link(ps_client *c, ps_link *l, short events, ps_err *err) {
    int code = PS_OK;
    if (events & (POLLIN | POLLHUP | POLLERR)) {
        l->conn.dry = false;
        code = read_link(c, l, err);
    }
    if ((code == PS_OK || code == PS_EAGAIN) && l->sending != NULL) code = send_link(l, err);
    return code == PS_EAGAIN ? PS_OK : code;
}

/* The sending side broke: the other side may have sent the reason before. */
static int last_words(ps_client *c, ps_link *l, int code, ps_err *err) {
    if (code != PS_ECONN || l->conn.fd < 0) return code;
    ps_err heard;
    l->conn.dry = false;
    int read = read_link(c, l, &heard);
    if (read != PS_EREMOTE) return code;
    *err = heard;
    return read;
}

static int fail_link(ps_client *c, uint32_t i, int code, uint32_t *shard, ps_err *err) {
    *shard = i;
    code = last_words(c, &c->links[i], code, err);
    ps_client_detach(c, i);
    return code;
}

/* `all`: also connections that poll does not report, because they have fewer bytes than ps_conn_await() asks
 * for. */
static int serve_links(ps_client *c, bool all, uint32_t *shard, ps_err *err) {
    for (uint32_t i = 0; i < c->shards; i++) {
        ps_link *l = &c->links[i];
        if (l->open == 0 || (!all && c->polls[i].revents == 0)) continue;
        short events = c->polls[i].revents;
        if (all) events = l->conn.batched ? POLLIN : 0;
        int code = serve_link(c, l, events, err);
        if (code < 0) return fail_link(c, i, code, shard, err);
    }
    return PS_OK;
}

static void arm_polls(ps_client *c) {
    for (uint32_t i = 0; i < c->shards; i++) {
        ps_link *l = &c->links[i];
        ps_conn_await(&l->conn, l->reading == NULL ? 0 : l->reading->in_bytes - l->got);
        c->polls[i].fd = l->open > 0 ? l->conn.fd : -1;
        c->polls[i].events = (short)(POLLIN | (l->sending != NULL ? POLLOUT : 0));
        c->polls[i].revents = 0;
    }
}

/* Serve the connections that are ready within timeout_ms. PS_OK, PS_EAGAIN if there are none, or an error. */
static int serve_ready(ps_client *c, int timeout_ms, uint32_t *shard, ps_err *err) {
    arm_polls(c);
    int n = poll(c->polls, c->shards, timeout_ms);
    if (n == 0 || (n < 0 && errno == EINTR)) return PS_EAGAIN;
    if (n < 0) return ps_fail(err, PS_ESYS, errno, "poll");
    return serve_links(c, false, shard, err);
}

int ps_client_progress(ps_client *c, uint32_t *shard, ps_err *err) {
    if (c->calls == NULL) return PS_OK;
    int code = serve_ready(c, 0, shard, err);
    return code == PS_EAGAIN ? PS_OK : code;
}

int ps_client_run(ps_client *c, int timeout_ms, uint64_t number, uint32_t *shard, ps_err *err) {
    int64_t until = ps_now_ms() + timeout_ms;
    if (c->building != NULL) ps_client_begin(c);
    int code = serve_links(c, true, shard, err);
    while (code == PS_OK && c->calls != NULL && !(number > 0 && ps_client_done(c, number))) {
        int64_t left = until - ps_now_ms();
        if (left <= 0) return PS_EAGAIN;
        code = serve_ready(c, (int)left, shard, err);
    }
    return code;
}
