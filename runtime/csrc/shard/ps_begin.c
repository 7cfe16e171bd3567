/* Begin a request: check that it is allowed, and choose the place of its body. */
#include <inttypes.h>

#include "shard/ps_serve.h"

/* A frame without a body takes memory as well, and would be held any number of times. */
static uint64_t charge_of(uint64_t bytes) {
    return sizeof(ps_held) + bytes;
}

static bool may_hold(const ps_shard *s, const ps_object *o, uint64_t bytes) {
    if (o->sparse == NULL && o->held_n >= PS_MAX_HELD) return false;
    return s->held_bytes + charge_of(bytes) <= PS_MAX_HELD_BYTES;
}

static int body_buffer(ps_shard *s, ps_peer *p, uint64_t charge, ps_err *err) {
    p->rows = ps_held_new(p->head.length, p->head.count);
    if (p->rows == NULL) return ps_fail(err, PS_ENOMEM, 0, "%" PRIu64 " bytes of a request", p->head.length);
    p->rows->charge = charge;
    p->rows->sequence = p->head.sequence;
    p->rows->version = p->head.version;
    s->held_bytes += charge;
    p->sink = PS_SINK_BYTES;
    p->mem = (uint8_t *)p->rows->data;
    return PS_OK;
}

static int find_object(ps_shard *s, const ps_header *h, bool sparse, ps_object **o, ps_err *err) {
    *o = NULL;
    if (h->object >= s->objects_n)
        return ps_fail(err, PS_EPROTO, 0, "%s of object %u, which does not exist", ps_op_name(h->op),
                       h->object);
    *o = s->objects[h->object];
    if (((*o)->sparse != NULL) != sparse)
        return ps_fail(err, PS_EPROTO, 0, "%s of '%.*s', which is %s", ps_op_name(h->op),
                       PS_NAME(&(*o)->spec), sparse ? "dense" : "a sparse table");
    return PS_OK;
}

static int bad_length(const ps_header *h, ps_err *err) {
    return ps_fail(err, PS_EPROTO, 0, "%s of object %u with %" PRIu64 " bytes and %u keys", ps_op_name(h->op),
                   h->object, h->length, h->count);
}

static int may_push(ps_shard *s, const ps_peer *p, const ps_object *o, ps_err *err) {
    const ps_header *h = &p->head;
    if (p->repeated) return PS_OK;
    if (s->pass.there[p->trainer])
        return ps_fail(err, PS_EPROTO, 0, "trainer %u pushes after it ended the pass", p->trainer);
    if (ps_object_async(o)) {
        if (h->version <= o->step.version) return PS_OK;
        return ps_fail(err, PS_EPROTO, 0,
                       "trainer %u pushes a gradient of version %" PRIu64
                       " of '%.*s', but the last is %" PRIu64,
                       p->trainer, h->version, PS_NAME(&o->spec), o->step.version);
    }
    if (o->sparse == NULL && ps_peer_owes(p, o->dense.values))
        return ps_fail(err, PS_EPROTO, 0, "trainer %u pushes '%.*s' before it has read its values",
                       p->trainer, PS_NAME(&o->spec));
    if (h->version != o->step.version + 1 || o->step.part[p->trainer] >= PS_PART_WHOLE)
        return ps_fail(err, PS_EPROTO, 0,
                       "trainer %u pushes '%.*s' for step %" PRIu64 ", but %" PRIu64 " are complete",
                       p->trainer, PS_NAME(&o->spec), h->version, o->step.version);
    return PS_OK;
}

static int may_read(ps_shard *s, const ps_peer *p, const ps_object *o, ps_err *err) {
    if (ps_object_async(o)) return PS_OK;
    uint8_t part = o->step.part[p->trainer];
    if (p->head.flags & PS_AFTER) {
        if (p->head.version <= o->step.version) return PS_OK;
        if (p->head.version == o->step.version + 1 && (part == PS_PART_WHOLE || part == PS_PART_DONE))
            return PS_OK;
        return ps_fail(err, PS_EPROTO, 0,
                       "trainer %u reads '%.*s' after step %" PRIu64 ", which it has not pushed; %" PRIu64
                       " are complete",
                       p->trainer, PS_NAME(&o->spec), p->head.version, o->step.version);
    }
    if (!s->pass.there[p->trainer] && part == PS_PART_NONE) return PS_OK;
    return ps_fail(err, PS_EPROTO, 0, "trainer %u reads '%.*s' in the middle of its own step", p->trainer,
                   PS_NAME(&o->spec));
}

static int not_ready(const ps_object *o, ps_err *err) {
    return ps_fail(err, PS_EPROTO, 0, "'%.*s' has no values yet: trainer 0 must set them first",
                   PS_NAME(&o->spec));
}

/* A piece of the gradient may have been taken before the connection broke: continue in the same way. */
static int aim_dense(ps_peer *p, ps_object *o, bool last, ps_err *err) {
    ps_dense *d = &o->dense;
    if (o->step.part[p->trainer] == PS_PART_HELD) {
        p->sink = PS_SINK_BYTES;
        p->mem = (uint8_t *)o->held[p->trainer].first->data;
    } else if (d->applied || (last && p->got == 0)) {
        p->sink = PS_SINK_APPLY;
    } else if (!d->sum_empty) {
        p->sink = PS_SINK_ADD;
    } else {
        p->sink = PS_SINK_BYTES;
        p->mem = (uint8_t *)ps_dense_sum(d);
        if (p->mem == NULL) return ps_fail(err, PS_ENOMEM, 0, "the sum of '%.*s'", PS_NAME(&o->spec));
    }
    return PS_OK;
}

/* Note the first byte of a push that will be used. */
static void begin_part(const ps_shard *s, const ps_peer *p, ps_object *o, uint8_t part) {
    o->step.part[p->trainer] = part;
    ps_object_count(o, &p->head, s->pass.number);
}

/* Decide whether an asynchronous push is applied or dropped: once, at its first byte. PS_EAGAIN while a cut
 * waits for those in flight. */
static int admit_push(const ps_shard *s, const ps_peer *p, ps_object *o) {
    uint64_t since = o->step.version - p->head.version;
    if (o->step.part[p->trainer] != PS_PART_NONE) return PS_OK;
    if (ps_stream_due(s)) return PS_EAGAIN;
    ps_counter_add(&s->of_object[p->head.object][PS_O_PUSHES], 1);
    ps_counter_add(&s->of_object[p->head.object][PS_O_AGES], since);
    if (o->spec.discard > 0 && since >= o->spec.discard) o->step.part[p->trainer] = PS_PART_LATE;
    else begin_part(s, p, o, PS_PART_SUM);
    return PS_OK;
}

static int begin_push(ps_shard *s, ps_peer *p, ps_object *o, ps_err *err) {
    int code;
    if (p->head.length != o->dense.n * sizeof(float)) return bad_length(&p->head, err);
    if (!o->dense.ready) return not_ready(o, err);
    if ((code = may_push(s, p, o, err)) < 0 || p->repeated) return code;

    if (ps_object_async(o)) {
        if ((code = admit_push(s, p, o)) < 0) return code;
        p->sink = o->step.part[p->trainer] == PS_PART_LATE ? PS_SINK_DROP : PS_SINK_APPLY;
        return PS_OK;
    }
    uint8_t *part = &o->step.part[p->trainer];
    bool turn = ps_step_turn(&o->step, s->pass.there) == p->trainer;
    if (!ps_step_open(&o->step)) o->step.since_ms = s->now_ms;
    if (*part == PS_PART_NONE && !turn) {
        if (!may_hold(s, o, p->head.length)) return PS_EAGAIN;
        ps_held *h = ps_held_new(p->head.length, 0);
        if (h == NULL) return ps_fail(err, PS_ENOMEM, 0, "a gradient of '%.*s'", PS_NAME(&o->spec));
        h->charge = charge_of(h->bytes);
        s->held_bytes += h->charge;
        ps_object_hold(o, p->trainer, h);
        begin_part(s, p, o, PS_PART_HELD);
    } else if (*part == PS_PART_NONE) {
        begin_part(s, p, o, PS_PART_SUM);
    }
    return aim_dense(p, o, ps_step_last(&o->step, s->pass.there, p->trainer), err);
}

/* A read that waits for a step is charged with its answer, which follows at once when that is complete. */
static int begin_read(ps_shard *s, ps_peer *p, const ps_object *o, ps_err *err) {
    int code = may_read(s, p, o, err);
    if (code < 0) return code;
    bool waits = !ps_object_async(o) && (p->head.flags & PS_AFTER) && p->head.version > o->step.version;
    uint64_t charge = charge_of(p->head.length + p->head.count * sizeof(float) * (uint64_t)o->spec.dim);
    if (!waits) return body_buffer(s, p, 0, err);
    return s->held_bytes + charge <= PS_MAX_HELD_BYTES ? body_buffer(s, p, charge, err) : PS_EAGAIN;
}

static int may_set(const ps_peer *p, const ps_object *o, ps_err *err) {
    bool first = o->given || o->step.version == 0;
    if (p->repeated || (first && !ps_step_open(&o->step))) return PS_OK;
    return ps_fail(err, PS_EPROTO, 0,
                   "trainer %u sets rows of '%.*s' after the first push; %" PRIu64 " steps are complete",
                   p->trainer, PS_NAME(&o->spec), o->step.version);
}

static int begin_rows(ps_shard *s, ps_peer *p, ps_object *o, ps_err *err) {
    const ps_header *h = &p->head;
    int code;
    uint32_t floats = h->op == PS_PUSH_ROWS ? ps_push_floats(&o->spec) : o->spec.dim;
    uint64_t row = h->op == PS_PULL_ROWS ? 0 : sizeof(float) * (uint64_t)floats;
    if (h->length != h->count * (sizeof(uint64_t) + row) || h->count > ps_rows_per_frame(floats))
        return bad_length(h, err);
    if (h->op == PS_PULL_ROWS) return begin_read(s, p, o, err);
    if (h->op == PS_SET_ROWS) {
        if ((code = may_set(p, o, err)) < 0 || p->repeated || o->given) return code;
        return body_buffer(s, p, 0, err);
    }

    if ((code = may_push(s, p, o, err)) < 0 || p->repeated) return code;
    if (ps_object_async(o)) {
        if ((code = admit_push(s, p, o)) < 0) return code;
        return o->step.part[p->trainer] == PS_PART_LATE ? PS_OK : body_buffer(s, p, 0, err);
    }
    bool turn = ps_step_turn(&o->step, s->pass.there) == p->trainer;
    if (!turn && !may_hold(s, o, h->length)) return PS_EAGAIN;
    if (!ps_step_open(&o->step)) o->step.since_ms = s->now_ms;
    if (o->step.part[p->trainer] == PS_PART_NONE) begin_part(s, p, o, PS_PART_HELD);
    return body_buffer(s, p, turn ? 0 : charge_of(h->length), err);
}

static int begin_init(ps_shard *s PS_UNUSED, ps_peer *p, ps_object *o, ps_err *err) {
    bool values = p->head.length == o->dense.n * sizeof(float) && p->trainer == 0;
    if (p->head.length != 0 && !values) return bad_length(&p->head, err);
    if (o->dense.ready) return PS_OK; /* only the first values count; these are equal or late */
    p->sink = PS_SINK_BYTES;
    p->mem = (uint8_t *)o->dense.values;
    return PS_OK;
}

static int begin_pull(ps_shard *s, ps_peer *p, ps_object *o, ps_err *err) {
    return o->dense.ready ? may_read(s, p, o, err) : not_ready(o, err);
}

static int begin_create(ps_shard *s, ps_peer *p, ps_object *o PS_UNUSED, ps_err *err) {
    if (p->head.object > s->objects_n || (p->repeated && p->head.object == s->objects_n))
        return ps_fail(err, PS_EPROTO, 0, "CREATE of object %u after %u%s", p->head.object, s->objects_n,
                       p->repeated ? ", repeated" : "");
    return body_buffer(s, p, 0, err);
}

static int begin_shrink(ps_shard *s, ps_peer *p, ps_object *o, ps_err *err) {
    if (p->head.length != sizeof(ps_shrink)) return bad_length(&p->head, err);
    if (o->spec.entry.rule == PS_ENTRY_ANY)
        return ps_fail(
            err, PS_EPROTO, 0,
            "'%.*s' can't shrink, because it counts nothing: create it with an entry rule, such as "
            "CountFilterEntry(1)",
            PS_NAME(&o->spec));
    /* Trainer 0 has the first turn: before its own push no gradient is in the sum of a step. */
    if (!p->repeated && !ps_object_async(o) &&
        (s->pass.there[0] || o->step.part[0] != PS_PART_NONE || o->step.next != 0))
        return ps_fail(err, PS_EPROTO, 0, "trainer 0 shrinks '%.*s' in the middle of its own step",
                       PS_NAME(&o->spec));
    return body_buffer(s, p, 0, err);
}

static int begin_wait(ps_shard *s, ps_peer *p, ps_object *o PS_UNUSED, ps_err *err) {
    uint64_t over = p->head.op == PS_END_PASS ? s->pass.number : s->barrier.number;
    if (p->repeated) return PS_OK;
    for (uint32_t i = 0; i < s->objects_n; i++) {
        uint8_t part = s->objects[i]->step.part[p->trainer];
        if (part != PS_PART_NONE && part < PS_PART_WHOLE)
            return ps_fail(err, PS_EPROTO, 0, "%s of trainer %u in the middle of a push",
                           ps_op_name(p->head.op), p->trainer);
    }
    if (p->head.op == PS_FINISH || p->head.version == over) return PS_OK;
    return ps_fail(err, PS_EPROTO, 0, "%s %" PRIu64 " of trainer %u, %" PRIu64 " of %u trainers are over",
                   ps_op_name(p->head.op), p->head.version, p->trainer, over, s->config.trainers);
}

static int begin_body(ps_shard *s, ps_peer *p, ps_err *err) {
    enum { NONE, DENSE, TABLE }; /* the object that a request has */
    static const struct {
        int (*begin)(ps_shard *s, ps_peer *p, ps_object *o, ps_err *err);
        int object;
        bool first; /* of trainer 0 alone */
    } requests[PS_CUT + 1] = {
        [PS_CREATE] = {begin_create, NONE, false},   [PS_INIT] = {begin_init, DENSE, false},
        [PS_SET_ROWS] = {begin_rows, TABLE, true},   [PS_PUSH] = {begin_push, DENSE, false},
        [PS_PUSH_ROWS] = {begin_rows, TABLE, false}, [PS_PULL] = {begin_pull, DENSE, false},
        [PS_PULL_ROWS] = {begin_rows, TABLE, false}, [PS_END_PASS] = {begin_wait, NONE, false},
        [PS_BARRIER] = {begin_wait, NONE, false},    [PS_FINISH] = {begin_wait, NONE, false},
        [PS_SHRINK] = {begin_shrink, TABLE, true},   [PS_CUT] = {NULL, NONE, true},
    };
    uint16_t op = p->head.op;
    ps_object *o = NULL;
    if (op > PS_CUT) return ps_fail(err, PS_EPROTO, 0, "%s is not a request", ps_op_name(op));
    int code = PS_OK, object = requests[op].object;
    if (object != NONE) code = find_object(s, &p->head, object == TABLE, &o, err);
    if (code == PS_OK && requests[op].first && p->trainer != 0) {
        code = ps_fail(err, PS_EPROTO, 0, "%s of trainer %u; only trainer 0 may", ps_op_name(op), p->trainer);
        return o == NULL ? code : ps_fail_about(err, o->spec.name);
    }
    return code < 0 || requests[op].begin == NULL ? code : requests[op].begin(s, p, o, err);
}

static int check_sender(const ps_shard *s, const ps_peer *p, ps_err *err) {
    const ps_header *h = &p->head;
    if (h->epoch != s->config.epoch)
        return ps_fail(err, PS_EPROTO, 0, "a frame of epoch %u, expected epoch %u", h->epoch,
                       s->config.epoch);
    if (h->trainer != p->trainer)
        return ps_fail(err, PS_EPROTO, 0, "a frame of trainer %u on the connection of trainer %u", h->trainer,
                       p->trainer);
    if (h->sequence == 0 || h->sequence > p->done + 1)
        return ps_fail(err, PS_EPROTO, 0, "request %" PRIu64 " of trainer %u after %" PRIu64, h->sequence,
                       p->trainer, p->done);
    return PS_OK;
}

static bool same_request(const ps_header *a, const ps_header *b) {
    return a->op == b->op && a->sequence == b->sequence && a->object == b->object && a->flags == b->flags &&
           a->version == b->version && a->samples == b->samples && a->factor == b->factor &&
           a->length == b->length && a->count == b->count;
}

int ps_serve_begin(ps_shard *s, ps_peer *p, ps_err *err) {
    const ps_header *h = &p->head;
    int code = check_sender(s, p, err);
    if (code < 0) return code;
    bool reads = h->op == PS_PULL || h->op == PS_PULL_ROWS;
    p->repeated = h->sequence <= p->done && !reads;
    p->got = 0;
    p->carried = 0;
    p->skip = p->repeated ? h->length : 0;
    p->sink = PS_SINK_DROP;
    if (p->part.op != 0 && h->sequence == p->part.sequence) {
        if (!same_request(&p->part, h))
            return ps_fail(err, PS_EPROTO, 0, "trainer %u repeats request %" PRIu64 " with different content",
                           p->trainer, h->sequence);
        p->got = p->skip = p->part_got;
    }
    code = begin_body(s, p, err);
    if (code == PS_OK) p->in_body = true;
    return code;
}
