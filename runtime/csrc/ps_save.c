#include "ps_save.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { ALIGN = 8 };

/* A file that grows: small pieces gather in the buffer, which is digested and written when it is full. */
typedef struct sink {
    int fd;
    ps_sha256 sha;
    uint8_t *buffer;
    size_t size, used;
    uint64_t bytes; /* written so far */
} sink;

static int write_all(int fd, const uint8_t *data, size_t n, ps_err *err) {
    while (n > 0) {
        ssize_t done = write(fd, data, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return ps_fail(err, PS_ESYS, errno, "writing");
        data += done;
        n -= (size_t)done;
    }
    return PS_OK;
}

static int flush(sink *s, ps_err *err) {
    ps_sha256_add(&s->sha, s->buffer, s->used);
    int code = write_all(s->fd, s->buffer, s->used, err);
    s->used = 0;
    return code;
}

static int put(sink *s, const void *data, size_t n, ps_err *err) {
    const uint8_t *from = data;
    s->bytes += n;
    while (n > 0) {
        size_t k = s->size - s->used < n ? s->size - s->used : n;
        memcpy(s->buffer + s->used, from, k);
        s->used += k;
        from += k;
        n -= k;
        if (s->used < s->size) continue;
        int code = flush(s, err);
        if (code < 0) return code;
    }
    return PS_OK;
}

static int align(sink *s, ps_err *err) {
    const uint8_t zeros[ALIGN] = {0};
    return put(s, zeros, (size_t)(-s->bytes % ALIGN), err);
}

static int put_floats(sink *s, const float *values, size_t n, ps_err *err) {
    return n == 0 ? PS_OK : put(s, values, n * sizeof *values, err);
}

/* --- An object. --- */

static void put_number(uint8_t *p, int bytes, uint64_t x) {
    for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(x >> (8 * i));
}

static int save_head(sink *s, const ps_object *o, uint64_t count, ps_err *err) {
    uint8_t raw[PS_SAVE_HEAD_BYTES + PS_MAX_CREATE];
    size_t create = ps_create_encode(&o->spec, raw + PS_SAVE_HEAD_BYTES);
    put_number(raw, 4, ps_object_torn(o) ? PS_SAVE_TORN : 0);
    put_number(raw + 4, 4, create);
    put_number(raw + 8, 8, o->step.version);
    put_number(raw + 16, 8, count);
    put_number(raw + 24, 8, o->samples);
    int code = put(s, raw, PS_SAVE_HEAD_BYTES + create, err);
    return code == PS_OK ? align(s, err) : code;
}

static int save_dense(sink *s, const ps_object *o, ps_err *err) {
    const ps_dense *d = &o->dense;
    int code = save_head(s, o, d->n, err);
    if (code == PS_OK) code = put_floats(s, d->values, d->n, err);
    if (code == PS_OK) code = put_floats(s, d->slots, d->n * ps_optim_slots(d->optim.method), err);
    return code == PS_OK ? align(s, err) : code;
}

static int save_table(sink *s, const ps_object *o, ps_err *err) {
    uint64_t key;
    const float *row;
    size_t floats = o->spec.dim * (1 + (size_t)ps_optim_slots(o->spec.optim.method)), at = 0;
    int code = save_head(s, o, ps_sparse_rows(o->sparse), err);
    while (code == PS_OK && ps_sparse_next(o->sparse, &at, &key, &row)) {
        uint8_t raw[sizeof key];
        put_number(raw, sizeof raw, key);
        code = put(s, raw, sizeof raw, err);
    }
    at = 0;
    while (code == PS_OK && ps_sparse_next(o->sparse, &at, &key, &row))
        code = put_floats(s, row, floats, err);
    return code == PS_OK ? align(s, err) : code;
}

/* --- The file. --- */

/* Digest the bytes that the owner has written. */
static int begin(sink *s, ps_err *err) {
    off_t end = lseek(s->fd, 0, SEEK_CUR);
    if (end < 0) return ps_fail(err, PS_ESYS, errno, "lseek");
    while (s->bytes < (uint64_t)end) {
        uint64_t left = (uint64_t)end - s->bytes;
        ssize_t n = pread(s->fd, s->buffer, left < s->size ? (size_t)left : s->size, (off_t)s->bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return ps_fail(err, PS_ESYS, n < 0 ? errno : EIO, "reading the header");
        ps_sha256_add(&s->sha, s->buffer, (size_t)n);
        s->bytes += (uint64_t)n;
    }
    return PS_OK;
}

static int end(sink *s, ps_err *err) {
    uint8_t digest[PS_SHA256_BYTES];
    int code = flush(s, err);
    if (code < 0) return code;
    ps_sha256_end(&s->sha, digest);
    code = write_all(s->fd, digest, sizeof digest, err);
    if (code == PS_OK && fsync(s->fd) < 0) code = ps_fail(err, PS_ESYS, errno, "fsync");
    return code;
}

int ps_save_objects(int fd, ps_object *const *objects, uint32_t n, void *buffer, size_t size, ps_err *err) {
    sink s = {.fd = fd, .buffer = buffer, .size = size};
    for (uint32_t i = 0; i < n; i++)
        if (objects[i]->dense.n > 0 && !objects[i]->dense.ready)
            return ps_fail(err, PS_EINVAL, 0, "'%.*s' has no values yet", PS_NAME(&objects[i]->spec));
    ps_sha256_init(&s.sha);
    int code = begin(&s, err);
    for (uint32_t i = 0; code == PS_OK && i < n; i++)
        code = objects[i]->sparse != NULL ? save_table(&s, objects[i], err) : save_dense(&s, objects[i], err);
    return code == PS_OK ? end(&s, err) : code;
}
