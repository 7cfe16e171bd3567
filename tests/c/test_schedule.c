/* Schedules of the learning rate: their numbers; tests/unit/runtime/test_schedules.py has the bits. */
#include <math.h>

#include "harness.h"
#include "tables/ps_schedule.h"

TEST(a_schedule_with_a_number_out_of_range_is_refused) {
    const ps_schedule bad[] = {
        {.kind = PS_SCHEDULES},
        {.kind = UINT32_MAX},
        {.kind = PS_CONSTANT, .a = 1},
        {.kind = PS_POLY, .a = (double)NAN, .b = 1},
        {.kind = PS_POLY, .a = 1, .b = (double)INFINITY},
        {.kind = PS_POLY, .a = -1, .b = 1},
        {.kind = PS_EXP, .a = 0, .b = 1},
        {.kind = PS_EXP, .a = 0.5, .b = 0},
        {.kind = PS_DISCEXP, .a = 1e-310, .b = 1},
        {.kind = PS_LINEAR, .a = 1, .b = 1e300},
        {.kind = PS_MANUAL},
        {.kind = PS_MANUAL, .segments_n = PS_MAX_SEGMENTS + 1},
        {.kind = PS_POLY, .segments_n = 1, .segments = {{1, 1}}},
        {.kind = PS_MANUAL, .segments_n = 2, .segments = {{5, 1}, {5, 1}}},
        {.kind = PS_PASS_MANUAL, .segments_n = 1, .segments = {{5, (double)NAN}}},
        {.kind = PS_PASS_MANUAL, .segments_n = 1, .segments = {{UINT64_MAX, 1}}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ps_err err = {0};
        CHECK(ps_schedule_check(&bad[i], &err) == PS_EINVAL && err.text[0] != '\0');
    }
}

TEST(a_rate_is_finite_for_any_count_of_samples) {
    for (uint32_t kind = PS_CONSTANT; kind <= PS_LINEAR; kind++) {
        bool formula = kind != PS_CONSTANT;
        for (double a = 1e-30; a < 1; a *= 1e3)
            for (double b = 1e-30; b < 1e30; b *= 1e3)
                for (uint64_t n = 1; n < UINT64_C(1) << 63; n <<= 7) {
                    ps_schedule s = {.kind = kind, .a = formula ? a : 0, .b = formula ? b : 0};
                    CHECK(ps_schedule_check(&s, NULL) == PS_OK);
                    float rate = ps_schedule_rate(&s, 0.5F, n, 0);
                    CHECK(rate >= 0 && (kind == PS_LINEAR || rate <= 0.5F) && isfinite(rate));
                }
    }
}
