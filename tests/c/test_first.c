#include <string.h>

#include "harness.h"
#include "ps_first.h"

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

/* Make the object, and give it these values. Returns what ps_first_apply() does. */
static int give(ps_object **o, const ps_create *spec, const ps_first *first, size_t n) {
    ps_err err;
    CHECK(ps_object_new(o, spec, 0, 1, &err) == PS_OK);
    return ps_first_apply(first, n, *o, &err);
}

TEST(first_values_go_to_the_object_of_their_name) {
    const float values[] = {1, 2, 3, 4};
    const ps_first first[] = {{"v", NULL, 7, 0, 0, 1}, {"w", values, 4, 0, 0, 1}};
    ps_object *o;
    CHECK(give(&o, &dense, first, 1) == PS_OK && !o->given && !o->dense.ready);
    ps_object_free(o);
    CHECK(give(&o, &dense, first, 2) == PS_OK && o->given && o->dense.ready);
    CHECK(memcmp(o->dense.values, values, sizeof values) == 0);
    ps_object_free(o);
}

TEST(first_values_of_another_shape_are_refused) {
    float values[ROWS * COLS] = {0};
    const ps_first wrong[] = {{"w", values, 5, 0, 0, 1}, {"w", values, 4, 1, 0, 1}};
    const ps_first rows[] = {{"e", values, (ROWS - 1) * COLS, COLS, 0, 1},
                             {"e", values, ROWS * COLS, 1, 0, 1}};
    ps_object *o;
    for (size_t i = 0; i < 2; i++) {
        CHECK(give(&o, &dense, &wrong[i], 1) == PS_EPROTO && !o->dense.ready);
        ps_object_free(o);
        CHECK(give(&o, &table, &rows[i], 1) == PS_EPROTO && ps_sparse_rows(o->sparse) == 0);
        ps_object_free(o);
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
        const ps_first first = {"e", values, ROWS * COLS, COLS, shard, 3};
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
