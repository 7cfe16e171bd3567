/* Schedules of the learning rate, as of PaddlePaddle v2 (paddle/parameter/LearningRateScheduler.cpp).
 *
 * With r the learning rate, n the samples of all updates so far, this one included:
 *   PS_CONSTANT     r
 *   PS_POLY         r * (1 + a * n)^-b
 *   PS_EXP          r * a^(n / b)
 *   PS_DISCEXP      r * a^floor(n / b)
 *   PS_LINEAR       max(r - a * n, b)
 *   PS_MANUAL       r * the factor of the first segment with n <= last, or of the last one
 *   PS_PASS_MANUAL  likewise with the number of the pass, from 0, in place of n
 * In double precision, by IEEE's operations alone: no function of a library, which differ. */
#ifndef PS_SCHEDULE_H
#define PS_SCHEDULE_H

#include <stdint.h>

#include "base/ps_err.h"

enum {
    PS_CONSTANT = 0,
    PS_POLY = 1,
    PS_EXP = 2,
    PS_DISCEXP = 3,
    PS_LINEAR = 4,
    PS_MANUAL = 5,
    PS_PASS_MANUAL = 6,
    PS_SCHEDULES = 7,
};

#define PS_MAX_SEGMENTS 64

/* A factor of the learning rate, up to and with this number of samples or this pass. */
typedef struct ps_segment {
    uint64_t last;
    double factor;
} ps_segment;

typedef struct ps_schedule {
    uint32_t kind; /* PS_CONSTANT, ... */
    uint32_t segments_n;
    double a, b;
    ps_segment segments[PS_MAX_SEGMENTS]; /* ascending */
} ps_schedule;

/* Return the name of a kind, as in v2; NULL for an unknown one. */
const char *ps_schedule_name(uint32_t kind);

/* Check `s`: PS_OK, or PS_EINVAL if its kind is unknown or a number is out of range; the text names it. */
int ps_schedule_check(const ps_schedule *s, ps_err *err);

/* Return the rate of an update, after `samples` samples with its own, in this pass. `s` is checked. */
float ps_schedule_rate(const ps_schedule *s, float learning_rate, uint64_t samples, uint64_t pass);

#endif
