/* Tiles of a matrix product, by the instructions of the processor. For ps_matmul alone. */
#ifndef PS_TILES_H
#define PS_TILES_H

#include "ps_compute.h"

enum { PS_TILE_ROWS = 14, PS_TILE_COLS = 32 }; /* most of any build */

/* Tiles of a build. compute: out = start + a^T b for 1 to `rows` rows and all `cols` columns, with a [k,
 * rows] and b [k, cols] dense, and the columns of start and out dense. */
typedef struct ps_tiles {
    size_t rows, cols;
    void (*compute)(size_t rows, const float *a, const float *b, size_t k, const float *start,
                    ptrdiff_t start_row, float *out, ptrdiff_t out_row);
} ps_tiles;

/* Return the tiles of the build in use. */
ps_tiles ps_tiles_choose(void);

/* Copy four lanes of k floats, from[l * lane + i], to to[i * width + l]. */
void ps_pack_four(float *restrict to, size_t width, const float *restrict from, ptrdiff_t lane, size_t k);

#endif
