/* A shard's waits, and the words in which it counts. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "shard/ps_serve.h"

void ps_serve_note(ps_shard *s, uint32_t object) {
    const ps_object *o = s->objects[object];
    ps_counter *words = s->of_object[object];
    if (o->step.version != ps_counter_get(&words[PS_O_UPDATES]))
        ps_counter_set(&words[PS_O_UPDATE_AT], (uint64_t)s->now_ms);
    ps_counter_set(&words[PS_O_UPDATES], o->step.version);
    ps_counter_set(&words[PS_O_BYTES], ps_object_bytes(o));
    if (o->sparse == NULL) return;
    ps_counter_set(&words[PS_O_ROWS], ps_sparse_rows(o->sparse));
    ps_counter_set(&words[PS_O_KEYS], ps_sparse_waiting(o->sparse));
}

uint64_t ps_serve_pushes(const ps_shard *s, bool here) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->objects_n; i++)
        for (uint32_t t = 0; ps_object_async(s->objects[i]) && t < s->config.trainers; t++)
            n += s->objects[i]->step.part[t] == PS_PART_SUM && (s->peers[t].conn.fd >= 0) == here;
    return n;
}

uint64_t ps_serve_wait(ps_shard *s, uint32_t trainer, uint64_t *slot, uint64_t sequence) {
    ps_counter *words = s->of_trainer[trainer];
    uint32_t *waits = &s->peers[trainer].waits;
    uint64_t now_ms = (uint64_t)s->now_ms, before = *slot;
    *slot = sequence;
    if (before == 0 && sequence != 0 && (*waits)++ == 0) ps_counter_set(&words[PS_T_WAIT_AT], now_ms);
    if (before == 0 || sequence != 0 || --*waits > 0) return before;
    ps_counter_add(&words[PS_T_WAITED_MS], now_ms - ps_counter_get(&words[PS_T_WAIT_AT]));
    ps_counter_set(&words[PS_T_WAIT_AT], 0);
    return before;
}

/* The search and its result. */
typedef struct waits {
    const ps_shard *s;
    uint8_t *missing; /* [trainers]: the wait is for these */
    uint32_t trainer; /* the first of them */
    char text[PS_EVENT_TEXT];
} waits;

/* Keep in `missing` the trainers without input for long. A trainer that is busy here, even if it only
 * reads, is late but not gone. Returns the longest wait. */
static int64_t longest(const waits *w, int64_t since_ms) {
    int64_t most = 0;
    for (uint32_t t = 0; t < w->s->config.trainers; t++) {
        int64_t active_ms = w->s->peers[t].active_ms;
        int64_t waited = w->s->now_ms - (active_ms > since_ms ? active_ms : since_ms);
        w->missing[t] = w->missing[t] && waited >= w->s->config.stall_after_ms;
        if (w->missing[t] && waited > most) most = waited;
    }
    return most;
}

static int64_t name_missing(waits *w, const char *what, int64_t since_ms) {
    int64_t waited = longest(w, since_ms);
    if (waited == 0) return 0;
    int used = snprintf(w->text, sizeof w->text, "%s waits for trainer", what), found = 0;
    for (uint32_t t = 0; t < w->s->config.trainers && used > 0 && (size_t)used + 16 < sizeof w->text; t++) {
        if (!w->missing[t]) continue;
        if (found == 0) w->trainer = t;
        used += snprintf(w->text + used, sizeof w->text - (size_t)used, found ? ", %u" : " %u", t);
        found = 1;
    }
    return waited;
}

static int64_t step_waiting(waits *w, const ps_object *o) {
    const ps_step *st = &o->step;
    char what[PS_EVENT_TEXT / 2];
    for (uint32_t t = 0; t < st->n; t++)
        w->missing[t] = st->part[t] < PS_PART_WHOLE && !w->s->pass.there[t] && !w->s->peers[t].paused;
    snprintf(what, sizeof what, "step %" PRIu64 " of '%.*s'", st->version + 1, PS_NAME(&o->spec));
    return name_missing(w, what, st->since_ms);
}

static bool any(const uint64_t *sequences, uint32_t n) {
    for (uint32_t t = 0; t < n; t++)
        if (sequences[t] != 0) return true;
    return false;
}

static int64_t init_waiting(waits *w, const ps_object *o) {
    if (o->sparse != NULL || o->dense.ready || !any(o->step.waiter, o->step.n)) return 0;
    for (uint32_t t = 0; t < w->s->config.trainers; t++) w->missing[t] = t == 0;
    return name_missing(w, "the initial value of parameters", o->step.since_ms);
}

static int64_t all_waiting(waits *w, const ps_meeting *m, const char *what) {
    if (!any(m->waits, w->s->config.trainers)) return 0;
    for (uint32_t t = 0; t < w->s->config.trainers; t++) w->missing[t] = !m->there[t];
    return name_missing(w, what, m->since_ms);
}

/* Find the longest wait for a trainer, in milliseconds; 0: there is none. */
static int64_t find_wait(waits *w) {
    const ps_shard *s = w->s;
    int64_t found = 0;
    uint64_t least = UINT64_MAX; /* steps: others may wait because of the object that is behind */
    for (uint32_t i = 0; i < s->objects_n; i++) {
        const ps_object *o = s->objects[i];
        if (ps_object_async(o) || !ps_step_open(&o->step) || o->step.version >= least) continue;
        int64_t waited = step_waiting(w, o);
        if (waited == 0) continue;
        found = waited;
        least = o->step.version;
    }
    for (uint32_t i = 0; i < s->objects_n && found == 0; i++) found = init_waiting(w, s->objects[i]);
    if (found == 0) found = all_waiting(w, &s->pass, "the end of the pass");
    return found == 0 ? all_waiting(w, &s->barrier, "the barrier") : found;
}

void ps_serve_watch(ps_shard *s) {
    if (s->config.stall_after_ms <= 0) return;
    waits w = {.s = s, .missing = calloc(s->config.trainers, 1)};
    int64_t waited = w.missing == NULL ? 0 : find_wait(&w);
    free(w.missing);
    if (s->reported_ms > 0 && waited < s->reported_ms) {
        ps_event_report(s, PS_EVENT_RESUMED, 0, (uint64_t)s->reported_ms, "");
        s->reported_ms = 0;
    }
    if (waited == 0 || waited < 2 * s->reported_ms) return;
    s->reported_ms = waited;
    ps_event_report(s, PS_EVENT_STALLED, w.trainer, (uint64_t)waited, w.text);
}
