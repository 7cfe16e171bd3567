/* Carry out the frames of a shard's trainers. */
#include "shard/ps_serve.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/ps_room.h"

enum { FAIR_SHARE = 4 << 20, FRAME_SHARE = 1 << 10 };

/* --- Steps. --- */

static void answer_step(ps_shard *s, uint32_t object, uint32_t trainer) {
    ps_step *st = &s->objects[object]->step;
    uint64_t sequence = ps_serve_wait(s, trainer, &st->waiter[trainer], 0);
    if (sequence == 0) return;
    uint32_t flags = s->cut_said.version == st->version && !(s->cut_said.flags & PS_EXPORT) ? PS_IN_CUT : 0;
    if (st->flags[trainer] & PS_WANT) ps_answer_values(s, &s->peers[trainer], sequence, object, flags);
    else ps_answer_done(s, &s->peers[trainer], sequence, object, st->version, flags);
}

/* Answer the reads that waited for this step. */
static void answer_parked(ps_shard *s, uint32_t object, uint32_t trainer) {
    ps_err err;
    for (ps_held *h; (h = ps_object_unpark(s->objects[object], trainer)) != NULL;) {
        s->held_bytes -= h->charge;
        if (ps_answer_rows(s, &s->peers[trainer], object, h, &err) < 0)
            ps_answer_failed(s, &s->peers[trainer], &err);
        free(h);
    }
}

/* Add every gradient whose turn it is to the sum, and end the step after the last. */
static int settle(ps_shard *s, uint32_t object, ps_err *err) {
    ps_object *o = s->objects[object];
    ps_step *st = &o->step;
    if (ps_object_async(o)) return PS_OK;
    for (uint32_t t; (t = ps_step_turn(st, s->pass.there)) < st->n;) {
        if (o->sparse != NULL || st->part[t] == PS_PART_WHOLE) {
            int code = ps_object_take(o, s->pass.there, t, &s->held_bytes, err);
            if (code < 0) return ps_fail_about(err, o->spec.name);
        }
        if (st->part[t] != PS_PART_WHOLE) return PS_OK;
        st->part[t] = PS_PART_DONE;
    }
    if (!ps_step_open(st)) return PS_OK;
    ps_object_commit(o);
    ps_serve_note(s, object);
    ps_stream_begin(s);
    for (uint32_t t = 0; t < st->n; t++) {
        answer_step(s, object, t);
        answer_parked(s, object, t);
    }
    return PS_OK;
}

static void drop_rows(ps_shard *s, ps_peer *p) {
    if (p->rows != NULL) s->held_bytes -= p->rows->charge;
    free(p->rows);
    p->rows = NULL;
}

/* --- The body. --- */

static void use_floats(ps_peer *p, ps_object *o, size_t floats, const float *grad) {
    size_t at = (size_t)((p->got - p->carried) / sizeof(float));
    if (p->sink == PS_SINK_ADD) ps_add(o->dense.sum + at, grad, floats);
    else ps_dense_apply(&o->dense, o->step.version + 1, at, grad, floats);
}

/* Add a piece to the sum: whole floats are used, the bytes of an incomplete one are kept. */
static int64_t piece_to_sum(ps_shard *s, ps_peer *p, uint64_t left, ps_err *err) {
    uint8_t *scratch = (uint8_t *)s->scratch;
    memcpy(scratch, p->carry, p->carried);
    size_t room = PS_SCRATCH_BYTES - p->carried;
    int64_t n = ps_conn_body(&p->conn, scratch + p->carried, left < room ? (size_t)left : room, err);
    if (n < 0) return n;
    size_t bytes = p->carried + (size_t)n, whole = bytes / sizeof(float);
    use_floats(p, s->objects[p->head.object], whole, (const float *)s->scratch);
    p->carried = bytes % sizeof(float);
    memcpy(p->carry, scratch + whole * sizeof(float), p->carried);
    return n;
}

static int64_t piece(ps_shard *s, ps_peer *p, ps_err *err) {
    bool drops = p->skip > 0 || p->sink == PS_SINK_DROP;
    uint64_t left = p->skip > 0 ? p->skip : p->head.length - p->got;
    size_t most = drops ? PS_SCRATCH_BYTES : FAIR_SHARE;
    int64_t n;
    if (left < most) most = (size_t)left;
    if (drops) n = ps_conn_body(&p->conn, s->scratch, most, err);
    else if (p->sink == PS_SINK_BYTES) n = ps_conn_body(&p->conn, p->mem + p->got, most, err);
    else n = piece_to_sum(s, p, left, err);
    if (n > 0 && p->skip > 0) p->skip -= (uint64_t)n;
    else if (n > 0) p->got += (uint64_t)n;
    return n;
}

/* --- The end of a request: its effect, once. --- */

static int do_create(ps_shard *s, ps_peer *p, ps_err *err) {
    ps_create spec = {0};
    char text[PS_EVENT_TEXT];
    int code = ps_create_decode((uint8_t *)p->rows->data, (size_t)p->head.length, &spec, err);
    if (code < 0) return spec.name_length > 0 ? ps_fail_about(err, spec.name) : code;
    if (p->head.object == s->objects_n) {
        if (!ps_room(&s->objects, s->objects_n + 1, &s->objects_cap, sizeof *s->objects))
            code = ps_fail(err, PS_ENOMEM, 0, "%u objects", s->objects_n + 1);
        if (code == PS_OK)
            code = ps_object_new(&s->objects[s->objects_n], &spec, p->trainer, s->config.trainers, err);
        if (code < 0) return code;
        code = ps_first_apply(&s->config.finder, s->objects[s->objects_n], s->pass.number, err);
        if (code == PS_OK) ps_counter_set(&s->config.counters[0][PS_S_OBJECTS], ++s->objects_n);
        else ps_object_free(s->objects[s->objects_n]);
        return code;
    }
    const ps_object *o = s->objects[p->head.object];
    if (ps_create_differs(&spec, &o->spec, text, sizeof text))
        return ps_fail(err, PS_EPROTO, 0, "trainer %u and trainer %u do not agree on '%.*s': %.*s",
                       p->trainer, o->creator, PS_NAME(&o->spec), ps_fit(text, 120), text);
    return PS_OK;
}

static void do_init(ps_shard *s, const ps_peer *p, ps_object *o) {
    if (p->trainer != 0 || p->head.length == 0 || o->dense.ready) return;
    o->dense.ready = true;
    for (uint32_t t = 0; t < s->config.trainers; t++) {
        uint64_t sequence = ps_serve_wait(s, t, &o->step.waiter[t], 0);
        if (sequence != 0) ps_answer_done(s, &s->peers[t], sequence, p->head.object, 0, 0);
    }
}

/* End an asynchronous push: one version more, unless it was dropped. */
static void end_push(ps_shard *s, const ps_peer *p, ps_object *o) {
    uint8_t *part = &o->step.part[p->trainer];
    ps_drops *drops = &o->drops[p->trainer];
    if (*part == PS_PART_LATE) {
        drops->count++;
        drops->last = p->head.sequence;
        ps_counter_add(&s->of_trainer[p->trainer][PS_T_DROPPED], 1);
        ps_counter_add(&s->of_object[p->head.object][PS_O_DROPPED], 1);
    } else {
        o->step.version++;
        if (o->sparse == NULL) ps_dense_end(&o->dense, o->step.version);
    }
    *part = PS_PART_NONE;
    o->dense.applied = false;
    ps_stream_begin(s);
}

static void do_push(ps_shard *s, const ps_peer *p, ps_object *o) {
    uint8_t *part = &o->step.part[p->trainer];
    if (ps_object_async(o)) {
        end_push(s, p, o);
    } else if (*part == PS_PART_HELD) {
        *part = PS_PART_WHOLE;
    } else {
        if (p->sink == PS_SINK_BYTES) o->dense.sum_empty = false;
        *part = PS_PART_DONE;
    }
}

/* An asynchronous one that comes too late has no rows. */
static int do_push_rows(ps_shard *s, ps_peer *p, ps_object *o, ps_err *err) {
    bool whole = !(p->head.flags & PS_MORE), async = ps_object_async(o);
    if (p->rows != NULL) {
        const uint64_t *keys = p->rows->data;
        const float *grads = (const float *)(keys + p->head.count);
        uint32_t floats = ps_push_floats(&o->spec);
        int code = ps_entry_check_rows(&o->spec.entry, keys, grads, floats, p->head.count, err);
        if (code == PS_OK && async)
            code = ps_sparse_learn(o->sparse, o->step.version + 1, keys, grads, p->head.count, err);
        if (code < 0) return ps_fail_about(err, o->spec.name);
    }
    if (async) {
        if (whole) end_push(s, p, o);
        return PS_OK;
    }
    ps_object_hold(o, p->trainer, p->rows);
    p->rows = NULL;
    if (whole) o->step.part[p->trainer] = PS_PART_WHOLE;
    return PS_OK;
}

static int do_set_rows(ps_shard *s, const ps_peer *p, ps_object *o, ps_err *err) {
    if (o->given) return PS_OK;
    ps_object_begin(o, s->pass.number);
    const float *values = (const float *)(p->rows->data + p->head.count);
    int code = ps_sparse_load(o->sparse, p->rows->data, values, o->spec.dim, NULL, p->head.count, err);
    return code < 0 ? ps_fail_about(err, o->spec.name) : PS_OK;
}

static int do_shrink(const ps_peer *p, ps_object *o, ps_err *err) {
    ps_shrink how;
    memcpy(&how, p->rows->data, sizeof how);
    if (ps_shrink_check(&how, err) < 0) return ps_fail_about(err, o->spec.name);
    o->shrunk += ps_sparse_shrink(o->sparse, &how);
    return PS_OK;
}

static void answer_meeting(ps_shard *s, ps_peer *p, const ps_meeting *m, uint64_t sequence) {
    if (m == &s->pass) ps_answer_versions(s, p, sequence);
    else ps_answer_done(s, p, sequence, 0, m->number, 0);
}

/* End a pass or a barrier if all are there. */
static void settle_meeting(ps_shard *s, ps_meeting *m) {
    uint32_t n = s->config.trainers;
    if (m->since_ms == 0 || memchr(m->there, 0, n) != NULL) return;
    m->number++;
    m->since_ms = 0;
    for (uint32_t t = 0; t < n; t++) m->there[t] = s->peers[t].finished;
    for (uint32_t i = 0; m == &s->pass && i < s->objects_n; i++) s->objects[i]->step.next = 0;
    for (uint32_t t = 0; t < n; t++) {
        uint64_t sequence = ps_serve_wait(s, t, &m->waits[t], 0);
        if (sequence != 0) answer_meeting(s, &s->peers[t], m, sequence);
    }
}

/* Handle a trainer's arrival, or its end: steps may be complete without it, and what others wait for. */
static int settle_all(ps_shard *s, ps_err *err) {
    for (uint32_t i = 0; i < s->objects_n; i++) {
        int code = settle(s, i, err);
        if (code < 0) return code;
    }
    settle_meeting(s, &s->pass);
    settle_meeting(s, &s->barrier);
    ps_counter_set(&s->config.counters[0][PS_S_PASSES], s->pass.number);
    return PS_OK;
}

static int do_meet(ps_shard *s, const ps_peer *p, ps_meeting *m, ps_err *err) {
    m->there[p->trainer] = 1;
    if (m->since_ms == 0) m->since_ms = s->now_ms;
    return settle_all(s, err);
}

static int do_finish(ps_shard *s, ps_peer *p, ps_err *err) {
    p->finished = true;
    s->pass.there[p->trainer] = s->barrier.there[p->trainer] = 1;
    ps_event_report(s, PS_EVENT_FINISHED, p->trainer, 0, "");
    return settle_all(s, err);
}

static int effect(ps_shard *s, ps_peer *p, ps_object *o, ps_err *err) {
    switch (p->head.op) {
    case PS_CREATE:
        return do_create(s, p, err);
    case PS_INIT:
        do_init(s, p, o);
        return PS_OK;
    case PS_SET_ROWS:
        return do_set_rows(s, p, o, err);
    case PS_PUSH:
        do_push(s, p, o);
        return PS_OK;
    case PS_SHRINK:
        return do_shrink(p, o, err);
    case PS_PUSH_ROWS:
        return do_push_rows(s, p, o, err);
    case PS_END_PASS:
        return do_meet(s, p, &s->pass, err);
    case PS_BARRIER:
        return do_meet(s, p, &s->barrier, err);
    case PS_FINISH:
        return do_finish(s, p, err);
    case PS_CUT:
        ps_stream_ask(s, &p->head);
        return PS_OK;
    default:
        return PS_OK;
    }
}

/* Answer a read, or keep it until its step is complete. */
static int respond_rows(ps_shard *s, ps_peer *p, ps_object *o, ps_err *err) {
    if (!(p->head.flags & PS_AFTER) || ps_object_async(o) || p->head.version <= o->step.version)
        return ps_answer_rows(s, p, p->head.object, p->rows, err);
    ps_object_park(o, p->trainer, p->rows);
    p->rows = NULL;
    return PS_OK;
}

/* Answer an asynchronous push at once. */
static void answer_push(ps_shard *s, ps_peer *p, const ps_object *o) {
    uint32_t flags = o->drops[p->trainer].last == p->head.sequence ? PS_DROPPED : 0;
    if (p->head.flags & PS_WANT) ps_answer_values(s, p, p->head.sequence, p->head.object, flags);
    else ps_answer_done(s, p, p->head.sequence, p->head.object, o->step.version, flags);
}

/* Note a later answer; it may be due at once. */
static void wait_step(ps_shard *s, ps_peer *p, ps_step *st) {
    const ps_header *h = &p->head;
    if (h->flags & PS_MORE) {
        ps_answer_done(s, p, h->sequence, h->object, st->version, 0);
        return;
    }
    ps_serve_wait(s, p->trainer, &st->waiter[p->trainer], h->sequence);
    st->flags[p->trainer] = h->flags;
    if (st->version >= h->version) answer_step(s, h->object, p->trainer);
}

static void respond_init(ps_shard *s, ps_peer *p, ps_object *o) {
    if (o->dense.ready) {
        ps_answer_done(s, p, p->head.sequence, p->head.object, 0, 0);
        return;
    }
    ps_serve_wait(s, p->trainer, &o->step.waiter[p->trainer], p->head.sequence);
    if (o->step.since_ms == 0) o->step.since_ms = s->now_ms;
}

static int respond(ps_shard *s, ps_peer *p, ps_object *o, ps_err *err) {
    const ps_header *h = &p->head;
    ps_header answer = {.op = PS_DONE, .sequence = h->sequence, .object = h->object};
    ps_meeting *m = h->op == PS_END_PASS ? &s->pass : &s->barrier;
    switch (h->op) {
    case PS_PULL:
        ps_answer_values(s, p, h->sequence, h->object, 0);
        return PS_OK;
    case PS_PULL_ROWS:
        return respond_rows(s, p, o, err);
    case PS_SHRINK: /* the rows given back so far, all in all: so an answer may be given twice */
        answer.version = o->step.version;
        answer.count = (uint32_t)o->shrunk;
        ps_answer(s, p, answer, NULL, NULL);
        return PS_OK;
    case PS_INIT:
        respond_init(s, p, o);
        return PS_OK;
    case PS_PUSH:
    case PS_PUSH_ROWS:
        if (ps_object_async(o)) {
            answer_push(s, p, o);
            return PS_OK;
        }
        wait_step(s, p, &o->step);
        return p->repeated ? PS_OK : settle(s, h->object, err);
    case PS_END_PASS:
    case PS_BARRIER:
        if (m->number > h->version) answer_meeting(s, p, m, h->sequence);
        else ps_serve_wait(s, p->trainer, &m->waits[p->trainer], h->sequence);
        return PS_OK;
    default:
        ps_answer_done(s, p, h->sequence, h->object, h->op == PS_CREATE ? o->step.version : 0, 0);
        return PS_OK;
    }
}

/* Return the object of a request, or NULL. */
static ps_object *get_object(const ps_shard *s, const ps_peer *p) {
    return p->head.object < s->objects_n ? s->objects[p->head.object] : NULL;
}

/* A failed request is not done: if it comes again it fails again. */
static int finish(ps_shard *s, ps_peer *p, ps_err *err) {
    p->in_body = false;
    int code = p->repeated ? PS_OK : effect(s, p, get_object(s, p), err);
    ps_object *o = get_object(s, p); /* CREATE has made it */
    if (code == PS_OK && o != NULL) ps_serve_note(s, p->head.object);
    if (code == PS_OK && p->head.sequence == p->done + 1) {
        p->done = p->head.sequence;
        p->part.op = 0;
    }
    if (code == PS_OK) code = respond(s, p, o, err);
    drop_rows(s, p);
    return code;
}

/* --- The loop over the input. --- */

static int next_request(ps_shard *s, ps_peer *p, ps_err *err) {
    int code = ps_conn_header(&p->conn, &p->head, err);
    if (code == PS_EPROTO) p->head.sequence = 0;
    if (code < 0) return code;
    ps_counter_add(&s->of_trainer[p->trainer][PS_T_IN_BYTES], PS_HEADER_BYTES + p->head.length);
    if (p->head.sequence != 0 && p->head.sequence <= p->heard)
        return ps_fail(err, PS_ECONN, 0, "request %" PRIu64 " repeated on one connection: a replay",
                       p->head.sequence);
    p->heard = p->head.sequence;
    code = ps_serve_begin(s, p, err);
    if (code == PS_EAGAIN) {
        p->paused = true;
        s->paused_n++;
        ps_counter_add(&s->of_trainer[p->trainer][PS_T_WAITS_FOR_TURN], 1);
    }
    return code;
}

/* PS_OK: continue. PS_EAGAIN: no more input for now. PS_ECONN: gone. Else an error of the trainer. */
static int advance(ps_shard *s, ps_peer *p, int64_t *share, ps_err *err) {
    p->full = !p->in_body && p->out_owned > PS_MAX_ANSWER_BYTES;
    if (p->full) return PS_EAGAIN;
    if (!p->in_body) {
        int code = next_request(s, p, err);
        *share -= FRAME_SHARE;
        if (code < 0) return code;
    }
    if (ps_peer_left(p) > 0) {
        int64_t n = piece(s, p, err);
        if (n < 0) return (int)n;
        *share -= n;
    }
    if (!p->repeated) p->active_ms = s->now_ms;
    return ps_peer_left(p) == 0 ? finish(s, p, err) : PS_OK;
}

static int drop_input(ps_shard *s, ps_peer *p, int64_t *share, ps_err *err) {
    int64_t n = ps_conn_body(&p->conn, s->scratch, PS_SCRATCH_BYTES, err);
    *share -= n;
    return n > 0 ? PS_OK : (int)n;
}

int ps_serve_input(ps_shard *s, ps_peer *p, ps_err *err) {
    int64_t share = FAIR_SHARE;
    p->hungry = false;
    while (share > 0) {
        int code = p->dying ? drop_input(s, p, &share, err) : advance(s, p, &share, err);
        if (code == PS_OK) continue;
        if (code == PS_EAGAIN) return PS_OK;
        if (code == PS_ECONN) return PS_ECONN;
        ps_answer_error(s, p, err);
        drop_rows(s, p);
    }
    p->hungry = p->conn.from < p->conn.to;
    return PS_OK;
}

void ps_serve_resume(ps_shard *s) {
    bool again = s->paused_n > 0;
    while (again) {
        again = false;
        for (uint32_t t = 0; t < s->config.trainers && s->paused_n > 0; t++) {
            ps_peer *p = &s->peers[t];
            ps_err err;
            if (!p->paused) continue;
            int code = ps_serve_begin(s, p, &err);
            if (code == PS_EAGAIN) continue;
            p->paused = false;
            s->paused_n--;
            again = true;
            if (code < 0) ps_answer_error(s, p, &err);
            if (ps_serve_input(s, p, &err) == PS_ECONN) ps_serve_drop(s, p, err.text);
        }
    }
}

void ps_serve_lost(ps_shard *s, ps_peer *p) {
    uint32_t t = p->trainer;
    if (p->paused) s->paused_n--;
    drop_rows(s, p);
    ps_peer_lost(p);
    (void)ps_serve_wait(s, t, &s->pass.waits[t], 0);
    (void)ps_serve_wait(s, t, &s->barrier.waits[t], 0);
    for (uint32_t i = 0; i < s->objects_n; i++) {
        ps_object *o = s->objects[i];
        (void)ps_serve_wait(s, t, &o->step.waiter[t], 0);
        s->held_bytes -= ps_object_forget_parked(o, t);
    }
    ps_stream_begin(s); /* a cut no longer waits for its push in flight */
}

void ps_serve_drop(ps_shard *s, ps_peer *p, const char *why) {
    if (p->conn.fd < 0) return;
    ps_serve_lost(s, p);
    ps_event_report(s, PS_EVENT_GONE, p->trainer, 0, why);
}
