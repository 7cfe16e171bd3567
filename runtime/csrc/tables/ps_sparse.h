/* A sparse table: rows of values by 64-bit key, made when first pushed or set. Knows no
 * sockets and no Python. One thread at a time. Bits do not depend on the order of rows' creation
 * or of keys in a push: only on the order in which gradients of one key were added. */
#ifndef PS_SPARSE_H
#define PS_SPARSE_H

#include <stdint.h>

#include "tables/ps_entry.h"
#include "base/ps_err.h"
#include "tables/ps_init.h"
#include "kernels/ps_optim.h"
#include "tables/ps_pool.h"

#define PS_SPARSE_MAX_DIM (UINT32_C(1) << 20) /* values in a row */
#define PS_SPARSE_MAX_ROWS PS_POOL_MOST       /* rows in a table */

typedef struct ps_sparse ps_sparse;

/* Make a table without rows in *out, owned by the caller, with copies of `optim`, `init` and `admit` (NULL:
 * any key gets a row). based: each row has a base behind the optimizer's state, [dim], 0 at first. Returns
 * PS_OK, PS_EINVAL (dim not in 1..PS_SPARSE_MAX_DIM, or a failed check of one of them) or PS_ENOMEM; then
 * *out is NULL. */
int ps_sparse_new(ps_sparse **out, uint32_t dim, const ps_optim *optim, const ps_init *init,
                  const ps_entry *admit, bool based, ps_err *err);

/* Replace the initial values of rows that are not there yet. Can't fail. */
void ps_sparse_start(ps_sparse *t, const ps_init *init);

/* Return the initial values of rows. */
ps_init ps_sparse_init(const ps_sparse *t);

/* Release `t` and all its rows. NULL is allowed. Can't fail. */
void ps_sparse_free(ps_sparse *t);

/* Set out: [n, dim] to the rows of `keys`, in their order; missing rows give their initial values and
 * are not made. During a step, gives the values before it. Where the rows are is remembered, so that soon a
 * push of the same keys is faster. Can't fail. */
void ps_sparse_read(ps_sparse *t, const uint64_t *keys, size_t n, float *out);

/* Set sorted: [n], another array, to the keys without a row, in order, then the others. Returns the number of
 * the former. Can't fail. */
size_t ps_sparse_missing(const ps_sparse *t, const uint64_t *keys, size_t n, uint64_t *sorted);

/* Set keys: [n] and out: [n, dim] to the first n rows: (base - values) / share. Can't fail. */
void ps_sparse_changes(const ps_sparse *t, float share, size_t n, uint64_t *keys, float *out);

/* Add grads: [n, dim] to the step's sum, in order; keys may repeat. The first gradient of a key in a
 * step is copied, others are added to it. Missing rows are made; in a table with an entry rule only those
 * that it admits, and gradients of other keys are only counted. With PS_ENTRY_SHOW_CLICK grads is [n, 2 +
 * dim]: shows and clicks come first. Returns PS_OK, PS_ENOMEM or PS_ELIMIT (PS_SPARSE_MAX_ROWS); then the
 * table's rows and sum are unchanged. O(n * dim) amortized. */
int ps_sparse_add(ps_sparse *t, const uint64_t *keys, const float *grads, size_t n, ps_err *err);

/* Note the learning rate and the number of the step to which the next gradients belong. Can't fail. */
void ps_sparse_begin(ps_sparse *t, float learning_rate, uint64_t step);

/* End this step, counted from 1: apply the optimizer to every row in the sum, and clear the sum. */
void ps_sparse_commit(ps_sparse *t, uint64_t step);

/* Do one step, as ps_sparse_add() and ps_sparse_commit() do, if keys do not repeat; of those that do, each
 * gradient is applied. No gradient may be in the sum. Errors as ps_sparse_add(). */
int ps_sparse_learn(ps_sparse *t, uint64_t step, const uint64_t *keys, const float *grads, size_t n,
                    ps_err *err);

/* Set the rows of `keys`, in order, as ps_sparse_kept() gives them: rows: [n, width], values and, if width is
 * that of all floats of a row, the others; else the optimizer's state of existing rows stays, and a base gets
 * the values too. Missing rows are made; rows NULL: the keys are only counted. counts: [n], or NULL. The
 * step's sum stays. Errors as ps_sparse_add(). */
int ps_sparse_load(ps_sparse *t, const uint64_t *keys, const float *rows, size_t width,
                   const ps_counts *counts, size_t n, ps_err *err);

/* Decay the counts of all keys, and give back the rows of those that go. No gradient may be in the sum, and
 * the table has an entry rule. Returns the number of these rows. Memory stays for other keys. Can't fail. */
size_t ps_sparse_shrink(ps_sparse *t, const ps_shrink *how);

/* Forget all rows and waiting keys, none of which may be kept or in the sum. Memory stays for others. Can't
 * fail. */
void ps_sparse_clear(ps_sparse *t);

/* A row, or a key that only waits; borrowed until the table is changed. */
typedef struct ps_row {
    const void *key;         /* 8 bytes, little endian */
    const float *values;     /* then the optimizer's state slot by slot; of a waiting key none */
    const ps_counts *counts; /* with an entry rule; else undefined */
} ps_row;

/* Keep all rows and waiting keys as they are now for ps_sparse_kept(), until ps_sparse_forget(): the table
 * may change meanwhile. PS_OK or PS_ENOMEM. */
int ps_sparse_keep(ps_sparse *t, ps_err *err);

/* Keep likewise, of the rows alone, those that have changed since the call before; *all: all rows, as at the
 * first call, and if rows were given back meanwhile. *rows: their number. PS_OK or PS_ENOMEM. */
int ps_sparse_keep_changed(ps_sparse *t, bool *all, size_t *rows, ps_err *err);

/* Release what was kept. Returns false if there was no memory to keep a row that has changed. */
bool ps_sparse_forget(ps_sparse *t);

/* Find the next kept row, or waiting key, above `number`; where nothing is kept, as it is now. `last`: those
 * before it are not needed any more. Returns false after the last. */
bool ps_sparse_kept(const ps_sparse *t, bool waiting, bool last, uint32_t *number, ps_row *row);

/* Return the number of rows. */
size_t ps_sparse_rows(const ps_sparse *t);

/* Return the number of keys without a row that are counted. */
size_t ps_sparse_waiting(const ps_sparse *t);

#endif
