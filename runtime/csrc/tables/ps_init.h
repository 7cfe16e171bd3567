/* Initial values that depend on (seed, table, key, column) alone: the same bits for every reader on
 * every machine. Only integer hashing and exact float operations, except for the one
 * product and the one sum at the end; no libm. tests/support/reference.py specifies it in numpy. */
#ifndef PS_INIT_H
#define PS_INIT_H

#include <stddef.h>
#include <stdint.h>

#include "base/ps_err.h"

/* LATE is added to one of the others: a row is zeros until the end of the step that makes it. */
enum { PS_INIT_NORMAL = 0, PS_INIT_UNIFORM = 1, PS_INIT_LATE = 2, PS_INIT_KINDS = 4 };

/* Initial distribution of one parameter's values. std 0: all are `mean`. */
typedef struct ps_init {
    uint64_t seed;  /* the job's */
    uint64_t table; /* ps_table_id() of the parameter's name */
    uint32_t kind;  /* PS_INIT_NORMAL, or PS_INIT_UNIFORM: in (mean - std, mean + std); or late */
    float mean, std;
} ps_init;

/* Check `init`: PS_OK, or PS_EINVAL if the kind is unknown, mean or std is not finite, or std is negative. */
int ps_init_check(const ps_init *init, ps_err *err);

/* Set row[0..dim) to the initial values of the row `key`. `init` has passed ps_init_check(). Can't fail. */
void ps_init_row(const ps_init *init, uint64_t key, float *row, size_t dim);

/* Set row[0..dim) likewise to the values that a late row gets. */
void ps_init_new_row(const ps_init *init, uint64_t key, float *row, size_t dim);

/* Return the 64-bit FNV-1a of name[0..n), UTF-8. */
uint64_t ps_table_id(const void *name, size_t n);

/* Return the FNV-1a of bytes[0..n) behind those that gave `hash`. */
uint64_t ps_hash_more(uint64_t hash, const void *bytes, size_t n);

/* Hash 64 bits one to one: the finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014). */
static inline uint64_t ps_mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Return the hash of a key that gives its shard, by the upper half, and its place in a reader's index. */
static inline uint64_t ps_key_hash(uint64_t key) {
    return ps_mix64(key + UINT64_C(0x9e3779b97f4a7c15));
}

#endif
