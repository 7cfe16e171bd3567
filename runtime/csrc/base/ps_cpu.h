/* Compiler extensions and processor features, here alone: every other file uses these names.
 * Not for kernels. */
#ifndef PS_CPU_H
#define PS_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* Build of a kernel to run. All give the same bits: they do the same IEEE operations
 * in the same order on every element, only several elements at a time (-ffp-contract=off matters). */
typedef enum ps_isa {
    PS_ISA_BEST = 0,   /* the fastest on this machine */
    PS_ISA_BASE = 1,   /* for every machine of this architecture */
    PS_ISA_AVX2 = 2,   /* x86-64 with AVX2; same as PS_ISA_BASE without it */
    PS_ISA_AVX512 = 3, /* with AVX-512; same as PS_ISA_AVX2 without it, or in kernels without such a build */
} ps_isa;

/* These let a compiler reorder sums and assume that there is no NaN: other bits. */
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "build without -ffast-math and -ffinite-math-only: they change the bits of what is trained"
#endif

/* Numbers are sent and saved as they are in memory. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "this machine is big endian, and the numbers of frames and files are little endian"
#endif

#define PS_PRINTF(text_arg, first_arg) __attribute__((format(printf, text_arg, first_arg)))
#define PS_INLINE static inline __attribute__((always_inline))
#define PS_UNUSED __attribute__((unused))

/* Builds for x86-64 that have these features. Elsewhere they are as the others, and PS_CPU_HAS(), whether
 * this machine has one, is false. Costs one load. */
#if defined(__x86_64__)
#define PS_HAVE_AVX2 1
#define PS_TARGET_AVX2 __attribute__((target("avx2")))
#define PS_TARGET_FMA __attribute__((target("avx2,fma")))
#define PS_TARGET_AVX512 __attribute__((target("avx512f")))
#define PS_CPU_HAS(feature) (__builtin_cpu_supports(feature) != 0)
#else
#define PS_HAVE_AVX2 0
#define PS_TARGET_AVX2
#define PS_TARGET_FMA
#define PS_TARGET_AVX512
#define PS_CPU_HAS(feature) false
#endif

/* Let a thread that polls give way for some cycles. */
static inline void ps_pause(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Treatment of floats by this thread: rounding to nearest, subnormal numbers kept. A new thread inherits that
 * of its creator, which a library may have changed for its own speed. */
#define PS_FLOATS_IEEE 0

/* Set this thread's treatment of floats: PS_FLOATS_IEEE, or what an earlier call returned. Returns the one
 * before. Can't fail. */
static inline unsigned ps_floats_set(unsigned mode) {
#if defined(__x86_64__)
    const unsigned bits = 0xe040; /* flush to zero, rounding, subnormal operands are zero */
    unsigned before = _mm_getcsr();
    _mm_setcsr((before & ~bits) | (mode & bits));
    return before & bits;
#elif defined(__aarch64__)
    const uint64_t bits = 0x01c80000; /* flush to zero, rounding, half-precision flush to zero */
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"((before & ~bits) | (mode & bits)));
    return (unsigned)(before & bits);
#else
    (void)mode;
    return PS_FLOATS_IEEE;
#endif
}

/* Prefetch the cache line at `p`, soon to be read or written. Any address is allowed. */
static inline void ps_prefetch(const void *p) {
    __builtin_prefetch(p);
}

/* Set *out = a * b; true on overflow, then *out is unusable. */
static inline bool ps_mul_overflows(size_t a, size_t b, size_t *out) {
    return __builtin_mul_overflow(a, b, out);
}

#endif
