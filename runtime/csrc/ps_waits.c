/* Who waits for whom on a shard, in words. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps_serve.h"

static int name_missing(const ps_shard *s, const uint8_t *missing, const char *what, uint32_t *trainer,
                        char *text, size_t size) {
    int used = snprintf(text, size, "%s waits for trainer", what), found = 0;
    for (uint32_t t = 0; t < s->config.trainers && used > 0 && (size_t)used + 16 < size; t++) {
        if (!missing[t]) continue;
        if (found == 0) *trainer = t;
        used += snprintf(text + used, size - (size_t)used, found ? ", %u" : " %u", t);
        found = 1;
    }
    return found;
}

static int step_waiting(const ps_shard *s, const ps_step *st, uint8_t *missing, uint32_t *trainer, char *text,
                        size_t size) {
    char what[64];
    if (!ps_step_open(st)) return 0;
    for (uint32_t t = 0; t < st->n; t++)
        missing[t] = st->part[t] < PS_PART_WHOLE && !s->ended[t] && !s->peers[t].paused;
    snprintf(what, sizeof what, "step %" PRIu64, st->version + 1);
    return name_missing(s, missing, what, trainer, text, size);
}

static bool any(const uint64_t *waits, uint32_t n) {
    for (uint32_t t = 0; t < n; t++)
        if (waits[t] != 0) return true;
    return false;
}

static int other_waiting(const ps_shard *s, uint8_t *missing, uint32_t *trainer, char *text, size_t size) {
    uint32_t n = s->config.trainers;
    for (uint32_t i = 0; i < s->objects_n; i++) {
        if (!any(s->objects[i]->init_waits, n)) continue;
        memset(missing, 0, n);
        missing[0] = 1;
        return name_missing(s, missing, "the initial value of parameters", trainer, text, size);
    }
    bool pass = any(s->pass_waits, n);
    if (!pass && !any(s->barrier_waits, n)) return 0;
    for (uint32_t t = 0; t < n; t++) missing[t] = !s->finished[t] && !(pass ? s->ended[t] : s->at_barrier[t]);
    return name_missing(s, missing, pass ? "the end of the pass" : "the barrier", trainer, text, size);
}

int ps_serve_waiting(ps_shard *s, uint32_t *trainer, char *text, size_t size) {
    uint8_t *missing = calloc(s->config.trainers, 1);
    int found = 0;
    for (uint32_t i = 0; missing != NULL && i < s->objects_n && !found; i++)
        found = step_waiting(s, &s->objects[i]->step, missing, trainer, text, size);
    if (missing != NULL && !found) found = other_waiting(s, missing, trainer, text, size);
    free(missing);
    return found;
}
