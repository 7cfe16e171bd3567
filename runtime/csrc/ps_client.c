/* A trainer's side of the data plane. */
#include "ps_client.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SEND_PIECES = 256 }; /* iovecs in one system call */
#define NONE UINT32_MAX

/* One request, and where its answer goes. */
typedef struct request {
    ps_header head;
    uint8_t raw[PS_HEADER_BYTES];
    uint16_t expect; /* op of the answer */
    bool answered;
    uint32_t next;        /* to the same shard */
    size_t out_at, out_n; /* iovecs of the body */
    size_t in_at, in_n;   /* iovecs of the answer's body */
    uint64_t in_bytes;
} request;

/* One shard as the client sees it. */
typedef struct link {
    ps_conn conn;
    uint64_t sequence;    /* of the last request */
    uint32_t first, last; /* requests of this call, NONE: none */
    uint32_t sending;     /* the one that is being sent */
    uint64_t sent;        /* bytes of it, header included */
    uint32_t reading;     /* the one whose answer comes in */
    uint64_t got;         /* bytes of the answer's body */
    size_t got_iov, got_at;
    uint32_t open; /* requests not answered */
    bool refusing; /* an error's text comes in */
    uint32_t text_length, text_got;
    char text[PS_MAX_TEXT + 1];
} link;

typedef struct object {
    ps_create spec;
    ps_piece *pieces; /* [pieces_n], of a dense object, in the order of shards */
    size_t pieces_n;
    uint32_t first, n; /* shards of a table */
    uint64_t version;
} object;

/* Memory that lives as long as the call. */
typedef struct stage {
    struct stage *next;
    uint64_t data[];
} stage;

/* Rows that came grouped by shard, and where they belong. */
typedef struct scatter {
    const float *rows;
    const size_t *order; /* [n] */
    size_t n;
    uint32_t dim;
    float *out;
} scatter;

struct ps_client {
    uint32_t shards, epoch, trainer;
    uint64_t incarnation;
    link *links;          /* [shards] */
    struct pollfd *polls; /* [shards] */
    object *objects;
    uint32_t objects_n, objects_cap;
    request *requests;
    uint32_t requests_n, requests_cap, open;
    struct iovec *iovs;
    size_t iovs_n, iovs_cap;
    stage *stages;
    scatter *scatters;
    size_t scatters_n, scatters_cap;
};

/* --- Memory. --- */

static int no_memory(ps_err *err) {
    return ps_fail(err, PS_ENOMEM, 0, "no memory for a request to the pservers");
}

/* Room for one more of `size` bytes in *array. */
static int room(void *array, size_t n, size_t *cap, size_t size, ps_err *err) {
    void *p;
    if (n < *cap) return PS_OK;
    size_t more = *cap ? 2 * *cap : 32;
    memcpy(&p, array, sizeof p);
    p = realloc(p, more * size);
    if (p == NULL) return no_memory(err);
    memcpy(array, &p, sizeof p);
    *cap = more;
    return PS_OK;
}

static void *stage_new(ps_client *c, size_t n, size_t size) {
    if (n > (SIZE_MAX - sizeof(stage) - 8) / size) return NULL;
    stage *s = malloc(sizeof *s + n * size + 8);
    if (s == NULL) return NULL;
    s->next = c->stages;
    c->stages = s;
    return s->data;
}

static int add_iov(ps_client *c, void *base, size_t length, ps_err *err) {
    int code = room(&c->iovs, c->iovs_n, &c->iovs_cap, sizeof *c->iovs, err);
    if (code == PS_OK) c->iovs[c->iovs_n++] = (struct iovec){base, length};
    return code;
}

int ps_client_new(ps_client **out, uint32_t shards, uint32_t epoch, uint32_t trainer, uint64_t incarnation,
                  ps_err *err) {
    *out = NULL;
    if (shards == 0 || shards > PS_MAX_SHARDS)
        return ps_fail(err, PS_EINVAL, 0, "%u ports in all, not in 1..%u", shards, PS_MAX_SHARDS);
    if (trainer >= PS_MAX_TRAINERS)
        return ps_fail(err, PS_EINVAL, 0, "trainer %u, the limit is %u", trainer, PS_MAX_TRAINERS);
    ps_client *c = calloc(1, sizeof *c);
    if (c == NULL) return no_memory(err);
    *c = (ps_client){.shards = shards, .epoch = epoch, .trainer = trainer, .incarnation = incarnation};
    c->links = calloc(shards, sizeof *c->links);
    c->polls = calloc(shards, sizeof *c->polls);
    if (c->links == NULL || c->polls == NULL) {
        free(c->links);
        free(c->polls);
        free(c);
        return no_memory(err);
    }
    for (uint32_t i = 0; i < shards; i++) {
        ps_conn_init(&c->links[i].conn);
        c->links[i].first = c->links[i].last = c->links[i].sending = c->links[i].reading = NONE;
    }
    *out = c;
    return PS_OK;
}

void ps_client_free(ps_client *c) {
    if (c == NULL) return;
    ps_client_clear(c);
    for (uint32_t i = 0; i < c->shards; i++) ps_conn_close(&c->links[i].conn);
    for (uint32_t i = 0; i < c->objects_n; i++) free(c->objects[i].pieces);
    free(c->objects);
    free(c->requests);
    free(c->iovs);
    free(c->scatters);
    free(c->links);
    free(c->polls);
    free(c);
}

/* --- Connections. --- */

/* Send from the first request again; what is answered is passed over. */
static void rewind_link(link *l) {
    l->sending = l->first;
    l->sent = 0;
    l->reading = NONE;
    l->refusing = false;
}

int ps_client_attach(ps_client *c, uint32_t shard, int fd, ps_err *err) {
    if (shard >= c->shards) return ps_fail(err, PS_EINVAL, 0, "no shard %u", shard);
    rewind_link(&c->links[shard]);
    return ps_conn_open(&c->links[shard].conn, fd, err);
}

void ps_client_detach(ps_client *c, uint32_t shard) {
    if (shard >= c->shards) return;
    ps_conn_close(&c->links[shard].conn);
    rewind_link(&c->links[shard]);
}

int ps_client_sent(const ps_client *c, uint32_t shard) {
    if (shard >= c->shards) return 0;
    const link *l = &c->links[shard];
    for (uint32_t i = l->sending; i != NONE; i = c->requests[i].next)
        if (!c->requests[i].answered) return 0;
    return 1;
}

uint32_t ps_client_waits_for(const ps_client *c) {
    for (uint32_t i = 0; i < c->shards; i++)
        if (c->links[i].open > 0) return i;
    return c->shards;
}

void ps_client_clear(ps_client *c) {
    for (uint32_t i = 0; i < c->shards; i++) {
        link *l = &c->links[i];
        if (l->open > 0) ps_conn_close(&l->conn);
        l->first = l->last = l->sending = l->reading = NONE;
        l->sent = l->got = 0;
        l->open = 0;
        l->refusing = false;
    }
    while (c->stages != NULL) {
        stage *s = c->stages;
        c->stages = s->next;
        free(s);
    }
    c->requests_n = c->open = 0;
    c->iovs_n = c->scatters_n = 0;
}

/* --- Building a call. --- */

/* A request to one shard; its iovecs are those added since `iovs`: first `outs` of the body, then
 * those of the answer. */
static int add_request(ps_client *c, uint32_t shard, ps_header head, uint16_t expect, size_t iovs,
                       size_t outs, ps_err *err) {
    link *l = &c->links[shard];
    size_t cap = c->requests_cap;
    int code = room(&c->requests, c->requests_n, &cap, sizeof *c->requests, err);
    if (code < 0) return code;
    c->requests_cap = (uint32_t)cap;
    uint32_t index = c->requests_n++;
    request *r = &c->requests[index];
    *r = (request){.head = head, .expect = expect, .next = NONE, .out_at = iovs, .out_n = outs};
    r->in_at = iovs + outs;
    r->in_n = c->iovs_n - r->in_at;
    for (size_t i = 0; i < outs; i++) r->head.length += c->iovs[iovs + i].iov_len;
    for (size_t i = 0; i < r->in_n; i++) r->in_bytes += c->iovs[r->in_at + i].iov_len;
    r->head.epoch = c->epoch;
    r->head.trainer = c->trainer;
    r->head.incarnation = c->incarnation;
    r->head.sequence = ++l->sequence;
    ps_header_encode(&r->head, r->raw);
    if (l->last != NONE) c->requests[l->last].next = index;
    else l->first = index;
    l->last = index;
    if (l->sending == NONE) {
        l->sending = index;
        l->sent = 0;
    }
    l->open++;
    c->open++;
    return PS_OK;
}

static int find(const ps_client *c, uint32_t id, uint32_t sparse, object **o, ps_err *err) {
    if (id >= c->objects_n || c->objects[id].spec.sparse != sparse)
        return ps_fail(err, PS_EINVAL, 0, "no %s object %u", sparse ? "sparse" : "dense", id);
    *o = &c->objects[id];
    return PS_OK;
}

/* The end of the pieces that are on the same shard as `at`. */
static size_t same_shard(const object *o, size_t at) {
    size_t end = at + 1;
    while (end < o->pieces_n && o->pieces[end].shard == o->pieces[at].shard) end++;
    return end;
}

static int add_pieces(ps_client *c, const object *o, size_t from, size_t to, const float *base, ps_err *err) {
    int code = PS_OK;
    for (size_t i = from; base != NULL && code == PS_OK && i < to; i++)
        code =
            add_iov(c, (void *)(base + o->pieces[i].start), (size_t)o->pieces[i].length * sizeof(float), err);
    return code;
}

/* The same request to every shard that has a part of the object. */
static int dense_call(ps_client *c, uint32_t id, ps_header head, uint16_t expect, const float *body,
                      float *answer, ps_err *err) {
    object *o = NULL;
    int code = find(c, id, 0, &o, err);
    head.object = id;
    for (size_t at = 0, end; code == PS_OK && at < o->pieces_n; at = end) {
        size_t iovs = c->iovs_n;
        end = same_shard(o, at);
        code = add_pieces(c, o, at, end, body, err);
        size_t outs = c->iovs_n - iovs;
        if (code == PS_OK) code = add_pieces(c, o, at, end, answer, err);
        if (code == PS_OK) code = add_request(c, o->pieces[at].shard, head, expect, iovs, outs, err);
    }
    return code;
}

int ps_client_init(ps_client *c, uint32_t id, const float *values, ps_err *err) {
    return dense_call(c, id, (ps_header){.op = PS_INIT}, PS_DONE, values, NULL, err);
}

int ps_client_push(ps_client *c, uint32_t id, const float *grad, float *out, ps_err *err) {
    ps_header head = {
        .op = PS_PUSH, .flags = out != NULL ? PS_WANT : 0, .version = ps_client_version(c, id) + 1};
    return dense_call(c, id, head, out != NULL ? PS_VALUES : PS_DONE, grad, out, err);
}

int ps_client_pull(ps_client *c, uint32_t id, float *out, ps_err *err) {
    return dense_call(c, id, (ps_header){.op = PS_PULL}, PS_VALUES, NULL, out, err);
}

/* --- Creating. --- */

static int add_object(ps_client *c, const ps_create *spec, object **out, ps_err *err) {
    size_t cap = c->objects_cap;
    if (c->objects_n >= PS_MAX_OBJECTS)
        return ps_fail(err, PS_EINVAL, 0, "more than %u objects", PS_MAX_OBJECTS);
    int code = room(&c->objects, c->objects_n, &cap, sizeof *c->objects, err);
    if (code < 0) return code;
    c->objects_cap = (uint32_t)cap;
    *out = &c->objects[c->objects_n];
    **out = (object){.spec = *spec};
    return PS_OK;
}

/* Every shard knows every object, so that they count them alike, also where it has no part of it. */
static int add_create(ps_client *c, const object *o, uint32_t id, uint32_t shard, uint64_t size,
                      ps_err *err) {
    ps_create spec = o->spec;
    spec.size = size;
    uint8_t *body = stage_new(c, PS_CREATE_BYTES + PS_MAX_NAME, 1);
    if (body == NULL) return no_memory(err);
    size_t iovs = c->iovs_n;
    int code = add_iov(c, body, ps_create_encode(&spec, body), err);
    if (code < 0) return code;
    return add_request(c, shard, (ps_header){.op = PS_CREATE, .object = id}, PS_DONE, iovs, 1, err);
}

static uint64_t size_on(const object *o, uint32_t shard) {
    uint64_t size = 0;
    for (size_t i = 0; i < o->pieces_n; i++)
        if (o->pieces[i].shard == shard) size += o->pieces[i].length;
    return size;
}

static int check_pieces(const ps_client *c, const ps_create *spec, const ps_piece *pieces, size_t n,
                        ps_err *err) {
    for (size_t i = 0; i < n; i++) {
        const ps_piece *p = &pieces[i];
        if (p->shard >= c->shards || p->length == 0 || p->start > spec->total ||
            p->length > spec->total - p->start || (i > 0 && p->shard < pieces[i - 1].shard))
            return ps_fail(err, PS_EINVAL, 0, "piece %zu of '%.64s' is out of range", i, spec->name);
    }
    return PS_OK;
}

int ps_client_dense(ps_client *c, const ps_create *spec, const ps_piece *pieces, size_t n, uint32_t *id,
                    ps_err *err) {
    object *o = NULL;
    int code = check_pieces(c, spec, pieces, n, err);
    if (code == PS_OK) code = add_object(c, spec, &o, err);
    if (code < 0) return code;
    o->pieces = malloc((n + 1) * sizeof *o->pieces);
    if (o->pieces == NULL) return no_memory(err);
    if (n > 0) memcpy(o->pieces, pieces, n * sizeof *pieces);
    o->pieces_n = n;
    *id = c->objects_n++;
    for (uint32_t s = 0; code == PS_OK && s < c->shards; s++)
        code = add_create(c, o, *id, s, size_on(o, s), err);
    return code;
}

int ps_client_sparse(ps_client *c, const ps_create *spec, uint32_t first, uint32_t n, uint32_t *id,
                     ps_err *err) {
    object *o = NULL;
    if (n == 0 || first >= c->shards || n > c->shards - first || spec->dim == 0 || spec->dim > PS_MAX_DIM)
        return ps_fail(err, PS_EINVAL, 0, "table '%.64s': dim %u on %u shards", spec->name, spec->dim, n);
    int code = add_object(c, spec, &o, err);
    if (code < 0) return code;
    o->first = first;
    o->n = n;
    *id = c->objects_n++;
    for (uint32_t s = 0; code == PS_OK && s < c->shards; s++) code = add_create(c, o, *id, s, 0, err);
    return code;
}

/* --- Rows. --- */

uint32_t ps_key_shard(uint64_t key, uint32_t n) {
    return (uint32_t)(((ps_mix64(key + UINT64_C(0x9e3779b97f4a7c15)) >> 32) * n) >> 32);
}

/* Keys in the order of shards, and rows too if there are any. */
typedef struct grouped {
    const uint64_t *keys;
    const float *rows;
    size_t *order; /* [n]; NULL: as they came */
    size_t *start; /* [shards of the table + 1] */
} grouped;

static void count_keys(const object *o, const uint64_t *keys, size_t n, size_t *start) {
    memset(start, 0, (o->n + 1) * sizeof *start);
    for (size_t i = 0; i < n; i++) start[ps_key_shard(keys[i], o->n) + 1]++;
    for (uint32_t s = 0; s < o->n; s++) start[s + 1] += start[s];
}

static int group_keys(ps_client *c, const object *o, const uint64_t *keys, size_t n, grouped *g,
                      ps_err *err) {
    size_t *at = stage_new(c, o->n + 1, sizeof *at);
    uint64_t *sorted = stage_new(c, n, sizeof *sorted);
    g->order = stage_new(c, n, sizeof *g->order);
    if (at == NULL || sorted == NULL || g->order == NULL) return no_memory(err);
    memcpy(at, g->start, (o->n + 1) * sizeof *at);
    for (size_t i = 0; i < n; i++) {
        size_t place = at[ps_key_shard(keys[i], o->n)]++;
        sorted[place] = keys[i];
        g->order[place] = i;
    }
    g->keys = sorted;
    return PS_OK;
}

static int group_rows(ps_client *c, const object *o, const float *rows, size_t n, grouped *g, ps_err *err) {
    size_t dim = o->spec.dim;
    float *sorted = stage_new(c, n, dim * sizeof *sorted);
    if (sorted == NULL) return no_memory(err);
    for (size_t i = 0; i < n; i++) memcpy(sorted + i * dim, rows + g->order[i] * dim, dim * sizeof *rows);
    g->rows = sorted;
    return PS_OK;
}

static int group(ps_client *c, const object *o, const uint64_t *keys, const float *rows, size_t n, grouped *g,
                 ps_err *err) {
    *g = (grouped){.keys = keys, .rows = rows};
    g->start = stage_new(c, o->n + 1, sizeof *g->start);
    if (g->start == NULL) return no_memory(err);
    if (o->n == 1) {
        g->start[0] = 0;
        g->start[1] = n;
        return PS_OK;
    }
    count_keys(o, keys, n, g->start);
    int code = group_keys(c, o, keys, n, g, err);
    if (code == PS_OK && rows != NULL) code = group_rows(c, o, rows, n, g, err);
    return code;
}

/* One frame of rows [from, to). */
static int rows_frame(ps_client *c, const object *o, uint32_t shard, ps_header head, const grouped *g,
                      size_t from, size_t to, float *answer, ps_err *err) {
    size_t iovs = c->iovs_n, n = to - from, dim = o->spec.dim;
    int code = PS_OK;
    head.count = (uint32_t)n;
    if (n > 0) code = add_iov(c, (void *)(g->keys + from), n * sizeof *g->keys, err);
    if (code == PS_OK && n > 0 && g->rows != NULL)
        code = add_iov(c, (void *)(g->rows + from * dim), n * dim * sizeof *g->rows, err);
    size_t outs = c->iovs_n - iovs;
    if (code == PS_OK && answer != NULL)
        code = add_iov(c, answer + from * dim, n * dim * sizeof *answer, err);
    if (code < 0) return code;
    return add_request(c, shard, head, head.op == PS_PULL_ROWS ? PS_ROWS : PS_DONE, iovs, outs, err);
}

/* Rows in frames to each shard of the table. A push says something to every shard, if only that there
 * is nothing. */
static int rows_call(ps_client *c, const object *o, ps_header head, const grouped *g, float *answer,
                     ps_err *err) {
    size_t most = ps_rows_per_frame(o->spec.dim);
    int code = PS_OK;
    for (uint32_t s = 0; code == PS_OK && s < o->n; s++) {
        size_t at = g->start[s], end = g->start[s + 1];
        if (at == end && head.op != PS_PUSH_ROWS) continue;
        do {
            size_t to = end - at < most ? end : at + most;
            head.flags = head.op == PS_PUSH_ROWS && to < end ? PS_MORE : 0;
            code = rows_frame(c, o, o->first + s, head, g, at, to, answer, err);
            at = to;
        } while (code == PS_OK && at < end);
    }
    return code;
}

int ps_client_set_rows(ps_client *c, uint32_t id, const uint64_t *keys, const float *rows, size_t n,
                       ps_err *err) {
    object *o = NULL;
    grouped g;
    int code = find(c, id, 1, &o, err);
    if (code == PS_OK) code = group(c, o, keys, rows, n, &g, err);
    if (code < 0) return code;
    return rows_call(c, o, (ps_header){.op = PS_SET_ROWS, .object = id}, &g, NULL, err);
}

int ps_client_push_rows(ps_client *c, uint32_t id, const uint64_t *keys, const float *rows, size_t n,
                        ps_err *err) {
    object *o = NULL;
    grouped g;
    int code = find(c, id, 1, &o, err);
    if (code == PS_OK) code = group(c, o, keys, rows, n, &g, err);
    if (code < 0) return code;
    return rows_call(c, o, (ps_header){.op = PS_PUSH_ROWS, .object = id, .version = o->version + 1}, &g, NULL,
                     err);
}

int ps_client_pull_rows(ps_client *c, uint32_t id, const uint64_t *keys, size_t n, float *out, ps_err *err) {
    object *o = NULL;
    grouped g;
    int code = find(c, id, 1, &o, err);
    if (code == PS_OK) code = group(c, o, keys, NULL, n, &g, err);
    if (code < 0) return code;
    float *answer = out;
    if (g.order != NULL) {
        answer = stage_new(c, n, o->spec.dim * sizeof *answer);
        if (answer == NULL) return no_memory(err);
        code = room(&c->scatters, c->scatters_n, &c->scatters_cap, sizeof *c->scatters, err);
        if (code < 0) return code;
        c->scatters[c->scatters_n++] = (scatter){answer, g.order, n, o->spec.dim, out};
    }
    return rows_call(c, o, (ps_header){.op = PS_PULL_ROWS, .object = id}, &g, answer, err);
}

int ps_client_tell(ps_client *c, uint16_t op, uint64_t number, ps_err *err) {
    int code = PS_OK;
    uint32_t shards = op == PS_BARRIER ? 1 : c->shards;
    for (uint32_t s = 0; code == PS_OK && s < shards; s++)
        code = add_request(c, s, (ps_header){.op = op, .version = number},
                           op == PS_END_PASS ? PS_VERSIONS : PS_DONE, c->iovs_n, 0, err);
    return code;
}

/* --- Sending. --- */

/* What is left of the requests from `sending` on, as iovecs. Returns how many. */
static size_t gather(const ps_client *c, const link *l, struct iovec *iov) {
    size_t n = 0;
    uint64_t skip = l->sent;
    for (uint32_t i = l->sending; i != NONE && n < SEND_PIECES; i = c->requests[i].next) {
        const request *r = &c->requests[i];
        if (r->answered) continue;
        if (skip < PS_HEADER_BYTES)
            iov[n++] = (struct iovec){(void *)(r->raw + skip), PS_HEADER_BYTES - skip};
        skip = skip < PS_HEADER_BYTES ? 0 : skip - PS_HEADER_BYTES;
        for (size_t k = 0; k < r->out_n && n < SEND_PIECES; k++) {
            struct iovec piece = c->iovs[r->out_at + k];
            if (skip >= piece.iov_len) {
                skip -= piece.iov_len;
                continue;
            }
            iov[n++] = (struct iovec){(uint8_t *)piece.iov_base + skip, piece.iov_len - (size_t)skip};
            skip = 0;
        }
    }
    return n;
}

static void sent_bytes(const ps_client *c, link *l, uint64_t sent) {
    l->sent += sent;
    while (l->sending != NONE) {
        const request *r = &c->requests[l->sending];
        uint64_t whole = r->answered ? 0 : PS_HEADER_BYTES + r->head.length;
        if (l->sent < whole) return;
        l->sent -= whole;
        l->sending = r->next;
    }
}

static int send_link(const ps_client *c, link *l, ps_err *err) {
    struct iovec iov[SEND_PIECES];
    sent_bytes(c, l, 0); /* passes over what is answered already */
    while (l->sending != NONE) {
        int64_t sent = ps_conn_send(&l->conn, iov, gather(c, l, iov), err);
        if (sent < 0) return (int)sent;
        sent_bytes(c, l, (uint64_t)sent);
    }
    return PS_OK;
}

/* --- Receiving. --- */

static void learn_versions(ps_client *c, const request *r, const uint8_t *body) {
    for (uint64_t at = 0; at + 16 <= r->in_bytes; at += 16) {
        uint32_t id;
        uint64_t version;
        memcpy(&id, body + at, sizeof id);
        memcpy(&version, body + at + 8, sizeof version);
        if (id < c->objects_n && version > c->objects[id].version) c->objects[id].version = version;
    }
}

static void answered(ps_client *c, link *l, request *r) {
    if (r->expect == PS_VERSIONS && r->in_n > 0) learn_versions(c, r, c->iovs[r->in_at].iov_base);
    if ((r->head.op == PS_PUSH || r->head.op == PS_PUSH_ROWS) && !(r->head.flags & PS_MORE))
        c->objects[r->head.object].version = r->head.version;
    r->answered = true;
    l->reading = NONE;
    l->open--;
    c->open--;
}

static int expect_versions(ps_client *c, request *r, const ps_header *h, ps_err *err) {
    void *body = stage_new(c, (size_t)h->length, 1);
    if (body == NULL) return no_memory(err);
    r->in_at = c->iovs_n;
    r->in_n = 1;
    r->in_bytes = h->length;
    return add_iov(c, body, (size_t)h->length, err);
}

static int begin_answer(ps_client *c, link *l, const ps_header *h, ps_err *err) {
    if (h->op == PS_ERROR) {
        l->refusing = true;
        l->text_length = (uint32_t)h->length;
        l->text_got = 0;
        return PS_OK;
    }
    uint32_t i = l->first;
    while (i != NONE && (c->requests[i].head.sequence != h->sequence || c->requests[i].answered))
        i = c->requests[i].next;
    if (i == NONE || h->op != c->requests[i].expect || h->trainer != c->trainer || h->epoch != c->epoch ||
        h->incarnation != c->incarnation)
        return ps_fail(err, PS_EPROTO, 0, "an answer %s %" PRIu64 " to nothing that was asked",
                       ps_op_name(h->op), h->sequence);
    request *r = &c->requests[i];
    if (r->expect == PS_VERSIONS) {
        int code = expect_versions(c, r, h, err);
        if (code < 0) return code;
    }
    if (h->length != r->in_bytes)
        return ps_fail(err, PS_EPROTO, 0, "an answer %s of %" PRIu64 " bytes in place of %" PRIu64,
                       ps_op_name(h->op), h->length, r->in_bytes);
    l->reading = i;
    l->got = 0;
    l->got_iov = l->got_at = 0;
    return PS_OK;
}

static int read_body(ps_client *c, link *l, ps_err *err) {
    request *r = &c->requests[l->reading];
    while (l->got < r->in_bytes) {
        struct iovec *iov = &c->iovs[r->in_at + l->got_iov];
        if (l->got_at == iov->iov_len) {
            l->got_iov++;
            l->got_at = 0;
            continue;
        }
        int64_t n =
            ps_conn_body(&l->conn, (uint8_t *)iov->iov_base + l->got_at, iov->iov_len - l->got_at, err);
        if (n < 0) return (int)n;
        l->got += (uint64_t)n;
        l->got_at += (size_t)n;
    }
    answered(c, l, r);
    return PS_OK;
}

static int read_refusal(link *l, ps_err *err) {
    while (l->text_got < l->text_length) {
        int64_t n = ps_conn_body(&l->conn, l->text + l->text_got, l->text_length - l->text_got, err);
        if (n < 0) return (int)n;
        l->text_got += (uint32_t)n;
    }
    return ps_fail(err, PS_EREMOTE, 0, "%.*s", (int)l->text_length, l->text);
}

/* Take what has come. PS_EAGAIN when nothing more is there. */
static int read_link(ps_client *c, link *l, ps_err *err) {
    for (;;) {
        ps_header head;
        int code = PS_OK;
        if (l->refusing) return read_refusal(l, err);
        if (l->reading == NONE) {
            code = ps_conn_header(&l->conn, &head, err);
            if (code == PS_OK) code = begin_answer(c, l, &head, err);
        }
        if (code == PS_OK && l->reading != NONE) code = read_body(c, l, err);
        if (code < 0) return code;
    }
}

/* --- Running a call. --- */

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int serve_link(ps_client *c, link *l, short events, ps_err *err) {
    int code = PS_OK;
    if (events & (POLLIN | POLLHUP | POLLERR)) {
        ps_conn_ready(&l->conn);
        code = read_link(c, l, err);
    }
    if ((code == PS_OK || code == PS_EAGAIN) && l->sending != NONE) code = send_link(c, l, err);
    return code == PS_EAGAIN ? PS_OK : code;
}

/* The sending side broke: the other side may have said why before. */
static int last_words(ps_client *c, link *l, int code, ps_err *err) {
    if (code != PS_ECONN || l->conn.fd < 0) return code;
    ps_err heard;
    ps_conn_ready(&l->conn);
    int read = read_link(c, l, &heard);
    if (read != PS_EREMOTE) return code;
    *err = heard;
    return read;
}

static int fail_link(ps_client *c, uint32_t i, int code, uint32_t *shard, ps_err *err) {
    *shard = i;
    code = last_words(c, &c->links[i], code, err);
    ps_client_detach(c, i);
    return code;
}

static int serve_links(ps_client *c, bool all, uint32_t *shard, ps_err *err) {
    for (uint32_t i = 0; i < c->shards; i++) {
        if (c->links[i].open == 0 || (!all && c->polls[i].revents == 0)) continue;
        int code = serve_link(c, &c->links[i], all ? 0 : c->polls[i].revents, err);
        if (code < 0) return fail_link(c, i, code, shard, err);
    }
    return PS_OK;
}

static void scatter_rows(ps_client *c) {
    for (size_t k = 0; k < c->scatters_n; k++) {
        const scatter *s = &c->scatters[k];
        for (size_t i = 0; i < s->n; i++)
            memcpy(s->out + s->order[i] * s->dim, s->rows + i * s->dim, s->dim * sizeof *s->out);
    }
    c->scatters_n = 0;
}

static void arm_polls(ps_client *c) {
    for (uint32_t i = 0; i < c->shards; i++) {
        const link *l = &c->links[i];
        c->polls[i].fd = l->open > 0 ? l->conn.fd : -1;
        c->polls[i].events = (short)(POLLIN | (l->sending != NONE ? POLLOUT : 0));
        c->polls[i].revents = 0;
    }
}

int ps_client_run(ps_client *c, int timeout_ms, uint32_t *shard, ps_err *err) {
    int64_t until = now_ms() + timeout_ms;
    int code = serve_links(c, true, shard, err);
    while (code == PS_OK && c->open > 0) {
        arm_polls(c);
        int64_t left = until - now_ms();
        int n = left > 0 ? poll(c->polls, c->shards, (int)left) : 0;
        if (n == 0 || (n < 0 && errno == EINTR)) return PS_EAGAIN;
        if (n < 0) return ps_fail(err, PS_ESYS, errno, "poll");
        code = serve_links(c, false, shard, err);
    }
    if (code == PS_OK) scatter_rows(c);
    return code;
}

uint64_t ps_client_size(const ps_client *c, uint32_t id) {
    return id < c->objects_n ? c->objects[id].spec.total : 0;
}

uint32_t ps_client_dim(const ps_client *c, uint32_t id) {
    return id < c->objects_n ? c->objects[id].spec.dim : 0;
}

uint64_t ps_client_version(const ps_client *c, uint32_t id) {
    return id < c->objects_n ? c->objects[id].version : 0;
}
