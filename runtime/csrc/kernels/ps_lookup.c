#include "kernels/ps_lookup.h"

#include <stdatomic.h>
#include <string.h>

enum {
    LEAST_IDS = 1 << 14,
    LEAST_FLOATS = 1 << 17,
    LEAST_COLS = 32
}; /* for a thread: fewer do not pay for it */

enum { COLS = 16 }; /* that are summed at a time */

/* Multiplied by an id, its upper bits scatter also ids that follow each other: 2^64 / golden ratio. */
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

/* At least 4 places for an id: probes hardly ever collide. */
static unsigned count_bits(size_t n) {
    unsigned bits = 4;
    while (((size_t)1 << bits) / 4 < n) bits++;
    return bits;
}

static size_t count_places(size_t n) {
    return (size_t)1 << count_bits(n);
}

/* Number the ids in the order of their first use. The table has places of first uses in `ids`, or free
 * entries; number: of the id at each of these places. Ids that are only read are fastest to compare: no load
 * waits for a store whose address is not known yet. Returns the number of different ids. */
static size_t number_ids(const int64_t *restrict ids, size_t n, uint32_t *restrict table,
                         uint32_t *restrict number, uint64_t *restrict keys, int64_t *restrict index) {
    unsigned bits = count_bits(n);
    size_t mask = count_places(n) - 1, k = 0;
    memset(table, 0xff, (mask + 1) * sizeof *table); /* free: above any place */
    for (uint32_t i = 0; i < n; i++) {
        size_t at = (size_t)((uint64_t)ids[i] * GOLDEN >> (64 - bits));
        uint32_t place = table[at] < i ? table[at] : i;
        while (ids[place] != ids[i]) {
            at = (at + 1) & mask;
            place = table[at] < i ? table[at] : i;
        }
        table[at] = place;
        keys[k] = (uint64_t)ids[i];
        number[i] = (uint32_t)k;
        k += place == i;
        index[i] = number[place];
    }
    return k;
}

/* Those below have no sign, and their distance to the last row has none: any vector unit can tell. */
size_t ps_find_outside(const int64_t *ids, size_t n, uint64_t rows) {
    int64_t last = rows > INT64_MAX ? INT64_MAX : (int64_t)rows - 1, signs = 0;
    for (size_t i = 0; i < n; i++) signs |= ids[i] | (int64_t)((uint64_t)last - (uint64_t)ids[i]);
    size_t at = signs < 0 ? 0 : n;
    while (at < n && (uint64_t)ids[at] < rows) at++;
    return at;
}

/* scratch: a table of places, and the number of each id at its first use. */
static void look_up(ps_lookup *l, float *scratch) {
    uint32_t *table = (uint32_t *)(void *)scratch, *number = table + count_places(l->n);
    l->bad = l->rows == UINT64_MAX ? l->n : ps_find_outside(l->ids, l->n, l->rows);
    if (l->bad == l->n) l->k = number_ids(l->ids, l->n, table, number, l->keys, l->index);
}

typedef struct lookups {
    ps_lookup *of;
    size_t n;
} lookups;

static void run_lookups(void *job, unsigned part, unsigned parts, float *scratch) {
    const lookups *all = job;
    size_t end = ps_part_begin(all->n, part + 1, parts);
    for (size_t i = ps_part_begin(all->n, part, parts); i < end; i++) look_up(&all->of[i], scratch);
}

int ps_lookup_run(ps_lookup *of, size_t n, unsigned threads, ps_err *err) {
    size_t most = 0, total = 0;
    for (size_t i = 0; i < n; i++) {
        if (of[i].n > INT32_MAX) return ps_fail(err, PS_ELIMIT, 0, "%zu ids of a table in a batch", of[i].n);
        most = of[i].n > most ? of[i].n : most, total += of[i].n;
    }
    lookups job = {of, n};
    unsigned parts = ps_parts(total, LEAST_IDS, threads < n ? threads : (unsigned)n);
    return ps_compute(parts, count_places(most) + most, run_lookups, &job, err);
}

/* Rows of a table, and those of a batch. */
typedef struct move {
    const float *from;
    float *to;
    const int64_t *index;
    size_t n, rows, dim;
    const ps_bags *bags; /* NULL: a row of the batch for each index */
    ptrdiff_t stride;    /* of the batch's rows */
    atomic_bool outside;
} move;

/* Set *row to the i-th index. Checked when used: another thread of the program may write to it meanwhile. */
PS_INLINE bool get_row(move *m, size_t i, size_t *row) {
    *row = (size_t)m->index[i];
    if (*row < m->rows) return true;
    atomic_store(&m->outside, true);
    return false;
}

PS_INLINE void add_some(float *restrict to, const float *restrict from, float weight, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] += from[i] * weight;
}

/* As ps_copy(). */
PS_INLINE void add(float *restrict to, const float *restrict from, float weight, size_t dim) {
    for (; dim >= 8; dim -= 8, to += 8, from += 8) add_some(to, from, weight, 8);
    if (dim & 4) add_some(to, from, weight, 4), to += 4, from += 4;
    if (dim & 2) add_some(to, from, weight, 2), to += 2, from += 2;
    if (dim & 1) *to += *from * weight;
}

static size_t count_bags(const move *m) {
    return m->bags == NULL ? m->n : m->bags->n;
}

/* Return the place of a bag's first index, which is the end of the bag before; checked as in get_row(). */
PS_INLINE size_t get_begin(const move *m, size_t bag) {
    return m->bags == NULL ? bag : ps_least((size_t)m->bags->offsets[bag], m->n);
}

PS_INLINE float get_weight(const move *m, size_t i) {
    return m->bags == NULL || m->bags->weights == NULL ? 1.0F : m->bags->weights[i];
}

PS_INLINE bool is_blank(const move *m, size_t row) {
    return m->bags != NULL && (int64_t)row == m->bags->blank;
}

/* Sum up to COLS columns of a bag, in registers. */
PS_INLINE void pool(move *m, size_t bag, size_t at, size_t dim) {
    static const float zeros[COLS];
    float sum[COLS];
    size_t end = get_begin(m, bag + 1), row;
    ps_clear_sums(sum, dim);
    for (size_t i = get_begin(m, bag); i < end; i++)
        if (get_row(m, i, &row))
            add_some(sum, is_blank(m, row) ? zeros : m->from + row * m->dim + at, get_weight(m, i), dim);
    ps_copy(m->to + (ptrdiff_t)bag * m->stride + at, sum, dim);
}

/* A part has some rows of the batch. */
static void gather_part(void *job, unsigned part, unsigned parts, float *scratch PS_UNUSED) {
    move *m = job;
    size_t n = count_bags(m), end = ps_part_begin(n, part + 1, parts), at, row;
    for (size_t i = ps_part_begin(n, part, parts); i < end; i++) {
        if (m->bags != NULL) {
            for (at = 0; at + COLS <= m->dim; at += COLS) pool(m, i, at, COLS);
            if (at < m->dim) pool(m, i, at, m->dim - at);
        } else if (get_row(m, i, &row))
            ps_copy(m->to + (ptrdiff_t)i * m->stride, m->from + row * m->dim, m->dim);
    }
}

/* A part has some columns of all rows: frequent ids would make parts of equal numbers of ids unequal. */
static void add_part(void *job, unsigned part, unsigned parts, float *scratch PS_UNUSED) {
    move *m = job;
    size_t at = ps_part_begin(m->dim, part, parts), dim = ps_part_begin(m->dim, part + 1, parts) - at, row;
    for (size_t i = 0, bag = 0; bag < count_bags(m); bag++) {
        const float *from = m->from + (ptrdiff_t)bag * m->stride + at;
        for (size_t end = get_begin(m, bag + 1); i < end; i++)
            if (get_row(m, i, &row))
                add(m->to + row * m->dim + at, from, get_weight(m, i) * (is_blank(m, row) ? 0.0F : 1.0F),
                    dim);
    }
}

static int run_move(move *m, unsigned parts, ps_task task, ps_err *err) {
    int rc = ps_compute(parts, 0, task, m, err);
    if (rc != PS_OK || !m->outside) return rc;
    size_t at = ps_find_outside(m->index, m->n, m->rows);
    return ps_fail(err, PS_EINVAL, 0, "index[%zu]: expected a number below %zu", at, m->rows);
}

int ps_gather(const float *table, size_t rows, size_t dim, const int64_t *index, size_t n,
              const ps_bags *bags, float *out, ptrdiff_t stride, unsigned threads, ps_err *err) {
    move m = {table, out, index, n, rows, dim, bags, stride, false};
    return run_move(&m, ps_parts(n * dim, LEAST_FLOATS, threads), gather_part, err);
}

void ps_clear_sums(float *sum, size_t n) {
    for (size_t i = 0; i < n; i++) sum[i] = -0.0F;
}

int ps_add_rows(float *sum, size_t rows, size_t dim, const int64_t *index, size_t n, const ps_bags *bags,
                const float *from, ptrdiff_t stride, unsigned threads, ps_err *err) {
    move m = {from, sum, index, n, rows, dim, bags, stride, false};
    unsigned parts = ps_parts(n * dim, LEAST_FLOATS, threads), most = ps_parts(dim, LEAST_COLS, threads);
    return run_move(&m, parts < most ? parts : most, add_part, err);
}
