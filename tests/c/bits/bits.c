/* Prints a digest of what each kernel computes: two builds with equal output give the same bits. Built
 * and compared for compilers and processors by tests/unit/csrc/test_builds.py. */
#include <stdio.h>
#include <string.h>

#include "kernels/ps_act.h"
#include "tables/ps_init.h"
#include "kernels/ps_lookup.h"
#include "kernels/ps_matmul.h"
#include "kernels/ps_optim.h"
#include "tables/ps_schedule.h"
#include "tables/ps_sparse.h"

enum { N = 10007, DIM = 17, KEYS = 300, STEPS = 5 };

static float value[N], slots[3 * N], grad[N];

/* 64-bit FNV-1a. A NaN is a NaN: its sign and payload are nobody's promise. */
static uint64_t digest(uint64_t hash, const float *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = 0x7fc00000;
        if (p[i] == p[i]) memcpy(&bits, &p[i], sizeof bits);
        for (int shift = 0; shift < 32; shift += 8)
            hash = (hash ^ ((bits >> shift) & 0xff)) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Every kind of float, the `wild` ones, subnormal and huge ones among them, or such as training has. */
static void fill(float *p, size_t n, uint64_t seed, int wild) {
    ps_init init = {.seed = seed, .kind = PS_INIT_NORMAL, .mean = 0, .std = 0.1F};
    if (!wild) {
        ps_init_row(&init, 0, p, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)ps_mix64(seed * 1000003 + i);
        if ((bits >> 23 & 0xff) == 0xff) bits ^= UINT32_C(1) << 30;
        memcpy(&p[i], &bits, sizeof bits);
    }
}

static void print(const char *kernel, uint32_t method, const char *inputs, uint64_t hash) {
    printf("%s %u %s %016llx\n", kernel, method, inputs, (unsigned long long)hash);
}

static ps_optim rule_of(uint32_t method, int full) {
    ps_optim o = {.method = method, .learning_rate = 0.1F, .l2 = 8e-4F};
    for (int i = 0; i < PS_NUMBERS; i++) o.numbers[i] = (float)ps_optim_method(method)->numbers[i].usual;
    if (full) o.l1 = 1e-3F, o.clip = 0.2F;
    return o;
}

static void dense(uint32_t method, int full, int wild) {
    ps_optim o = rule_of(method, full);
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    fill(value, N, 1, wild);
    memset(slots, 0, sizeof slots);
    for (uint64_t step = 0; step < STEPS; step++) {
        fill(grad, N, 2 + step, wild);
        ps_rate rate = ps_optim_rate(&o, step + 1);
        ps_optim_apply(&o, rate, value, slots, N, grad, N);
        ps_optim_finish(&o, rate, value, slots, N);
        hash = digest(digest(hash, value, N), slots, 3 * N);
    }
    print(full ? "full" : "optim", method, wild ? "wild" : "tame", hash);
}

static void rates(uint32_t kind) {
    ps_schedule s = {.kind = kind, .a = 0.3, .b = 1.7};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    if (kind == PS_MANUAL || kind == PS_PASS_MANUAL)
        s = (ps_schedule){.kind = kind, .segments_n = 2, .segments = {{N, 0.7}, {2 * N, 0.1}}};
    for (uint64_t i = 0; i < N; i++) value[i] = ps_schedule_rate(&s, 0.1F, i * i / 8, i);
    print("schedule", kind, "tame", digest(hash, value, N));
}

static void sums(int wild) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    fill(value, N, 1, wild);
    for (uint64_t step = 0; step < STEPS; step++) {
        fill(grad, N, 2 + step, wild);
        ps_add(value, grad, N);
        hash = digest(hash, value, N);
    }
    print("add", 0, wild ? "wild" : "tame", hash);
}

static void inits(uint32_t kind) {
    ps_init init = {
        .seed = 7, .table = ps_table_id("___embedding_0__.w0", 19), .kind = kind, .mean = 0.5F, .std = 0.3F};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint64_t key = 0; key < KEYS; key++) {
        ps_init_row(&init, ps_mix64(key), value, DIM);
        hash = digest(hash, value, DIM);
    }
    print("init", kind, "tame", hash);
}

static int table(uint32_t method, int full) {
    ps_optim o = rule_of(method, full);
    ps_init init = {.seed = 7, .table = 1, .kind = PS_INIT_NORMAL, .mean = 0, .std = 0.3F};
    uint64_t keys[KEYS], hash = UINT64_C(0xcbf29ce484222325);
    ps_err err;
    ps_sparse *t;
    if (ps_sparse_new(&t, DIM, &o, &init, NULL, false, &err) != PS_OK) return 1;
    for (uint64_t step = 0; step < STEPS; step++) {
        for (uint64_t i = 0; i < KEYS; i++) keys[i] = ps_mix64((i * (step + 1)) % 97); /* some twice */
        fill(grad, KEYS * DIM, 2 + step, 0);
        if (ps_sparse_add(t, keys, grad, KEYS, &err) != PS_OK) return 1;
        ps_sparse_commit(t, step + 1);
        ps_sparse_read(t, keys, KEYS, value);
        hash = digest(hash, value, KEYS * DIM);
    }
    ps_sparse_free(t);
    print("sparse", method, "tame", hash);
    return 0;
}

/* Ids of a batch, their rows, and the sums of their gradients. */
static int lookup(void) {
    int64_t ids[KEYS], index[KEYS];
    uint64_t keys[KEYS], hash = UINT64_C(0xcbf29ce484222325);
    for (uint64_t step = 0; step < STEPS; step++) {
        for (uint64_t i = 0; i < KEYS; i++) ids[i] = (int64_t)(ps_mix64(step * KEYS + i) % 97 << 40);
        ps_lookup one = {.ids = ids, .n = KEYS, .rows = UINT64_C(1) << 50, .keys = keys, .index = index};
        if (ps_lookup_run(&one, 1, 1, NULL) != PS_OK || one.bad != KEYS) return 1;
        fill(grad, KEYS * DIM, 2 + step, 0);
        ps_clear_sums(value, one.k * DIM);
        if (ps_add_rows(value, one.k, DIM, index, KEYS, NULL, grad, DIM, 1, NULL) != PS_OK) return 1;
        if (ps_gather(value, one.k, DIM, index, KEYS, NULL, slots, DIM, 1, NULL) != PS_OK) return 1;
        hash = digest(digest(hash, value, one.k * DIM), slots, KEYS * DIM);
    }
    print("lookup", 0, "tame", hash);
    return 0;
}

enum { SAMPLES = 40, CONTEXT = 4, EMBEDDING = 16, HIDDEN = 48, CLASSES = 90 };

/* Dense parameters of the word2vec example's network, smaller: weights and bias of the hidden layer, of the
 * words. */
enum {
    W1 = CONTEXT * EMBEDDING * HIDDEN,
    B1 = HIDDEN,
    W2 = HIDDEN * CLASSES,
    B2 = CLASSES,
    DENSE = W1 + B1 + W2 + B2
};

typedef struct word2vec {
    float dense[DENSE], slots[DENSE], grads[DENSE];
    ps_sparse *table;
    unsigned threads;
} word2vec;

static ps_matrix make_rows(float *at, size_t cols) {
    return (ps_matrix){at, (ptrdiff_t)cols, 1};
}

static ps_matrix transpose(float *at, size_t cols) {
    return (ps_matrix){at, 1, (ptrdiff_t)cols};
}

/* out [m, n] = start + a b. A bias has the row distance 0. */
static int multiply(const word2vec *net, size_t m, size_t n, size_t k, ps_matrix a, ps_matrix b,
                    ps_matrix start, float *out) {
    ps_product p = {m, n, k, a, b, start, make_rows(out, n)};
    return ps_matmul(&p, net->threads, NULL);
}

/* Run a computation of all samples. */
static int run_act(ps_act_op op, unsigned threads) {
    op.rows = SAMPLES;
    return ps_act_run(&op, threads, NULL);
}

/* Learn from a batch: ids [CONTEXT * SAMPLES], word by word, and labels. */
static int learn(word2vec *net, const int64_t *ids, const int64_t *labels, uint64_t step, float *cost) {
    static float rows[CLASSES * EMBEDDING], x[SAMPLES * CONTEXT * EMBEDDING], hidden[SAMPLES * HIDDEN],
        scores[SAMPLES * CLASSES], back[SAMPLES * HIDDEN], x_grad[SAMPLES * CONTEXT * EMBEDDING];
    enum { IDS = CONTEXT * SAMPLES, INPUT = CONTEXT * EMBEDDING };
    uint64_t keys[IDS];
    int64_t index[IDS];
    float *w1 = net->dense, *b1 = w1 + W1, *w2 = b1 + B1, *b2 = w2 + W2, *g = net->grads;
    unsigned threads = net->threads;
    ps_lookup l = {.ids = ids, .n = IDS, .rows = CLASSES, .keys = keys, .index = index};
    int rc = ps_lookup_run(&l, 1, threads, NULL);
    ps_sparse_read(net->table, keys, l.k, rows);
    for (size_t c = 0; c < CONTEXT; c++)
        rc |= ps_gather(rows, l.k, EMBEDDING, index + c * SAMPLES, SAMPLES, NULL, x + c * EMBEDDING, INPUT,
                        threads, NULL);
    rc |= multiply(net, SAMPLES, HIDDEN, INPUT, make_rows(x, INPUT), make_rows(w1, HIDDEN),
                   (ps_matrix){b1, 0, 1}, hidden);
    rc |= run_act((ps_act_op){.kind = PS_APPLY, .act = PS_SIGMOID, .cols = HIDDEN, .x = hidden}, threads);
    rc |= multiply(net, SAMPLES, CLASSES, HIDDEN, make_rows(hidden, HIDDEN), make_rows(w2, CLASSES),
                   (ps_matrix){b2, 0, 1}, scores);
    rc |= run_act(
        (ps_act_op){.kind = PS_CROSS_ENTROPY, .cols = CLASSES, .x = scores, .labels = labels, .out = cost},
        threads);
    for (size_t i = 0; i < SAMPLES; i++) scores[i * CLASSES + (size_t)labels[i]] -= 1;
    rc |= multiply(net, HIDDEN, CLASSES, SAMPLES, transpose(hidden, HIDDEN), make_rows(scores, CLASSES),
                   (ps_matrix){0}, g + W1 + B1);
    rc |= run_act((ps_act_op){.kind = PS_SUM_COLUMNS, .cols = CLASSES, .y = scores, .out = g + W1 + B1 + W2},
                  threads);
    rc |= multiply(net, SAMPLES, HIDDEN, CLASSES, make_rows(scores, CLASSES), transpose(w2, CLASSES),
                   (ps_matrix){0}, back);
    ps_act_op undo = {.kind = PS_UNDO, .act = PS_SIGMOID, .cols = HIDDEN, .y = hidden, .grad = back};
    undo.out = back;
    rc |= run_act(undo, threads);
    rc |= multiply(net, INPUT, HIDDEN, SAMPLES, transpose(x, INPUT), make_rows(back, HIDDEN), (ps_matrix){0},
                   g);
    rc |= run_act((ps_act_op){.kind = PS_SUM_COLUMNS, .cols = HIDDEN, .y = back, .out = g + W1}, threads);
    rc |= multiply(net, SAMPLES, INPUT, HIDDEN, make_rows(back, HIDDEN), transpose(w1, HIDDEN),
                   (ps_matrix){0}, x_grad);
    ps_clear_sums(rows, l.k * EMBEDDING);
    for (size_t c = 0; c < CONTEXT; c++)
        rc |= ps_add_rows(rows, l.k, EMBEDDING, index + c * SAMPLES, SAMPLES, NULL, x_grad + c * EMBEDDING,
                          INPUT, threads, NULL);
    ps_optim rule = rule_of(PS_ADAGRAD, 0);
    ps_optim_apply(&rule, ps_optim_rate(&rule, step), net->dense, net->slots, DENSE, g, DENSE);
    rc |= ps_sparse_add(net->table, keys, rows, l.k, NULL);
    ps_sparse_commit(net->table, step);
    return rc;
}

/* The whole network, trained as the example trains it but for dropout; then every activation. */
static int train_word2vec(ps_isa isa, unsigned threads) {
    static word2vec net;
    ps_optim rule = rule_of(PS_ADAGRAD, 0);
    ps_init init = {.seed = 7, .table = 1, .kind = PS_INIT_NORMAL, .mean = 0, .std = 0.1F};
    int64_t ids[CONTEXT * SAMPLES], labels[SAMPLES];
    uint64_t keys[CLASSES], hash = UINT64_C(0xcbf29ce484222325);
    float cost[SAMPLES], rows[CLASSES * EMBEDDING];
    net = (word2vec){.threads = threads};
    ps_build_choose(isa);
    fill(net.dense, DENSE, 1, 0);
    if (ps_sparse_new(&net.table, EMBEDDING, &rule, &init, NULL, false, NULL) != PS_OK) return 1;
    int rc = PS_OK;
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (uint64_t i = 0; i < CONTEXT * SAMPLES; i++)
            ids[i] = (int64_t)(ps_mix64(step << 20 | i) % CLASSES);
        for (uint64_t i = 0; i < SAMPLES; i++) labels[i] = (ids[i] + ids[i + SAMPLES]) % CLASSES;
        rc |= learn(&net, ids, labels, step, cost);
        hash = digest(hash, cost, SAMPLES);
    }
    fill(net.grads, SAMPLES * CLASSES, 2, 0);
    for (ps_act act = 0; act < PS_ACTS; act++) {
        rc |= run_act((ps_act_op){.kind = PS_APPLY, .act = act, .cols = CLASSES, .x = net.grads}, threads);
        hash = digest(hash, net.grads, SAMPLES * CLASSES);
    }
    for (uint64_t i = 0; i < CLASSES; i++) keys[i] = i;
    ps_sparse_read(net.table, keys, CLASSES, rows);
    ps_sparse_free(net.table);
    print("word2vec", 0, "tame", digest(digest(hash, net.dense, DENSE), rows, CLASSES * EMBEDDING));
    return rc;
}

int main(void) {
    int failed = 0;
    for (int wild = 0; wild < 2; wild++) {
        for (uint32_t method = 0; method < PS_METHODS; method++)
            for (int full = 0; full < 2; full++) dense(method, full, wild);
        sums(wild);
    }
    for (uint32_t kind = 0; kind < PS_INIT_LATE; kind++) inits(kind);
    for (uint32_t kind = 0; kind < PS_SCHEDULES; kind++) rates(kind);
    for (uint32_t method = 0; method < PS_METHODS; method++)
        if (!ps_optim_whole(method)) failed |= table(method, 0);
    failed |= lookup();
    for (ps_isa isa = PS_ISA_BASE; isa <= PS_ISA_AVX512; isa++)
        for (unsigned threads = 1; threads <= 4; threads *= 2) failed |= train_word2vec(isa, threads);
    return failed;
}
