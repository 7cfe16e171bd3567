#include "kernels/ps_matmul.h"

#include "kernels/ps_tiles.h"

/* Links of a chain between two stores; rows of `a` and columns of `b` that are packed at a time. */
enum { DEPTH = 256, BLOCK = 1008, WIDTH = 256 };

static float *place(ps_matrix m, size_t i, size_t j) {
    return m.at + (ptrdiff_t)i * m.row + (ptrdiff_t)j * m.col;
}

static size_t divide_up(size_t a, size_t b) {
    return (a + b - 1) / b;
}

/* Copy rows and columns. */
static void copy(ps_matrix to, ps_matrix from, size_t rows, size_t cols) {
    for (size_t i = 0; i < rows; i++, to.at += to.row, from.at += from.row)
        if (to.col == 1 && from.col == 1) memcpy(to.at, from.at, cols * sizeof *to.at);
        else
            for (size_t j = 0; j < cols; j++) *place(to, 0, j) = *place(from, 0, j);
}

/* Compute a tile that is cut by the right edge of `out`, or whose columns are not dense there. */
static void compute_apart(const ps_tiles *t, size_t rows, size_t cols, ps_matrix a, ps_matrix b, size_t k,
                          ps_matrix start, ps_matrix out) {
    float results[PS_TILE_ROWS * PS_TILE_COLS];
    ps_matrix tile = {results, (ptrdiff_t)t->cols, 1};
    if (start.at == NULL || cols < t->cols) memset(results, 0, rows * t->cols * sizeof *results);
    if (start.at != NULL) copy(tile, start, rows, cols);
    t->compute(rows, a.at, a.col, b.at, b.row, k, results, tile.row, results, tile.row);
    copy(out, tile, rows, cols);
}

/* Compute a tile; the columns of b are dense, and as many as those of a tile. */
static void compute_tile(const ps_tiles *t, size_t rows, size_t cols, ps_matrix a, ps_matrix b, size_t k,
                         ps_matrix start, ps_matrix out) {
    static const float zero[PS_TILE_COLS];
    bool dense = out.col == 1 && (start.at == NULL || start.col == 1);
    if (cols < t->cols || !dense) compute_apart(t, rows, cols, a, b, k, start, out);
    else if (start.at == NULL) t->compute(rows, a.at, a.col, b.at, b.row, k, zero, 0, out.at, out.row);
    else t->compute(rows, a.at, a.col, b.at, b.row, k, start.at, start.row, out.at, out.row);
}

static ps_matrix shift(ps_matrix m, size_t i, size_t j) {
    if (m.at != NULL) m.at = place(m, i, j);
    return m;
}

/* Rows of a product in tiles of equal height, their lanes dense: of tile i at a.at + i * stride. */
typedef struct band {
    size_t first, tiles, height;
    ps_matrix a;
    size_t stride;
} band;

static ps_matrix get_tile(band own, size_t i) {
    return (ps_matrix){own.a.at + i * own.stride, 1, own.a.col};
}

/* Compute a band and n columns of a product, for k links of its chains. Row after row of tiles: neighbours in
 * `out` are written one after the other. */
static void compute_band(const ps_tiles *t, band own, size_t n, size_t k, float *b, ps_matrix start,
                         ps_matrix out) {
    for (size_t i = 0; i < own.tiles; i++)
        for (size_t j = 0; j < n; j += t->cols)
            compute_tile(t, own.height, ps_least(t->cols, n - j), get_tile(own, i),
                         (ps_matrix){b + j * k, (ptrdiff_t)t->cols, 1}, k,
                         shift(start, own.first + i * own.height, j),
                         shift(out, own.first + i * own.height, j));
}

/* Compute one row of tiles: b is read once, so it is packed only where its columns are not dense. */
static void compute_row(ps_isa isa, size_t m, size_t n, size_t k, ps_matrix a, ps_matrix b, ps_matrix start,
                        ps_matrix out, float *packed) {
    for (size_t j = 0; j < n;) {
        ps_tiles t = ps_tiles_choose(isa, m, n - j);
        size_t cols = ps_least(t.cols, n - j);
        ps_matrix own = shift(b, 0, j);
        if (cols < t.cols || b.col != 1) {
            ps_pack(packed, t.cols, own.at, own.col, own.row, cols, k);
            own = (ps_matrix){packed, (ptrdiff_t)t.cols, 1};
        }
        compute_tile(&t, m, cols, a, own, k, shift(start, 0, j), shift(out, 0, j));
        j += cols;
    }
}

/* Return the band of some tiles from row `first` on, packed unless each of its rows is read once. */
static band make_band(size_t first, size_t tiles, size_t height, size_t k, ps_matrix a, bool once,
                      float *scratch) {
    a = shift(a, first, 0);
    if (a.row == 1 && once) return (band){first, tiles, height, a, height};
    float *to = scratch + first * k;
    if (tiles > 0) ps_pack(to, height, a.at, a.row, a.col, tiles * height, k);
    return (band){first, tiles, height, {to, 1, (ptrdiff_t)height}, height * k};
}

/* Compute rows of a product for links of its chains. The heights of tiles differ by 1 at most: a low one
 * would have too few chains for the processor's units. */
static void compute_rows(ps_isa isa, size_t m, size_t n, size_t k, ps_matrix a, ps_matrix b, ps_matrix start,
                         ps_matrix out, float *scratch) {
    float *packed = scratch + DEPTH * BLOCK;
    ps_tiles t = ps_tiles_choose(isa, m, n);
    size_t tiles = divide_up(m, t.rows), height = divide_up(m, tiles), high = m - tiles * (height - 1);
    band bands[2] = {make_band(0, high, height, k, a, n <= t.cols, scratch),
                     make_band(high * height, tiles - high, height - 1, k, a, n <= t.cols, scratch)};
    if (tiles == 1) return compute_row(isa, m, n, k, get_tile(bands[0], 0), b, start, out, packed);
    for (size_t j = 0; j < n;) {
        ps_tiles own = ps_tiles_choose(isa, m, n - j);
        size_t cols = ps_least(WIDTH, n - j), whole = cols / own.cols * own.cols;
        if (whole > 0) cols = whole; /* what is left may have narrower tiles */
        ps_pack(packed, own.cols, place(b, 0, j), b.col, b.row, cols, k);
        for (int i = 0; i < 2; i++)
            compute_band(&own, bands[i], cols, k, packed, shift(start, 0, j), shift(out, 0, j));
        j += cols;
    }
}

static void compute(const ps_product *p, ps_isa isa, float *scratch) {
    for (size_t from = 0; from == 0 || from < p->k; from += DEPTH) {
        size_t k = ps_least(DEPTH, p->k - from);
        for (size_t i = 0; i < p->m; i += BLOCK)
            compute_rows(isa, ps_least(BLOCK, p->m - i), p->n, k, shift(p->a, i, from), shift(p->b, from, 0),
                         shift(from == 0 ? p->start : p->out, i, 0), shift(p->out, i, 0), scratch);
    }
}

typedef struct job {
    ps_product product;
    ps_isa isa;
} job;

/* Compute a part: some columns, or rows where there are more tiles of them. */
static void compute_part(void *arg, unsigned part, unsigned parts, float *scratch) {
    const job *own = arg;
    ps_product p = own->product;
    ps_tiles t = ps_tiles_choose(own->isa, p.m, p.n);
    size_t rows = divide_up(p.m, t.rows), cols = divide_up(p.n, t.cols);
    if (rows > cols) {
        size_t begin = ps_part_begin(rows, part, parts) * t.rows;
        size_t end = ps_least(ps_part_begin(rows, part + 1, parts) * t.rows, p.m);
        p.a = shift(p.a, begin, 0), p.start = shift(p.start, begin, 0), p.out = shift(p.out, begin, 0);
        p.m = end - begin;
    } else {
        size_t begin = ps_part_begin(cols, part, parts) * t.cols;
        size_t end = ps_least(ps_part_begin(cols, part + 1, parts) * t.cols, p.n);
        p.b = shift(p.b, 0, begin), p.start = shift(p.start, 0, begin), p.out = shift(p.out, 0, begin);
        p.n = end - begin;
    }
    if (p.m > 0 && p.n > 0) compute(&p, own->isa, scratch);
}

static ps_matrix transpose(ps_matrix m) {
    return (ps_matrix){m.at, m.col, m.row};
}

/* Return the area of the tiles of a product. */
static size_t area(ps_isa isa, size_t m, size_t n) {
    size_t cols = ps_tiles_choose(isa, m, n).cols;
    return m * (divide_up(n, cols) * cols);
}

int ps_matmul(const ps_product *p, unsigned threads, ps_err *err) {
    job own = {*p, ps_build()};
    if (p->m == 0 || p->n == 0) return PS_OK;
    /* Transposed if far less of the tiles is empty then: the chains are the same. */
    if (2 * area(own.isa, p->n, p->m) < area(own.isa, p->m, p->n))
        own.product = (ps_product){
            p->n, p->m, p->k, transpose(p->b), transpose(p->a), transpose(p->start), transpose(p->out)};
    enum { LEAST_WORK = 1 << 18 }; /* multiplications that pay for a thread */
    unsigned parts = ps_parts(p->m * p->n * p->k, LEAST_WORK, threads);
    return ps_compute(parts, DEPTH * (BLOCK + WIDTH) + PS_PACK_LANES, compute_part, &own, err);
}
