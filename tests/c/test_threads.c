/* Two shards and two trainers, each in a thread of its own: `make tsan` looks for what they share. */
#include "world.h"

enum { STEPS = 30, TRAINERS = 2, SHARDS = 2, FLOATS = 50000, OWN = 40 };

static const ps_optim plain = {.method = PS_SGD, .learning_rate = 1};

/* A trainer with its own arrays. */
typedef struct trainer {
    pthread_t thread;
    world *worlds; /* [SHARDS] */
    uint32_t number;
    float grad[FLOATS], values[FLOATS], rows[OWN * DIM], read[OWN * DIM];
    uint64_t keys[OWN];
} trainer;

static void attach(trainer *t, ps_client *c, uint32_t shard) {
    ps_err err;
    CHECK(ps_client_attach(c, shard, dial(&t->worlds[shard], t->number), &err) == PS_OK);
}

static void run(trainer *t, ps_client *c, bool cut) {
    ps_err err;
    uint32_t shard;
    int code = PS_EAGAIN;
    for (int i = 0; i < 10000 && code == PS_EAGAIN; i++) {
        code = ps_client_run(c, cut ? 1 : 100, 0, &shard, &err);
        if (code == PS_EAGAIN && cut) attach(t, c, (uint32_t)i % SHARDS);
        cut = cut && i < 3;
    }
    CHECK(code == PS_OK);
}

static void *train(void *arg) {
    trainer *t = arg;
    const ps_piece pieces[] = {{0, 0, FLOATS / 2}, {1, FLOATS / 2, FLOATS / 2}};
    ps_create dense = {.total = FLOATS, .optim = plain, .name_length = 1, .name = "w"};
    ps_create sparse = {.sparse = 1, .dim = DIM, .total = OWN, .optim = plain, .name_length = 1, .name = "e"};
    ps_client *c;
    ps_err err;
    uint32_t w, e;
    sparse.entry = (ps_entry){PS_ENTRY_COUNT, {2, 0}};
    CHECK(ps_client_new(&c, SHARDS, 0, t->number, &err) == PS_OK);
    for (uint32_t shard = 0; shard < SHARDS; shard++) attach(t, c, shard);
    CHECK(ps_client_create(c, &dense, pieces, SHARDS, &w, &err) == PS_OK);
    CHECK(ps_client_create(c, &sparse, (ps_piece[]){{0, 0, 0}, {1, 0, 0}}, SHARDS, &e, &err) == PS_OK);
    CHECK(ps_client_use(c, PS_INIT, w, NULL, t->number == 0 ? t->values : NULL, NULL, &err) == PS_OK);
    run(t, c, false);
    for (int step = 0; step < STEPS; step++) {
        CHECK(ps_client_use(c, PS_PUSH, w, &(ps_batch){1, 1}, t->grad, t->values, &err) == PS_OK);
        CHECK(ps_client_use_rows(c, PS_PUSH_ROWS, e, &(ps_batch){1, 1}, t->keys, OWN, t->rows, &err) ==
              PS_OK);
        CHECK(ps_client_use_rows(c, PS_PULL_ROWS, e, NULL, t->keys, OWN, t->read, &err) == PS_OK);
        run(t, c, step % 5 == 4);
    }
    ps_client_free(c);
    return NULL;
}

TEST(shards_and_trainers_share_nothing) {
    static trainer trainers[TRAINERS];
    world worlds[SHARDS];
    for (uint32_t shard = 0; shard < SHARDS; shard++) open_world(&worlds[shard], TRAINERS);
    for (uint32_t i = 0; i < TRAINERS; i++) {
        trainer *t = &trainers[i];
        *t = (trainer){.worlds = worlds, .number = i};
        for (size_t k = 0; k < FLOATS; k++) t->grad[k] = 1;
        for (size_t k = 0; k < OWN * DIM; k++) t->rows[k] = 1;
        for (uint64_t k = 0; k < OWN; k++) t->keys[k] = k;
        CHECK(pthread_create(&t->thread, NULL, train, t) == 0);
    }
    for (uint32_t i = 0; i < TRAINERS; i++) {
        const trainer *t = &trainers[i];
        CHECK(pthread_join(t->thread, NULL) == 0);
        CHECK(t->values[0] == -STEPS * TRAINERS && t->values[FLOATS - 1] == -STEPS * TRAINERS);
        CHECK(t->read[0] == 1 - STEPS * TRAINERS && t->read[OWN * DIM - 1] == 1 - STEPS * TRAINERS);
    }
    for (uint32_t shard = 0; shard < SHARDS; shard++) close_world(&worlds[shard]);
}
