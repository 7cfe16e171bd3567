#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "shard/ps_first.h"

enum { ROWS = 40, COLS = 3 };

static const ps_create dense = {
    .size = 4, .total = 9, .optim = {.learning_rate = 1}, .name_length = 1, .name = "w"};
static const ps_create table = {.sparse = 1,
                                .dim = COLS,
                                .total = ROWS,
                                .optim = {.learning_rate = 1},
                                .init = {.seed = 1, .table = 2, .std = 1},
                                .name_length = 1,
                                .name = "e"};

/* Make the object in pass 5, and give it these values. Returns what ps_first_apply() does. */
static int give(ps_object **o, const ps_create *spec, ps_first *first, size_t n) {
    ps_err err;
    CHECK(ps_object_new(o, spec, 0, 1, &err) == PS_OK);
    return ps_first_apply(first, n, *o, 5, &err);
}

static ps_first copy(const char *name, const float *values, size_t n, uint32_t dim, uint32_t shard,
                     uint32_t shards) {
    ps_first f;
    ps_err err;
    CHECK(ps_first_copy(&f, name, values, n, dim, shard, shards, &err) == PS_OK);
    return f;
}

TEST(first_values_go_to_the_object_of_their_name) {
    const float values[] = {1, 2, 3, 4};
    ps_first first[] = {copy("v", values, 3, 0, 0, 1), copy("w", values, 4, 0, 0, 1)};
    ps_object *o;
    CHECK(give(&o, &dense, first, 1) == PS_OK && !o->given && !o->dense.ready);
    ps_object_free(o);
    CHECK(give(&o, &dense, first, 2) == PS_OK && o->given && o->dense.ready);
    CHECK(memcmp(o->dense.values, values, sizeof values) == 0);
    ps_object_free(o);
    CHECK(first[0].values != NULL && first[1].values == NULL); /* released where an object has them */
    CHECK(give(&o, &dense, first, 2) == PS_OK && !o->given);
    ps_object_free(o);
    ps_first_release(&first[0]);
}

TEST(first_values_of_another_shape_are_refused) {
    float values[ROWS * COLS] = {0};
    ps_first wrong[] = {copy("w", values, 5, 0, 0, 1), copy("w", values, 4, 1, 0, 1)};
    ps_first rows[] = {copy("e", values, (ROWS - 1) * COLS, COLS, 0, 1),
                       copy("e", values, ROWS * COLS, 1, 0, 1)};
    ps_object *o;
    for (size_t i = 0; i < 2; i++) {
        CHECK(give(&o, &dense, &wrong[i], 1) == PS_EPROTO && !o->dense.ready);
        ps_object_free(o);
        CHECK(give(&o, &table, &rows[i], 1) == PS_EPROTO && ps_sparse_rows(o->sparse) == 0);
        ps_object_free(o);
        ps_first_release(&wrong[i]);
        ps_first_release(&rows[i]);
    }
}

TEST(first_rows_are_made_where_they_differ_from_initial_ones) {
    float values[ROWS * COLS], found[ROWS * COLS];
    uint64_t all[ROWS];
    size_t made = 0;
    ps_object *o;
    for (uint64_t i = 0; i < ROWS; i++) all[i] = i;
    CHECK(give(&o, &table, NULL, 0) == PS_OK);
    ps_sparse_read(o->sparse, all, ROWS, values);
    ps_object_free(o);
    for (uint64_t i = 0; i < ROWS; i += 2) values[i * COLS] += 1;
    for (uint32_t shard = 0; shard < 3; shard++) {
        ps_first first = copy("e", values, ROWS * COLS, COLS, shard, 3);
        CHECK(give(&o, &table, &first, 1) == PS_OK && o->given);
        made += ps_sparse_rows(o->sparse);
        ps_sparse_read(o->sparse, all, ROWS, found);
        for (uint64_t i = 0; i < ROWS; i++) {
            bool here = memcmp(found + i * COLS, values + i * COLS, COLS * sizeof *found) == 0;
            CHECK(here == (i % 2 == 1 || ps_key_shard(i, 3) == shard));
        }
        ps_object_free(o);
    }
    CHECK(made == ROWS / 2);
}

TEST(first_rows_are_as_new_as_the_pass) {
    float values[ROWS * COLS] = {0};
    ps_create spec = table;
    spec.entry = (ps_entry){PS_ENTRY_COUNT, {1}};
    ps_first first = copy("e", values, ROWS * COLS, COLS, 0, 1);
    const ps_shrink how = {.decay = 1, .unseen = 2};
    ps_object *o;
    CHECK(give(&o, &spec, &first, 1) == PS_OK && ps_sparse_rows(o->sparse) == ROWS);
    CHECK(ps_sparse_shrink(o->sparse, &how, 5) == 0);
    ps_object_free(o);
}

TEST(first_rows_come_in_batches_of_frames) {
    enum { DIM = 32768, MANY = 20 };
    ps_create spec = table;
    float *values = calloc((size_t)MANY * DIM, sizeof *values), *found = malloc(DIM * sizeof *found);
    spec.dim = DIM, spec.total = MANY;
    for (uint64_t i = 0; i < MANY; i++) values[i * DIM + DIM - 1] = (float)(i + 1);
    for (uint32_t shard = 0; shard < 2; shard++) {
        ps_first first = copy("e", values, (size_t)MANY * DIM, DIM, shard, 2);
        ps_object *o;
        CHECK(ps_rows_per_frame(DIM) < MANY / 2 && give(&o, &spec, &first, 1) == PS_OK);
        for (uint64_t i = 0; i < MANY; i++) {
            ps_sparse_read(o->sparse, &i, 1, found);
            CHECK((found[DIM - 1] == (float)(i + 1)) == (ps_key_shard(i, 2) == shard));
        }
        ps_object_free(o);
    }
    free(values);
    free(found);
}
