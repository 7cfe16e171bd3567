/* Entry rules: their numbers, failures and memory; tests/unit/runtime/test_sparse_table.py has the model. */
#include <math.h>
#include <string.h>

#include "harness.h"
#include "tables/ps_sparse.h"

enum { DIM = 16, MANY = 200000, BATCH = 1000 };

static const ps_optim adagrad = {.method = PS_ADAGRAD, .learning_rate = 0.1F, .numbers = {1e-6F}};
static const ps_init zero = {.seed = 3, .table = 4};

static ps_sparse *new_table(uint32_t rule, float number) {
    ps_sparse *t;
    ps_err err;
    const ps_entry entry = {rule, {number, 0}};
    CHECK(ps_sparse_new(&t, DIM, &adagrad, &zero, &entry, false, &err) == PS_OK);
    return t;
}

static void push(ps_sparse *t, uint64_t first, size_t n) {
    static float grads[BATCH * DIM];
    uint64_t keys[BATCH];
    for (size_t at = 0; at < n; at += BATCH) {
        for (size_t i = 0; i < BATCH; i++) keys[i] = first + at + i;
        CHECK(ps_sparse_add(t, keys, grads, BATCH, NULL) == PS_OK);
        ps_sparse_commit(t, 1);
    }
}

TEST(an_entry_rule_with_a_number_out_of_range_is_refused) {
    const float nan = (float)NAN, inf = (float)INFINITY;
    const ps_entry bad[] = {
        {PS_ENTRIES, {0, 0}},
        {UINT32_MAX, {0, 0}},
        {PS_ENTRY_ANY, {1, 0}},
        {PS_ENTRY_ANY, {0, nan}},
        {PS_ENTRY_COUNT, {0, 0}},
        {PS_ENTRY_COUNT, {1.5F, 0}},
        {PS_ENTRY_COUNT, {nan, 0}},
        {PS_ENTRY_COUNT, {1e30F, 0}},
        {PS_ENTRY_COUNT, {2, 1}},
        {PS_ENTRY_PROBABILITY, {0, 0}},
        {PS_ENTRY_PROBABILITY, {1.25F, 0}},
        {PS_ENTRY_PROBABILITY, {nan, 0}},
        {PS_ENTRY_PROBABILITY, {-0.5F, 0}},
        {PS_ENTRY_SHOW_CLICK, {-1, 0}},
        {PS_ENTRY_SHOW_CLICK, {nan, 1}},
        {PS_ENTRY_SHOW_CLICK, {1, inf}},
        {PS_ENTRY_SHOW_CLICK, {1, -0.0F}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ps_err err = {0};
        ps_sparse *t;
        CHECK(ps_sparse_new(&t, DIM, &adagrad, &zero, &bad[i], false, &err) == PS_EINVAL && t == NULL);
        CHECK(strstr(err.text, "entry rule") != NULL);
    }
    const ps_shrink worse[] = {{nan, 0, 0}, {2, 0, 0}, {-1, 0, 0}, {1, nan, 0}, {1, -1, 0}, {1, inf, 0}};
    for (size_t i = 0; i < sizeof worse / sizeof *worse; i++) {
        ps_err err = {0};
        CHECK(ps_shrink_check(&worse[i], &err) == PS_EINVAL && err.text[0] != '\0');
    }
}

TEST(shows_and_clicks_out_of_range_are_refused) {
    const ps_entry entry = {PS_ENTRY_SHOW_CLICK, {1, 1}}, other = {PS_ENTRY_COUNT, {1, 0}};
    const uint64_t keys[] = {5, 6};
    const float bad[] = {(float)NAN, -1, 1e30F, (float)INFINITY, -(float)INFINITY};
    for (size_t i = 0; i < 2 * sizeof bad / sizeof *bad; i++) {
        float rows[] = {1, 1, 0, 2, 1, 0};
        ps_err err = {0};
        CHECK(ps_entry_check_rows(&entry, keys, rows, 3, 2, &err) == PS_OK);
        rows[3 + i % 2] = bad[i / 2];
        CHECK(ps_entry_check_rows(&entry, keys, rows, 3, 2, &err) == PS_EINVAL);
        CHECK(strstr(err.text, "key 6") != NULL);
        CHECK(ps_entry_check_rows(&other, keys, rows, 3, 2, &err) == PS_OK);
    }
}

TEST(rows_that_are_given_back_serve_other_keys) {
    const ps_shrink all = {.decay = 0, .score = 1}, none = {.decay = 1};
    size_t before = harness_allocated();
    ps_sparse *t = new_table(PS_ENTRY_COUNT, 1);
    push(t, 0, MANY);
    size_t rows = ps_sparse_rows(t), bytes = harness_allocated() - before;
    CHECK(rows == MANY);
    CHECK((double)bytes <= 1.25 * (double)rows * (4.0 * DIM * 2 + 24));
    for (uint64_t turn = 1; turn < 4; turn++) {
        CHECK(ps_sparse_shrink(t, &none) == 0);
        CHECK(ps_sparse_shrink(t, &all) == MANY && ps_sparse_rows(t) == 0);
        push(t, turn * MANY, MANY);
        CHECK(ps_sparse_rows(t) == MANY && harness_allocated() - before <= bytes + bytes / 10);
    }
    ps_sparse_free(t);
}

TEST(keys_that_wait_need_no_rows) {
    size_t before = harness_allocated();
    ps_sparse *t = new_table(PS_ENTRY_COUNT, 2);
    push(t, 0, MANY);
    CHECK(ps_sparse_rows(t) == 0 && ps_sparse_waiting(t) == MANY);
    CHECK(harness_allocated() - before <= (size_t)60 * MANY);
    push(t, 0, MANY / 2);
    CHECK(ps_sparse_rows(t) == MANY / 2 && ps_sparse_waiting(t) == MANY / 2);
    ps_sparse_free(t);
}

TEST(a_push_without_memory_counts_nothing) {
    ps_sparse *t = new_table(PS_ENTRY_COUNT, 2);
    float grads[BATCH * DIM] = {0};
    uint64_t keys[BATCH];
    for (uint64_t i = 0; i < BATCH; i++) keys[i] = i / 2;
    int rc = PS_ENOMEM, failures = 0;
    for (long n = 1; rc != PS_OK && n < 40; n++) {
        ps_err err;
        harness_fail_alloc(n);
        rc = ps_sparse_add(t, keys, grads, BATCH, &err);
        bool failed = harness_fail_alloc(0);
        CHECK(rc == (failed ? PS_ENOMEM : PS_OK));
        if (rc != PS_OK) CHECK(ps_sparse_rows(t) == 0 && ps_sparse_waiting(t) == 0);
        failures += failed;
    }
    CHECK(rc == PS_OK && failures > 2 && ps_sparse_rows(t) == BATCH / 2 && ps_sparse_waiting(t) == 0);
    ps_sparse_free(t);
}
