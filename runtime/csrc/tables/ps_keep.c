#include "tables/ps_keep.h"

#include <stdlib.h>

int ps_keep_new(ps_keep **out, size_t n, size_t floats, size_t head_words, ps_err *err) {
    ps_keep *k = *out = calloc(1, sizeof *k);
    if (k == NULL) return ps_fail(err, PS_ENOMEM, 0, "copies of %zu items", n);
    ps_pool_init(&k->copies, floats, head_words);
    k->n = (uint32_t)n; /* of a pool, or of a dense object of at most PS_MAX_DENSE_BYTES */
    k->place = calloc(n + 1, sizeof *k->place);
    if (k->place != NULL) return PS_OK;
    ps_keep_free(k);
    *out = NULL;
    return ps_fail(err, PS_ENOMEM, 0, "copies of %zu items", n);
}

void ps_keep_free(ps_keep *k) {
    if (k == NULL) return;
    ps_pool_close(&k->copies);
    free(k->place);
    free(k);
}

uint32_t ps_keep_take(ps_keep *k, size_t number) {
    if (number > k->n || number <= k->passed || k->place[number] != 0 || k->failed) return 0;
    k->failed = ps_pool_reserve(&k->copies, 1, NULL) < 0;
    return k->failed ? 0 : (k->place[number] = ps_pool_take(&k->copies));
}
