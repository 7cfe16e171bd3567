#include "kernels/ps_tiles.h"

#include <math.h>

#if PS_HAVE_AVX2
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* The accumulators stay in registers: all loops over a tile are unrolled, which gcc wants to hear. */
#define UNROLL _Pragma("GCC unroll 16")
#define DEFINE_ROWS(NAME, TARGET, VECTOR, LANES, VECTORS, LOAD, STORE, SPLAT, FMA)                          \
    TARGET PS_INLINE void NAME(const size_t rows, const float *a, ptrdiff_t a_row, const float *b,          \
                               ptrdiff_t b_row, size_t k, const float *start, ptrdiff_t start_row,          \
                               float *out, ptrdiff_t out_row) {                                             \
        VECTOR sum[PS_TILE_ROWS][VECTORS], x[VECTORS];                                                      \
        UNROLL for (size_t i = 0; i < rows; i++, start += start_row)                                        \
            UNROLL for (int j = 0; j < (VECTORS); j++) sum[i][j] = LOAD(start + j * (LANES));               \
        UNROLL for (size_t i = 0; i < rows; i++) {                                                          \
            ps_prefetch(out + (ptrdiff_t)i * out_row);                                                      \
            ps_prefetch(out + (ptrdiff_t)i * out_row + (LANES) * (VECTORS) - 1);                            \
        }                                                                                                   \
        for (; k > 0; k--, a += a_row, b += b_row) {                                                        \
            UNROLL for (int j = 0; j < (VECTORS); j++) x[j] = LOAD(b + j * (LANES));                        \
            UNROLL for (size_t i = 0; i < rows; i++) {                                                      \
                VECTOR y = SPLAT(a[i]);                                                                     \
                UNROLL for (int j = 0; j < (VECTORS); j++) sum[i][j] = FMA(y, x[j], sum[i][j]);             \
            }                                                                                               \
        }                                                                                                   \
        UNROLL for (size_t i = 0; i < rows; i++, out += out_row) UNROLL for (int j = 0; j < (VECTORS); j++) \
            STORE(out + j * (LANES), sum[i][j]);                                                            \
    }

/* A function with a loop of its own for each number of rows. */
#define TILE_ARGS                                                                            \
    size_t rows, const float *a, ptrdiff_t a_row, const float *b, ptrdiff_t b_row, size_t k, \
        const float *start, ptrdiff_t start_row, float *out, ptrdiff_t out_row
#define CASE(ROWS, NAME)                                                   \
    case ROWS:                                                             \
        NAME(ROWS, a, a_row, b, b_row, k, start, start_row, out, out_row); \
        break;
#define CASES_2(NAME) CASE(1, NAME) CASE(2, NAME)
#define CASES_4(NAME) CASES_2(NAME) CASE(3, NAME) CASE(4, NAME)
#define CASES_6(NAME) CASES_4(NAME) CASE(5, NAME) CASE(6, NAME)
#define CASES_14(NAME) \
    CASES_6(NAME)      \
    CASE(7, NAME)      \
    CASE(8, NAME) CASE(9, NAME) CASE(10, NAME) CASE(11, NAME) CASE(12, NAME) CASE(13, NAME) CASE(14, NAME)

#define DEFINE_TILE(NAME, TARGET, CASES)         \
    TARGET static void NAME(TILE_ARGS) {         \
        switch (rows) { CASES default : break; } \
    }

#if PS_HAVE_AVX2
DEFINE_ROWS(rows_avx512, PS_TARGET_AVX512, __m512, 16, 2, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps,
            _mm512_fmadd_ps)
DEFINE_ROWS(rows_avx2, PS_TARGET_FMA, __m256, 8, 2, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps,
            _mm256_fmadd_ps)
DEFINE_ROWS(few_avx512, PS_TARGET_AVX512, __m512, 16, 4, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps,
            _mm512_fmadd_ps)
DEFINE_ROWS(narrow_avx512, PS_TARGET_AVX512, __m512, 16, 1, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps,
            _mm512_fmadd_ps)
DEFINE_ROWS(few_avx2, PS_TARGET_FMA, __m256, 8, 4, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps,
            _mm256_fmadd_ps)

DEFINE_TILE(tile_avx512, PS_TARGET_AVX512, CASES_14(rows_avx512))
DEFINE_TILE(tile_avx2, PS_TARGET_FMA, CASES_6(rows_avx2))
DEFINE_TILE(tile_few_avx512, PS_TARGET_AVX512, CASES_4(few_avx512))
DEFINE_TILE(tile_narrow_avx512, PS_TARGET_AVX512, CASES_14(narrow_avx512))
DEFINE_TILE(tile_few_avx2, PS_TARGET_FMA, CASES_2(few_avx2))
#endif

#if defined(__aarch64__)
#define FMA_NEON(a, b, sum) vfmaq_f32(sum, a, b)
DEFINE_ROWS(rows_base, , float32x4_t, 4, 4, vld1q_f32, vst1q_f32, vdupq_n_f32, FMA_NEON)
#else
#define LOAD_ONE(p) (*(p))
#define STORE_ONE(p, value) (*(p) = (value))
#define SPLAT_ONE(value) (value)
DEFINE_ROWS(rows_base, , float, 1, 16, LOAD_ONE, STORE_ONE, SPLAT_ONE, fmaf)
#endif

DEFINE_TILE(tile_base, , CASES_6(rows_base))

ps_tiles ps_tiles_choose(ps_isa isa, size_t rows, size_t cols) {
#if PS_HAVE_AVX2
    static const ps_tiles avx512 = {PS_TILE_ROWS, 32, tile_avx512}, avx2 = {6, 16, tile_avx2};
    static const ps_tiles few_avx512 = {4, PS_TILE_COLS, tile_few_avx512}, few_avx2 = {2, 32, tile_few_avx2};
    static const ps_tiles narrow_avx512 = {PS_TILE_ROWS, 16, tile_narrow_avx512};
    if (isa == PS_ISA_AVX512 && rows <= few_avx512.rows && cols >= few_avx512.cols) return few_avx512;
    if (isa == PS_ISA_AVX512) return cols <= narrow_avx512.cols ? narrow_avx512 : avx512;
    if (isa == PS_ISA_AVX2) return rows <= few_avx2.rows && cols >= few_avx2.cols ? few_avx2 : avx2;
#endif
    (void)isa, (void)rows, (void)cols;
    return (ps_tiles){6, 16, tile_base};
}

/* --- Packing. --- */

/* Copy rows of lanes to whole panels, some panels at a time: lines of too many of them would be for the same
 * place of the first cache. With a width that the compiler knows, a copy is a few instructions. */
PS_INLINE void copy_rows(float *restrict to, const size_t width, const float *restrict from, ptrdiff_t step,
                         size_t whole, size_t k) {
    enum { PANELS = 8 };
    for (size_t first = 0; first < whole; first += PANELS * width)
        for (size_t i = 0; i < k; i++)
            for (size_t l = first; l < whole && l < first + PANELS * width; l += width)
                memcpy(to + l * k + i * width, from + (ptrdiff_t)i * step + l, width * sizeof *to);
}

/* Copy the rows of the last panel if it is narrower than its width. */
PS_INLINE void copy_rest(float *restrict to, size_t width, const float *restrict from, ptrdiff_t step,
                         size_t rest, size_t k) {
    if (rest > 0) memset(to, 0, k * width * sizeof *to);
    for (size_t i = 0; i < k && rest > 0; i++, from += step, to += width) ps_copy(to, from, rest);
}

/* Copy one lane after the other. */
static void copy_lanes(float *restrict to, size_t width, const float *restrict from, ptrdiff_t lane,
                       ptrdiff_t step, size_t lanes, size_t k) {
    for (; lanes > 0; to += width * k) {
        size_t own = ps_least(width, lanes);
        for (size_t l = 0; l < own; l++, from += lane)
            for (size_t i = 0; i < k; i++) to[i * width + l] = from[(ptrdiff_t)i * step];
        for (size_t l = own; l < width; l++)
            for (size_t i = 0; i < k; i++) to[i * width + l] = 0.0F;
        lanes -= own;
    }
}

#define COPY(WIDTH)                                 \
    case WIDTH:                                     \
        copy_rows(to, WIDTH, from, step, whole, k); \
        break;
#define COPIES_8 COPY(1) COPY(2) COPY(3) COPY(4) COPY(5) COPY(6) COPY(7) COPY(8)
#define COPIES_32 COPIES_8 COPY(9) COPY(10) COPY(11) COPY(12) COPY(13) COPY(14) COPY(16) COPY(32)

/* Body of every build. */
PS_INLINE void copy(float *restrict to, size_t width, const float *restrict from, ptrdiff_t step,
                    size_t lanes, size_t k) {
    size_t whole = lanes / width * width;
    copy_rest(to + whole * k, width, from + whole, step, lanes - whole, k);
    switch (width) { COPIES_32 default : copy_rows(to, width, from, step, whole, k); }
}

PS_TARGET_FMA static void copy_avx2(float *restrict to, size_t width, const float *restrict from,
                                    ptrdiff_t step, size_t lanes, size_t k) {
    copy(to, width, from, step, lanes, k);
}

#if PS_HAVE_AVX2
PS_TARGET_FMA PS_INLINE __m256 join(const float *low, const float *high) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}

/* Copy 8 * groups lanes to rows of `width` floats: where these are fewer, the next row is written after. */
PS_TARGET_FMA PS_INLINE void transpose(float *restrict to, size_t width, const float *const *from,
                                       const size_t groups, size_t k) {
    size_t i = 0;
    for (; i + 4 <= k; i += 4, to += 4 * width) {
        __m256 row[4][PS_PACK_LANES / 8];
        for (size_t g = 0; g < groups; g++) {
            const float *const *own = from + 8 * g;
            __m256 a = join(own[0] + i, own[4] + i), b = join(own[1] + i, own[5] + i);
            __m256 c = join(own[2] + i, own[6] + i), d = join(own[3] + i, own[7] + i);
            __m256 ab = _mm256_unpacklo_ps(a, b), cd = _mm256_unpacklo_ps(c, d);
            row[0][g] = _mm256_shuffle_ps(ab, cd, 0x44), row[1][g] = _mm256_shuffle_ps(ab, cd, 0xee);
            ab = _mm256_unpackhi_ps(a, b), cd = _mm256_unpackhi_ps(c, d);
            row[2][g] = _mm256_shuffle_ps(ab, cd, 0x44), row[3][g] = _mm256_shuffle_ps(ab, cd, 0xee);
        }
        for (size_t r = 0; r < 4; r++)
            for (size_t g = 0; g < groups; g++) _mm256_storeu_ps(to + r * width + 8 * g, row[r][g]);
    }
    for (; i < k; i++, to += width)
        for (size_t l = 0; l < ps_least(width, 8 * groups); l++) to[l] = from[l][i];
}

PS_TARGET_FMA static void transpose_avx2(float *restrict to, size_t width, const float *from, ptrdiff_t lane,
                                         size_t lanes, size_t k) {
    for (size_t first = 0; first < lanes; first += width, to += width * k)
        for (size_t l = 0; l < width; l += PS_PACK_LANES) {
            const float *own[PS_PACK_LANES];
            for (size_t j = 0; j < PS_PACK_LANES; j++)
                own[j] = from + (ptrdiff_t)ps_least(first + l + j, lanes - 1) * lane;
            if (width - l > 8) transpose(to + l, width, own, 2, k);
            else transpose(to + l, width, own, 1, k);
        }
}
#endif

void ps_pack(float *restrict to, size_t width, const float *restrict from, ptrdiff_t lane, ptrdiff_t step,
             size_t lanes, size_t k) {
    if (lane == 1 && ps_build() != PS_ISA_BASE) return copy_avx2(to, width, from, step, lanes, k);
#if PS_HAVE_AVX2
    if (step == 1 && k >= 8 && ps_build() != PS_ISA_BASE)
        return transpose_avx2(to, width, from, lane, lanes, k);
#endif
    if (lane == 1) return copy(to, width, from, step, lanes, k);
    copy_lanes(to, width, from, lane, step, lanes, k);
}
