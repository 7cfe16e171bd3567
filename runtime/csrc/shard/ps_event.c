/* Events of a shard for its owner, and those that the pipe has not taken yet. */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/ps_room.h"
#include "shard/ps_serve.h"

enum { MAX_BACKLOG = 1024, LAST_EVENTS_MS = 5000 };

void ps_event_retry(ps_shard *s) {
    size_t sent = 0;
    while (sent < s->backlog_n &&
           write(s->config.event_fd, &s->backlog[sent], sizeof *s->backlog) == (ssize_t)sizeof *s->backlog)
        sent++;
    memmove(s->backlog, s->backlog + sent, (s->backlog_n - sent) * sizeof *s->backlog);
    s->backlog_n -= sent;
}

void ps_event_report(ps_shard *s, uint32_t kind, uint32_t trainer, uint64_t a, const char *text) {
    bool state = kind == PS_EVENT_CONNECTED || kind == PS_EVENT_GONE || kind == PS_EVENT_FINISHED;
    if (!state && s->backlog_n >= MAX_BACKLOG) return;
    if (!ps_room(&s->backlog, s->backlog_n + 1, &s->backlog_cap, sizeof *s->backlog)) return;
    ps_event *e = &s->backlog[s->backlog_n++];
    memset(e, 0, sizeof *e);
    e->kind = kind;
    e->trainer = trainer;
    e->a = a;
    memcpy(e->text, text, (size_t)ps_fit(text, sizeof e->text - 1));
    ps_event_retry(s);
}

void ps_event_flush(ps_shard *s) {
    struct pollfd ready = {.fd = s->config.event_fd, .events = POLLOUT};
    while (s->backlog_n > 0 && poll(&ready, 1, LAST_EVENTS_MS) > 0 && !(ready.revents & (POLLERR | POLLNVAL)))
        ps_event_retry(s);
}
