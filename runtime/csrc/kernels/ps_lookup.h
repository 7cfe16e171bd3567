/* Lookups in embedding tables: the unique ids of a batch, their rows, and gradients summed by id. Sums are
 * taken in the order of the places of an id; nothing depends on the processor or on the number of threads. */
#ifndef PS_LOOKUP_H
#define PS_LOOKUP_H

#include "kernels/ps_compute.h"

/* Return the first place of an id that is not below `rows`; n: there is none. */
size_t ps_find_outside(const int64_t *ids, size_t n, uint64_t rows);

/* Ids of a batch for one table, and the result. */
typedef struct ps_lookup {
    const int64_t *ids; /* [n] */
    size_t n;
    uint64_t rows;  /* ids are below it; UINT64_MAX: any */
    uint64_t *keys; /* [n]. Result: the ids [k], each once, in the order of their first use */
    int64_t *index; /* [n]. Result: the place in `keys` of each id */
    size_t k;
    size_t bad; /* the place of the first id out of range; n: there is none */
} ps_lookup;

/* Run each of lookups[0..n), some of them at the same time. Returns PS_OK, with `bad` set in each; keys and
 * index have any content where it is not n. PS_ELIMIT (2^31 ids or more), PS_ENOMEM: nothing was written. */
int ps_lookup_run(ps_lookup *lookups, size_t n, unsigned threads, ps_err *err);

/* Bags of ids, one for each sample, one after the other. Offsets above the number of ids count as that. */
typedef struct ps_bags {
    const int64_t *offsets; /* [n + 1], which ascend from 0; bag b ends before offsets[b + 1] */
    size_t n;
    const float *weights; /* of each id; NULL: 1 */
    int64_t blank;        /* an index whose row counts as zeros; -1: none */
} ps_bags;

/* Copy row index[i] of table [rows, dim] to out + i * stride for i below n. With bags set out + b * stride to
 * the sum of its rows times their weights, in the order of the ids; -0 without ids. PS_OK; PS_EINVAL if an
 * index is not in the table, or PS_ENOMEM; then out has any content. */
int ps_gather(const float *table, size_t rows, size_t dim, const int64_t *index, size_t n,
              const ps_bags *bags, float *out, ptrdiff_t stride, unsigned threads, ps_err *err);

/* Prepare sum[0..n) for ps_add_rows(): x added to it is x, with its sign if it is zero. Can't fail. */
void ps_clear_sums(float *sum, size_t n);

/* Add the values at from + i * stride to row index[i] of sum [rows, dim], for each i below n in this order;
 * with bags those at from + b * stride, times the weight of the id, or 0 if its row is the blank one.
 * PS_OK; PS_EINVAL if an index is not in it, or PS_ENOMEM; then sum has any content. */
int ps_add_rows(float *sum, size_t rows, size_t dim, const int64_t *index, size_t n, const ps_bags *bags,
                const float *from, ptrdiff_t stride, unsigned threads, ps_err *err);

#endif
