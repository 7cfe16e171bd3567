/* One shard: one port, one thread, one epoll loop, its own objects, no locks. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "shard/ps_serve.h"

enum { TICK_MS = 500, EPOLL_EVENTS = 64, FIRST_STATS_MS = 1000, STATS_MS = 10000 };
#define MAILBOX_KEY UINT64_MAX

/* Report the pushes of each trainer that came too late. */
static void report_drops(ps_shard *s) {
    for (uint32_t i = 0; i < s->objects_n; i++) {
        for (uint32_t t = 0; t < s->config.trainers; t++) {
            ps_drops *drops = &s->objects[i]->drops[t];
            if (drops->count == drops->told) continue;
            drops->told = drops->count;
            ps_event_report(s, PS_EVENT_DROPPED, t, drops->count, s->objects[i]->spec.name);
        }
    }
}

static uint64_t sum_up(const ps_shard *s, int word) {
    uint64_t sum = 0;
    for (uint32_t t = 0; t < s->config.trainers; t++) sum += ps_counter_get(&s->of_trainer[t][word]);
    return sum;
}

static void report_stats(ps_shard *s) {
    char text[PS_EVENT_TEXT];
    uint64_t steps = 0, bytes = 0;
    report_drops(s);
    for (uint32_t i = 0; i < s->objects_n; i++) { /* each takes part in every step */
        if (s->objects[i]->step.version > steps) steps = s->objects[i]->step.version;
        bytes += ps_object_bytes(s->objects[i]);
    }
    snprintf(text, sizeof text,
             "steps=%" PRIu64 " objects=%u in_bytes=%" PRIu64 " out_bytes=%" PRIu64 " waits_for_turn=%" PRIu64
             " dropped=%" PRIu64 " torn=%" PRIu64,
             steps, s->objects_n, sum_up(s, PS_T_IN_BYTES), sum_up(s, PS_T_OUT_BYTES),
             sum_up(s, PS_T_WAITS_FOR_TURN), sum_up(s, PS_T_DROPPED), ps_serve_pushes(s, false));
    ps_event_report(s, PS_EVENT_STATS, 0, bytes, text);
}

/* --- Connections. --- */

static void arm(ps_shard *s, ps_peer *p) {
    if (p->conn.fd < 0) return;
    ps_conn_await(&p->conn, p->in_body ? ps_peer_left(p) : 0);
    uint32_t want = EPOLLRDHUP;
    if (!p->paused && !p->full) want |= EPOLLIN;
    if (p->full || p->out != NULL) want |= EPOLLOUT; /* a full one has input left, maybe in our buffer */
    if (want == p->armed) return;
    struct epoll_event event = {.events = want, .data.u64 = p->trainer};
    if (epoll_ctl(s->epoll_fd, p->armed ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, p->conn.fd, &event) == 0)
        p->armed = want;
    else ps_serve_drop(s, p, "epoll refuses the connection");
}

/* Send queued answers and watch for the next event. */
static void settle_peer(ps_shard *s, ps_peer *p) {
    ps_err err;
    if (p->conn.fd < 0) return;
    if (ps_peer_flush(p, &err) == PS_ECONN) {
        ps_serve_drop(s, p, err.text);
        return;
    }
    arm(s, p);
}

static void settle_peers(ps_shard *s) {
    ps_serve_resume(s);
    for (uint32_t t = 0; t < s->config.trainers; t++) settle_peer(s, &s->peers[t]);
}

/* Read the input if allowed now. Returns true if the connection is gone. */
static bool read_peer(ps_shard *s, ps_peer *p, uint32_t events, ps_err *err) {
    const uint32_t broken = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
    p->conn.dry = false;
    if (p->full) {
        if (ps_peer_flush(p, err) == PS_ECONN) return true;
        p->full = p->out_owned > PS_MAX_ANSWER_BYTES;
        events |= EPOLLIN; /* remaining input */
    }
    if (p->paused || p->full) return (events & broken) != 0;
    return (events & (EPOLLIN | broken)) != 0 && ps_serve_input(s, p, err) == PS_ECONN;
}

static void on_peer(ps_shard *s, ps_peer *p, uint32_t events) {
    ps_err err = {.text = "the connection was closed"};
    if (read_peer(s, p, events, &err)) ps_serve_drop(s, p, err.text);
}

static void on_mail(ps_shard *s, const ps_mail *mail) {
    ps_err err;
    if (mail->trainer >= s->config.trainers) {
        close(mail->fd);
        return;
    }
    ps_peer *p = &s->peers[mail->trainer];
    if (p->incarnation != 0 && p->incarnation != mail->incarnation) {
        ps_event_report(s, PS_EVENT_ERROR, mail->trainer, 0,
                        "another process of this trainer was connected before");
        close(mail->fd);
        return;
    }
    if (p->conn.fd >= 0) ps_serve_lost(s, p); /* it reconnected before we saw it go */
    if (p->incarnation == 0) p->active_ms = s->now_ms;
    p->incarnation = mail->incarnation;
    if (ps_conn_open(&p->conn, mail->fd, false, &err) < 0) {
        ps_event_report(s, PS_EVENT_ERROR, mail->trainer, 0, err.text);
        return;
    }
    ps_event_report(s, PS_EVENT_CONNECTED, mail->trainer, 0, "");
}

/* PS_OK to continue, PS_EAGAIN to stop. */
static int read_mailbox(ps_shard *s) {
    ps_mail mail;
    ssize_t n = read(s->config.mailbox_fd, &mail, sizeof mail);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return PS_OK;
    bool whole = n == (ssize_t)sizeof mail, cuts = whole && mail.fd < 0 && mail.trainer == PS_MAIL_CUT;
    if (!whole || (mail.fd < 0 && !cuts)) {
        s->saves = whole && mail.trainer == PS_MAIL_SAVE;
        return PS_EAGAIN;
    }
    if (cuts) ps_stream_want(s, mail.incarnation);
    else on_mail(s, &mail);
    return PS_OK;
}

/* --- Time. --- */

/* Go on with trainers that had used up their share. Returns true if one of them has more. */
static bool read_hungry(ps_shard *s) {
    bool more = false;
    for (uint32_t t = 0; t < s->config.trainers; t++) {
        ps_peer *p = &s->peers[t];
        if (!p->hungry) continue;
        p->hungry = false; /* one that waits for its turn, or has answers to take, is woken by that */
        on_peer(s, p, EPOLLIN);
        more |= p->hungry;
    }
    return more;
}

/* epoll does not report a long body that comes slowly. */
static void read_batched(ps_shard *s) {
    for (uint32_t t = 0; t < s->config.trainers; t++)
        if (s->peers[t].conn.batched) on_peer(s, &s->peers[t], EPOLLIN);
}

static void tick(ps_shard *s) {
    ps_serve_watch(s);
    if (s->backlog_n > 0) ps_event_retry(s);
    for (uint32_t t = 0; t < s->config.trainers; t++) {
        ps_peer *p = &s->peers[t];
        if (p->dying && s->now_ms >= p->dead_ms) ps_serve_drop(s, p, "refused");
    }
}

/* --- The shard. --- */

static int loop(ps_shard *s, ps_err *err) {
    struct epoll_event events[EPOLL_EVENTS];
    int64_t next_tick = 0, next_stats = ps_now_ms() + FIRST_STATS_MS;
    uint64_t reported_bytes = 0;
    for (;;) {
        int n = epoll_wait(s->epoll_fd, events, EPOLL_EVENTS, read_hungry(s) ? 0 : TICK_MS);
        if (n < 0 && errno != EINTR) return ps_fail(err, PS_ESYS, errno, "epoll_wait");
        s->now_ms = ps_now_ms();
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == PS_CUT_KEY) ps_stream_send(s);
            else if (events[i].data.u64 != MAILBOX_KEY)
                on_peer(s, &s->peers[events[i].data.u64], events[i].events);
            else if (read_mailbox(s) == PS_EAGAIN) return PS_OK;
        }
        bool due = s->now_ms >= next_tick;
        if (due) read_batched(s);
        settle_peers(s);
        ps_counter_set(&s->config.counters[0][PS_S_HELD_BYTES], s->held_bytes);
        if (due) {
            tick(s);
            next_tick = s->now_ms + TICK_MS;
        }
        if (s->now_ms >= next_stats && sum_up(s, PS_T_IN_BYTES) != reported_bytes) {
            report_stats(s);
            reported_bytes = sum_up(s, PS_T_IN_BYTES);
            next_stats = s->now_ms + STATS_MS;
        }
    }
}

static bool make_meeting(ps_meeting *m, uint32_t trainers) {
    m->there = calloc(trainers, sizeof *m->there);
    m->waits = calloc(trainers, sizeof *m->waits);
    return m->there != NULL && m->waits != NULL;
}

static int set_up(ps_shard *s, ps_err *err) {
    uint32_t n = s->config.trainers;
    s->of_trainer = s->config.counters + 1;
    s->of_object = s->of_trainer + n;
    s->peers = calloc(n, sizeof *s->peers);
    for (uint32_t t = 0; s->peers != NULL && t < n; t++) {
        s->peers[t].trainer = t;
        ps_conn_init(&s->peers[t].conn);
    }
    s->piece = malloc(PS_PIECE_BYTES);
    bool meet = make_meeting(&s->pass, n) && make_meeting(&s->barrier, n);
    if (s->peers == NULL || s->piece == NULL || !meet)
        return ps_fail(err, PS_ENOMEM, 0, "a shard of %u trainers", n);
    s->now_ms = ps_now_ms();
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->epoll_fd < 0) return ps_fail(err, PS_ESYS, errno, "epoll_create1");
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = MAILBOX_KEY};
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->config.mailbox_fd, &event) < 0)
        return ps_fail(err, PS_ESYS, errno, "watching the mailbox");
    return PS_OK;
}

static void close_peers(ps_shard *s) {
    for (uint32_t t = 0; s->peers != NULL && t < s->config.trainers; t++) {
        ps_peer_lost(&s->peers[t]);
        free(s->peers[t].rows);
    }
}

static void tear_down(ps_shard *s) {
    ps_cut_end(s->cut);
    for (uint32_t i = 0; i < s->objects_n; i++) ps_object_free(s->objects[i]);
    if (s->epoll_fd >= 0) close(s->epoll_fd);
    free(s->objects);
    free(s->peers);
    free(s->pass.there);
    free(s->pass.waits);
    free(s->barrier.there);
    free(s->barrier.waits);
    free(s->backlog);
    free(s->piece);
    free(s);
}

int ps_shard_run(const ps_shard_config *config, ps_err *err) {
    if (config->trainers == 0 || config->trainers > PS_MAX_TRAINERS)
        return ps_fail(err, PS_EINVAL, 0, "%u trainers, expected 1..%u", config->trainers, PS_MAX_TRAINERS);
    ps_shard *s = calloc(1, sizeof *s);
    if (s == NULL) return ps_fail(err, PS_ENOMEM, 0, "a shard");
    s->config = *config;
    s->epoll_fd = -1;
    unsigned floats = ps_floats_set(PS_FLOATS_IEEE);
    int code = set_up(s, err);
    if (code == PS_OK) code = loop(s, err);
    close_peers(s); /* before saving, which takes its time */
    ps_event_flush(s);
    if (code == PS_OK) report_stats(s);
    ps_event_flush(s);
    if (code == PS_OK && s->saves) code = ps_stream_last(s, err);
    tear_down(s);
    ps_floats_set(floats);
    return code;
}
