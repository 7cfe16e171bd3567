/* Tiles of a matrix product, by the instructions of the processor, and copies of a matrix's lanes in the
 * order in which tiles read them. For ps_matmul alone. */
#ifndef PS_TILES_H
#define PS_TILES_H

#include "kernels/ps_compute.h"

enum { PS_TILE_ROWS = 14, PS_TILE_COLS = 64 }; /* most of any build */

/* Tiles of a build. compute: out = start + a^T b for 1 to `rows` rows and all `cols` columns, with a [k,
 * rows] dense, and the columns of b [k, cols], start and out dense. */
typedef struct ps_tiles {
    size_t rows, cols;
    void (*compute)(size_t rows, const float *a, ptrdiff_t a_row, const float *b, ptrdiff_t b_row, size_t k,
                    const float *start, ptrdiff_t start_row, float *out, ptrdiff_t out_row);
} ps_tiles;

/* Return the tiles of a build for so many rows and columns: wide ones where rows are few, as chains enough
 * must be computed at a time, narrow ones where columns are few. More rows than a tile has get the same
 * height for any number of columns. */
ps_tiles ps_tiles_choose(ps_isa isa, size_t rows, size_t cols);

enum { PS_PACK_LANES = 16 }; /* transposed at a time */

/* Copy from[l * lane + i * step], l < lanes, i < k, to panels of `width` lanes, [k, width] each. Lanes beyond
 * `lanes` of the last one get zero or other lanes' values, and up to PS_PACK_LANES floats after it any. */
void ps_pack(float *restrict to, size_t width, const float *restrict from, ptrdiff_t lane, ptrdiff_t step,
             size_t lanes, size_t k);

#endif
