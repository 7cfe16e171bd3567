#include "wire/ps_frame.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Fields of a frame: their places there, sizes, and places in the struct. */
typedef struct field {
    uint8_t at, size;
    uint16_t member;
    bool real;
    const char *what;                /* for messages of a difference; NULL: nobody compares it */
    const char *(*word)(uint32_t x); /* in place of the number x; NULL: none */
} field;

#define NAMED(at, type, member, what, word)                                    \
    {at,                                                                       \
     sizeof((type *)0)->member,                                                \
     offsetof(type, member),                                                   \
     _Generic(((type *)0)->member, float: true, double: true, default: false), \
     what,                                                                     \
     word}
#define FIELD(at, type, member) NAMED(at, type, member, NULL, NULL)
#define PUT(fields, from, buf) put_fields(fields, sizeof(fields) / sizeof(field), from, buf)
#define GET(fields, buf, to) get_fields(fields, sizeof(fields) / sizeof(field), buf, to)

static void put_fields(const field *fields, size_t n, const void *from, uint8_t *buf) {
    for (const field *f = fields; f < fields + n; f++)
        memcpy(buf + f->at, (const char *)from + f->member, f->size);
}

static void get_fields(const field *fields, size_t n, const uint8_t *buf, void *to) {
    for (const field *f = fields; f < fields + n; f++) memcpy((char *)to + f->member, buf + f->at, f->size);
}

static const field header_fields[] = {
    FIELD(6, ps_header, op),       FIELD(8, ps_header, epoch),   FIELD(12, ps_header, trainer),
    FIELD(16, ps_header, samples), FIELD(20, ps_header, factor), FIELD(24, ps_header, sequence),
    FIELD(32, ps_header, object),  FIELD(36, ps_header, flags),  FIELD(40, ps_header, version),
    FIELD(48, ps_header, length),  FIELD(56, ps_header, count),
};

static const char *name_mode(uint32_t mode) {
    static const char *const names[PS_MODES] = {"sync", "half_async", "async", "geo"};
    return names[mode];
}

static const char *name_method(uint32_t method) {
    return ps_optim_method(method)->name;
}

/* In the order in which they are compared. */
static const field create_fields[] = {
    NAMED(0, ps_create, sparse, "kind (0 dense, 1 sparse)", NULL),
    NAMED(4, ps_create, dim, "dim", NULL),
    NAMED(16, ps_create, total, "size", NULL),
    NAMED(8, ps_create, size, "size on one shard", NULL),
    NAMED(28, ps_create, mode, "mode", name_mode),
    NAMED(84, ps_create, discard, "updates before a push is dropped", NULL),
    NAMED(24, ps_create, optim.method, "optimizer", name_method),
    NAMED(32, ps_create, optim.learning_rate, "learning_rate", NULL),
    NAMED(36, ps_create, optim.l1, "L1 rate", NULL),
    NAMED(40, ps_create, optim.l2, "L2 rate (l2_rate)", NULL),
    NAMED(44, ps_create, optim.clip, "gradient_clipping_threshold", NULL),
    NAMED(88, ps_create, entry.rule, "entry rule", ps_entry_name),
    NAMED(92, ps_create, entry.numbers[0], "first number of the entry rule", NULL),
    NAMED(96, ps_create, entry.numbers[1], "second number of the entry rule", NULL),
    NAMED(116, ps_create, init.kind, "initial distribution", NULL),
    NAMED(100, ps_create, init.seed, "seed", NULL),
    NAMED(120, ps_create, init.mean, "initial_mean", NULL),
    NAMED(124, ps_create, init.std, "initial_std", NULL),
    NAMED(60, ps_create, schedule.kind, "learning_rate_schedule", ps_schedule_name),
    NAMED(64, ps_create, schedule.a, "learning_rate_decay_a", NULL),
    NAMED(72, ps_create, schedule.b, "learning_rate_decay_b", NULL),
    NAMED(80, ps_create, schedule.segments_n, "segments in learning_rate_args", NULL),
    FIELD(48, ps_create, optim.numbers), /* which each method names */
    FIELD(108, ps_create, init.table),   /* which follows from the name */
    FIELD(128, ps_create, name_length),
};
static const field segment_fields[] = {
    NAMED(0, ps_segment, last, "learning_rate_args: end of a segment", NULL),
    NAMED(8, ps_segment, factor, "learning_rate_args: factor of a segment", NULL),
};

static uint32_t get_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t get_u64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Detects damage, not malice: any change of the header gives the same check once in 2^32. */
static uint32_t header_check(const uint8_t *buf) {
    uint64_t h = 0;
    for (size_t i = 0; i < 56; i += 8) h = ps_mix64(h ^ get_u64(buf + i));
    h = ps_mix64(h ^ get_u32(buf + 56));
    return (uint32_t)(h ^ (h >> 32));
}

ps_form ps_form_of(uint16_t op) {
    static const ps_form forms[PS_ERROR + 1] = {
        [PS_CREATE] = {"CREATE", PS_MAX_CREATE, 0},
        [PS_INIT] = {"INIT", PS_MAX_DENSE_BYTES, 0},
        [PS_SET_ROWS] = {"SET_ROWS", PS_MAX_ROW_FRAME, 0},
        [PS_PUSH] = {"PUSH", PS_MAX_DENSE_BYTES, PS_WANT},
        [PS_PUSH_ROWS] = {"PUSH_ROWS", PS_MAX_ROW_FRAME, PS_MORE},
        [PS_PULL] = {"PULL", 0, 0},
        [PS_PULL_ROWS] = {"PULL_ROWS", PS_MAX_ROW_FRAME, PS_AFTER},
        [PS_END_PASS] = {"END_PASS", 0, 0},
        [PS_BARRIER] = {"BARRIER", 0, 0},
        [PS_FINISH] = {"FINISH", 0, 0},
        [PS_SHRINK] = {"SHRINK", sizeof(ps_shrink), 0},
        [PS_CUT] = {"CUT", 0, PS_EXPORT | PS_ALL},
        [PS_DONE] = {"DONE", 0, PS_DROPPED | PS_IN_CUT},
        [PS_VALUES] = {"VALUES", PS_MAX_DENSE_BYTES, PS_DROPPED | PS_IN_CUT},
        [PS_ROWS] = {"ROWS", PS_MAX_ROW_FRAME, 0},
        [PS_VERSIONS] = {"VERSIONS", 16 * (uint64_t)PS_MAX_OBJECTS, 0},
        [PS_ERROR] = {"ERROR", PS_MAX_TEXT, 0},
    };
    return op <= PS_ERROR && forms[op].name != NULL ? forms[op] : (ps_form){"?", 0, 0};
}

const char *ps_op_name(uint16_t op) {
    return ps_form_of(op).name;
}

void ps_header_encode(const ps_header *h, uint8_t *buf) {
    const uint32_t magic = PS_MAGIC;
    const uint16_t version = PS_VERSION;
    memcpy(buf, &magic, sizeof magic);
    memcpy(buf + 4, &version, sizeof version);
    PUT(header_fields, h, buf);
    const uint32_t check = header_check(buf);
    memcpy(buf + 60, &check, sizeof check);
}

static int header_valid(const uint8_t *buf, const ps_header *h, ps_err *err) {
    if (get_u32(buf + 60) != header_check(buf)) return ps_fail(err, PS_EPROTO, 0, "a damaged frame header");
    const uint32_t version = get_u32(buf + 4) & 0xffff;
    if (version != PS_VERSION)
        return ps_fail(err, PS_EPROTO, 0, "protocol version %u, expected %u", version, PS_VERSION);
    const ps_form form = ps_form_of(h->op);
    if (form.name[0] == '?') return ps_fail(err, PS_EPROTO, 0, "unknown operation %u", h->op);
    if (h->flags & ~form.flags)
        return ps_fail(err, PS_EPROTO, 0, "%s with the flags %x, allowed are %x", form.name, h->flags,
                       form.flags);
    if (h->length > form.limit)
        return ps_fail(err, PS_EPROTO, 0, "%s with a body of %" PRIu64 " bytes, limit %" PRIu64, form.name,
                       h->length, form.limit);
    bool push = h->op == PS_PUSH || h->op == PS_PUSH_ROWS;
    if (!push && h->samples != 0)
        return ps_fail(err, PS_EPROTO, 0, "%s of %u samples", form.name, h->samples);
    if (push ? !isfinite(h->factor) || h->factor < 0 : h->factor != 0)
        return ps_fail(err, PS_EPROTO, 0, "%s with %g times the learning rate", form.name, (double)h->factor);
    if (h->trainer >= PS_MAX_TRAINERS || h->object >= PS_MAX_OBJECTS)
        return ps_fail(err, PS_EPROTO, 0, "trainer %u or object %u above the limit", h->trainer, h->object);
    return PS_OK;
}

int64_t ps_header_decode(const uint8_t *buf, size_t n, ps_header *h, ps_err *err) {
    if (n >= 4 && get_u32(buf) != PS_MAGIC)
        return ps_fail(err, PS_EPROTO, 0, "not a frame of pslaunch: first bytes %08x", get_u32(buf));
    if (n < PS_HEADER_BYTES) return PS_EAGAIN;
    GET(header_fields, buf, h);
    int code = header_valid(buf, h, err);
    return code < 0 ? code : PS_HEADER_BYTES;
}

size_t ps_create_encode(const ps_create *c, uint8_t *buf) {
    uint8_t *at = buf + PS_CREATE_BYTES;
    PUT(create_fields, c, buf);
    for (uint32_t i = 0; i < c->schedule.segments_n; i++, at += PS_SEGMENT_BYTES)
        PUT(segment_fields, &c->schedule.segments[i], at);
    memcpy(at, c->name, c->name_length);
    return (size_t)(at - buf) + c->name_length;
}

static int entry_valid(const ps_create *c, ps_err *err) {
    if (ps_entry_check(&c->entry, err) < 0) return PS_EPROTO;
    if (c->entry.rule == PS_ENTRY_ANY || (c->sparse && c->mode != PS_GEO)) return PS_OK;
    return ps_fail(err, PS_EPROTO, 0, "entry rule %s: expected a table that is not of mode geo",
                   ps_entry_name(c->entry.rule));
}

uint32_t ps_push_floats(const ps_create *c) {
    return c->dim + ps_entry_extra(&c->entry);
}

static int create_valid(const ps_create *c, ps_err *err) {
    if (ps_optim_check(&c->optim, err) < 0 || ps_schedule_check(&c->schedule, err) < 0) return PS_EPROTO;
    if (c->sparse > 1) return ps_fail(err, PS_EPROTO, 0, "unknown kind of object %u", c->sparse);
    if (c->mode >= PS_MODES) return ps_fail(err, PS_EPROTO, 0, "unknown mode %u", c->mode);
    if (c->discard != 0 && c->mode == PS_SYNC)
        return ps_fail(err, PS_EPROTO, 0, "pushes are dropped after %u updates, but steps are synchronous",
                       c->discard);
    if (entry_valid(c, err) < 0) return PS_EPROTO;
    if (c->sparse ? ps_optim_whole(c->optim.method) : ps_optim_by_row(c->optim.method))
        return ps_fail(err, PS_EPROTO, 0, "optimizer %s of a %s", ps_optim_method(c->optim.method)->name,
                       c->sparse ? "table, but it has dense parameters alone"
                                 : "dense parameter, but it has rows");
    if (c->sparse && (c->dim == 0 || ps_push_floats(c) > PS_MAX_DIM))
        return ps_fail(err, PS_EPROTO, 0, "rows of %u values, expected 1..%u", c->dim, PS_MAX_DIM);
    if (c->sparse) return ps_init_check(&c->init, err) < 0 ? PS_EPROTO : PS_OK;
    if (c->size > PS_MAX_DENSE_BYTES / sizeof(float))
        return ps_fail(err, PS_EPROTO, 0, "%" PRIu64 " values on one shard, limit %" PRIu64, c->size,
                       (uint64_t)(PS_MAX_DENSE_BYTES / sizeof(float)));
    return PS_OK;
}

int ps_create_decode(const uint8_t *buf, size_t n, ps_create *c, ps_err *err) {
    uint64_t segments = n < PS_CREATE_BYTES ? 0 : get_u32(buf + 80);
    uint64_t fixed = PS_CREATE_BYTES + PS_SEGMENT_BYTES * segments;
    if (segments > PS_MAX_SEGMENTS || n < fixed || n > fixed + PS_MAX_NAME || get_u32(buf + 128) != n - fixed)
        return ps_fail(err, PS_EPROTO, 0, "CREATE with a body of %zu bytes", n);
    *c = (ps_create){0};
    GET(create_fields, buf, c);
    for (uint32_t i = 0; i < c->schedule.segments_n; i++)
        GET(segment_fields, buf + PS_CREATE_BYTES + PS_SEGMENT_BYTES * (size_t)i, &c->schedule.segments[i]);
    memcpy(c->name, buf + fixed, c->name_length);
    return create_valid(c, err);
}

static double get_real(const field *f, const void *from) {
    float single;
    double found;
    memcpy(&single, (const char *)from + f->member, sizeof single);
    if (f->size == sizeof single) return (double)single;
    memcpy(&found, (const char *)from + f->member, sizeof found);
    return found;
}

static uint64_t get_whole(const field *f, const void *from) {
    uint64_t found = 0;
    memcpy(&found, (const char *)from + f->member, f->size);
    return found;
}

static void write_value(const field *f, const void *from, char *text, size_t size) {
    if (f->real) snprintf(text, size, "%.9g", get_real(f, from));
    else if (f->word != NULL) snprintf(text, size, "%s", f->word((uint32_t)get_whole(f, from)));
    else snprintf(text, size, "%" PRIu64, get_whole(f, from));
}

/* Return true if two structs differ in one of these fields; then `text` has the first such one. */
static bool differ(const field *fields, size_t n, const void *a, const void *b, char *text, size_t size) {
    char own[2][32];
    for (const field *f = fields; f < fields + n; f++) {
        if (f->what == NULL) continue;
        if (f->real ? get_real(f, a) == get_real(f, b) : get_whole(f, a) == get_whole(f, b)) continue;
        write_value(f, a, own[0], sizeof own[0]);
        write_value(f, b, own[1], sizeof own[1]);
        snprintf(text, size, "%s %s against %s", f->what, own[0], own[1]);
        return true;
    }
    return false;
}

int ps_create_differs(const ps_create *a, const ps_create *b, char *text, size_t size) {
    if (a->name_length != b->name_length || memcmp(a->name, b->name, a->name_length) != 0) {
        snprintf(text, size, "name '%.*s' against '%.*s'", PS_NAME(a), PS_NAME(b));
        return 1;
    }
    if (differ(create_fields, sizeof create_fields / sizeof(field), a, b, text, size)) return 1;
    for (uint32_t i = 0; i < a->schedule.segments_n; i++)
        if (differ(segment_fields, 2, &a->schedule.segments[i], &b->schedule.segments[i], text, size))
            return 1;
    for (size_t i = 0; i < PS_NUMBERS; i++) {
        field own = FIELD(48, ps_create, optim.numbers[0]);
        own.member = (uint16_t)(own.member + i * sizeof(float));
        own.what = ps_optim_method(a->optim.method)->numbers[i].name;
        if (differ(&own, 1, a, b, text, size)) return 1;
    }
    return 0;
}

size_t ps_rows_per_frame(uint32_t floats) {
    size_t rows = PS_MAX_ROWS_BYTES / (sizeof(uint64_t) + sizeof(float) * (size_t)floats);
    return rows > 0 ? rows : 1;
}

uint32_t ps_key_shard(uint64_t key, uint32_t n) {
    return (uint32_t)(((ps_key_hash(key) >> 32) * n) >> 32);
}
