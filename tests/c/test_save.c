#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "shard/ps_save.h"

/* What a save has put so far; `limit`: at most so many bytes. */
typedef struct content {
    uint8_t data[4096];
    size_t n, limit;
} content;

static int put(void *owner, const void *data, size_t n, ps_err *err) {
    content *c = owner;
    if (c->n + n > c->limit) return ps_fail(err, PS_ESYS, ENOSPC, "writing");
    memcpy(c->data + c->n, data, n);
    c->n += n;
    return PS_OK;
}

/* A dense object of 5 values without state and a table with a row, AdaGrad. */
static void make_objects(ps_object **objects) {
    ps_err err;
    const float grad[5] = {1, 2, 3, 4, 5};
    const uint64_t key = 77;
    ps_create dense = {.size = 5, .total = 5, .optim = {.method = PS_SGD, .learning_rate = 1}},
              table = {.sparse = 1, .dim = 3, .optim = {.method = PS_ADAGRAD, .learning_rate = 1}};
    dense.name_length = (uint32_t)sprintf(dense.name, "w");
    table.name_length = (uint32_t)sprintf(table.name, "table");
    CHECK(ps_object_new(&objects[0], &dense, 0, 1, &err) == PS_OK);
    CHECK(ps_object_new(&objects[1], &table, 0, 1, &err) == PS_OK);
    ps_dense_apply(&objects[0]->dense, 1, 0, grad, 5);
    ps_dense_commit(&objects[0]->dense, 1);
    CHECK(ps_sparse_add(objects[1]->sparse, &key, grad, 1, &err) == PS_OK);
    ps_object_commit(objects[1]);
}

static void free_objects(ps_object **objects) {
    ps_object_free(objects[0]);
    ps_object_free(objects[1]);
}

TEST(a_saved_shard_has_its_values) {
    ps_object *objects[2];
    uint8_t buffer[64];
    content c = {.limit = sizeof c.data};
    const ps_save to = {put, &c};
    ps_err err;
    make_objects(objects);
    CHECK(ps_save_objects(&to, objects, 2, 4, buffer, sizeof buffer, &err) == PS_EINVAL);
    CHECK(strstr(err.text, "'w' has no values") != NULL);
    CHECK(c.n == 0);
    objects[0]->dense.ready = true;
    CHECK(ps_save_objects(&to, objects, 2, 4, buffer, sizeof buffer, &err) == PS_OK);

    const size_t w = 48 + 132 + 4, table = w + 24;
    CHECK(c.n == table + 48 + 132 + 12 + 8 + 24);
    float last, state;
    memcpy(&last, c.data + w + 16, 4);
    memcpy(&state, c.data + table + 48 + 132 + 12 + 8 + 12, 4);
    CHECK(last == -5);
    CHECK(state == 1);
    CHECK(c.data[table + 8] == 1);  /* steps */
    CHECK(c.data[table + 32] == 4); /* passes */
    CHECK(c.data[table + 48 + 132 + 12] == 77);

    CHECK(c.data[0] == 0);
    ps_dense_apply(&objects[0]->dense, 1, 0, &last, 1);
    c.n = 0;
    CHECK(ps_save_objects(&to, objects, 2, 4, buffer, sizeof buffer, &err) == PS_OK);
    CHECK(c.data[0] == PS_SAVE_TORN);
    free_objects(objects);
}

TEST(a_file_that_takes_no_more_is_an_error) {
    ps_object *objects[2];
    uint8_t buffer[64];
    ps_err err;
    make_objects(objects);
    objects[0]->dense.ready = true;
    for (size_t limit = 0; limit < 300; limit += 64) {
        content c = {.limit = limit};
        const ps_save to = {put, &c};
        CHECK(ps_save_objects(&to, objects, 2, 4, buffer, sizeof buffer, &err) == PS_ESYS);
        CHECK(err.sys == ENOSPC);
        CHECK(c.n == limit);
    }
    free_objects(objects);
}
