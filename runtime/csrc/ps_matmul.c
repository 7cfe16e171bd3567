#include "ps_matmul.h"

#include <string.h>

#include "ps_tiles.h"

/* Links of a chain between two stores; rows of `a` and columns of `b` that are packed at a time. */
enum { DEPTH = 256, BLOCK = 1008, WIDTH = 256 };

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Copy from[l * lane + i * step], l < lanes, i < k, to panels of `width` lanes, [k, width] each; what is left
 * of the last one is zero. In the order of `from` in memory, as far as that helps. */
static void pack(float *restrict to, size_t width, const float *restrict from, ptrdiff_t lane, ptrdiff_t step,
                 size_t lanes, size_t k) {
    if (lanes % width > 0) memset(to + lanes / width * width * k, 0, k * width * sizeof *to);
    for (size_t i = 0; lane == 1 && i < k; i++, from += step)
        for (size_t l = 0; l < lanes; l += width)
            memcpy(to + l * k + i * width, from + l, least(width, lanes - l) * sizeof *to);
    for (size_t l = 0; lane != 1 && l < lanes;) {
        float *first = to + l / width * width * k + l % width;
        size_t n = step == 1 && l + 4 <= lanes && l % width + 4 <= width ? 4 : 1;
        if (n == 4) ps_pack_four(first, width, from, lane, k);
        else
            for (size_t i = 0; i < k; i++) first[i * width] = from[(ptrdiff_t)i * step];
        l += n, from += (ptrdiff_t)n * lane;
    }
}

static float *place(ps_matrix m, size_t i, size_t j) {
    return m.at + (ptrdiff_t)i * m.row + (ptrdiff_t)j * m.col;
}

static size_t divide_up(size_t a, size_t b) {
    return (a + b - 1) / b;
}

/* Compute a tile that is cut by the right edge of `out`, or whose columns are not dense there. */
static void compute_apart(const ps_tiles *t, size_t rows, size_t cols, const float *a, const float *b,
                          size_t k, ps_matrix start, ps_matrix out) {
    float tile[PS_TILE_ROWS * PS_TILE_COLS] = {0};
    ptrdiff_t width = (ptrdiff_t)t->cols;
    if (start.at != NULL)
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < cols; j++) tile[i * t->cols + j] = *place(start, i, j);
    t->compute(rows, a, b, k, tile, width, tile, width);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) *place(out, i, j) = tile[i * t->cols + j];
}

static void compute_tile(const ps_tiles *t, size_t rows, size_t cols, const float *a, const float *b,
                         size_t k, ps_matrix start, ps_matrix out) {
    static const float zero[PS_TILE_COLS];
    bool dense = out.col == 1 && (start.at == NULL || start.col == 1);
    if (cols < t->cols || !dense) compute_apart(t, rows, cols, a, b, k, start, out);
    else if (start.at == NULL) t->compute(rows, a, b, k, zero, 0, out.at, out.row);
    else t->compute(rows, a, b, k, start.at, start.row, out.at, out.row);
}

static ps_matrix shift(ps_matrix m, size_t i, size_t j) {
    if (m.at != NULL) m.at = place(m, i, j);
    return m;
}

/* Compute m rows and n columns of a product, for k links of its chains. Row after row of tiles: neighbours in
 * `out` are written one after the other. */
static void compute_block(const ps_tiles *t, size_t m, size_t n, size_t k, const float *a, size_t height,
                          const float *b, ps_matrix start, ps_matrix out) {
    for (size_t i = 0; i < m; i += height)
        for (size_t j = 0; j < n; j += t->cols)
            compute_tile(t, least(height, m - i), least(t->cols, n - j), a + i * k, b + j * k, k,
                         shift(start, i, j), shift(out, i, j));
}

/* Compute rows of a product for links of its chains. */
static void compute_rows(const ps_tiles *t, size_t m, size_t n, size_t k, ps_matrix a, ps_matrix b,
                         ps_matrix start, ps_matrix out, float *scratch) {
    float *packed = scratch + DEPTH * BLOCK;
    size_t height = divide_up(m, divide_up(m, t->rows)); /* tiles of equal height, as far as possible */
    size_t whole = m / height * height;
    pack(scratch, height, a.at, a.row, a.col, whole, k);
    if (whole < m) pack(scratch + whole * k, m - whole, place(a, whole, 0), a.row, a.col, m - whole, k);
    for (size_t j = 0; j < n; j += WIDTH) {
        size_t cols = least(WIDTH, n - j);
        pack(packed, t->cols, place(b, 0, j), b.col, b.row, cols, k);
        compute_block(t, m, cols, k, scratch, height, packed, shift(start, 0, j), shift(out, 0, j));
    }
}

static void compute(const ps_product *p, const ps_tiles *t, float *scratch) {
    for (size_t from = 0; from == 0 || from < p->k; from += DEPTH) {
        size_t k = least(DEPTH, p->k - from);
        for (size_t i = 0; i < p->m; i += BLOCK)
            compute_rows(t, least(BLOCK, p->m - i), p->n, k, shift(p->a, i, from), shift(p->b, from, 0),
                         shift(from == 0 ? p->start : p->out, i, 0), shift(p->out, i, 0), scratch);
    }
}

typedef struct job {
    ps_product product;
    ps_tiles tiles;
} job;

/* Compute a part: some columns, or rows where there are more tiles of them. */
static void compute_part(const void *arg, unsigned part, unsigned parts, float *scratch) {
    const job *own = arg;
    ps_product p = own->product;
    size_t rows = divide_up(p.m, own->tiles.rows), cols = divide_up(p.n, own->tiles.cols);
    if (rows > cols) {
        size_t begin = ps_part_begin(rows, part, parts) * own->tiles.rows;
        size_t end = least(ps_part_begin(rows, part + 1, parts) * own->tiles.rows, p.m);
        p.a = shift(p.a, begin, 0), p.start = shift(p.start, begin, 0), p.out = shift(p.out, begin, 0);
        p.m = end - begin;
    } else {
        size_t begin = ps_part_begin(cols, part, parts) * own->tiles.cols;
        size_t end = least(ps_part_begin(cols, part + 1, parts) * own->tiles.cols, p.n);
        p.b = shift(p.b, 0, begin), p.start = shift(p.start, 0, begin), p.out = shift(p.out, 0, begin);
        p.n = end - begin;
    }
    if (p.m > 0 && p.n > 0) compute(&p, &own->tiles, scratch);
}

static ps_matrix transpose(ps_matrix m) {
    return (ps_matrix){m.at, m.col, m.row};
}

static size_t area(const ps_tiles *t, size_t m, size_t n) {
    return m * (divide_up(n, t->cols) * t->cols);
}

int ps_matmul(const ps_product *p, unsigned threads, ps_err *err) {
    job own = {*p, ps_tiles_choose()};
    if (p->m == 0 || p->n == 0) return PS_OK;
    /* Transposed if far less of the tiles is empty then: the chains are the same. */
    if (2 * area(&own.tiles, p->n, p->m) < area(&own.tiles, p->m, p->n))
        own.product = (ps_product){
            p->n, p->m, p->k, transpose(p->b), transpose(p->a), transpose(p->start), transpose(p->out)};
    enum { LEAST_WORK = 1 << 18 }; /* multiplications that pay for a thread */
    unsigned parts = ps_parts(p->m * p->n * p->k, LEAST_WORK, threads);
    return ps_compute(parts, DEPTH * (BLOCK + WIDTH), compute_part, &own, err);
}
