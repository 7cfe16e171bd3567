/* Answers of a shard. */
#include <stdlib.h>
#include <string.h>

#include "shard/ps_serve.h"

enum {
    LINGER_MS = 5000,      /* a refused trainer's time to read the reason */
    EARLY_BYTES = 64 << 10 /* unsent rows that are sent before other requests are carried out */
};

/* Without memory for the text: let the trainer connect again. */
void ps_answer_failed(ps_shard *s, ps_peer *p, const ps_err *why) {
    ps_event_report(s, PS_EVENT_ERROR, p->trainer, 0, why->text);
    p->dying = true;
    p->dead_ms = s->now_ms;
}

/* Values are sent from their object. Those of a synchronous one do not change until the trainer has them,
 * because it reads all answers of a step before the next push, and no step ends without its gradient or its
 * end of the pass. */
void ps_answer(ps_shard *s, ps_peer *p, ps_header head, const void *body, void *owned) {
    ps_err err;
    head.epoch = s->config.epoch;
    head.trainer = p->trainer;
    ps_counter_add(&s->of_trainer[p->trainer][PS_T_OUT_BYTES], PS_HEADER_BYTES + head.length);
    if (p->conn.fd < 0) {
        free(owned);
        return;
    }
    if (ps_peer_answer(p, &head, body, owned, &err) < 0) ps_answer_failed(s, p, &err);
    /* The trainer reads while the next answers are made, and their memory is that of the first ones, in the
     * cache. A failure shows again when the rest is sent. */
    else if (p->out_owned >= EARLY_BYTES) (void)ps_peer_flush(p, &err);
}

void ps_answer_done(ps_shard *s, ps_peer *p, uint64_t sequence, uint32_t object, uint64_t version,
                    uint32_t flags) {
    ps_header head = {
        .op = PS_DONE, .sequence = sequence, .object = object, .version = version, .flags = flags};
    ps_answer(s, p, head, NULL, NULL);
}

void ps_answer_values(ps_shard *s, ps_peer *p, uint64_t sequence, uint32_t object, uint32_t flags) {
    ps_object *o = s->objects[object];
    ps_header head = {.op = PS_VALUES,
                      .sequence = sequence,
                      .object = object,
                      .flags = flags,
                      .version = o->step.version,
                      .length = o->dense.n * sizeof(float)};
    ps_answer(s, p, head, o->dense.values, NULL);
}

/* Every error is a frame, and the last one of its connection. */
void ps_answer_error(ps_shard *s, ps_peer *p, const ps_err *why) {
    size_t n = strlen(why->text);
    void *text = malloc(n + 1);
    if (text != NULL) memcpy(text, why->text, n + 1);
    ps_header head = {.op = PS_ERROR, .sequence = p->head.sequence, .length = text == NULL ? 0 : n};
    ps_event_report(s, PS_EVENT_ERROR, p->trainer, 0, why->text);
    ps_answer(s, p, head, text, text);
    p->in_body = false;
    p->dying = true;
    p->dead_ms = s->now_ms + LINGER_MS;
}

int ps_answer_rows(ps_shard *s, ps_peer *p, uint32_t object, const ps_held *keys, ps_err *err) {
    ps_object *o = s->objects[object];
    size_t bytes = keys->count * sizeof(float) * (size_t)o->spec.dim;
    float *rows = malloc(bytes + 1);
    if (rows == NULL) return ps_fail(err, PS_ENOMEM, 0, "%u rows of '%.*s'", keys->count, PS_NAME(&o->spec));
    ps_sparse_read(o->sparse, keys->data, keys->count, rows);
    ps_header head = {.op = PS_ROWS,
                      .sequence = keys->sequence,
                      .object = object,
                      .version = o->step.version,
                      .length = bytes,
                      .count = keys->count};
    ps_answer(s, p, head, rows, rows);
    return PS_OK;
}

void ps_answer_versions(ps_shard *s, ps_peer *p, uint64_t sequence) {
    size_t n = s->objects_n;
    uint8_t *body = malloc(n * 16 + 1);
    for (uint32_t i = 0; body != NULL && i < n; i++) {
        const uint32_t id[2] = {i, 0};
        memcpy(body + 16 * (size_t)i, id, 8);
        memcpy(body + 16 * (size_t)i + 8, &s->objects[i]->step.version, 8);
    }
    if (body == NULL) n = 0;
    ps_header head = {.op = PS_VERSIONS,
                      .sequence = sequence,
                      .version = s->pass.number,
                      .length = 16 * n,
                      .count = (uint32_t)n};
    ps_answer(s, p, head, body, body);
}
