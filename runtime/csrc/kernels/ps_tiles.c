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
