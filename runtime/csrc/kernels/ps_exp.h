/* exp, log, tanh and sigmoid of single precision: our own, as those of C libraries differ in their last bits.
 * Fused multiply-adds and other operations of IEEE alone, in one order, without branches, so that compilers
 * make vectors of them. Within 3 units of the last place; those of NaN are NaN. Coefficients: Cephes, S.
 * Moshier. */
#ifndef PS_EXP_H
#define PS_EXP_H

#include <math.h>
#include <string.h>

#include "base/ps_cpu.h"

/* Return the float with these bits. */
PS_INLINE float ps_float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Return the bits of a float. */
PS_INLINE uint32_t ps_bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Return exp(x), as 2^n exp(r) with n whole and r in +-ln(2) / 2. 2^n in two factors: results may be
 * subnormal. */
PS_INLINE float ps_exp(float x) {
    const float shift = 0x1.8p23F; /* a sum with it is rounded to a whole number, which its last bits hold */
    x = x > 89.0F ? 89.0F : x;
    x = x < -104.0F ? -104.0F : x;
    float shifted = fmaf(x, 0x1.715476p0F, shift), n = shifted - shift;
    float r = fmaf(n, -0x1.62e4p-1F, x);
    r = fmaf(n, -0x1.7f7d1cp-20F, r);
    float p = fmaf(1.9875691500e-4F, r, 1.3981999507e-3F);
    p = fmaf(p, r, 8.3334519073e-3F);
    p = fmaf(p, r, 4.1665795894e-2F);
    p = fmaf(p, r, 1.6666665459e-1F);
    p = fmaf(p, r, 5.0000001201e-1F);
    p = fmaf(p, r * r, r) + 1.0F;
    uint32_t whole = ps_bits_of(shifted) - ps_bits_of(shift);
    uint32_t half = (whole + 512) / 2 - 256, rest = whole - half;
    return p * ps_float_of((half + 127) << 23) * ps_float_of((rest + 127) << 23);
}

/* Return 1 / (1 + exp(-x)). */
PS_INLINE float ps_sigmoid(float x) {
    return 1.0F / (1.0F + ps_exp(-x));
}

/* Return tanh(x): by exp, or a polynomial where that would lose digits. */
PS_INLINE float ps_tanh(float x) {
    float size = fabsf(x), square = x * x;
    float large = 1.0F - 2.0F / (ps_exp(2.0F * size) + 1.0F);
    float p = fmaf(-5.70498872745e-3F, square, 2.06390887954e-2F);
    p = fmaf(p, square, -5.37397155531e-2F);
    p = fmaf(p, square, 1.33314422036e-1F);
    p = fmaf(p, square, -3.33332819422e-1F);
    float small = fmaf(p * square, size, size);
    return copysignf(size > 0.625F ? large : small, x);
}

/* Return log(x), as n ln(2) + log(1 + f) with 1 + f between the root of a half and that of 2. */
PS_INLINE float ps_log(float x) {
    bool subnormal = x < 0x1p-126F;
    uint32_t bits = ps_bits_of(subnormal ? x * 0x1p23F : x);
    uint32_t up = bits - UINT32_C(0x3f3504f3); /* exponent counted from the root of a half */
    float n = (float)((int32_t)up >> 23) - (subnormal ? 23.0F : 0.0F);
    float f = ps_float_of((up & UINT32_C(0x7fffff)) + UINT32_C(0x3f3504f3)) - 1.0F, square = f * f;
    float p = fmaf(7.0376836292e-2F, f, -1.1514610310e-1F);
    p = fmaf(p, f, 1.1676998740e-1F);
    p = fmaf(p, f, -1.2420140846e-1F);
    p = fmaf(p, f, 1.4249322787e-1F);
    p = fmaf(p, f, -1.6668057665e-1F);
    p = fmaf(p, f, 2.0000714765e-1F);
    p = fmaf(p, f, -2.4999993993e-1F);
    p = fmaf(p, f, 3.3333331174e-1F);
    p = fmaf(p * f, square, fmaf(n, -2.12194440e-4F, -0.5F * square));
    float found = fmaf(n, 0.693359375F, f + p);
    found = x == 0.0F ? -INFINITY : found;
    found = x < 0.0F ? NAN : found;
    return x < INFINITY ? found : x; /* NaN too */
}

#endif
