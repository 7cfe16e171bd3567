/* A tiny test harness: TEST(name) { CHECK(...); } registers itself; main() is in harness.c. */
#ifndef HARNESS_H
#define HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A test function, run by main() under its name. */
#define TEST(name)                                                   \
    static void name(void);                                          \
    __attribute__((constructor)) static void register_##name(void) { \
        harness_register(#name, name);                               \
    }                                                                \
    static void name(void)

/* Goes on after a failure: the test's name, place and condition are printed, the exit code will be 1. */
#define CHECK(condition) harness_check((condition), #condition, __FILE__, __LINE__)

/* Add a test. Called before main(). */
void harness_register(const char *name, void (*run)(void));

/* Note one check; returns `ok`. */
bool harness_check(bool ok, const char *condition, const char *file, int line);

/* Make the n-th allocation from now on fail (1: the next one), and only that; 0: none. Returns
 * whether the last one asked for has failed. */
bool harness_fail_alloc(long n);

/* Return the bytes that are allocated now. */
size_t harness_allocated(void);

/* A random number, the same in every run. */
uint64_t harness_random(void);

#endif
