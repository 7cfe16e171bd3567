/* SHA-256 by the processor's instructions: four rounds in each step, the same digest. */
#include "ps_sha256.h"

#if PS_HAVE_SHA && defined(__x86_64__)
#include <immintrin.h>

typedef __m128i words; /* four 32-bit words */

/* The halves of the state as the instructions want them: a, b, e, f and c, d, g, h. */
typedef struct halves {
    words abef, cdgh;
} halves;

PS_TARGET_SHA static words load(const uint8_t *p) {
    const words swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    return _mm_shuffle_epi8(_mm_loadu_si128((const words *)(const void *)p), swap);
}

PS_TARGET_SHA static halves split(const uint32_t state[8]) {
    words abcd = _mm_loadu_si128((const words *)(const void *)state);
    words efgh = _mm_loadu_si128((const words *)(const void *)(state + 4));
    words cdab = _mm_shuffle_epi32(abcd, 0xb1), hgfe = _mm_shuffle_epi32(efgh, 0x1b);
    return (halves){_mm_alignr_epi8(cdab, hgfe, 8), _mm_blend_epi16(hgfe, cdab, 0xf0)};
}

PS_TARGET_SHA static void join(uint32_t state[8], halves h) {
    words feba = _mm_shuffle_epi32(h.abef, 0x1b), dchg = _mm_shuffle_epi32(h.cdgh, 0xb1);
    _mm_storeu_si128((words *)(void *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((words *)(void *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

PS_TARGET_SHA static halves add(halves a, halves b) {
    return (halves){_mm_add_epi32(a.abef, b.abef), _mm_add_epi32(a.cdgh, b.cdgh)};
}

PS_TARGET_SHA static halves do_rounds(halves h, words w, const uint32_t *k) {
    words wk = _mm_add_epi32(w, _mm_loadu_si128((const words *)(const void *)k));
    h.cdgh = _mm_sha256rnds2_epu32(h.cdgh, h.abef, wk);
    h.abef = _mm_sha256rnds2_epu32(h.abef, h.cdgh, _mm_shuffle_epi32(wk, 0x0e));
    return h;
}

/* The next four words of the schedule after a, b, c, d. */
PS_TARGET_SHA static words extend(words a, words b, words c, words d) {
    return _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(a, b), _mm_alignr_epi8(d, c, 4)), d);
}

#elif PS_HAVE_SHA
#include <arm_neon.h>

typedef uint32x4_t words;

typedef struct halves {
    words abcd, efgh;
} halves;

PS_TARGET_SHA static words load(const uint8_t *p) {
    return vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(p)));
}

PS_TARGET_SHA static halves split(const uint32_t state[8]) {
    return (halves){vld1q_u32(state), vld1q_u32(state + 4)};
}

PS_TARGET_SHA static void join(uint32_t state[8], halves h) {
    vst1q_u32(state, h.abcd);
    vst1q_u32(state + 4, h.efgh);
}

PS_TARGET_SHA static halves add(halves a, halves b) {
    return (halves){vaddq_u32(a.abcd, b.abcd), vaddq_u32(a.efgh, b.efgh)};
}

PS_TARGET_SHA static halves do_rounds(halves h, words w, const uint32_t *k) {
    words wk = vaddq_u32(w, vld1q_u32(k)), before = h.abcd;
    h.abcd = vsha256hq_u32(h.abcd, h.efgh, wk);
    h.efgh = vsha256h2q_u32(h.efgh, before, wk);
    return h;
}

PS_TARGET_SHA static words extend(words a, words b, words c, words d) {
    return vsha256su1q_u32(vsha256su0q_u32(a, b), c, d);
}
#endif

#if PS_HAVE_SHA
PS_TARGET_SHA void ps_sha256_blocks(uint32_t state[8], const uint8_t *block, size_t n) {
    halves h = split(state);
    for (; n > 0; n--, block += 64) {
        halves before = h;
        words a = load(block), b = load(block + 16), c = load(block + 32), d = load(block + 48);
        for (const uint32_t *k = ps_sha256_k; k < ps_sha256_k + 64; k += 16) {
            h = do_rounds(h, a, k), a = extend(a, b, c, d);
            h = do_rounds(h, b, k + 4), b = extend(b, c, d, a);
            h = do_rounds(h, c, k + 8), c = extend(c, d, a, b);
            h = do_rounds(h, d, k + 12), d = extend(d, a, b, c);
        }
        h = add(h, before);
    }
    join(state, h);
}
#else
void ps_sha256_blocks(uint32_t state[8], const uint8_t *block, size_t n) {
    (void)state, (void)block, (void)n; /* never called: ps_cpu_sha() is false */
}
#endif
