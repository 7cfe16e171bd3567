#include <stdlib.h>
#include <string.h>

#include "base/ps_room.h"
#include "client/ps_call.h"
#include "client/ps_client.h"

/* --- Life. --- */

int ps_client_new(ps_client **out, uint32_t shards, uint32_t epoch, uint32_t trainer, ps_err *err) {
    *out = NULL;
    if (shards == 0 || shards > PS_MAX_SHARDS)
        return ps_fail(err, PS_EINVAL, 0, "%u ports in all, expected 1..%u", shards, PS_MAX_SHARDS);
    if (trainer >= PS_MAX_TRAINERS)
        return ps_fail(err, PS_EINVAL, 0, "trainer %u, the limit is %u", trainer, PS_MAX_TRAINERS);
    ps_client *c = calloc(1, sizeof *c);
    if (c == NULL) return ps_call_no_memory(err);
    *c = (ps_client){.shards = shards, .epoch = epoch, .trainer = trainer};
    c->links = calloc(shards, sizeof *c->links);
    c->polls = calloc(shards, sizeof *c->polls);
    if (c->links == NULL || c->polls == NULL) {
        c->shards = 0;
        ps_client_free(c);
        return ps_call_no_memory(err);
    }
    for (uint32_t i = 0; i < shards; i++) ps_conn_init(&c->links[i].conn);
    *out = c;
    return PS_OK;
}

/* Remove the last object. */
static void forget_object(ps_client *c) {
    ps_known *o = &c->objects[--c->objects_n];
    free(o->pieces);
    free(o->seen);
}

void ps_client_free(ps_client *c) {
    if (c == NULL) return;
    ps_client_clear(c);
    for (uint32_t i = 0; i < c->shards; i++) ps_conn_close(&c->links[i].conn);
    while (c->objects_n > 0) forget_object(c);
    free(c->objects);
    free(c->iovs);
    free(c->links);
    free(c->polls);
    free(c);
}

/* --- Connections. --- */

/* Send again from the first request; those already answered are skipped. */
static void rewind_link(ps_link *l) {
    l->sending = l->first;
    l->sent = 0;
    l->reading = NULL;
    l->refusing = false;
}

int ps_client_attach(ps_client *c, uint32_t shard, int fd, ps_err *err) {
    if (shard >= c->shards) return ps_fail(err, PS_EINVAL, 0, "unknown shard %u", shard);
    rewind_link(&c->links[shard]);
    return ps_conn_open(&c->links[shard].conn, fd, true, err);
}

void ps_client_detach(ps_client *c, uint32_t shard) {
    if (shard >= c->shards) return;
    ps_conn_close(&c->links[shard].conn);
    rewind_link(&c->links[shard]);
}

int ps_client_sent(const ps_client *c, uint32_t shard) {
    return shard < c->shards && c->links[shard].told_whole == c->links[shard].sequence;
}

void ps_client_let_go(ps_client *c, uint32_t shard) {
    if (shard >= c->shards) return;
    ps_link *l = &c->links[shard];
    ps_client_detach(c, shard);
    for (ps_request *r = l->first; r != NULL; r = r->next) {
        if (!r->answered) r->call->open--;
        r->answered = true;
    }
    l->open = 0;
    for (ps_call *call = c->calls, *next; call != NULL; call = next) {
        next = call->next;
        if (call->open == 0) ps_call_complete(c, call);
    }
}

uint32_t ps_client_waits_for(const ps_client *c) {
    for (uint32_t i = 0; i < c->shards; i++)
        if (c->links[i].open > 0) return i;
    return c->shards;
}

/* Return true if the shard has got a request that it has not answered. */
static bool told_open(const ps_link *l) {
    for (const ps_request *r = l->first; r != NULL; r = r->next)
        if (!r->answered && r->head.sequence <= l->told) return true;
    return false;
}

void ps_client_clear(ps_client *c) {
    for (uint32_t i = 0; i < c->shards; i++) {
        ps_link *l = &c->links[i];
        if (told_open(l)) ps_conn_close(&l->conn);
        l->sequence = l->told; /* the shard expects the next one */
        l->first = l->last = l->sending = l->reading = NULL;
        l->sent = l->got = 0;
        l->open = 0;
        l->refusing = false;
    }
    for (uint32_t i = 0; i < c->objects_n; i++)
        for (uint32_t k = 0; k < c->shards; k++) c->objects[i].seen[k].pushing = false;
    while (c->calls != NULL) ps_call_free(c, c->calls);
    ps_call_discard(c);
}

void ps_client_cancel(ps_client *c) {
    for (const ps_request *r = c->building == NULL ? NULL : c->building->first; r != NULL; r = r->next)
        if (r->head.op == PS_CUT) c->cut_step = 0; /* nobody makes it */
        else if (r->head.op == PS_PUSH || r->head.op == PS_PUSH_ROWS)
            c->objects[r->head.object].seen[r->shard].pushing = false;
    ps_call_discard(c);
}

/* --- Building a call. --- */

uint64_t ps_client_building(const ps_client *c) {
    return c->begun + 1;
}

/* Give a request its number on the shard and its place in the queue. */
static void queue_request(ps_link *l, ps_request *r) {
    r->next = NULL;
    r->head.sequence = ++l->sequence;
    ps_header_encode(&r->head, r->raw);
    if (l->last != NULL) l->last->next = r;
    else l->first = r;
    l->last = r;
    if (l->sending == NULL) {
        l->sending = r;
        l->sent = 0;
    }
    l->open++;
}

uint64_t ps_client_begin(ps_client *c) {
    ps_call *call = c->building;
    c->building = NULL;
    c->begun++;
    if (call == NULL) return c->begun;
    for (ps_request *r = call->first, *next; r != NULL; r = next) {
        next = r->next;
        queue_request(&c->links[r->shard], r);
        call->open++;
    }
    call->first = call->last = NULL;
    call->number = c->begun;
    call->next = c->calls;
    c->calls = call;
    if (call->open == 0) ps_call_complete(c, call);
    return c->begun;
}

bool ps_client_done(const ps_client *c, uint64_t number) {
    for (const ps_call *call = c->calls; call != NULL; call = call->next)
        if (call->number == number) return false;
    return number <= c->begun;
}

/* Return the end of the pieces on the same shard as `at`. */
static size_t same_shard(const ps_known *o, size_t at) {
    size_t end = at + 1;
    while (end < o->pieces_n && o->pieces[end].shard == o->pieces[at].shard) end++;
    return end;
}

static int add_pieces(ps_client *c, const ps_known *o, size_t from, size_t to, const float *base,
                      ps_err *err) {
    int code = PS_OK;
    for (size_t i = from; base != NULL && code == PS_OK && i < to; i++)
        code = ps_call_iov(c, (void *)(base + o->pieces[i].start),
                           (size_t)o->pieces[i].length * sizeof(float), err);
    return code;
}

/* Adds the same request to every shard that has a part of the object. */
int ps_client_use(ps_client *c, uint16_t op, uint32_t id, const ps_batch *batch, const float *from, float *to,
                  ps_err *err) {
    ps_known *o = NULL;
    ps_header head = {.op = op, .object = id, .flags = op == PS_PUSH && to != NULL ? PS_WANT : 0};
    uint16_t expect = op == PS_PULL || to != NULL ? PS_VALUES : PS_DONE;
    int code = ps_call_find(c, id, 0, &o, err);
    if (code == PS_OK && op == PS_PUSH) code = ps_call_batch(batch, &head, err);
    for (size_t at = 0, end; code == PS_OK && at < o->pieces_n; at = end) {
        uint32_t shard = (uint32_t)o->pieces[at].shard;
        end = same_shard(o, at);
        if (op == PS_PUSH) code = ps_call_push(o, shard, &head.version, err);
        if (code == PS_OK) code = add_pieces(c, o, at, end, from, err);
        size_t outs = c->iovs_n;
        if (code == PS_OK) code = add_pieces(c, o, at, end, to, err);
        if (code == PS_OK) code = ps_call_request(c, shard, head, expect, outs, err);
    }
    return code;
}

void ps_client_mark(ps_client *c, bool more) {
    for (uint32_t id = 0; id < c->objects_n; id++) {
        ps_known *o = &c->objects[id];
        for (uint32_t i = 0; i < c->shards; i++) {
            ps_seen *seen = &o->seen[i];
            if (!more) seen->base = seen->values == UINT64_MAX ? seen->version : seen->values;
            if (o->spec.sparse) seen->values = UINT64_MAX;
        }
    }
}

/* --- Creating. --- */

static int add_object(ps_client *c, const ps_create *spec, ps_known **out, ps_err *err) {
    if (c->objects_n >= PS_MAX_OBJECTS)
        return ps_fail(err, PS_EINVAL, 0, "more than %u objects", PS_MAX_OBJECTS);
    if (!ps_room(&c->objects, c->objects_n + 1, &c->objects_cap, sizeof *c->objects))
        return ps_call_no_memory(err);
    *out = &c->objects[c->objects_n];
    **out = (ps_known){.spec = *spec, .seen = calloc(c->shards, sizeof *(*out)->seen)};
    if ((*out)->seen == NULL) return ps_call_no_memory(err);
    c->objects_n++;
    return PS_OK;
}

/* Every shard gets every object, even without a part of it, so that all number them alike. */
static int add_create(ps_client *c, const ps_known *o, uint32_t id, uint32_t shard, uint64_t size,
                      ps_err *err) {
    ps_create spec = o->spec;
    spec.size = size;
    uint8_t *body = ps_call_stage(c, PS_MAX_CREATE, 1);
    if (body == NULL) return ps_call_no_memory(err);
    int code = ps_call_iov(c, body, ps_create_encode(&spec, body), err);
    if (code < 0) return code;
    return ps_call_request(c, shard, (ps_header){.op = PS_CREATE, .object = id}, PS_DONE, 1, err);
}

static uint64_t size_on(const ps_known *o, uint32_t shard) {
    uint64_t size = 0;
    for (size_t i = 0; i < o->pieces_n; i++)
        if (o->pieces[i].shard == shard) size += o->pieces[i].length;
    return size;
}

static int check_pieces(const ps_client *c, const ps_create *spec, const ps_piece *pieces, size_t n,
                        ps_err *err) {
    if (spec->sparse && (n == 0 || spec->dim == 0 || spec->dim > PS_MAX_DIM))
        return ps_fail(err, PS_EINVAL, 0, "table '%.*s': dim %u on %zu shards", PS_NAME(spec), spec->dim, n);
    for (const ps_piece *p = pieces; p < pieces + n; p++)
        if (p->shard >= c->shards || p->start > spec->total || p->length > spec->total - p->start ||
            (p->length == 0) != spec->sparse || (p > pieces && p->shard < p[-1].shard + spec->sparse))
            return ps_fail(err, PS_EINVAL, 0, "piece %td of '%.*s' is out of range", p - pieces,
                           PS_NAME(spec));
    return PS_OK;
}

int ps_client_create(ps_client *c, const ps_create *spec, const ps_piece *pieces, size_t n, uint32_t *id,
                     ps_err *err) {
    ps_known *o = NULL;
    int code = check_pieces(c, spec, pieces, n, err);
    if (code == PS_OK) code = add_object(c, spec, &o, err);
    if (code < 0) return code;
    *id = c->objects_n - 1;
    o->pieces = malloc((n + 1) * sizeof *o->pieces);
    if (o->pieces == NULL) code = ps_call_no_memory(err);
    else if (n > 0) memcpy(o->pieces, pieces, n * sizeof *pieces);
    o->pieces_n = n;
    for (uint32_t s = 0; code == PS_OK && s < c->shards; s++)
        code = add_create(c, o, *id, s, size_on(o, s), err);
    if (code < 0) forget_object(c);
    return code;
}

int ps_client_tell(ps_client *c, uint16_t op, uint64_t number, ps_err *err) {
    uint32_t shards = op == PS_BARRIER ? 1 : c->shards;
    uint16_t expect = op == PS_END_PASS ? PS_VERSIONS : PS_DONE;
    int code = PS_OK;
    for (uint32_t s = 0; code == PS_OK && s < shards; s++)
        code = ps_call_request(c, s, (ps_header){.op = op, .version = number}, expect, 0, err);
    return code;
}

/* Return true if every step has a push of the object to this shard. */
static bool steps_on(const ps_known *o, uint32_t shard) {
    for (size_t i = 0; o->spec.mode == PS_SYNC && i < o->pieces_n; i++)
        if (o->pieces[i].shard == shard) return true;
    return false;
}

int ps_client_cut(ps_client *c, bool now, uint32_t flags, ps_err *err) {
    int code = PS_OK;
    bool sync = false;
    uint64_t step = 0;
    for (uint32_t i = 0; i < c->objects_n; i++) sync |= c->objects[i].spec.mode == PS_SYNC;
    for (uint32_t i = 0; i < c->objects_n; i++) /* messages of synchronous trainers have other steps */
        for (uint32_t s = 0; s < c->shards && (!sync || c->objects[i].spec.mode == PS_SYNC); s++)
            if (c->objects[i].seen[s].version > step) step = c->objects[i].seen[s].version;
    if (!now) step++;
    c->cut_step = step;
    for (uint32_t s = 0; code == PS_OK && s < c->shards; s++) {
        ps_header head = {.op = PS_CUT, .version = step, .flags = flags};
        for (uint32_t i = 0; i < c->objects_n; i++) head.count += steps_on(&c->objects[i], s);
        code = ps_call_request(c, s, head, PS_DONE, 0, err);
    }
    return code;
}

uint64_t ps_client_cut_step(const ps_client *c) {
    return c->cut_step;
}

const ps_create *ps_client_spec(const ps_client *c, uint32_t id) {
    static const ps_create none = {0};
    return id < c->objects_n ? &c->objects[id].spec : &none;
}

uint64_t ps_client_shrunk(const ps_client *c, uint32_t id) {
    uint64_t sum = 0;
    for (uint32_t k = 0; id < c->objects_n && k < c->shards; k++) sum += c->objects[id].seen[k].shrunk;
    return sum;
}

uint64_t ps_client_dropped(const ps_client *c, uint32_t id) {
    return id < c->objects_n ? c->objects[id].dropped : 0;
}

uint64_t ps_client_version(const ps_client *c, uint32_t id, uint32_t shard) {
    return id < c->objects_n && shard < c->shards ? c->objects[id].seen[shard].version : 0;
}
