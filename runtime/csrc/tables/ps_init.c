#include "tables/ps_init.h"

#include <math.h>
#include <string.h>

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15) /* the step of splitmix64 */

int ps_init_check(const ps_init *init, ps_err *err) {
    if (init->kind >= PS_INIT_KINDS)
        return ps_fail(err, PS_EINVAL, 0, "unknown initializer kind %u", init->kind);
    if (!isfinite(init->mean) || !isfinite(init->std) || init->std < 0)
        return ps_fail(err, PS_EINVAL, 0, "initializer: mean %g and std %g must be finite, std not negative",
                       (double)init->mean, (double)init->std);
    return PS_OK;
}

/* Return the sum of the four 16-bit pieces of x. */
static uint32_t pieces(uint64_t x) {
    return (uint32_t)((x & 0xffff) + ((x >> 16) & 0xffff) + ((x >> 32) & 0xffff) + (x >> 48));
}

/* Irwin-Hall: twelve uniform pieces of 16 bits have the mean 6 * 65535 and the variance 2^32 - 1.
 * Every step is exact; |result| <= 6. */
static float normal(uint64_t state) {
    uint32_t sum =
        pieces(ps_mix64(state)) + pieces(ps_mix64(state + GOLDEN)) + pieces(ps_mix64(state + 2 * GOLDEN));
    return (float)((int32_t)sum - 6 * 65535) * 0x1p-16F;
}

/* An odd multiple of 2^-23 in (-1, 1): exact and without a bias. */
static float uniform(uint64_t state) {
    int32_t odd = (int32_t)(ps_mix64(state) >> 41 << 1) + 1; /* odd, below 2^24 */
    return (float)(odd - 0x800000) * 0x1p-23F;
}

void ps_init_row(const ps_init *init, uint64_t key, float *row, size_t dim) {
    if (init->kind < PS_INIT_LATE) ps_init_new_row(init, key, row, dim);
    else memset(row, 0, dim * sizeof *row);
}

void ps_init_new_row(const ps_init *init, uint64_t key, float *row, size_t dim) {
    uint64_t base = ps_mix64(ps_mix64(ps_mix64(init->seed + GOLDEN) ^ init->table) ^ key);
    /* Each column has a stretch of three steps in the row's stream. */
    for (size_t i = 0; i < dim; i++) {
        uint64_t state = base + (3 * (uint64_t)i + 1) * GOLDEN;
        float unit = 0;
        if (init->std != 0)
            unit = init->kind % PS_INIT_LATE == PS_INIT_NORMAL ? normal(state) : uniform(state);
        row[i] = init->mean + init->std * unit;
    }
}

uint64_t ps_table_id(const void *name, size_t n) {
    return ps_hash_more(UINT64_C(0xcbf29ce484222325), name, n);
}

uint64_t ps_hash_more(uint64_t hash, const void *bytes, size_t n) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}
