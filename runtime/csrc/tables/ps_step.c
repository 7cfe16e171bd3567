#include "tables/ps_step.h"

#include <stdlib.h>
#include <string.h>

int ps_step_init(ps_step *s, uint32_t n, ps_err *err) {
    *s = (ps_step){.n = n};
    s->part = calloc(n, sizeof *s->part);
    s->waiter = calloc(n, sizeof *s->waiter);
    s->flags = calloc(n, sizeof *s->flags);
    if (s->part != NULL && s->waiter != NULL && s->flags != NULL) return PS_OK;
    ps_step_close(s);
    return ps_fail(err, PS_ENOMEM, 0, "a step of %u trainers", n);
}

void ps_step_close(ps_step *s) {
    free(s->part);
    free(s->waiter);
    free(s->flags);
    *s = (ps_step){0};
}

uint32_t ps_step_turn(ps_step *s, const uint8_t *ended) {
    while (s->next < s->n) {
        uint8_t part = s->part[s->next];
        if (part != PS_PART_DONE && !(part == PS_PART_NONE && ended[s->next])) break;
        s->next++;
    }
    return s->next;
}

bool ps_step_last(ps_step *s, const uint8_t *ended, uint32_t trainer) {
    if (ps_step_turn(s, ended) != trainer) return false;
    for (uint32_t t = trainer + 1; t < s->n; t++)
        if (!ended[t] || s->part[t] != PS_PART_NONE) return false;
    return true;
}

bool ps_step_open(const ps_step *s) {
    for (uint32_t t = 0; t < s->n; t++)
        if (s->part[t] != PS_PART_NONE) return true;
    return false;
}

void ps_step_commit(ps_step *s) {
    memset(s->part, PS_PART_NONE, s->n);
    s->next = 0;
    s->version++;
}
