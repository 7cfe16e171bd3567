/* Build and threads of the kernels that compute layers: ps_matmul and ps_act. Their bits depend on neither:
 * each result is computed by one thread, by the same operations in the same order. One computation runs
 * at a time in a process; a second caller waits for it. */
#ifndef PS_COMPUTE_H
#define PS_COMPUTE_H

#include <string.h>

#include "base/ps_cpu.h"
#include "base/ps_err.h"

enum { PS_MAX_THREADS = 1024 };

/* Return the lesser of two sizes. */
PS_INLINE size_t ps_least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Copy n floats of a short row, in pieces whose sizes the compiler knows. */
PS_INLINE void ps_copy(float *restrict to, const float *restrict from, size_t n) {
    for (; n >= 8; n -= 8, to += 8, from += 8) memcpy(to, from, 8 * sizeof *to);
    if (n & 4) memcpy(to, from, 4 * sizeof *to), to += 4, from += 4;
    if (n & 2) memcpy(to, from, 2 * sizeof *to), to += 2, from += 2;
    if (n & 1) *to = *from;
}

/* Part of a computation, of `parts` in all. scratch: this thread's memory, 64-byte aligned, any content. */
typedef void (*ps_task)(void *job, unsigned part, unsigned parts, float *scratch);

/* Run every part of `task` on up to PS_MAX_THREADS threads, this one among them, in IEEE mode, and wait for
 * all. The threads are kept for the next computation; what one that is late or can't be had would do, others
 * do. scratch: floats for each thread. Returns PS_OK, or PS_ENOMEM; then nothing has run. */
int ps_compute(unsigned parts, size_t scratch, ps_task task, void *job, ps_err *err);

/* Return the number of parts, 1 to `threads`, for `items` of equal size with at least `least` in each. */
unsigned ps_parts(size_t items, size_t least, unsigned threads);

/* Return the first of `n` items of a part; that of `part` + 1 is its end. */
size_t ps_part_begin(size_t n, unsigned part, unsigned parts);

/* Return the build in use: PS_ISA_BASE, PS_ISA_AVX2 (with FMA) or PS_ISA_AVX512. */
ps_isa ps_build(void);

/* Use the best build of this machine up to `isa` from now on: for tests. PS_ISA_BEST: as at first. */
void ps_build_choose(ps_isa isa);

/* Return the name of the build in use, for messages. */
const char *ps_build_name(void);

#endif
