/* Compiler extensions and processor features, here alone: every other file uses these names.
 * Not for kernels; those are in ps_optim. */
#ifndef PS_CPU_H
#define PS_CPU_H

#include <stdbool.h>
#include <stddef.h>

/* Build of a kernel to run. All give the same bits: they do the same IEEE operations
 * in the same order on every element, only several elements at a time (-ffp-contract=off matters). */
typedef enum ps_isa {
    PS_ISA_BEST = 0, /* the fastest on this machine */
    PS_ISA_BASE = 1, /* for every machine of this architecture */
    PS_ISA_AVX2 = 2, /* x86-64 with AVX2; same as PS_ISA_BASE without it */
} ps_isa;

#define PS_PRINTF(text_arg, first_arg) __attribute__((format(printf, text_arg, first_arg)))
#define PS_INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__)
#define PS_HAVE_AVX2 1
#define PS_TARGET_AVX2 __attribute__((target("avx2")))
#else
#define PS_HAVE_AVX2 0
#endif

/* Return true if this machine can run PS_ISA_AVX2. Costs one load. */
static inline bool ps_cpu_avx2(void) {
#if PS_HAVE_AVX2
    return __builtin_cpu_supports("avx2") != 0;
#else
    return false;
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
