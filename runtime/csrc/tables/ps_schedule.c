#include "tables/ps_schedule.h"

#include <math.h>
#include <string.h>

static const double MOST = 1e30; /* of a and b: so no product of them overflows */

static const char *const names[PS_SCHEDULES] = {"constant", "poly",   "exp",        "discexp",
                                                "linear",   "manual", "pass_manual"};

const char *ps_schedule_name(uint32_t kind) {
    return kind < PS_SCHEDULES ? names[kind] : NULL;
}

static int bad_number(const ps_schedule *s, const char *name, double number, const char *expected,
                      ps_err *err) {
    return ps_fail(err, PS_EINVAL, 0, "learning_rate_schedule %s: %s %g, expected %s", names[s->kind], name,
                   number, expected);
}

static int check_segments(const ps_schedule *s, ps_err *err) {
    bool manual = s->kind == PS_MANUAL || s->kind == PS_PASS_MANUAL;
    if (s->segments_n > PS_MAX_SEGMENTS || (s->segments_n > 0) != manual)
        return ps_fail(err, PS_EINVAL, 0, "learning_rate_schedule %s: %u segments, expected %s",
                       names[s->kind], s->segments_n, manual ? "1 to 64" : "none");
    for (uint32_t i = 0; i < s->segments_n; i++) {
        const ps_segment *one = &s->segments[i];
        if (!isfinite(one->factor) || one->factor < 0)
            return bad_number(s, "a segment's factor", one->factor, "a finite number, not negative", err);
        if (one->last > UINT64_C(1) << 53 || (i > 0 && one->last <= one[-1].last))
            return bad_number(s, "the end of a segment", (double)one->last, "ascending ones to 2^53", err);
    }
    return PS_OK;
}

int ps_schedule_check(const ps_schedule *s, ps_err *err) {
    if (s->kind >= PS_SCHEDULES)
        return ps_fail(err, PS_EINVAL, 0, "unknown learning_rate_schedule %u", s->kind);
    static const char *const number_names[] = {"learning_rate_decay_a", "learning_rate_decay_b"};
    const double numbers[] = {s->a, s->b};
    bool formula = s->kind >= PS_POLY && s->kind <= PS_LINEAR;
    bool power = s->kind == PS_EXP || s->kind == PS_DISCEXP;
    double least = power ? 1 / MOST : 0, most = formula ? MOST : 0;
    const char *expected = power ? "1e-30 to 1e30" : formula ? "0 to 1e30" : "none, or 0";
    for (int i = 0; i < 2; i++)
        if (!(numbers[i] >= least && numbers[i] <= most) || signbit(numbers[i])) /* NaN too */
            return bad_number(s, number_names[i], numbers[i], expected, err);
    return check_segments(s, err);
}

static double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Return log(x) for a normal x above 0, as n ln(2) + 2 artanh(f), f within 0.172 of 0. */
static double find_log(double x) {
    const uint64_t half_root = UINT64_C(0x3fe6a09e667f3bcd), fraction = (UINT64_C(1) << 52) - 1;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint64_t up = bits - half_root; /* exponent counted from the root of a half */
    int64_t n = (int64_t)up >> 52;
    double m = double_of((up & fraction) + half_root), f = (m - 1) / (m + 1), square = f * f, sum = 0;
    for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
    return (double)n * 0x1.62e42fefa39efp-1 + 2 * f * sum;
}

/* Return exp(x), as 2^n times the series for the rest; 0 or infinity beyond a double's normal range. */
static double find_exp(double x) {
    if (x < -708) return 0;
    if (x > 709) return INFINITY;
    double n = floor(x * 0x1.71547652b82fep0 + 0.5), r = x - n * 0x1.62e42fee00000p-1, sum = 1;
    r -= n * 0x1.a39ef35793c76p-33;
    for (int k = 14; k >= 1; k--) sum = sum * r / k + 1;
    return sum * double_of((uint64_t)((int64_t)n + 1023) << 52);
}

/* Return base^exponent; base above 0. */
static double power(double base, double exponent) {
    return find_exp(exponent * find_log(base));
}

static double find_factor(const ps_schedule *s, uint64_t at) {
    uint32_t i = 0;
    while (i + 1 < s->segments_n && at > s->segments[i].last) i++;
    return s->segments[i].factor;
}

static double find_rate(const ps_schedule *s, double rate, uint64_t samples, uint64_t pass) {
    double n = (double)samples;
    switch (s->kind) {
    case PS_POLY:
        return rate * power(1 + s->a * n, -s->b);
    case PS_EXP:
        return rate * power(s->a, n / s->b);
    case PS_DISCEXP:
        return rate * power(s->a, floor(n / s->b));
    case PS_LINEAR:
        return rate - s->a * n > s->b ? rate - s->a * n : s->b;
    case PS_MANUAL:
        return rate * find_factor(s, samples);
    case PS_PASS_MANUAL:
        return rate * find_factor(s, pass);
    default:
        return rate;
    }
}

float ps_schedule_rate(const ps_schedule *s, float learning_rate, uint64_t samples, uint64_t pass) {
    return (float)find_rate(s, (double)learning_rate, samples, pass);
}
