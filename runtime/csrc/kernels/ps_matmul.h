/* Matrix product. Each result is one chain of fused multiply-adds over k from first to last, whatever the
 * size of tiles and vectors and the number of threads: the same bits on every processor. */
#ifndef PS_MATMUL_H
#define PS_MATMUL_H

#include "kernels/ps_compute.h"

/* Matrix in memory of others: item (i, j) is at[i * row + j * col]. */
typedef struct ps_matrix {
    float *at;
    ptrdiff_t row, col;
} ps_matrix;

/* out = start + a b with a [m, k], b [k, n], out [m, n]. */
typedef struct ps_product {
    size_t m, n, k;
    ps_matrix a, b;
    ps_matrix start; /* first link of each chain; at NULL: zero. It may be `out`, or a row with .row = 0 */
    ps_matrix out;   /* apart from a and b */
} ps_product;

/* Compute a product on up to `threads` threads. Returns PS_OK, or PS_ENOMEM; then nothing was written. */
int ps_matmul(const ps_product *p, unsigned threads, ps_err *err);

#endif
