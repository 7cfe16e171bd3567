#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shard/ps_cut.h"
#include "world.h"

enum { DENSE = 2 * PS_DENSE_CHUNK + 5, MOST_BYTES = 2 << 20, OBJECTS = 4 };

static const ps_optim adam = {.method = PS_ADAM, .learning_rate = 1, .numbers = {0.9F, 0.999F, 1e-8F}};

/* A body as bytes. */
typedef struct content {
    uint8_t *data;
    size_t n;
} content;

static ps_object *make_object(const char *name, uint32_t dim, const ps_optim *optim, uint32_t rule) {
    ps_object *o;
    ps_err err;
    ps_create spec = {
        .sparse = dim > 0, .dim = dim, .total = DENSE, .optim = *optim, .entry = {.rule = rule}};
    if (dim == 0) spec.size = DENSE;
    if (rule == PS_ENTRY_COUNT) spec.entry.numbers[0] = 2;
    spec.name_length = (uint32_t)sprintf(spec.name, "%s", name);
    CHECK(ps_object_new(&o, &spec, 0, 1, &err) == PS_OK);
    o->dense.ready = o->given = true;
    return o;
}

/* A dense object and tables with each kind of content. */
static void make_objects(ps_object **objects) {
    const ps_optim sgd = {.method = PS_SGD, .learning_rate = 1};
    objects[0] = make_object("dense", 0, &adam, PS_ENTRY_ANY);
    objects[1] = make_object("table", 3, &adam, PS_ENTRY_ANY);
    objects[2] = make_object("counted", 5, &sgd, PS_ENTRY_COUNT);
    objects[3] = make_object("plain", 0, &sgd, PS_ENTRY_ANY);
}

static void free_objects(ps_object **objects, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) ps_object_free(objects[i]);
}

/* Make a step with gradients that depend on `seed`, which also says whether rows go. */
static void make_step(ps_object **objects, uint64_t seed) {
    static float grad[DENSE];
    const ps_shrink shrink = {.decay = 0.5F, .score = 1};
    uint64_t pushed[64];
    ps_err err;
    for (size_t i = 0; i < DENSE; i++) grad[i] = (float)(ps_mix64(seed + i) % 1000) - 500;
    for (size_t i = 0; i < 64; i++) pushed[i] = ps_mix64(seed * 64 + i) % 400;
    for (uint32_t i = 0; i < OBJECTS; i++) {
        ps_object *o = objects[i];
        o->samples += 7;
        ps_object_begin(o, 0);
        if (o->sparse == NULL) ps_dense_apply(&o->dense, o->step.version + 1, 0, grad, DENSE);
        else CHECK(ps_sparse_add(o->sparse, pushed, grad, 64, &err) == PS_OK);
        ps_object_commit(o);
    }
    if (seed % 3 == 0) ps_sparse_shrink(objects[2]->sparse, &shrink);
}

/* Read a cut to its end, in pieces of `piece` bytes, with a step of `objects` between them, if not NULL. */
static content read_cut(ps_cut *c, size_t piece, ps_object **objects) {
    content got = {malloc(MOST_BYTES), 0};
    for (size_t n = piece; n == piece; got.n += n) {
        CHECK(got.n + piece <= MOST_BYTES);
        n = ps_cut_read(c, got.data + got.n, piece);
        if (objects != NULL) make_step(objects, 1000 + got.n);
    }
    CHECK(ps_cut_end(c));
    return got;
}

static content cut_now(ps_object **objects, uint32_t n) {
    ps_cut *c;
    ps_err err;
    CHECK(ps_cut_begin(&c, objects, n, 5, 0, &err) == PS_OK);
    return read_cut(c, MOST_BYTES / 2, NULL);
}

static bool equal(const content *a, const content *b) {
    return a->n == b->n && memcmp(a->data, b->data, a->n) == 0;
}

TEST(a_cut_has_the_values_that_are_documented) {
    ps_object *objects[OBJECTS];
    const float grad[3] = {1, 2, 3};
    const uint64_t key = 77;
    ps_err err;
    ps_cut *c;
    make_objects(objects);
    objects[0]->dense.ready = false;
    CHECK(ps_cut_begin(&c, objects, 2, 0, 0, &err) == PS_EINVAL && c == NULL);
    CHECK(strstr(err.text, "'dense' has no values") != NULL);
    objects[0]->dense.ready = true;
    ps_dense_apply(&objects[3]->dense, 1, DENSE - 1, grad, 1);
    CHECK(ps_sparse_add(objects[1]->sparse, &key, grad, 1, &err) == PS_OK);
    ps_object_commit(objects[1]);

    ps_object *some[] = {objects[3], objects[1]};
    content got = cut_now(some, 2);
    const size_t table = (48 + 132 + 5 + 7) / 8 * 8 + (4 * DENSE + 7) / 8 * 8,
                 keys_at = table + (48 + 132 + 5 + 7) / 8 * 8;
    float last, state;
    memcpy(&last, got.data + (48 + 132 + 5 + 7) / 8 * 8 + 4 * (DENSE - 1), 4);
    memcpy(&state, got.data + keys_at + 8 + 12, 4);
    CHECK(got.n == keys_at + 8 + 40); /* 3 rows of 3 values, then padding */
    CHECK(got.data[0] == PS_SAVE_TORN);
    CHECK(last == -1);
    CHECK(state == (1 - 0.9F) * 1);
    CHECK(got.data[table + 8] == 1); /* steps */
    CHECK(got.data[keys_at] == 77);
    free(got.data);
    free_objects(objects, OBJECTS);
}

TEST(a_cut_has_its_moment_whatever_changes_while_it_is_read) {
    for (size_t piece = 257; piece < MOST_BYTES / 2; piece = piece * 3 + 1) {
        ps_object *objects[OBJECTS];
        ps_cut *c;
        ps_err err;
        make_objects(objects);
        for (uint64_t step = 1; step < 5; step++) make_step(objects, step);
        content whole = cut_now(objects, OBJECTS);
        CHECK(ps_cut_begin(&c, objects, OBJECTS, 5, 0, &err) == PS_OK);
        make_step(objects, 99);
        content got = read_cut(c, piece, piece > 2000 ? objects : NULL);
        CHECK(equal(&whole, &got));
        content later = cut_now(objects, OBJECTS);
        CHECK(!equal(&whole, &later));
        free(whole.data), free(got.data), free(later.data);
        free_objects(objects, OBJECTS);
    }
}

/* An object of an export. */
typedef struct exported {
    uint32_t flags;
    uint64_t count;
    const uint8_t *keys, *rows; /* of a dense object: rows are its values */
} exported;

/* Find the objects of make_objects() in an export. */
static void find_exported(const content *got, exported *found) {
    const uint32_t dims[OBJECTS] = {0, 3, 5, 0};
    ps_create spec;
    size_t at = 0;
    uint32_t length;
    for (int i = 0; i < OBJECTS; i++) {
        memcpy(&found[i].flags, got->data + at, 4);
        memcpy(&length, got->data + at + 4, 4);
        memcpy(&found[i].count, got->data + at + 16, 8);
        CHECK(ps_create_decode(got->data + at + PS_SAVE_HEAD_BYTES, length, &spec, NULL) == PS_OK);
        CHECK(spec.optim.method == PS_SGD && spec.entry.rule == PS_ENTRY_ANY);
        at = (at + PS_SAVE_HEAD_BYTES + length + 7) / 8 * 8;
        found[i].keys = got->data + at;
        if (dims[i] > 0) at += 8 * (size_t)found[i].count;
        found[i].rows = got->data + at;
        at = (at + 4 * (size_t)found[i].count * (dims[i] > 0 ? dims[i] : 1) + 7) / 8 * 8;
    }
    CHECK(at == got->n);
}

/* What a table has for all keys of make_step(). */
static void dump_table(const ps_object *o, float *to) {
    uint64_t every[400];
    for (uint64_t i = 0; i < 400; i++) every[i] = i;
    ps_sparse_read(o->sparse, every, 400, to);
}

/* Export: the rows of table `number` go to `served` [400, dim], and `found` says what came. */
static void serve(ps_object **objects, uint32_t flags, size_t piece, uint32_t number, float *served,
                  exported *found) {
    ps_cut *c;
    ps_err err;
    size_t dim = objects[number]->spec.dim;
    float *now = calloc(400 * dim, sizeof *now);
    static float values[DENSE];
    memcpy(values, objects[0]->dense.values, sizeof values);
    CHECK(ps_cut_begin(&c, objects, OBJECTS, 5, PS_EXPORT | flags, &err) == PS_OK);
    dump_table(objects[number], now);
    content got = read_cut(c, piece, piece < MOST_BYTES / 2 ? objects : NULL);
    find_exported(&got, found);
    for (uint64_t i = 0, key; i < found[number].count; i++) {
        memcpy(&key, found[number].keys + 8 * i, 8);
        CHECK(key < 400);
        memcpy(served + key * dim, found[number].rows + 4 * dim * i, 4 * dim);
    }
    CHECK(memcmp(now, served, 400 * dim * sizeof *now) == 0);
    CHECK(found[0].count == DENSE && memcmp(found[0].rows, values, sizeof values) == 0);
    free(now);
    free(got.data);
}

TEST(exports_have_values_alone_and_rows_that_changed_since_the_last) {
    const size_t whole = MOST_BYTES / 2, pieces[] = {whole, 3001, whole, 20011, whole};
    float served[400 * 3];
    ps_object *objects[OBJECTS];
    exported found[OBJECTS];
    make_objects(objects);
    dump_table(objects[1], served);
    for (uint64_t step = 1; step < 5; step++) make_step(objects, step);
    serve(objects, 0, whole, 1, served, found);
    CHECK(found[1].flags == 0 && found[1].count == ps_sparse_rows(objects[1]->sparse));
    for (uint64_t i = 0; i < 5; i++) {
        make_step(objects, 100 + i);
        serve(objects, 0, pieces[i], 1, served, found);
        CHECK(found[1].flags == PS_SAVE_CHANGED);
        if (pieces[i] == whole && i == 0) CHECK(found[1].count > 40 && found[1].count <= 64);
    }
    serve(objects, 0, whole, 1, served, found);
    CHECK(found[1].flags == PS_SAVE_CHANGED && found[1].count == 0); /* nothing since */
    serve(objects, PS_ALL, whole, 1, served, found);
    CHECK(found[1].flags == 0 && found[1].count == ps_sparse_rows(objects[1]->sparse));
    free_objects(objects, OBJECTS);
}

TEST(a_table_that_gave_rows_back_is_exported_whole) {
    const ps_shrink all = {.decay = 0, .score = 1};
    float served[400 * 5];
    ps_object *objects[OBJECTS];
    exported found[OBJECTS];
    make_objects(objects);
    dump_table(objects[2], served);
    for (uint64_t step = 1; step < 40; step += step % 3 == 2 ? 2U : 1U)
        make_step(objects, step); /* none goes */
    size_t count = ps_sparse_rows(objects[2]->sparse);
    serve(objects, 0, MOST_BYTES / 2, 2, served, found);
    CHECK(found[2].flags == 0 && found[2].count == count && count > 100);
    CHECK(ps_sparse_shrink(objects[2]->sparse, &all) == count);
    dump_table(objects[2], served); /* initial values */
    for (uint64_t step = 100; ps_sparse_rows(objects[2]->sparse) < 50; step += 3) make_step(objects, step);
    serve(objects, 0, MOST_BYTES / 2, 2, served, found);
    CHECK(found[2].flags == 0 && found[2].count == ps_sparse_rows(objects[2]->sparse));
    CHECK(found[1].flags == PS_SAVE_CHANGED);
    count = ps_sparse_rows(objects[2]->sparse);
    for (uint64_t step = 301; ps_sparse_rows(objects[2]->sparse) < count + 20; step += 3)
        make_step(objects, step);
    serve(objects, 0, MOST_BYTES / 2, 2, served, found); /* some of the new rows have numbers of old ones */
    CHECK(found[2].flags == PS_SAVE_CHANGED && found[2].count >= 20);
    free_objects(objects, OBJECTS);
}

TEST(a_cut_that_ends_early_leaves_nothing) {
    ps_object *objects[OBJECTS];
    uint8_t some[300];
    ps_cut *c;
    ps_err err;
    make_objects(objects);
    make_step(objects, 1);
    CHECK(ps_cut_begin(&c, objects, OBJECTS, 5, 0, &err) == PS_OK);
    CHECK(ps_cut_read(c, some, sizeof some) == sizeof some);
    make_step(objects, 2);
    CHECK(ps_cut_end(c));
    CHECK(ps_cut_begin(&c, objects, OBJECTS, 5, 0, &err) == PS_OK); /* again from the start */
    content got = read_cut(c, MOST_BYTES / 2, NULL);
    free(got.data);
    free_objects(objects, OBJECTS);
}

TEST(without_memory_a_cut_is_lost_and_training_goes_on) {
    ps_object *objects[OBJECTS];
    ps_cut *c;
    ps_err err;
    make_objects(objects);
    make_step(objects, 1);
    for (long i = 1, failed = 1; failed; i++) {
        harness_fail_alloc(i);
        int code = ps_cut_begin(&c, objects, OBJECTS, 5, 0, &err);
        if (code == PS_OK) make_step(objects, 1); /* the same values again each time: rows are there */
        bool kept = code == PS_OK && ps_cut_end(c);
        failed = harness_fail_alloc(0);
        CHECK(kept == !failed);
    }
    free_objects(objects, OBJECTS);
}

/* Make a table of messages, and let trainer 0 push to it more often than there are steps. */
static void push_messages(world *w) {
    const ps_create spec = {.sparse = 1,
                            .dim = DIM,
                            .optim = {.method = PS_SGD, .learning_rate = 1},
                            .mode = PS_HALF_ASYNC,
                            .name_length = 1,
                            .name = "m"};
    uint32_t id;
    ps_err err;
    for (uint32_t t = 0; t < w->n; t++)
        CHECK(ps_client_create(w->clients[t], &spec, &(ps_piece){0}, 1, &id, &err) == PS_OK);
    run_all(w, 0);
    for (int i = 0; i < 3; i++) {
        CHECK(ps_client_use_rows(w->clients[0], PS_PUSH_ROWS, id, &(ps_batch){1, 1}, keys, KEYS, rows[0],
                                 &err) == PS_OK);
        run_one(w, 0, 0);
    }
}

/* Read records up to the end of a cut; `step` is that of its beginning. Returns its last record. */
static uint32_t read_records(const world *w, uint64_t *step, content *got) {
    FILE *f = fdopen(dup(w->cuts_fd), "rb");
    uint32_t n;
    setvbuf(f, NULL, _IONBF, 0);
    got->n = 0;
    while (fread(&n, sizeof n, 1, f) == 1 && n != PS_CUT_WHOLE && n != PS_CUT_LOST) {
        if (n == PS_CUT_BEGINS) CHECK(fread(step, sizeof *step, 1, f) == 1);
        else CHECK(got->n + n <= MOST_BYTES && fread(got->data + got->n, 1, n, f) == n), got->n += n;
    }
    fclose(f);
    return n;
}

TEST(shards_are_cut_after_the_step_that_trainer_0_names) {
    world w;
    uint64_t told = 0;
    content got = {malloc(MOST_BYTES), 0};
    ps_err err;
    open_cut_world(&w, 2);
    create_all(&w);
    push_from(&w, 0, 0);
    push_messages(&w);
    CHECK(ps_client_cut(w.clients[0], false, 0, &err) == PS_OK && ps_client_cut_step(w.clients[0]) == 2);
    push_from(&w, 0, 0);
    CHECK(ps_client_cut_step(w.clients[0]) == 2 && ps_client_cut_step(w.clients[1]) == 2);
    for (int i = 0; i < 3; i++) push_from(&w, 0, 0); /* most of the cut is still in the shard */
    CHECK(ps_client_cut_step(w.clients[1]) == 2);
    CHECK(read_records(&w, &told, &got) == PS_CUT_WHOLE && told == 2);

    const size_t values_at = (48 + 132 + 1 + 7) / 8 * 8;
    CHECK(got.data[8] == 2 && got.n > values_at + SIZE * sizeof(float)); /* steps */
    for (size_t i = 0; i < SIZE; i++) {
        float value;
        memcpy(&value, got.data + values_at + i * sizeof value, sizeof value);
        if (value != -6) CHECK(false);
    }

    CHECK(ps_client_cut(w.clients[0], false, 0, &err) == PS_OK && ps_client_cut_step(w.clients[0]) == 6);
    push_from(&w, 0, 0);
    CHECK(ps_client_cut(w.clients[0], false, 0, &err) == PS_OK &&
          ps_client_cut_step(w.clients[0]) == 7); /* before the last was taken */
    push_from(&w, 0, 0);
    CHECK(read_records(&w, &told, &got) == PS_CUT_LOST && told == 6);
    CHECK(read_records(&w, &told, &got) == PS_CUT_WHOLE && told == 7);
    close_world(&w);
    free(got.data);
}

static void mail(const world *w, uint32_t what, uint64_t number) {
    const ps_mail mail = {-1, what, number};
    CHECK(write(w->mail_fd, &mail, sizeof mail) == (ssize_t)sizeof mail);
}

TEST(a_cut_that_the_owner_wants_comes_after_the_one_that_is_sent) {
    world w;
    uint64_t told = 0;
    content first = {malloc(MOST_BYTES), 0}, own = {malloc(MOST_BYTES), 0}, last = {malloc(MOST_BYTES), 0};
    ps_err err;
    open_cut_world(&w, 1);
    create_all(&w);
    CHECK(ps_client_cut(w.clients[0], false, 0, &err) == PS_OK);
    push_from(&w, 0, 0);
    mail(&w, PS_MAIL_CUT, 77);
    CHECK(read_records(&w, &told, &first) == PS_CUT_WHOLE && told == 1);
    CHECK(read_records(&w, &told, &own) == PS_CUT_WHOLE && told == 77);
    CHECK(equal(&first, &own));
    push_from(&w, 0, 0);
    mail(&w, PS_MAIL_CUT, 78); /* it is given up for the last one */
    mail(&w, PS_MAIL_SAVE, 0);
    CHECK(read_records(&w, &told, &own) == PS_CUT_LOST && told == 78);
    CHECK(read_records(&w, &told, &last) == PS_CUT_WHOLE && told == PS_CUT_LAST);
    CHECK(last.n == first.n && last.data[8] == 2); /* steps */
    close_world(&w);
    free(first.data), free(own.data), free(last.data);
}

TEST(a_cut_does_not_wait_for_a_trainer_that_is_gone) {
    world w;
    uint64_t told = 0;
    content got = {malloc(MOST_BYTES), 0};
    ps_err err;
    open_cut_world(&w, 2);
    w.mode = PS_ASYNC;
    create_all(&w);
    out[0][0] = 0;
    int fd = dial(&w, 1); /* as that trainer, in the middle of a push */
    for (size_t i = 0; i < SIZE; i++) grads[1][i] = 2;
    send_frame(
        fd,
        (ps_header){
            .op = PS_PUSH, .trainer = 1, .sequence = 4, .samples = 1, .factor = 1, .length = sizeof grads[1]},
        NULL);
    CHECK(write(fd, grads[1], 4096) == 4096);
    for (int i = 0; i < 20000 && out[0][0] != -2; i++) { /* a body that comes slowly is read at a tick */
        (void)poll(NULL, 0, 1);
        CHECK(ps_client_use(w.clients[0], PS_PULL, w.dense, NULL, NULL, out[0], &err) == PS_OK);
        run_one(&w, 0, 0);
    }
    CHECK(out[0][0] == -2);
    CHECK(ps_client_cut(w.clients[0], false, 0, &err) == PS_OK);
    add_push(&w, 0);
    send_all(&w, 0); /* it comes after the cut */
    close(fd);
    run_one(&w, 0, 0);
    CHECK(read_records(&w, &told, &got) == PS_CUT_WHOLE && told > 0);
    close_world(&w);
    free(got.data);
}
