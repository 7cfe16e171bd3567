#include "client/ps_call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/ps_room.h"

/* --- Memory. --- */

int ps_call_no_memory(ps_err *err) {
    return ps_fail(err, PS_ENOMEM, 0, "no memory for a request to the pservers");
}

void *ps_call_more(ps_call *call, size_t n, size_t size) {
    if (n > (SIZE_MAX - sizeof(ps_stage) - 8) / size) return NULL;
    ps_stage *s = malloc(sizeof *s + n * size + 8);
    if (s == NULL) return NULL;
    s->next = call->stages;
    call->stages = s;
    return s->data;
}

void *ps_call_stage(ps_client *c, size_t n, size_t size) {
    if (c->building == NULL) c->building = calloc(1, sizeof *c->building);
    return c->building == NULL ? NULL : ps_call_more(c->building, n, size);
}

static void free_call(ps_call *call) {
    if (call == NULL) return;
    while (call->stages != NULL) {
        ps_stage *s = call->stages;
        call->stages = s->next;
        free(s);
    }
    free(call);
}

void ps_call_free(ps_client *c, ps_call *call) {
    ps_call **at = &c->calls;
    while (*at != call) at = &(*at)->next;
    *at = call->next;
    free_call(call);
}

void ps_call_discard(ps_client *c) {
    free_call(c->building);
    c->building = NULL;
    c->iovs_n = 0; /* a request that failed may have left some */
}

/* --- Requests. --- */

int ps_call_iov(ps_client *c, void *base, size_t length, ps_err *err) {
    if (!ps_room(&c->iovs, c->iovs_n + 1, &c->iovs_cap, sizeof *c->iovs)) return ps_call_no_memory(err);
    c->iovs[c->iovs_n++] = (struct iovec){base, length};
    return PS_OK;
}

int ps_call_request(ps_client *c, uint32_t shard, ps_header head, uint16_t expect, size_t outs, ps_err *err) {
    size_t n = c->iovs_n;
    ps_request *r = ps_call_stage(c, 1, sizeof *r + n * sizeof(struct iovec));
    c->iovs_n = 0;
    if (r == NULL) return ps_call_no_memory(err);
    struct iovec *iovs = (struct iovec *)(r + 1);
    if (n > 0) memcpy(iovs, c->iovs, n * sizeof *iovs);
    *r = (ps_request){.head = head, .call = c->building, .shard = shard, .expect = expect, .out_n = outs};
    r->in_n = n - outs;
    r->out = iovs;
    r->in = iovs + outs;
    for (size_t i = 0; i < outs; i++) r->head.length += r->out[i].iov_len;
    for (size_t i = 0; i < r->in_n; i++) r->in_bytes += r->in[i].iov_len;
    r->head.epoch = c->epoch;
    r->head.trainer = c->trainer;
    if (c->building->last != NULL) c->building->last->next = r;
    else c->building->first = r;
    c->building->last = r;
    return PS_OK;
}

int ps_call_find(const ps_client *c, uint32_t id, uint32_t sparse, ps_known **o, ps_err *err) {
    if (id >= c->objects_n || c->objects[id].spec.sparse != sparse)
        return ps_fail(err, PS_EINVAL, 0, "no %s object %u", sparse ? "sparse" : "dense", id);
    *o = &c->objects[id];
    return PS_OK;
}

int ps_call_push(ps_known *o, uint32_t shard, uint64_t *version, ps_err *err) {
    ps_seen *seen = &o->seen[shard];
    bool sync = o->spec.mode == PS_SYNC;
    if (sync && seen->pushing)
        return ps_fail(err, PS_EINVAL, 0,
                       "the push of '%.*s' before this one has no answer yet: wait for it first",
                       PS_NAME(&o->spec));
    *version = sync ? seen->version + 1 : seen->base;
    seen->pushing = true;
    return PS_OK;
}

int ps_call_batch(const ps_batch *batch, ps_header *head, ps_err *err) {
    if (batch->samples > PS_MAX_SAMPLES)
        return ps_fail(err, PS_EINVAL, 0, "a push of %llu samples, limit %u", batch->samples, PS_MAX_SAMPLES);
    if (!isfinite(batch->factor) || batch->factor < 0)
        return ps_fail(err, PS_EINVAL, 0, "a push with %g times the learning rate", (double)batch->factor);
    head->samples = (uint32_t)batch->samples;
    head->factor = batch->factor;
    return PS_OK;
}

/* --- The end. --- */

void ps_call_sent(ps_link *l, uint64_t sent) {
    l->sent += sent;
    while (l->sending != NULL) {
        const ps_request *r = l->sending;
        uint64_t whole = r->answered ? 0 : PS_HEADER_BYTES + r->head.length;
        if (l->sent > 0 && r->head.sequence > l->told) l->told = r->head.sequence;
        if (l->sent < whole) return;
        if (r->head.sequence > l->told_whole) l->told_whole = r->head.sequence;
        l->sent -= whole;
        l->sending = r->next;
    }
}

static void unlink_call(ps_link *l, const ps_call *call) {
    ps_request **at = &l->first;
    if (l->sent == 0) ps_call_sent(l, 0); /* `sending` must not be a request of the call */
    l->last = NULL;
    while (*at != NULL) {
        if ((*at)->call == call) *at = (*at)->next;
        else l->last = *at, at = &(*at)->next;
    }
}

void ps_call_complete(ps_client *c, ps_call *call) {
    for (const ps_scatter *s = call->scatters; s != NULL; s = s->next)
        for (size_t i = 0; i < s->n; i++)
            memcpy(s->out + s->order[i] * s->dim, s->rows + i * s->dim, s->dim * sizeof *s->out);
    for (uint32_t i = 0; i < c->shards; i++) unlink_call(&c->links[i], call);
    ps_call_free(c, call);
}
