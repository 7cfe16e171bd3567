#include "tables/ps_entry.h"

#include <math.h>

static const char *const names[PS_ENTRIES] = {"any", "count", "probability", "show_click"};

const char *ps_entry_name(uint32_t rule) {
    return rule < PS_ENTRIES ? names[rule] : NULL;
}

/* Return true if x is at least `least` and at most `most`; not for a NaN. */
static bool within(float x, float least, float most) {
    return x >= least && x <= most && !signbit(x);
}

static int bad_number(const ps_entry *e, float number, const char *expected, ps_err *err) {
    return ps_fail(err, PS_EINVAL, 0, "entry rule %s: %g, expected %s", names[e->rule], (double)number,
                   expected);
}

int ps_entry_check(const ps_entry *e, ps_err *err) {
    float a = e->numbers[0], b = e->numbers[1];
    if (e->rule >= PS_ENTRIES) return ps_fail(err, PS_EINVAL, 0, "unknown entry rule %u", e->rule);
    if (e->rule == PS_ENTRY_ANY && !within(a, 0, 0)) return bad_number(e, a, "no numbers", err);
    if (e->rule == PS_ENTRY_COUNT && (!within(a, 1, PS_ENTRY_MOST) || floorf(a) != a))
        return bad_number(e, a, "a whole number from 1 to 16777216", err);
    if (e->rule == PS_ENTRY_PROBABILITY && !(within(a, 0, 1) && a > 0))
        return bad_number(e, a, "a number above 0, at most 1", err);
    if (e->rule != PS_ENTRY_SHOW_CLICK) return within(b, 0, 0) ? PS_OK : bad_number(e, b, "one number", err);
    if (within(a, 0, PS_ENTRY_MOST) && within(b, 0, PS_ENTRY_MOST)) return PS_OK;
    return bad_number(e, within(a, 0, PS_ENTRY_MOST) ? b : a, "a number from 0 to 16777216", err);
}

uint32_t ps_entry_extra(const ps_entry *e) {
    return e->rule == PS_ENTRY_SHOW_CLICK ? 2 : 0;
}

int ps_entry_check_rows(const ps_entry *e, const uint64_t *keys, const float *rows, size_t width, size_t n,
                        ps_err *err) {
    for (size_t i = 0; e->rule == PS_ENTRY_SHOW_CLICK && i < n; i++, rows += width)
        if (!within(rows[0], 0, PS_ENTRY_MOST) || !within(rows[1], 0, PS_ENTRY_MOST))
            return ps_fail(err, PS_EINVAL, 0, "key %llu: %g shows and %g clicks, expected 0 to 16777216",
                           (unsigned long long)keys[i], (double)rows[0], (double)rows[1]);
    return PS_OK;
}

static float get_score(const ps_entry *e, const ps_counts *c) {
    if (e->rule != PS_ENTRY_SHOW_CLICK) return c->shows;
    return (c->shows - c->clicks) * e->numbers[1] + c->clicks;
}

bool ps_entry_waits(const ps_entry *e) {
    return e->rule == PS_ENTRY_COUNT || e->rule == PS_ENTRY_SHOW_CLICK;
}

/* Return a number from 0 to 1, less than 1, that hangs on the arguments alone. */
static float draw(const ps_init *init, uint64_t key, uint64_t step) {
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t base = ps_mix64(ps_mix64(init->seed + golden) ^ init->table);
    return (float)(ps_mix64(ps_mix64(base ^ key) ^ (step * golden)) >> 40) * 0x1p-24F;
}

bool ps_entry_admits(const ps_entry *e, const ps_init *init, uint64_t key, uint64_t step,
                     const ps_counts *c) {
    if (e->rule == PS_ENTRY_PROBABILITY) return draw(init, key, step) < e->numbers[0];
    return get_score(e, c) >= e->numbers[0];
}

ps_counts ps_entry_start(const ps_entry *e) {
    ps_counts c = {.shows = e->rule == PS_ENTRY_PROBABILITY ? 1 : e->numbers[0]};
    if (e->rule == PS_ENTRY_SHOW_CLICK) c.clicks = c.shows;
    return c;
}

int ps_shrink_check(const ps_shrink *s, ps_err *err) {
    if (!within(s->decay, 0, 1))
        return ps_fail(err, PS_EINVAL, 0, "decay %g, expected 0 to 1", (double)s->decay);
    if (!within(s->score, 0, PS_ENTRY_MOST))
        return ps_fail(err, PS_EINVAL, 0, "score %g, expected 0 to 16777216", (double)s->score);
    return PS_OK;
}

bool ps_shrink_key(const ps_shrink *s, const ps_entry *e, ps_counts *c) {
    c->shows *= s->decay;
    c->clicks *= s->decay;
    uint32_t days = c->unseen++;
    return get_score(e, c) < s->score || (s->unseen > 0 && days > s->unseen);
}
