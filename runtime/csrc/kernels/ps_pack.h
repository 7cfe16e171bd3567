/* Copies of a matrix's lanes in the order in which tiles of a product read them. For ps_matmul alone. */
#ifndef PS_PACK_H
#define PS_PACK_H

#include "kernels/ps_compute.h"

enum { PS_PACK_LANES = 16 }; /* transposed at a time */

/* Copy from[l * lane + i * step], l < lanes, i < k, to panels of `width` lanes, [k, width] each. Lanes beyond
 * `lanes` of the last one get zero or other lanes' values, and up to PS_PACK_LANES floats after it any. */
void ps_pack(float *restrict to, size_t width, const float *restrict from, ptrdiff_t lane, ptrdiff_t step,
             size_t lanes, size_t k);

#endif
