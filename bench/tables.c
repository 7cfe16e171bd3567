/* A table that grows, in the C core alone: pushes so many keys, 1,000 at a time, in random order, and prints
   the slowest push in seconds of its thread, the median push, and the bytes of the table. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tables/ps_sparse.h"

enum { PUSH = 1000 };

static void check(int ok, const char *name) {
    if (ok) return;
    fprintf(stderr, "%s failed\n", name);
    exit(1);
}

/* Return the time of this thread: others on the processor do not count. */
static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static size_t count_allocated(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void grow(uint32_t dim, size_t rows) {
    const ps_optim optim = {.method = PS_ADAGRAD, .learning_rate = 0.1F, .numbers = {1e-6F}};
    const ps_init init = {.seed = 1, .table = 1, .kind = PS_INIT_NORMAL, .std = 0.1F};
    size_t pushes = rows / PUSH;
    double *times = malloc((pushes + 1) * sizeof *times);
    float *grads = calloc((size_t)PUSH * dim, sizeof *grads);
    uint64_t keys[PUSH];
    ps_sparse *t;
    ps_err err;
    check(times != NULL && grads != NULL, "malloc");
    size_t before = count_allocated();
    check(ps_sparse_new(&t, dim, &optim, &init, NULL, false, &err) == PS_OK, "ps_sparse_new");
    for (size_t i = 0; i < pushes; i++) {
        for (size_t k = 0; k < PUSH; k++) keys[k] = ps_mix64(i * PUSH + k);
        double begin = now_s();
        check(ps_sparse_add(t, keys, grads, PUSH, &err) == PS_OK, "ps_sparse_add");
        ps_sparse_commit(t, i + 1);
        times[i] = now_s() - begin;
    }
    qsort(times, pushes, sizeof *times, compare);
    printf("%.9f %.9f %zu\n", times[pushes - 1], times[pushes / 2], count_allocated() - before);
    ps_sparse_free(t);
    free(times);
    free(grads);
}

int main(int argc, char **argv) {
    size_t rows = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (rows < PUSH) {
        fprintf(stderr, "usage: tables DIM ROWS, with at least 1000 rows\n");
        return 2;
    }
    grow((uint32_t)strtoul(argv[1], NULL, 10), rows);
    return 0;
}
