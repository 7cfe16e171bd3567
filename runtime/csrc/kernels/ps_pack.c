#include "kernels/ps_pack.h"

#if PS_HAVE_AVX2
#include <immintrin.h>
#endif

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

#define CASE(WIDTH)                                 \
    case WIDTH:                                     \
        copy_rows(to, WIDTH, from, step, whole, k); \
        break;
#define CASES_8 CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#define CASES_32 CASES_8 CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14) CASE(16) CASE(32)

/* Body of every build. */
PS_INLINE void copy(float *restrict to, size_t width, const float *restrict from, ptrdiff_t step,
                    size_t lanes, size_t k) {
    size_t whole = lanes / width * width;
    copy_rest(to + whole * k, width, from + whole, step, lanes - whole, k);
    switch (width) { CASES_32 default : copy_rows(to, width, from, step, whole, k); }
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
