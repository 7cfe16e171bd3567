/* What a shard counts: words of its owner, who reads them at any time, without a message or a lock. The
 * shard's thread alone writes them. Each is whole at any time; two need not be of one moment. */
#ifndef PS_COUNTERS_H
#define PS_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

/* Of the shard, a trainer, an object, as in counters.py. AT: by the monotonic clock, 0: never. */
enum { PS_S_OBJECTS, PS_S_PASSES, PS_S_HELD_BYTES, PS_S_CUTS, PS_S_LOST_CUTS, PS_S_CUT_AT };
enum { PS_T_IN_BYTES, PS_T_OUT_BYTES, PS_T_WAITS_FOR_TURN, PS_T_WAITED_MS, PS_T_WAIT_AT, PS_T_DROPPED };
enum { PS_O_UPDATES, PS_O_UPDATE_AT, PS_O_ROWS, PS_O_KEYS, PS_O_BYTES, PS_O_DROPPED, PS_O_PUSHES, PS_O_AGES };
#define PS_COUNTERS 8 /* words of each: a cache line */

typedef _Atomic uint64_t ps_counter;

/* Set a word. */
static inline void ps_counter_set(ps_counter *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_relaxed);
}

/* Return a word; any thread may. */
static inline uint64_t ps_counter_get(const ps_counter *word) {
    return atomic_load_explicit(word, memory_order_relaxed);
}

/* Add to a word, as cheaply as to any other: only this thread writes it. */
static inline void ps_counter_add(ps_counter *word, uint64_t n) {
    ps_counter_set(word, ps_counter_get(word) + n);
}

#endif
