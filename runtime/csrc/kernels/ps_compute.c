#include "kernels/ps_compute.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SPINS = 1000 }; /* about 50 microseconds: a layer begins soon after the one before */

/* Parts of a computation and those that are taken, in one word. */
enum { PARTS_SHIFT = 16, TAKEN = (1 << PARTS_SHIFT) - 1 };

static struct {
    pthread_mutex_t turn; /* held while a computation runs */
    pthread_mutex_t lock; /* for the conditions */
    pthread_cond_t begun, done;
    atomic_uint word;
    atomic_uint left; /* parts that are not finished */
    ps_task task;
    void *job;
    unsigned threads; /* with the caller's: 1 + those started */
    float *scratch[PS_MAX_THREADS];
    size_t floats[PS_MAX_THREADS];
} team = {.turn = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .begun = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER,
          .threads = 1};

static bool has_part(unsigned word) {
    return (word & TAKEN) < word >> PARTS_SHIFT;
}

/* Run parts until all are taken. Who has taken one may read the job: its computation ends after that part. */
static void run_parts(float *const *scratch) {
    unsigned word = atomic_load(&team.word);
    while (has_part(word)) {
        if (!atomic_compare_exchange_weak(&team.word, &word, word + 1)) continue;
        team.task(team.job, word & TAKEN, word >> PARTS_SHIFT, *scratch);
        if (atomic_fetch_sub(&team.left, 1) == 1) {
            pthread_mutex_lock(&team.lock);
            pthread_cond_signal(&team.done);
            pthread_mutex_unlock(&team.lock);
        }
        word = atomic_load(&team.word);
    }
}

static void await_parts(void) {
    for (int i = 0; i < SPINS; i++) {
        if (has_part(atomic_load(&team.word))) return;
        ps_pause();
    }
    pthread_mutex_lock(&team.lock);
    while (!has_part(atomic_load(&team.word))) pthread_cond_wait(&team.begun, &team.lock);
    pthread_mutex_unlock(&team.lock);
}

static void await_end(void) {
    for (int i = 0; i < SPINS && atomic_load(&team.left) > 0; i++) ps_pause();
    if (atomic_load(&team.left) == 0) return;
    pthread_mutex_lock(&team.lock);
    while (atomic_load(&team.left) > 0) pthread_cond_wait(&team.done, &team.lock);
    pthread_mutex_unlock(&team.lock);
}

static void *work(void *scratch) {
    ps_floats_set(PS_FLOATS_IEEE);
    for (;;) {
        await_parts();
        run_parts(scratch);
    }
    return NULL;
}

/* A child has only the thread that forked; what the others were about is its parent's. */
static void forget_threads(void) {
    pthread_mutex_init(&team.turn, NULL);
    pthread_mutex_init(&team.lock, NULL);
    pthread_cond_init(&team.begun, NULL);
    pthread_cond_init(&team.done, NULL);
    atomic_store(&team.word, 0);
    team.threads = 1;
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, forget_threads);
}

/* Start threads until there are `parts` or no more can be had; signals stay with the program's own ones. */
static void start_threads(unsigned parts) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (team.threads >= parts) return;
    pthread_once(&once, watch_forks);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pthread_t thread; team.threads < parts; team.threads++) {
        if (pthread_create(&thread, NULL, work, &team.scratch[team.threads]) != 0) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static int get_scratch(unsigned threads, size_t floats, ps_err *err) {
    for (unsigned i = 0; i < threads; i++) {
        if (team.floats[i] >= floats) continue;
        float *more = aligned_alloc(64, (floats * sizeof *more + 63) / 64 * 64);
        if (more == NULL)
            return ps_fail(err, PS_ENOMEM, 0, "%zu floats for thread %u of a computation", floats, i);
        float *old = team.scratch[i];
        team.scratch[i] = more, team.floats[i] = floats; /* first: a child of a fork frees it again */
        free(old);
    }
    return PS_OK;
}

/* A thread that comes late finds its part taken: nobody waits for one that has no processor. */
static void run(unsigned parts, ps_task task, void *job) {
    if (parts == 1) {
        task(job, 0, 1, team.scratch[0]);
        return;
    }
    team.task = task, team.job = job;
    atomic_store(&team.left, parts);
    pthread_mutex_lock(&team.lock);
    atomic_store(&team.word, parts << PARTS_SHIFT);
    pthread_cond_broadcast(&team.begun);
    pthread_mutex_unlock(&team.lock);
    run_parts(&team.scratch[0]);
    await_end();
}

int ps_compute(unsigned parts, size_t scratch, ps_task task, void *job, ps_err *err) {
    if (parts > PS_MAX_THREADS) parts = PS_MAX_THREADS;
    pthread_mutex_lock(&team.turn);
    start_threads(parts);
    int rc = get_scratch(parts > 1 ? team.threads : 1, scratch, err);
    if (rc == PS_OK) {
        unsigned before = ps_floats_set(PS_FLOATS_IEEE);
        run(parts, task, job);
        ps_floats_set(before);
    }
    pthread_mutex_unlock(&team.turn);
    return rc;
}

unsigned ps_parts(size_t items, size_t least, unsigned threads) {
    size_t parts = items / (least > 0 ? least : 1);
    if (parts > threads) parts = threads;
    return parts > 0 ? (unsigned)parts : 1;
}

size_t ps_part_begin(size_t n, unsigned part, unsigned parts) {
    return n / parts * part + n % parts * part / parts;
}

static atomic_int chosen = PS_ISA_BEST;

ps_isa ps_build(void) {
    ps_isa most = (ps_isa)atomic_load_explicit(&chosen, memory_order_relaxed);
    if (most == PS_ISA_BASE || !PS_CPU_HAS("avx2") || !PS_CPU_HAS("fma")) return PS_ISA_BASE;
    return most != PS_ISA_AVX2 && PS_CPU_HAS("avx512f") ? PS_ISA_AVX512 : PS_ISA_AVX2;
}

void ps_build_choose(ps_isa isa) {
    atomic_store(&chosen, (int)isa);
}

const char *ps_build_name(void) {
    ps_isa isa = ps_build();
    if (isa != PS_ISA_BASE) return isa == PS_ISA_AVX512 ? "AVX-512" : "AVX2";
#if defined(__aarch64__)
    return "NEON";
#else
    return "plain C";
#endif
}
