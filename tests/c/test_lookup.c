#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "kernels/ps_lookup.h"

enum { N = 3000, DIM = 37, WIDE = DIM + 3 };

static int64_t ids[N], indexes[N];
static uint64_t keys[N];

static ps_lookup lookup_of(size_t n, uint64_t rows) {
    return (ps_lookup){.ids = ids, .n = n, .rows = rows, .keys = keys, .index = indexes};
}

/* Small numbers, such that many are equal, or numbers of up to 63 bits that differ in the upper ones alone.
 */
static void fill_ids(size_t n, uint64_t most, unsigned shift) {
    for (size_t i = 0; i < n; i++) ids[i] = (int64_t)(harness_random() % most << shift);
}

static bool is_found(const ps_lookup *l) {
    size_t used = 0;
    for (size_t i = 0; i < l->n; i++) {
        size_t at = (size_t)l->index[i];
        if (at > used || l->keys[at] != (uint64_t)l->ids[i]) return false;
        used += at == used;
        for (size_t other = 0; at == used - 1 && other < at; other++)
            if (l->keys[other] == l->keys[at]) return false;
    }
    return used == l->k && l->bad == l->n;
}

TEST(lookup_finds_each_id_once_in_the_order_of_first_use) {
    for (size_t n = 0; n < 600; n = n * 2 + 1)
        for (unsigned shift = 0; shift <= 48; shift += 16)
            for (uint64_t most = 1; most < 5000; most *= 9) {
                fill_ids(n, most, shift);
                ps_lookup one = lookup_of(n, most << shift);
                CHECK(ps_lookup_run(&one, 1, 1, NULL) == PS_OK && is_found(&one));
            }
}

TEST(lookup_names_the_first_id_out_of_range) {
    fill_ids(N, 50, 0);
    ids[70] = 50, ids[80] = -1;
    ps_lookup one = lookup_of(N, 50);
    CHECK(ps_lookup_run(&one, 1, 1, NULL) == PS_OK && one.bad == 70);
    ids[70] = 0;
    CHECK(ps_lookup_run(&one, 1, 1, NULL) == PS_OK && one.bad == 80);
    ids[80] = INT64_MIN;
    one.rows = INT64_MAX;
    CHECK(ps_lookup_run(&one, 1, 1, NULL) == PS_OK && one.bad == 80);
}

TEST(lookups_of_many_tables_do_not_depend_on_threads) {
    enum { TABLES = 30, EACH = 3000 };
    int64_t *all = calloc(TABLES * EACH, sizeof *all), *index = calloc(TABLES * EACH, sizeof *index);
    uint64_t *found = calloc(TABLES * EACH, sizeof *found);
    ps_lookup of[TABLES];
    for (size_t i = 0; i < TABLES * EACH; i++) all[i] = (int64_t)(harness_random() % 900);
    for (unsigned threads = 1; threads < 4; threads++) {
        for (size_t t = 0; t < TABLES; t++)
            of[t] = (ps_lookup){all + t * EACH, EACH - t, 900, found + t * EACH, index + t * EACH, 0, 0};
        CHECK(ps_lookup_run(of, TABLES, threads, NULL) == PS_OK);
        for (size_t t = 0; t < TABLES; t++) CHECK(is_found(&of[t]));
    }
    free(all), free(index), free(found);
}

TEST(lookup_without_memory_or_with_too_many_ids_is_refused) {
    ps_err err;
    ps_lookup one = lookup_of((size_t)1 << 31, 50);
    CHECK(ps_lookup_run(&one, 1, 1, &err) == PS_ELIMIT);
    CHECK(strcmp(err.text, "2147483648 ids of a table in a batch") == 0);
    CHECK(ps_lookup_run(NULL, 0, 1, &err) == PS_OK);
}

static float *make_floats(size_t n) {
    float *made = malloc(n * sizeof *made);
    for (size_t i = 0; made != NULL && i < n; i++)
        made[i] = (float)(int)(harness_random() % 2001) * 1e-3F - 1;
    return made;
}

TEST(gathered_rows_are_those_of_the_table) {
    enum { ROWS = 400 };
    float *table = make_floats(ROWS * DIM), *out = make_floats(N * WIDE);
    for (size_t i = 0; i < N; i++) indexes[i] = (int64_t)(harness_random() % ROWS);
    for (size_t dim = 0; dim <= DIM; dim++)
        for (unsigned threads = 1; threads < 4; threads += 2) {
            out[dim] = 7;
            CHECK(ps_gather(table, ROWS, dim, indexes, N, out, WIDE, threads, NULL) == PS_OK);
            bool equal = out[dim] == 7;
            for (size_t i = 0; i < N; i++)
                equal &= memcmp(out + i * WIDE, table + (size_t)indexes[i] * dim, dim * sizeof *out) == 0;
            CHECK(equal);
        }
    free(table), free(out);
}

/* Numbers of which a sum of many is not exact: its bits tell the order. */
TEST(rows_are_added_in_their_order) {
    enum { ROWS = 90 };
    float *rows = make_floats(N * WIDE), sum[ROWS * DIM], expected[ROWS * DIM];
    for (size_t dim = 0; dim <= DIM; dim++) {
        bool begun[ROWS] = {false};
        for (size_t i = 0; i < N; i++) indexes[i] = (int64_t)(i < ROWS ? i : harness_random() % ROWS);
        for (size_t i = 0; i < N; begun[indexes[i++]] = true)
            for (size_t j = 0; j < dim; j++) {
                float *one = &expected[(size_t)indexes[i] * dim + j], x = rows[i * WIDE + j];
                *one = begun[indexes[i]] ? *one + x : x;
            }
        for (unsigned threads = 1; threads < 4; threads++) {
            ps_clear_sums(sum, ROWS * dim);
            CHECK(ps_add_rows(sum, ROWS, dim, indexes, N, rows, WIDE, threads, NULL) == PS_OK);
            CHECK(memcmp(sum, expected, ROWS * dim * sizeof *sum) == 0);
        }
    }
    free(rows);
}

TEST(sum_of_one_row_keeps_the_sign_of_zero) {
    float row[] = {-0.0F, 0.0F}, sum[2];
    int64_t index = 0;
    ps_clear_sums(sum, 2);
    CHECK(ps_add_rows(sum, 1, 2, &index, 1, row, 2, 1, NULL) == PS_OK);
    CHECK(signbit(sum[0]) && !signbit(sum[1]));
}

TEST(index_out_of_range_is_an_error) {
    float rows[4] = {0}, sum[4];
    int64_t index[] = {0, 2};
    ps_err err;
    CHECK(ps_gather(rows, 2, 2, index, 2, sum, 2, 1, &err) == PS_EINVAL);
    CHECK(strcmp(err.text, "index[1]: expected a number below 2") == 0);
    index[1] = -1;
    CHECK(ps_add_rows(sum, 2, 2, index, 2, rows, 2, 1, &err) == PS_EINVAL);
    CHECK(ps_gather(rows, 0, 2, index, 0, sum, 2, 1, &err) == PS_OK);
}
