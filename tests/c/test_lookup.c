#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "kernels/ps_lookup.h"

/* tests/unit/runtime/test_lookups.py has the values; here are threads, limits, and signs of zero. */
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
    ps_lookup one = {.n = (size_t)1 << 31, .rows = 50};
    CHECK(ps_lookup_run(&one, 1, 1, &err) == PS_ELIMIT);
    CHECK(strcmp(err.text, "2147483648 ids of a table in a batch") == 0);
    CHECK(ps_lookup_run(NULL, 0, 1, &err) == PS_OK);
}

TEST(sum_of_one_row_keeps_the_sign_of_zero) {
    float row[] = {-0.0F, 0.0F}, sum[2];
    int64_t index = 0;
    ps_clear_sums(sum, 2);
    CHECK(ps_add_rows(sum, 1, 2, &index, 1, NULL, row, 2, 1, NULL) == PS_OK);
    CHECK(signbit(sum[0]) && !signbit(sum[1]));
}
