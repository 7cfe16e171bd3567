#include "tables/ps_pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/ps_room.h"

enum { SLAB_BYTES = 1 << 20, LINE = 64 }; /* a slab has at least one item; untouched pages cost nothing */

static size_t slab_bytes(const ps_pool *p) {
    size_t bytes = (p->floats * sizeof(float) + p->head_words * sizeof(uint32_t)) << p->shift;
    return (bytes + LINE - 1) / LINE * LINE;
}

void ps_pool_init(ps_pool *p, size_t floats, size_t head_words) {
    *p = (ps_pool){.floats = floats, .head_words = head_words};
    while (slab_bytes(p) * 2 <= SLAB_BYTES) p->shift++;
}

static void forget_changes(ps_pool *p) {
    free(p->changed.words);
    p->changed = (ps_bits){0};
}

void ps_pool_close(ps_pool *p) {
    ps_keep_end(&p->keep);
    forget_changes(p);
    for (size_t i = 0; i < p->slabs_n; i++) free(p->slabs[i]);
    free(p->slabs);
    *p = (ps_pool){0};
}

void ps_pool_clear(ps_pool *p) {
    forget_changes(p);
    p->made = p->live = p->free = 0;
}

int ps_pool_reserve(ps_pool *p, size_t more, ps_err *err) {
    size_t items = p->live + more, need = items == 0 ? 0 : ((items - 1) >> p->shift) + 1;
    if (items > PS_POOL_MOST)
        return ps_fail(err, PS_ELIMIT, 0, "sparse table: more than %u rows", PS_POOL_MOST);
    bool room = ps_room(&p->slabs, need, &p->slabs_cap, sizeof *p->slabs);
    while (room && p->slabs_n < need) {
        float *slab = aligned_alloc(LINE, slab_bytes(p));
        if ((room = slab != NULL)) p->slabs[p->slabs_n++] = slab;
    }
    if (room) return PS_OK;
    return ps_fail(err, PS_ENOMEM, 0, "sparse table: %zu rows of %zu floats", items, p->floats);
}

static bool has(const ps_bits *b, size_t number) {
    return number > b->n || (b->words[number / 64] >> (number % 64) & 1) != 0;
}

static void note(ps_bits *b, uint32_t number) {
    if (has(b, number)) return;
    b->words[number / 64] |= UINT64_C(1) << (number % 64);
    b->set++;
}

/* Return the first of the items from `i` on that has its bit. */
static uint32_t next_set(const ps_bits *b, uint32_t i) {
    while (!has(b, i)) i = b->words[i / 64] >> (i % 64) == 0 ? (i | 63) + 1 : i + 1;
    return i;
}

uint32_t ps_pool_take(ps_pool *p) {
    uint32_t number = p->free;
    p->live++;
    note(&p->changed, number == 0 ? (uint32_t)++p->made : number);
    if (number == 0) return (uint32_t)p->made;
    p->free = ps_pool_head(p, number)[1];
    ps_keep *k = p->keep;
    if (k != NULL && number <= k->n && k->place[number] == 0) k->place[number] = PS_KEEP_ABSENT;
    return number;
}

void ps_pool_give_back(ps_pool *p, uint32_t number) {
    uint32_t *head = ps_pool_head(p, number);
    ps_pool_change(p, number);
    forget_changes(p);
    head[0] = PS_POOL_FREE;
    head[1] = p->free;
    p->free = number;
    p->live--;
}

int ps_pool_keep(ps_pool *p, ps_err *err) {
    int rc = ps_keep_new(&p->keep, p->made, p->floats, p->head_words, err);
    if (rc == PS_OK) p->keep->count = p->live;
    return rc;
}

int ps_pool_keep_changed(ps_pool *p, bool all, ps_err *err) {
    int rc = ps_pool_keep(p, err);
    if (rc < 0) return rc;
    ps_bits *only = &p->keep->only;
    if (all) forget_changes(p);
    *only = p->changed;
    if (only->n > 0) p->keep->count = only->set + (p->made > only->n ? p->made - only->n : 0);
    p->changed = (ps_bits){.n = (uint32_t)p->made | 63};
    p->changed.words = calloc(p->changed.n / 64 + 1, sizeof *only->words);
    if (p->changed.words != NULL) return PS_OK;
    p->changed.n = 0;
    return ps_fail(err, PS_ENOMEM, 0, "bits of %zu items", p->made);
}

void ps_pool_change(ps_pool *p, uint32_t number) {
    note(&p->changed, number);
    uint32_t copy = p->keep == NULL ? 0 : ps_keep_take(p->keep, number);
    if (copy == 0) return;
    memcpy(ps_pool_head(&p->keep->copies, copy), ps_pool_head(p, number), p->head_words * sizeof(uint32_t));
    if (p->floats > 0)
        memcpy(ps_pool_item(&p->keep->copies, copy), ps_pool_item(p, number), p->floats * sizeof(float));
}

bool ps_pool_kept(const ps_pool *p, bool last, uint32_t *number, const float **item, const uint32_t **head) {
    ps_keep now = {.n = (uint32_t)p->made}, *k = p->keep == NULL ? &now : p->keep;
    for (uint32_t i = *number; (i = next_set(&k->only, i + 1)) <= k->n;) {
        uint32_t place = k->place == NULL ? 0 : k->place[i], at = place == 0 ? i : place;
        const ps_pool *from = place == 0 ? p : &k->copies;
        if (place == PS_KEEP_ABSENT || ps_pool_head(from, at)[0] == PS_POOL_FREE) continue;
        if (last) k->passed = i - 1;
        *number = i;
        *item = ps_pool_item(from, at);
        *head = ps_pool_head(from, at);
        return true;
    }
    return false;
}

int ps_keep_new(ps_keep **out, size_t n, size_t floats, size_t head_words, ps_err *err) {
    ps_keep *k = *out = calloc(1, sizeof *k);
    if (k == NULL) return ps_fail(err, PS_ENOMEM, 0, "copies of %zu items", n);
    ps_pool_init(&k->copies, floats, head_words);
    k->n = (uint32_t)n; /* of a pool, or of a dense object of at most PS_MAX_DENSE_BYTES */
    k->place = calloc(n + 1, sizeof *k->place);
    if (k->place != NULL) return PS_OK;
    ps_keep_end(out);
    return ps_fail(err, PS_ENOMEM, 0, "copies of %zu items", n);
}

bool ps_keep_end(ps_keep **keep) {
    ps_keep *k = *keep;
    *keep = NULL;
    if (k == NULL) return true;
    bool whole = !k->failed;
    ps_pool_close(&k->copies);
    free(k->only.words);
    free(k->place);
    free(k);
    return whole;
}

uint32_t ps_keep_take(ps_keep *k, size_t number) {
    if (number > k->n || number <= k->passed || k->place[number] != 0 || k->failed) return 0;
    if (!has(&k->only, number)) return 0;
    k->failed = ps_pool_reserve(&k->copies, 1, NULL) < 0;
    return k->failed ? 0 : (k->place[number] = ps_pool_take(&k->copies));
}
