/* The way of a cut to the shard's owner: through a pipe, piece by piece, between the frames of trainers. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "shard/ps_serve.h"

enum {
    RECORD = 4,
    ROOM = 64
}; /* bytes of a record without content, and of several at the end of the piece */

static void put_record(ps_shard *s, const void *data, size_t n) {
    memcpy(s->piece + s->piece_n, data, n);
    s->piece_n += n;
}

static void end_cut(ps_shard *s, bool whole) {
    bool kept = ps_cut_end(s->cut);
    const uint32_t end = whole && kept ? PS_CUT_WHOLE : PS_CUT_LOST;
    s->cut = NULL;
    ps_counter_add(&s->config.counters[0][whole && kept ? PS_S_CUTS : PS_S_LOST_CUTS], 1);
    if (whole && kept) ps_counter_set(&s->config.counters[0][PS_S_CUT_AT], (uint64_t)s->now_ms);
    put_record(s, &end, RECORD);
}

/* Let epoll say when the owner takes more, or not. */
static void watch(ps_shard *s, bool on) {
    struct epoll_event event = {.events = EPOLLOUT, .data.u64 = PS_CUT_KEY};
    if (on == s->cut_watched) return;
    if (epoll_ctl(s->epoll_fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, s->config.cut_fd, &event) == 0)
        s->cut_watched = on;
}

static int begin(ps_shard *s, uint64_t number, uint32_t flags, ps_err *err) {
    const uint32_t kind = PS_CUT_BEGINS;
    if (s->cut != NULL) end_cut(s, false);
    if (s->piece_n + ROOM / 2 > PS_PIECE_BYTES) return ps_fail(err, PS_ELIMIT, 0, "its owner does not read");
    put_record(s, &kind, sizeof kind);
    if (flags & PS_EXPORT) number |= PS_CUT_EXPORTS;
    put_record(s, &number, sizeof number);
    int code = ps_cut_begin(&s->cut, s->objects, s->objects_n, s->pass.number, flags, err);
    if (code < 0) end_cut(s, false);
    return code;
}

void ps_stream_ask(ps_shard *s, const ps_header *cut) {
    s->cut_said = *cut;
    s->cut_due = s->config.cut_fd >= 0;
    ps_stream_begin(s);
}

void ps_stream_want(ps_shard *s, uint64_t number) {
    s->cut_asked = number;
    ps_stream_begin(s);
}

static bool step_due(const ps_shard *s) {
    uint32_t made = 0;
    for (uint32_t i = 0; s->cut_due && i < s->objects_n; i++)
        made += !ps_object_async(s->objects[i]) && s->objects[i]->step.version >= s->cut_said.version;
    return s->cut_due && made == s->cut_said.count;
}

bool ps_stream_due(const ps_shard *s) {
    return step_due(s) || (s->cut_asked != 0 && s->cut == NULL);
}

void ps_stream_begin(ps_shard *s) {
    ps_err err;
    if (!ps_stream_due(s) || ps_serve_pushes(s, true) > 0) return;
    bool steps = step_due(s);
    uint64_t number = steps ? s->cut_said.version : s->cut_asked;
    if (steps) s->cut_due = false;
    else s->cut_asked = 0;
    if (begin(s, number, steps ? s->cut_said.flags : 0, &err) < 0)
        ps_event_report(s, PS_EVENT_ERROR, 0, 0, err.text);
    watch(s, true);
}

/* Write what is left of the piece, then make the next one. PS_OK, PS_EAGAIN or PS_ESYS. */
static int send_piece(ps_shard *s, ps_err *err) {
    while (s->piece_sent < s->piece_n) {
        ssize_t n = write(s->config.cut_fd, s->piece + s->piece_sent, s->piece_n - s->piece_sent);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return PS_EAGAIN;
        if (n < 0) return ps_fail(err, PS_ESYS, errno, "writing a cut");
        s->piece_sent += (size_t)n;
    }
    s->piece_n = s->piece_sent = 0;
    if (s->cut == NULL) return PS_OK;
    size_t room = PS_PIECE_BYTES - RECORD - ROOM, n = ps_cut_read(s->cut, s->piece + RECORD, room);
    const uint32_t length = (uint32_t)n;
    if (n > 0) {
        put_record(s, &length, RECORD);
        s->piece_n += n;
    }
    if (n < room) end_cut(s, true);
    return PS_OK;
}

void ps_stream_send(ps_shard *s) {
    ps_err err;
    int code = send_piece(s, &err);
    if (code == PS_ESYS) {
        ps_event_report(s, PS_EVENT_ERROR, 0, 0, err.text);
        if (s->cut != NULL) end_cut(s, false);
        s->piece_n = s->piece_sent = 0;
    }
    if (s->piece_n == 0) watch(s, false);
    ps_stream_begin(s);
}

/* Send all that there is. PS_OK or PS_ESYS. */
static int drain(ps_shard *s, ps_err *err) {
    int code = PS_OK;
    do {
        struct pollfd pipe = {.fd = s->config.cut_fd, .events = POLLOUT};
        if (code == PS_EAGAIN) (void)poll(&pipe, 1, -1);
        code = send_piece(s, err);
    } while (code == PS_EAGAIN || (code == PS_OK && s->piece_n > 0));
    return code;
}

int ps_stream_last(ps_shard *s, ps_err *err) {
    if (s->cut != NULL) end_cut(s, false);
    int code = drain(s, err);
    if (code == PS_OK) code = begin(s, PS_CUT_LAST, 0, err);
    return code == PS_OK ? drain(s, err) : code;
}
