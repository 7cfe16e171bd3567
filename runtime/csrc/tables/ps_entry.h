/* Entry rules of tables: the keys that get a row, and those that lose it again. Pure.
 *
 * A table with a rule counts, for each key, its shows and clicks, and the days since it was pushed last;
 * the list of rules below says when a key gets its row. The score of a key is the number of its shows; of
 * PS_ENTRY_SHOW_CLICK it is (shows - clicks) * numbers[1] + clicks. Gradients of a key without a row are not
 * used.
 *
 * Sources: PaddlePaddle 2, python/paddle/distributed/entry_attr.py and
 * paddle/fluid/distributed/ps/table/ctr_accessor.cc (scores, shrink); McMahan et al., KDD 2013, section 4.1
 * (inclusion by probability). There a push has the number of the key's uses in its batch, and probabilities
 * are drawn from the clock. */
#ifndef PS_ENTRY_H
#define PS_ENTRY_H

#include "tables/ps_init.h"

enum {
    /* A row with the first push; nothing is counted. */
    PS_ENTRY_ANY = 0,
    /* Every push of the key is a show; a row from numbers[0] shows on. */
    PS_ENTRY_COUNT = 1,
    /* A row with probability numbers[0] in each step that pushes the key, drawn from seed, table, key and
     * step; then every push is a show. */
    PS_ENTRY_PROBABILITY = 2,
    /* A push says shows and clicks; a row from a score of numbers[0] on. */
    PS_ENTRY_SHOW_CLICK = 3,
    PS_ENTRIES = 4,
};

#define PS_ENTRY_MOST 16777216 /* numbers of a rule, and shows of a push: exact as floats */

typedef struct ps_entry {
    uint32_t rule; /* PS_ENTRY_ANY, ... */
    float numbers[2];
} ps_entry;

/* What a table counts of a key. */
typedef struct ps_counts {
    float shows, clicks;
    uint32_t unseen; /* times that the table has shrunk since its last push: days without it */
} ps_counts;

/* The end of a day, which decides which keys go: first shows and clicks are multiplied by `decay`; then keys
 * go with a score below `score`, or after more than `unseen` whole days without a push, if that is not 0. */
typedef struct ps_shrink {
    float decay, score;
    uint32_t unseen;
} ps_shrink; /* the body of SHRINK too, as it is in memory */

_Static_assert(sizeof(ps_shrink) == 12, "it is the body of SHRINK");

/* Return the name of a rule; NULL for an unknown one. */
const char *ps_entry_name(uint32_t rule);

/* Check a rule: PS_OK, or PS_EINVAL; the text names the number. */
int ps_entry_check(const ps_entry *e, ps_err *err);

/* Return the floats before each gradient of a push: 2, shows and clicks, or 0. */
uint32_t ps_entry_extra(const ps_entry *e);

/* Check shows and clicks of a push: rows [n, width] that begin with them. PS_OK or PS_EINVAL. */
int ps_entry_check_rows(const ps_entry *e, const uint64_t *keys, const float *rows, size_t width, size_t n,
                        ps_err *err);

/* Return true if keys are counted before they get a row. */
bool ps_entry_waits(const ps_entry *e);

/* Return true if a key with these counts gets its row in this step. */
bool ps_entry_admits(const ps_entry *e, const ps_init *init, uint64_t key, uint64_t step, const ps_counts *c);

/* Return the counts of a key whose row was set and not pushed: those with which it just gets a row. */
ps_counts ps_entry_start(const ps_entry *e);

/* Check the numbers: PS_OK, or PS_EINVAL; the text names one. */
int ps_shrink_check(const ps_shrink *s, ps_err *err);

/* Decay the counts of a key, and count the day. Returns true if it goes. */
bool ps_shrink_key(const ps_shrink *s, const ps_entry *e, ps_counts *c);

#endif
