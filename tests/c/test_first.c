#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"
#include "shard/ps_first.h"
#include "shard/ps_cut.h"

enum { ROWS = 40, COLS = 3, MANY = 20000 };

static const ps_create dense = {.size = 4,
                                .total = 9,
                                .optim = {.method = PS_MOMENTUM, .learning_rate = 1},
                                .name_length = 1,
                                .name = "w"};
static const ps_create table = {.sparse = 1,
                                .dim = COLS,
                                .total = ROWS,
                                .optim = {.method = PS_ADAGRAD, .learning_rate = 1},
                                .init = {.seed = 1, .table = 2, .std = 1},
                                .name_length = 1,
                                .name = "e"};

/* What the owner knows. */
typedef struct known {
    ps_first first;
    int code;
} known;

static int find(void *owner, const ps_create *spec, ps_first *f, ps_err *err) {
    const known *k = owner;
    if (k->code < 0) return ps_fail(err, k->code, 0, "'%.*s' is not wanted", PS_NAME(spec));
    *f = k->first;
    return PS_OK;
}

/* Make the object in pass 5, and give it these values. Returns what ps_first_apply() does. */
static int give(ps_object **o, const ps_create *spec, known *k) {
    ps_err err;
    const ps_finder from = {find, k};
    CHECK(ps_object_new(o, spec, 0, 1, &err) == PS_OK);
    return ps_first_apply(&from, *o, 5, &err);
}

/* Return a file with these bytes. */
static int make_file(const void *data, size_t n) {
    int fd = memfd_create("values", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    return fd;
}

TEST(first_values_come_in_pieces_with_their_state_and_steps) {
    const float file[] = {1, 2, 3, 4, 5, 10, 20, 30, 40, 50}; /* 5 values and a slot */
    int fd = make_file(file, sizeof file);
    const ps_stored parts[] = {{.fd = fd, .at = 12, .stride = 20, .count = 2},
                               {.fd = fd, .at = 0, .stride = 20, .count = 2}};
    known k = {.first = {.steps = 7, .samples = 8, .passes = 9, .slots = 1, .parts = parts, .n = 2}};
    const float values[] = {4, 5, 1, 2}, state[] = {40, 50, 10, 20};
    ps_object *o;
    CHECK(give(&o, &dense, &k) == PS_OK && o->given && o->dense.ready);
    CHECK(memcmp(o->dense.values, values, sizeof values) == 0);
    CHECK(memcmp(o->dense.slots, state, sizeof state) == 0);
    CHECK(o->step.version == 7 && o->samples == 8 && o->passes == 9);
    ps_object_free(o);
    k.first.slots = 0;
    CHECK(give(&o, &dense, &k) == PS_OK && o->dense.slots[0] == 0);
    ps_object_free(o);
    k.first.parts = NULL;
    CHECK(give(&o, &dense, &k) == PS_OK && !o->given && !o->dense.ready && o->step.version == 0);
    ps_object_free(o);
    close(fd);
}

TEST(first_values_of_another_size_or_cut_off_are_refused) {
    const float file[8] = {0};
    int fd = make_file(file, sizeof file);
    ps_stored part = {.fd = fd, .count = 3};
    known k = {.first = {.floats = COLS - 1, .parts = &part, .n = 1, .shards = 1}};
    ps_object *o;
    CHECK(give(&o, &dense, &k) == PS_EPROTO && !o->dense.ready);
    ps_object_free(o);
    CHECK(give(&o, &table, &k) == PS_EPROTO);
    ps_object_free(o);
    part.count = 4, part.at = 20;
    CHECK(give(&o, &dense, &k) == PS_ESYS && !o->dense.ready);
    ps_object_free(o);
    k.first.floats = COLS;
    CHECK(give(&o, &table, &k) == PS_ESYS);
    ps_object_free(o);
    k.code = PS_EPROTO;
    CHECK(give(&o, &dense, &k) == PS_EPROTO && !o->given);
    ps_object_free(o);
    close(fd);
}

/* Save the object; return the place of what follows its description. */
static uint64_t save(ps_object *o, int fd) {
    uint8_t buffer[4096];
    ps_err err;
    ps_cut *c;
    uint64_t head = PS_SAVE_HEAD_BYTES + PS_CREATE_BYTES + o->spec.name_length;
    CHECK(ps_cut_begin(&c, &o, 1, 0, 0, &err) == PS_OK);
    for (size_t n; (n = ps_cut_read(c, buffer, sizeof buffer)) > 0;)
        CHECK(write(fd, buffer, n) == (ssize_t)n);
    CHECK(ps_cut_end(c));
    return (head + 7) / 8 * 8;
}

TEST(saved_rows_come_back_with_state_and_counts_on_any_number_of_shards) {
    static float grads[MANY * COLS], before[MANY * COLS], after[MANY * COLS];
    double state = 0, loaded = 0;
    static uint64_t all[2 * MANY];
    ps_create spec = table;
    ps_err err;
    ps_object *o, *parts[3];
    spec.entry = (ps_entry){PS_ENTRY_COUNT, {2}};
    for (uint64_t i = 0; i < 2 * MANY; i++) all[i] = i * i;
    for (size_t i = 0; i < MANY * COLS; i++) grads[i] = (float)(i % 7);
    CHECK(ps_object_new(&o, &spec, 0, 1, &err) == PS_OK);
    for (int i = 0; i < 2; i++) { /* a row from the second push on; the other half of the keys waits */
        CHECK(ps_sparse_add(o->sparse, all, grads, MANY, &err) == PS_OK);
        ps_object_commit(o);
    }
    CHECK(ps_sparse_add(o->sparse, all + MANY, grads, MANY, &err) == PS_OK);
    CHECK(ps_sparse_rows(o->sparse) == MANY && ps_sparse_waiting(o->sparse) == MANY);
    ps_sparse_read(o->sparse, all, MANY, before);
    ps_row item;
    CHECK(ps_sparse_keep(o->sparse, &err) == PS_OK);
    for (uint32_t next = 0; ps_sparse_kept(o->sparse, false, false, &next, &item);)
        state += (double)item.values[COLS + 1];
    ps_sparse_forget(o->sparse);
    int fd = memfd_create("table", MFD_CLOEXEC);
    uint64_t at = save(o, fd);
    ps_object_free(o);

    const ps_stored stored = {.fd = fd, .keys_at = at, .at = at + 16 * MANY, .count = MANY, .waiting = MANY};
    known k = {.first = {.steps = 2, .slots = 1, .floats = 2 * COLS, .counted = true, .shards = 3}};
    k.first.parts = &stored, k.first.n = 1;
    k.first.init = (ps_init){.seed = 9, .table = 2, .std = 1};
    size_t rows = 0, waiting = 0;
    for (uint32_t shard = 0; shard < 3; shard++) {
        k.first.shard = shard;
        CHECK(give(&parts[shard], &spec, &k) == PS_OK && parts[shard]->given);
        rows += ps_sparse_rows(parts[shard]->sparse);
        waiting += ps_sparse_waiting(parts[shard]->sparse);
        ps_sparse_read(parts[shard]->sparse, all, MANY, after);
        for (size_t i = 0; i < MANY; i++)
            CHECK(ps_key_shard(all[i], 3) != shard ||
                  memcmp(after + i * COLS, before + i * COLS, COLS * sizeof *after) == 0);
        CHECK(ps_sparse_keep(parts[shard]->sparse, &err) == PS_OK);
        for (uint32_t next = 0; ps_sparse_kept(parts[shard]->sparse, false, false, &next, &item);)
            CHECK(item.counts->shows == 2), loaded += (double)item.values[COLS + 1];
        CHECK(ps_sparse_init(parts[shard]->sparse).seed == 9);
        ps_object_free(parts[shard]);
    }
    CHECK(rows == MANY && waiting == MANY && state > 0 && loaded == state);
    spec.entry = (ps_entry){0}; /* a table that counts nothing takes the rows alone */
    k.first.shards = 1, k.first.shard = 0;
    CHECK(give(&o, &spec, &k) == PS_OK && ps_sparse_rows(o->sparse) == MANY);
    ps_object_free(o);
    close(fd);
}
