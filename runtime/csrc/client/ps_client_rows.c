/* Requests on tables: rows grouped by shard and cut into frames. */
#include <string.h>

#include "client/ps_call.h"
#include "client/ps_client.h"

/* Keys in the order of shards, with their rows if any. */
typedef struct grouped {
    uint32_t floats; /* of a row */
    const uint64_t *keys;
    const float *rows;
    size_t *order; /* [n]; NULL: unchanged */
    size_t *start; /* [shards of the table + 1] */
} grouped;

static void count_keys(const ps_known *o, const uint64_t *keys, size_t n, size_t *start) {
    memset(start, 0, (o->n + 1) * sizeof *start);
    for (size_t i = 0; i < n; i++) start[ps_key_shard(keys[i], o->n) + 1]++;
    for (uint32_t s = 0; s < o->n; s++) start[s + 1] += start[s];
}

static int group_keys(ps_client *c, const ps_known *o, const uint64_t *keys, size_t n, grouped *g,
                      ps_err *err) {
    size_t *at = ps_call_stage(c, o->n + 1, sizeof *at);
    uint64_t *sorted = ps_call_stage(c, n, sizeof *sorted);
    g->order = ps_call_stage(c, n, sizeof *g->order);
    if (at == NULL || sorted == NULL || g->order == NULL) return ps_call_no_memory(err);
    memcpy(at, g->start, (o->n + 1) * sizeof *at);
    for (size_t i = 0; i < n; i++) {
        size_t place = at[ps_key_shard(keys[i], o->n)]++;
        sorted[place] = keys[i];
        g->order[place] = i;
    }
    g->keys = sorted;
    return PS_OK;
}

static int group_rows(ps_client *c, const float *rows, size_t dim, size_t n, grouped *g, ps_err *err) {
    float *sorted = ps_call_stage(c, n, dim * sizeof *sorted);
    if (sorted == NULL) return ps_call_no_memory(err);
    for (size_t i = 0; i < n; i++) memcpy(sorted + i * dim, rows + g->order[i] * dim, dim * sizeof *rows);
    g->rows = sorted;
    return PS_OK;
}

/* Find the table and group n rows for it, of `push` with shows and clicks if it has them. */
static int group(ps_client *c, uint32_t id, const uint64_t *keys, const float *rows, size_t n, bool push,
                 ps_known **table, grouped *g, ps_err *err) {
    int code = ps_call_find(c, id, 1, table, err);
    if (code < 0) return code;
    const ps_known *o = *table;
    *g = (grouped){.floats = push ? ps_push_floats(&o->spec) : o->spec.dim, .keys = keys, .rows = rows};
    g->start = ps_call_stage(c, o->n + 1, sizeof *g->start);
    if (g->start == NULL) return ps_call_no_memory(err);
    if (o->n == 1) {
        g->start[0] = 0;
        g->start[1] = n;
        return PS_OK;
    }
    count_keys(o, keys, n, g->start);
    code = group_keys(c, o, keys, n, g, err);
    if (code == PS_OK && rows != NULL) code = group_rows(c, rows, g->floats, n, g, err);
    return code;
}

/* Add one frame of rows [from, to). */
static int rows_frame(ps_client *c, uint32_t shard, ps_header head, const grouped *g, size_t from, size_t to,
                      float *answer, ps_err *err) {
    size_t n = to - from, dim = g->floats;
    int code = PS_OK;
    head.count = (uint32_t)n;
    if (n > 0) code = ps_call_iov(c, (void *)(g->keys + from), n * sizeof *g->keys, err);
    if (code == PS_OK && n > 0 && g->rows != NULL)
        code = ps_call_iov(c, (void *)(g->rows + from * dim), n * dim * sizeof *g->rows, err);
    size_t outs = c->iovs_n;
    if (code == PS_OK && answer != NULL)
        code = ps_call_iov(c, answer + from * dim, n * dim * sizeof *answer, err);
    if (code < 0) return code;
    return ps_call_request(c, shard, head, head.op == PS_PULL_ROWS ? PS_ROWS : PS_DONE, outs, err);
}

/* Rows that are read after a push are those after its step. */
static void wait_for_push(const ps_known *o, uint32_t shard, ps_header *head) {
    const ps_seen *seen = &o->seen[shard];
    bool waits = o->spec.mode == PS_SYNC && seen->pushing;
    head->flags = waits ? PS_AFTER : 0;
    head->version = waits ? seen->version + 1 : 0;
}

/* Add rows in frames for each shard of the table. A push sends a frame to every shard, even without
 * rows. */
static int rows_call(ps_client *c, ps_known *o, ps_header head, const grouped *g, float *answer,
                     ps_err *err) {
    size_t most = ps_rows_per_frame(g->floats);
    int code = PS_OK;
    for (uint32_t s = 0; code == PS_OK && s < o->n; s++) {
        size_t at = g->start[s], end = g->start[s + 1];
        if (at == end && head.op != PS_PUSH_ROWS) continue;
        if (head.op == PS_PUSH_ROWS) code = ps_call_push(o, o->first + s, &head.version, err);
        if (head.op == PS_PULL_ROWS) wait_for_push(o, o->first + s, &head);
        while (code == PS_OK) {
            size_t to = end - at < most ? end : at + most;
            if (head.op == PS_PUSH_ROWS) head.flags = to < end ? PS_MORE : 0;
            code = rows_frame(c, o->first + s, head, g, at, to, answer, err);
            at = to;
            if (at == end) break;
        }
    }
    return code;
}

int ps_client_set_rows(ps_client *c, uint32_t id, const uint64_t *keys, const float *rows, size_t n,
                       ps_err *err) {
    ps_known *o = NULL;
    grouped g;
    int code = group(c, id, keys, rows, n, false, &o, &g, err);
    if (code < 0) return code;
    return rows_call(c, o, (ps_header){.op = PS_SET_ROWS, .object = id}, &g, NULL, err);
}

int ps_client_push_rows(ps_client *c, uint32_t id, const ps_batch *batch, const uint64_t *keys,
                        const float *rows, size_t n, ps_err *err) {
    ps_known *o = NULL;
    grouped g;
    ps_header head = {.op = PS_PUSH_ROWS, .object = id};
    int code = ps_call_batch(batch, &head, err);
    if (code == PS_OK) code = group(c, id, keys, rows, n, true, &o, &g, err);
    if (code < 0) return code;
    return rows_call(c, o, head, &g, NULL, err);
}

int ps_client_pull_rows(ps_client *c, uint32_t id, const uint64_t *keys, size_t n, float *out, ps_err *err) {
    ps_known *o = NULL;
    grouped g;
    int code = group(c, id, keys, NULL, n, false, &o, &g, err);
    if (code < 0) return code;
    float *answer = out;
    if (g.order != NULL) {
        answer = ps_call_stage(c, n, o->spec.dim * sizeof *answer);
        if (answer == NULL) return ps_call_no_memory(err);
        ps_scatter *scatter = ps_call_stage(c, 1, sizeof *scatter);
        if (scatter == NULL) return ps_call_no_memory(err);
        *scatter = (ps_scatter){c->building->scatters, answer, g.order, n, o->spec.dim, out};
        c->building->scatters = scatter;
    }
    return rows_call(c, o, (ps_header){.op = PS_PULL_ROWS, .object = id}, &g, answer, err);
}

int ps_client_shrink(ps_client *c, uint32_t id, const ps_shrink *how, ps_err *err) {
    ps_known *o = NULL;
    int code = ps_call_find(c, id, 1, &o, err);
    if (code == PS_OK) code = ps_shrink_check(how, err);
    for (uint32_t s = 0; code == PS_OK && s < o->n; s++) {
        ps_shrink *body = ps_call_stage(c, 1, sizeof *body);
        if (body == NULL) return ps_call_no_memory(err);
        *body = *how;
        code = ps_call_iov(c, body, sizeof *body, err);
        if (code < 0) return code;
        code = ps_call_request(c, o->first + s, (ps_header){.op = PS_SHRINK, .object = id}, PS_DONE, 1, err);
    }
    return code;
}
