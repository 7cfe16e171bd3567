/* Requests on tables: rows grouped by shard and cut into frames. */
#include <string.h>

#include "client/ps_call.h"
#include "client/ps_client.h"

/* Keys in the order of shards, with their rows, or the destination of those that are read. */
typedef struct grouped {
    size_t n;
    uint32_t floats; /* of a row */
    const uint64_t *keys;
    const float *rows; /* NULL: none */
    float *answer;     /* NULL: none */
    size_t *order;     /* [n]; NULL: unchanged */
    size_t *start;     /* [shards of the table + 1] */
} grouped;

static void count_keys(const ps_known *o, const grouped *g) {
    uint32_t shards = (uint32_t)o->pieces_n;
    memset(g->start, 0, (shards + 1) * sizeof *g->start);
    for (size_t i = 0; i < g->n; i++) g->start[ps_key_shard(g->keys[i], shards) + 1]++;
    for (uint32_t s = 0; s < shards; s++) g->start[s + 1] += g->start[s];
}

static int group_keys(ps_client *c, const ps_known *o, grouped *g, ps_err *err) {
    uint32_t shards = (uint32_t)o->pieces_n;
    size_t *at = ps_call_stage(c, shards + 1, sizeof *at);
    uint64_t *sorted = ps_call_stage(c, g->n, sizeof *sorted);
    g->order = ps_call_stage(c, g->n, sizeof *g->order);
    if (at == NULL || sorted == NULL || g->order == NULL) return ps_call_no_memory(err);
    memcpy(at, g->start, (shards + 1) * sizeof *at);
    for (size_t i = 0; i < g->n; i++) {
        size_t place = at[ps_key_shard(g->keys[i], shards)]++;
        sorted[place] = g->keys[i];
        g->order[place] = i;
    }
    g->keys = sorted;
    return PS_OK;
}

/* Group the rows that are sent, or make room for those that come, which a scatter puts in their places. */
static int group_rows(ps_client *c, grouped *g, ps_err *err) {
    size_t dim = g->floats;
    float *sorted = ps_call_stage(c, g->n, dim * sizeof *sorted);
    if (sorted == NULL) return ps_call_no_memory(err);
    if (g->answer == NULL) {
        for (size_t i = 0; i < g->n; i++)
            memcpy(sorted + i * dim, g->rows + g->order[i] * dim, dim * sizeof *sorted);
        g->rows = sorted;
        return PS_OK;
    }
    ps_scatter *scatter = ps_call_stage(c, 1, sizeof *scatter);
    if (scatter == NULL) return ps_call_no_memory(err);
    *scatter = (ps_scatter){c->building->scatters, sorted, g->order, g->n, g->floats, g->answer};
    c->building->scatters = scatter;
    g->answer = sorted;
    return PS_OK;
}

static int group(ps_client *c, const ps_known *o, grouped *g, ps_err *err) {
    g->start = ps_call_stage(c, o->pieces_n + 1, sizeof *g->start);
    if (g->start == NULL) return ps_call_no_memory(err);
    if (o->pieces_n == 1) {
        g->start[0] = 0;
        g->start[1] = g->n;
        return PS_OK;
    }
    count_keys(o, g);
    int code = group_keys(c, o, g, err);
    return code == PS_OK ? group_rows(c, g, err) : code;
}

/* Add one frame of rows [from, to). */
static int add_frame(ps_client *c, uint32_t shard, ps_header head, const grouped *g, size_t from, size_t to,
                     ps_err *err) {
    size_t n = to - from, dim = g->floats;
    int code = PS_OK;
    head.count = (uint32_t)n;
    if (n > 0) code = ps_call_iov(c, (void *)(g->keys + from), n * sizeof *g->keys, err);
    if (code == PS_OK && n > 0 && g->rows != NULL)
        code = ps_call_iov(c, (void *)(g->rows + from * dim), n * dim * sizeof *g->rows, err);
    size_t outs = c->iovs_n;
    if (code == PS_OK && g->answer != NULL)
        code = ps_call_iov(c, g->answer + from * dim, n * dim * sizeof *g->answer, err);
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

/* Adds rows in frames for each shard of the table. A push sends a frame to every shard, even without rows. */
int ps_client_use_rows(ps_client *c, uint16_t op, uint32_t id, const ps_batch *batch, const uint64_t *keys,
                       size_t n, float *rows, ps_err *err) {
    ps_known *o = NULL;
    ps_header head = {.op = op, .object = id};
    int code = ps_call_find(c, id, 1, &o, err);
    if (code == PS_OK && op == PS_PUSH_ROWS) code = ps_call_batch(batch, &head, err);
    if (code < 0) return code;
    grouped g = {.n = n, .keys = keys, .floats = op == PS_PUSH_ROWS ? ps_push_floats(&o->spec) : o->spec.dim};
    if (op == PS_PULL_ROWS) g.answer = rows;
    else g.rows = rows;
    code = group(c, o, &g, err);
    size_t most = ps_rows_per_frame(g.floats);
    for (size_t s = 0; code == PS_OK && s < o->pieces_n; s++) {
        size_t at = g.start[s], end = g.start[s + 1];
        uint32_t shard = (uint32_t)o->pieces[s].shard;
        if (at == end && op != PS_PUSH_ROWS) continue;
        if (op == PS_PUSH_ROWS) code = ps_call_push(o, shard, &head.version, err);
        if (op == PS_PULL_ROWS) wait_for_push(o, shard, &head);
        while (code == PS_OK) {
            size_t to = end - at < most ? end : at + most;
            if (op == PS_PUSH_ROWS) head.flags = to < end ? PS_MORE : 0;
            code = add_frame(c, shard, head, &g, at, to, err);
            at = to;
            if (at == end) break;
        }
    }
    return code;
}

int ps_client_shrink(ps_client *c, uint32_t id, const ps_shrink *how, ps_err *err) {
    ps_known *o = NULL;
    int code = ps_call_find(c, id, 1, &o, err);
    if (code == PS_OK) code = ps_shrink_check(how, err);
    for (size_t s = 0; code == PS_OK && s < o->pieces_n; s++) {
        ps_shrink *body = ps_call_stage(c, 1, sizeof *body);
        if (body == NULL) return ps_call_no_memory(err);
        *body = *how;
        code = ps_call_iov(c, body, sizeof *body, err);
        if (code < 0) return code;
        code = ps_call_request(c, (uint32_t)o->pieces[s].shard, (ps_header){.op = PS_SHRINK, .object = id},
                               PS_DONE, 1, err);
    }
    return code;
}
