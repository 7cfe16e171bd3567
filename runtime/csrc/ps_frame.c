/* Frames: encoding, decoding, limits. */
#include "ps_frame.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void put_u32(uint8_t *p, uint32_t v) {
    put_u16(p, (uint16_t)v);
    put_u16(p + 2, (uint16_t)(v >> 16));
}

static void put_u64(uint8_t *p, uint64_t v) {
    put_u32(p, (uint32_t)v);
    put_u32(p + 4, (uint32_t)(v >> 32));
}

static void put_f32(uint8_t *p, float f) {
    uint32_t v;
    memcpy(&v, &f, sizeof v);
    put_u32(p, v);
}

static uint16_t get_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t get_u32(const uint8_t *p) {
    return (uint32_t)get_u16(p) | (uint32_t)get_u16(p + 2) << 16;
}

static uint64_t get_u64(const uint8_t *p) {
    return (uint64_t)get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}

static float get_f32(const uint8_t *p) {
    uint32_t v = get_u32(p);
    float f;
    memcpy(&f, &v, sizeof f);
    return f;
}

/* Detects damage, not malice: any change of the header gives the same check once in 2^32. */
static uint32_t header_check(const uint8_t *buf) {
    uint64_t h = 0;
    for (size_t i = 0; i < 56; i += 8) h = ps_mix64(h ^ get_u64(buf + i));
    h = ps_mix64(h ^ get_u32(buf + 56));
    return (uint32_t)(h ^ (h >> 32));
}

uint64_t ps_frame_limit(uint16_t op) {
    switch (op) {
    case PS_CREATE:
        return PS_CREATE_BYTES + PS_MAX_NAME;
    case PS_INIT:
    case PS_PUSH:
    case PS_VALUES:
        return PS_MAX_DENSE_BYTES;
    case PS_SET_ROWS:
    case PS_PUSH_ROWS:
    case PS_PULL_ROWS:
    case PS_ROWS:
        return PS_MAX_ROW_FRAME;
    case PS_VERSIONS:
        return 16 * (uint64_t)PS_MAX_OBJECTS;
    case PS_ERROR:
        return PS_MAX_TEXT;
    default:
        return 0;
    }
}

const char *ps_op_name(uint16_t op) {
    static const char *const requests[] = {"?",    "CREATE",    "INIT",     "SET_ROWS", "PUSH",  "PUSH_ROWS",
                                           "PULL", "PULL_ROWS", "END_PASS", "BARRIER",  "FINISH"};
    static const char *const answers[] = {"DONE", "VALUES", "ROWS", "VERSIONS"};
    if (op <= PS_FINISH) return requests[op];
    if (op >= PS_DONE && op <= PS_VERSIONS) return answers[op - PS_DONE];
    return op == PS_ERROR ? "ERROR" : "?";
}

void ps_header_encode(const ps_header *h, uint8_t *buf) {
    put_u32(buf, PS_MAGIC);
    put_u16(buf + 4, PS_VERSION);
    put_u16(buf + 6, h->op);
    put_u32(buf + 8, h->epoch);
    put_u32(buf + 12, h->trainer);
    put_u64(buf + 16, h->incarnation);
    put_u64(buf + 24, h->sequence);
    put_u32(buf + 32, h->object);
    put_u32(buf + 36, h->flags);
    put_u64(buf + 40, h->version);
    put_u64(buf + 48, h->length);
    put_u32(buf + 56, h->count);
    put_u32(buf + 60, header_check(buf));
}

static int header_valid(const uint8_t *buf, const ps_header *h, ps_err *err) {
    if (get_u32(buf + 60) != header_check(buf)) return ps_fail(err, PS_EPROTO, 0, "a damaged frame header");
    if (get_u16(buf + 4) != PS_VERSION)
        return ps_fail(err, PS_EPROTO, 0, "protocol version %u, expected %u", get_u16(buf + 4), PS_VERSION);
    if (strcmp(ps_op_name(h->op), "?") == 0) return ps_fail(err, PS_EPROTO, 0, "unknown operation %u", h->op);
    if (h->flags & ~(uint32_t)PS_FLAGS) return ps_fail(err, PS_EPROTO, 0, "unknown flags %x", h->flags);
    if (h->length > ps_frame_limit(h->op))
        return ps_fail(err, PS_EPROTO, 0, "%s with a body of %" PRIu64 " bytes, limit %" PRIu64,
                       ps_op_name(h->op), h->length, ps_frame_limit(h->op));
    if (h->trainer >= PS_MAX_TRAINERS || h->object >= PS_MAX_OBJECTS)
        return ps_fail(err, PS_EPROTO, 0, "trainer %u or object %u above the limit", h->trainer, h->object);
    return PS_OK;
}

int64_t ps_header_decode(const uint8_t *buf, size_t n, ps_header *h, ps_err *err) {
    if (n >= 4 && get_u32(buf) != PS_MAGIC)
        return ps_fail(err, PS_EPROTO, 0, "not a frame of pslaunch: first bytes %08x", get_u32(buf));
    if (n < PS_HEADER_BYTES) return PS_EAGAIN;
    *h = (ps_header){.op = get_u16(buf + 6),
                     .epoch = get_u32(buf + 8),
                     .trainer = get_u32(buf + 12),
                     .incarnation = get_u64(buf + 16),
                     .sequence = get_u64(buf + 24),
                     .object = get_u32(buf + 32),
                     .flags = get_u32(buf + 36),
                     .version = get_u64(buf + 40),
                     .length = get_u64(buf + 48),
                     .count = get_u32(buf + 56)};
    int code = header_valid(buf, h, err);
    return code < 0 ? code : PS_HEADER_BYTES;
}

size_t ps_create_encode(const ps_create *c, uint8_t *buf) {
    put_u32(buf, c->sparse);
    put_u32(buf + 4, c->dim);
    put_u64(buf + 8, c->size);
    put_u64(buf + 16, c->total);
    put_u32(buf + 24, c->optim.method);
    put_f32(buf + 28, c->optim.learning_rate);
    put_f32(buf + 32, c->optim.momentum);
    put_f32(buf + 36, c->optim.decay);
    put_f32(buf + 40, c->optim.epsilon);
    put_u32(buf + 44, c->init.kind);
    put_u64(buf + 48, c->init.seed);
    put_u64(buf + 56, c->init.table);
    put_f32(buf + 64, c->init.mean);
    put_f32(buf + 68, c->init.std);
    put_u64(buf + 72, c->name_length);
    memcpy(buf + PS_CREATE_BYTES, c->name, c->name_length);
    return PS_CREATE_BYTES + c->name_length;
}

static int create_valid(const ps_create *c, ps_err *err) {
    if (ps_optim_check(&c->optim, err) < 0) return PS_EPROTO;
    if (c->sparse > 1) return ps_fail(err, PS_EPROTO, 0, "unknown kind of object %u", c->sparse);
    if (c->sparse && (c->dim == 0 || c->dim > PS_MAX_DIM))
        return ps_fail(err, PS_EPROTO, 0, "rows of %u values, expected 1..%u", c->dim, PS_MAX_DIM);
    if (c->sparse) return ps_init_check(&c->init, err) < 0 ? PS_EPROTO : PS_OK;
    if (c->size > PS_MAX_DENSE_BYTES / sizeof(float))
        return ps_fail(err, PS_EPROTO, 0, "%" PRIu64 " values on one shard, limit %" PRIu64, c->size,
                       (uint64_t)(PS_MAX_DENSE_BYTES / sizeof(float)));
    return PS_OK;
}

int ps_create_decode(const uint8_t *buf, size_t n, ps_create *c, ps_err *err) {
    if (n < PS_CREATE_BYTES || n > PS_CREATE_BYTES + PS_MAX_NAME || get_u64(buf + 72) != n - PS_CREATE_BYTES)
        return ps_fail(err, PS_EPROTO, 0, "CREATE with a body of %zu bytes", n);
    *c = (ps_create){.sparse = get_u32(buf),
                     .dim = get_u32(buf + 4),
                     .size = get_u64(buf + 8),
                     .total = get_u64(buf + 16),
                     .optim = {get_u32(buf + 24), get_f32(buf + 28), get_f32(buf + 32), get_f32(buf + 36),
                               get_f32(buf + 40)},
                     .init = {.kind = get_u32(buf + 44),
                              .seed = get_u64(buf + 48),
                              .table = get_u64(buf + 56),
                              .mean = get_f32(buf + 64),
                              .std = get_f32(buf + 68)},
                     .name_length = (uint32_t)(n - PS_CREATE_BYTES)};
    memcpy(c->name, buf + PS_CREATE_BYTES, c->name_length);
    return create_valid(c, err);
}

int ps_create_differs(const ps_create *a, const ps_create *b, char *text, size_t size) {
    const struct {
        const char *what;
        double a, b;
    } numbers[] = {
        {"kind (0 dense, 1 sparse)", a->sparse, b->sparse},
        {"dim", a->dim, b->dim},
        {"size", (double)a->total, (double)b->total},
        {"size on one shard", (double)a->size, (double)b->size},
        {"optimizer (0 sgd, 1 momentum, 2 adagrad)", a->optim.method, b->optim.method},
        {"learning_rate", (double)a->optim.learning_rate, (double)b->optim.learning_rate},
        {"momentum", (double)a->optim.momentum, (double)b->optim.momentum},
        {"decay (l2_rate)", (double)a->optim.decay, (double)b->optim.decay},
        {"epsilon", (double)a->optim.epsilon, (double)b->optim.epsilon},
        {"initial distribution", a->init.kind, b->init.kind},
        {"seed", (double)(uint32_t)a->init.seed, (double)(uint32_t)b->init.seed},
        {"seed / 2^32", (double)(a->init.seed >> 32), (double)(b->init.seed >> 32)},
        {"initial_mean", (double)a->init.mean, (double)b->init.mean},
        {"initial_std", (double)a->init.std, (double)b->init.std},
    };
    if (a->name_length != b->name_length || memcmp(a->name, b->name, a->name_length) != 0) {
        snprintf(text, size, "name '%.64s' against '%.64s'", a->name, b->name);
        return 1;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].a == numbers[i].b) continue;
        snprintf(text, size, "%s %.9g against %.9g", numbers[i].what, numbers[i].a, numbers[i].b);
        return 1;
    }
    return 0;
}

size_t ps_rows_per_frame(uint32_t dim) {
    size_t rows = PS_MAX_ROWS_BYTES / (sizeof(uint64_t) + sizeof(float) * (size_t)dim);
    return rows > 0 ? rows : 1;
}
