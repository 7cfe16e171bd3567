#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "tables/ps_sparse.h"

enum { DIM = 5, KEYS = 300 };

static const ps_optim adagrad = {
    .method = PS_ADAGRAD, .learning_rate = 0.1F, .l2 = 0.01F, .numbers = {1e-6F}};
static const ps_init normal = {.seed = 3, .table = 4, .kind = PS_INIT_NORMAL, .mean = 0, .std = 0.5F};

static ps_sparse *new_table(uint32_t dim) {
    ps_sparse *t;
    ps_err err;
    CHECK(ps_sparse_new(&t, dim, &adagrad, &normal, NULL, false, &err) == PS_OK);
    return t;
}

static int set_rows(ps_sparse *t, const uint64_t *keys, const float *values, size_t n, ps_err *err) {
    return ps_sparse_load(t, keys, values, DIM, NULL, n, err);
}

/* Keys first..first+n-1, and n * DIM gradients. */
static void some_push(uint64_t *keys, float *grads, uint64_t first, size_t n) {
    for (size_t i = 0; i < n; i++) keys[i] = first + i;
    for (size_t i = 0; i < n * DIM; i++) grads[i] = (float)(int)(harness_random() % 2001 - 1000) / 64;
}

/* What the table holds for keys 0..KEYS-1. */
static void dump(ps_sparse *t, float *out) {
    uint64_t keys[KEYS];
    for (size_t i = 0; i < KEYS; i++) keys[i] = i;
    ps_sparse_read(t, keys, KEYS, out);
}

TEST(sparse_set_keeps_state_and_sum) {
    ps_sparse *t = new_table(DIM);
    uint64_t key = 9;
    float ones[DIM], got[DIM], value = 7, state = 0;
    for (int i = 0; i < DIM; i++) ones[i] = 1;
    for (int step = 0; step < 2; step++) {
        CHECK(ps_sparse_add(t, &key, ones, 1, NULL) == PS_OK);
        float sevens[DIM] = {7, 7, 7, 7, 7};
        CHECK(set_rows(t, &key, sevens, 1, NULL) == PS_OK);
        ps_sparse_commit(t, 1);
        value = 7;
        ps_optim_apply(&adagrad, ps_optim_rate(&adagrad, 1), &value, &state, 1, ones, 1);
    }
    ps_sparse_read(t, &key, 1, got);
    CHECK(got[0] == value && got[DIM - 1] == value);
    ps_sparse_free(t);
}

/* Every allocation of a push or set fails once; each time the table is as it was. */
static void check_no_memory(int (*call)(ps_sparse *, const uint64_t *, const float *, size_t, ps_err *)) {
    enum { MANY = 4000 }; /* parts of the index grow */
    ps_sparse *t = new_table(DIM);
    static uint64_t keys[MANY];
    static float grads[MANY * DIM];
    float before[KEYS * DIM], after[KEYS * DIM];
    some_push(keys, grads, 0, 40);
    CHECK(ps_sparse_add(t, keys, grads, 40, NULL) == PS_OK);
    dump(t, before);
    some_push(keys, grads, 20, MANY);
    int rc = PS_ENOMEM, failures = 0;
    for (long n = 1; rc != PS_OK && n < MANY; n++) {
        ps_err err;
        harness_fail_alloc(n);
        rc = call(t, keys, grads, MANY, &err);
        bool failed = harness_fail_alloc(0);
        CHECK(rc == (failed ? PS_ENOMEM : PS_OK));
        if (!failed) break;
        failures++;
        dump(t, after);
        CHECK(err.text[0] != '\0' && ps_sparse_rows(t) == 40 && memcmp(before, after, sizeof after) == 0);
    }
    CHECK(rc == PS_OK && failures >= 1 && ps_sparse_rows(t) == MANY + 20);
    ps_sparse_commit(t, 1);
    ps_sparse_free(t);
}

TEST(sparse_without_memory_stays_as_it_was) {
    check_no_memory(ps_sparse_add);
    check_no_memory(set_rows);
}

TEST(sparse_new_without_memory) {
    for (long n = 1; n < 3; n++) {
        ps_sparse *t;
        ps_err err;
        harness_fail_alloc(n);
        CHECK(ps_sparse_new(&t, DIM, &adagrad, &normal, NULL, false, &err) == PS_ENOMEM && t == NULL);
        CHECK(harness_fail_alloc(0));
    }
    ps_sparse_free(NULL);
}

TEST(sparse_large_rows) {
    uint32_t dim = PS_SPARSE_MAX_DIM;
    ps_sparse *t = new_table(dim);
    uint64_t keys[2] = {UINT64_MAX, 0};
    float *rows = calloc(2, dim * sizeof *rows);
    CHECK(rows != NULL);
    CHECK(ps_sparse_load(t, keys, rows, dim, NULL, 2, NULL) == PS_OK);
    rows[0] = 1;
    ps_sparse_read(t, keys, 2, rows);
    CHECK(rows[0] == 0 && rows[2 * (size_t)dim - 1] == 0);
    free(rows);
    ps_sparse_free(t);
}

/* At every size there must be a free place, or the search for a key without a row has no end. */
TEST(sparse_grows_one_by_one) {
    ps_sparse *t = new_table(1);
    for (uint64_t key = 0; key < 5000; key++) {
        uint64_t other = ~key;
        float one = 1, got = 0, want;
        CHECK(ps_sparse_load(t, &key, &one, 1, NULL, 1, NULL) == PS_OK);
        ps_sparse_read(t, &key, 1, &got);
        CHECK(got == 1);
        ps_sparse_read(t, &other, 1, &got);
        ps_init_row(&normal, other, &want, 1);
        CHECK(got == want && ps_sparse_rows(t) == key + 1);
    }
    for (uint64_t key = 0; key < 5000; key++) {
        float got = 0;
        ps_sparse_read(t, &key, 1, &got);
        CHECK(got == 1);
    }
    ps_sparse_free(t);
}

TEST(sparse_refuses_what_makes_no_sense) {
    ps_sparse *t;
    ps_err err;
    CHECK(ps_sparse_new(&t, 0, &adagrad, &normal, NULL, false, &err) == PS_EINVAL && t == NULL);
    CHECK(ps_sparse_new(&t, PS_SPARSE_MAX_DIM + 1, &adagrad, &normal, NULL, false, &err) == PS_EINVAL &&
          t == NULL);
    t = new_table(DIM);
    CHECK(ps_sparse_add(t, NULL, NULL, SIZE_MAX, &err) == PS_ELIMIT);
    CHECK(set_rows(t, NULL, NULL, (size_t)PS_SPARSE_MAX_ROWS + 1, &err) == PS_ELIMIT);
    CHECK(ps_sparse_rows(t) == 0);
    ps_sparse_free(t);
}

TEST(sparse_nothing_to_do) {
    ps_sparse *t = new_table(1);
    CHECK(ps_sparse_add(t, NULL, NULL, 0, NULL) == PS_OK &&
          ps_sparse_load(t, NULL, NULL, 1, NULL, 0, NULL) == PS_OK);
    ps_sparse_read(t, NULL, 0, NULL);
    ps_sparse_commit(t, 1);
    CHECK(ps_sparse_rows(t) == 0);
    ps_sparse_free(t);
}

/* The key whose hash in ps_sparse.c is this: the inverse of ps_mix64(), and its salt. */
static uint64_t key_of_hash(uint64_t x) {
    x = (x ^ x >> 31 ^ x >> 62) * UINT64_C(0x319642b2d24d8ec3);
    x = (x ^ x >> 27 ^ x >> 54) * UINT64_C(0x96de1b173f119089);
    return (x ^ x >> 30 ^ x >> 60) ^ UINT64_C(0x5851f42d4c957f2d);
}

TEST(sparse_keys_with_the_same_part_and_tag_are_told_apart) {
    ps_sparse *t = new_table(DIM);
    uint64_t some[KEYS];
    float values[KEYS * DIM], got[KEYS * DIM];
    for (uint64_t i = 0; i < KEYS; i++) some[i] = key_of_hash(UINT64_C(0xab00000012345678) | i << 32);
    for (size_t i = 0; i < KEYS * DIM; i++) values[i] = (float)i;
    CHECK(ps_mix64(some[7] ^ UINT64_C(0x5851f42d4c957f2d)) ==
          (UINT64_C(0xab00000012345678) | UINT64_C(7) << 32));
    CHECK(set_rows(t, some, values, KEYS, NULL) == PS_OK && ps_sparse_rows(t) == KEYS);
    ps_sparse_read(t, some, KEYS, got);
    CHECK(memcmp(got, values, sizeof got) == 0);
    CHECK(ps_sparse_add(t, some, values, KEYS, NULL) == PS_OK && ps_sparse_rows(t) == KEYS);
    ps_sparse_free(t);
}

TEST(sparse_tables_grow_part_by_part) {
    enum { PUSH = 1000, ROWS = 400000, SLAB = 1 << 20 };
    ps_sparse *t;
    ps_optim plain = {.method = PS_SGD, .learning_rate = 1};
    static uint64_t some[PUSH];
    static float values[PUSH];
    size_t before, most = 0, first = harness_allocated();
    CHECK(ps_sparse_new(&t, 1, &plain, &normal, NULL, false, NULL) == PS_OK);
    for (uint64_t at = 0; at < ROWS; at += PUSH) {
        before = harness_allocated();
        for (uint64_t i = 0; i < PUSH; i++) some[i] = at + i;
        CHECK(ps_sparse_add(t, some, values, PUSH, NULL) == PS_OK);
        ps_sparse_commit(t, 1);
        if (harness_allocated() - before > most) most = harness_allocated() - before;
    }
    CHECK(most < SLAB + (64 << 10)); /* a slab of rows and a few parts; all at once would be 4 MiB */
    before = harness_allocated() - first;
    CHECK(before < ROWS * (4 + 24) / 4 * 5 + SLAB);
    for (int again = 0; again < 5; again++) {
        CHECK(ps_sparse_add(t, some, values, PUSH, NULL) == PS_OK);
        ps_sparse_commit(t, 1);
    }
    CHECK(harness_allocated() - first < before + before / 10); /* parts of the index may still grow */
    uint64_t found = 0;
    ps_row row;
    CHECK(ps_sparse_keep(t, NULL) == PS_OK);
    for (uint32_t at = 0; ps_sparse_kept(t, false, false, &at, &row);) {
        const uint64_t key = at - 1; /* in the order of creation */
        found += memcmp(row.key, &key, sizeof key) == 0;
    }
    CHECK(found == ROWS);
    ps_sparse_free(t);
}

static void swap_first(uint64_t *keys) {
    uint64_t first = keys[0];
    keys[0] = keys[1];
    keys[1] = first;
}

/* Steps by both ways, with each entry rule; what is found missing is what has no row. */
TEST(sparse_learn_is_add_and_commit) {
    enum { WIDTH = 3 * DIM }; /* values, state, and base */
    static const ps_entry rules[] = {{0}, {PS_ENTRY_COUNT, {2}}, {PS_ENTRY_SHOW_CLICK, {3, 1}}};
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        ps_sparse *t[2];
        uint64_t keys[KEYS], missing[KEYS];
        float grads[KEYS * (DIM + 2)], got[KEYS * DIM];
        size_t width = DIM + ps_entry_extra(&rules[r]), found = 0;
        for (int i = 0; i < 2; i++) {
            CHECK(ps_sparse_new(&t[i], DIM, &adagrad, &normal, &rules[r], true, NULL) == PS_OK);
        }
        size_t n = 0;
        for (uint64_t step = 0; step < 10; step++) {
            if (step % 2 == 0) n = 2 + harness_random() % (KEYS - 2);
            for (size_t i = 0; i < n; i++) keys[i] = (i * 7 + step / 2 * 50) % KEYS;
            for (size_t i = 0; i < n * width; i++)
                grads[i] = i % width == 1 ? 0 : (float)(harness_random() % 8);
            for (int i = 0; i < 2; i++) ps_sparse_begin(t[i], 0.1F, step);
            for (uint64_t i = 0; i < step % 3; i++) ps_sparse_read(t[i], keys, n, got); /* some are there */
            if (step >= 4)
                swap_first(keys + step % 2); /* others than those looked up, from the first or not */
            CHECK(ps_sparse_add(t[0], keys, grads, n, NULL) == PS_OK);
            ps_sparse_commit(t[0], step);
            CHECK(ps_sparse_learn(t[1], step, keys, grads, n, NULL) == PS_OK);
        }
        CHECK(ps_sparse_rows(t[0]) == ps_sparse_rows(t[1]) &&
              ps_sparse_waiting(t[0]) == ps_sparse_waiting(t[1]));
        ps_row row[2];
        for (uint32_t number = 0, other = 0; ps_sparse_kept(t[0], false, false, &number, &row[0]); found++) {
            CHECK(ps_sparse_kept(t[1], false, false, &other, &row[1]) &&
                  memcmp(row[0].key, row[1].key, 8) == 0);
            CHECK(memcmp(row[0].values, row[1].values, WIDTH * sizeof(float)) == 0);
            CHECK(row[0].values[WIDTH - 1] == 0);
        }
        for (uint64_t i = 0; i < KEYS; i++) keys[i] = i;
        size_t absent = ps_sparse_missing(t[0], keys, KEYS, missing);
        CHECK(found > 20 && absent == KEYS - found);
        for (size_t i = 0, at = 0, behind = KEYS; i < KEYS; i++) {
            size_t is_missing = ps_sparse_missing(t[0], &keys[i], 1, &(uint64_t){0});
            CHECK(keys[i] == (is_missing ? missing[at] : missing[behind - 1]));
            at += is_missing, behind -= !is_missing;
        }
        size_t bytes = harness_allocated();
        ps_sparse_clear(t[0]);
        CHECK(harness_allocated() == bytes && ps_sparse_missing(t[0], keys, KEYS, missing) == KEYS);
        CHECK(ps_sparse_rows(t[0]) == 0 && ps_sparse_waiting(t[0]) == 0);
        for (int i = 0; i < 2; i++) ps_sparse_free(t[i]);
    }
}
