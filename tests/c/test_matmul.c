#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "kernels/ps_matmul.h"

static const ps_isa builds[] = {PS_ISA_BASE, PS_ISA_AVX2, PS_ISA_AVX512};

static float *some_floats(size_t n) {
    float *p = malloc(n * sizeof *p + 1); /* its own block: a step past the end is seen */
    CHECK(p != NULL);
    for (size_t i = 0; i < n; i++) p[i] = (float)(int)(harness_random() % 2001) / 1000 - 1;
    return p;
}

static float at(ps_matrix m, size_t i, size_t j) {
    return m.at[(ptrdiff_t)i * m.row + (ptrdiff_t)j * m.col];
}

/* A matrix of its own, in one of four forms: dense, transposed, cut out of a wider one, backwards. */
static ps_matrix some_matrix(size_t rows, size_t cols, unsigned form, float **memory) {
    size_t pad = form == 2 ? 3 : 0, n = form == 1 ? rows : cols + pad;
    *memory = some_floats(form == 1 ? cols * rows : rows * n);
    if (form == 1) return (ps_matrix){*memory, 1, (ptrdiff_t)rows};
    if (form == 3 && rows * cols > 0) return (ps_matrix){*memory + rows * cols - 1, -(ptrdiff_t)n, -1};
    return (ps_matrix){*memory, (ptrdiff_t)n, 1};
}

/* What the header says: one chain of fused multiply-adds for each result. */
static void chain(const ps_product *p, float *out) {
    for (size_t i = 0; i < p->m; i++)
        for (size_t j = 0; j < p->n; j++) {
            float sum = p->start.at == NULL ? 0 : at(p->start, i, j);
            for (size_t k = 0; k < p->k; k++) sum = fmaf(at(p->a, i, k), at(p->b, k, j), sum);
            out[i * p->n + j] = sum;
        }
}

static void check_builds(ps_product p, const float *expected, size_t n) {
    float *out = malloc(n * sizeof *out + 1), *start = p.start.at;
    p.out = (ps_matrix){out, (ptrdiff_t)p.n, 1};
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        for (unsigned threads = 1; threads <= 3; threads++) {
            ps_build_choose(builds[i]);
            memset(out, 0xff, n * sizeof *out);
            CHECK(ps_matmul(&p, threads, NULL) == PS_OK);
            CHECK(memcmp(out, expected, n * sizeof *out) == 0);
            if (start == NULL || p.start.row == 0) continue;
            memcpy(out, start, n * sizeof *out); /* in place */
            p.start.at = out;
            CHECK(ps_matmul(&p, threads, NULL) == PS_OK);
            CHECK(memcmp(out, expected, n * sizeof *out) == 0);
            p.start.at = start;
        }
    ps_build_choose(PS_ISA_BEST);
    free(out);
}

static void check(size_t m, size_t n, size_t k, unsigned form) {
    float *memory[3];
    ps_product p = {.m = m, .n = n, .k = k};
    p.a = some_matrix(m, k, form & 3, &memory[0]);
    p.b = some_matrix(k, n, form >> 2 & 3, &memory[1]);
    memory[2] = some_floats(m * n);
    float *expected = malloc(m * n * sizeof *expected + 1);
    for (int start = 0; start < 3; start++) {
        if (start > 0) p.start = (ps_matrix){memory[2], start == 1 ? 0 : (ptrdiff_t)n, 1};
        chain(&p, expected);
        check_builds(p, expected, m * n);
    }
    free(memory[0]), free(memory[1]), free(memory[2]), free(expected);
}

TEST(matmul_is_one_chain_for_each_result_in_every_build) {
    for (unsigned form = 0; form < 16; form++) check(15, 33, 5, form);
    for (size_t m = 0; m < 20; m++) check(m, 17 + m, 3, (unsigned)m & 15);
    for (size_t n = 0; n < 70; n += 3) check(13, n, n / 2, (unsigned)n & 15);
}

TEST(matmul_of_any_height_and_width_is_one_chain_for_each_result) {
    const size_t widths[] = {1, 16, 17, 49, 81};
    for (size_t m = 1; m < 33; m += 1 + m / 3) check(m, widths[m % 5], 8 + m % 3, (unsigned)(m * 7) & 15);
}

TEST(matmul_of_many_blocks_is_one_chain_for_each_result) {
    check(29, 300, 600, 0);  /* several blocks of columns and links, and threads that divide columns */
    check(1030, 3, 300, 0);  /* several blocks of rows, transposed */
    check(1030, 40, 260, 5); /* both */
    check(600, 1, 257, 2);
    check(70, 2, 300, 4); /* a few columns, of rows and of columns that are dense */
    check(70, 2, 300, 1);
    check(1010, 20, 9, 0); /* a few rows in the last block */
    check(70, 16, 260, 1); /* rows that are read once, dense */
}

TEST(matmul_without_links_is_its_start) {
    float start[2] = {1, 2}, out[6] = {9, 9, 9, 9, 9, 9}, zero[6] = {0};
    ps_product p = {.m = 3, .n = 2, .a = {start, 1, 1}, .b = {start, 1, 1}, .out = {out, 2, 1}};
    CHECK(ps_matmul(&p, 1, NULL) == PS_OK && memcmp(out, zero, sizeof zero) == 0);
    p.start = (ps_matrix){start, 0, 1};
    CHECK(ps_matmul(&p, 1, NULL) == PS_OK && out[0] == 1 && out[3] == 2 && out[5] == 2);
}

static void mark(void *job, unsigned part, unsigned parts, float *scratch) {
    _Atomic unsigned *seen = job;
    scratch[0] = (float)parts;
    seen[part]++;
}

TEST(compute_runs_every_part_once_for_any_number_of_threads) {
    static _Atomic unsigned seen[32];
    for (unsigned round = 1; round < 200; round++) {
        unsigned parts = 1 + (unsigned)(harness_random() % 8);
        unsigned before[32];
        for (int i = 0; i < 32; i++) before[i] = seen[i];
        CHECK(ps_compute(parts, 16, mark, seen, NULL) == PS_OK);
        for (unsigned i = 0; i < 32; i++) CHECK(seen[i] - before[i] == (i < parts));
    }
}

TEST(compute_without_memory_runs_nothing) {
    static _Atomic unsigned seen[2];
    ps_err err;
    harness_fail_alloc(1);
    CHECK(ps_compute(1, 50 << 20, mark, seen, &err) == PS_ENOMEM && seen[0] == 0);
    CHECK(harness_fail_alloc(0));
}

TEST(parts_cover_all_items) {
    for (size_t n = 0; n < 50; n++)
        for (unsigned parts = 1; parts < 8; parts++) {
            CHECK(ps_part_begin(n, 0, parts) == 0 && ps_part_begin(n, parts, parts) == n);
            for (unsigned i = 0; i < parts; i++)
                CHECK(ps_part_begin(n, i, parts) <= ps_part_begin(n, i + 1, parts));
        }
    CHECK(ps_parts(100, 10, 4) == 4 && ps_parts(25, 10, 4) == 2 && ps_parts(0, 10, 4) == 1);
}
