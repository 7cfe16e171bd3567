#include "harness.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TESTS = 512 };

static struct {
    const char *name;
    void (*run)(void);
} tests[MAX_TESTS];
static int tests_n;
static atomic_int failed_checks;
static const char *running;

void harness_register(const char *name, void (*run)(void)) {
    if (tests_n == MAX_TESTS) {
        fprintf(stderr, "more than %d tests: raise MAX_TESTS\n", MAX_TESTS);
        exit(1);
    }
    tests[tests_n].name = name;
    tests[tests_n++].run = run;
}

bool harness_check(bool ok, const char *condition, const char *file, int line) {
    if (!ok) {
        failed_checks++;
        fprintf(stderr, "%s:%d: %s: failed: %s\n", file, line, running, condition);
    }
    return ok;
}

uint64_t harness_random(void) {
    static uint64_t state = 88172645463325252U; /* xorshift64 (Marsaglia, JSS 8, 2003) */
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

int main(int argc, char **argv) {
    int failed = 0, ran = 0;
    signal(SIGPIPE, SIG_IGN); /* a test may still write to what the other side has closed by then */
    for (int i = 0; i < tests_n; i++) {
        running = tests[i].name;
        if (argc > 1 && strstr(running, argv[1]) == NULL) continue;
        int before = failed_checks;
        tests[i].run();
        harness_fail_alloc(0);
        failed += failed_checks != before;
        ran++;
    }
    printf("%d C tests, %d failed\n", ran, failed);
    return failed != 0 || ran == 0;
}
