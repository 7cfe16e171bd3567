/* Allocations that fail, for the tests and for the fuzzers, and what is allocated. */
#include "harness.h"

#include <malloc.h>

/* Allocations until the failing one; 0: none fails. One thread allocates in such a test. */
static long fail_in;
static bool has_failed;

bool harness_fail_alloc(long n) {
    bool was = has_failed;
    has_failed = false;
    fail_in = n;
    return was;
}

static bool fails_now(void) {
    if (fail_in == 0 || --fail_in != 0) return false;
    has_failed = true;
    return true;
}

/* The linker sends every call of malloc() to __wrap_malloc(), and __real_malloc() to the real one. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);

void *__wrap_malloc(size_t size) {
    return fails_now() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size) {
    return fails_now() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size) {
    return fails_now() ? NULL : __real_realloc(p, size);
}

void *__wrap_aligned_alloc(size_t align, size_t size) {
    return fails_now() ? NULL : __real_aligned_alloc(align, size);
}

/* Of the sanitizers, whose memory malloc.h does not know. */
size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

size_t harness_allocated(void) {
    if (__sanitizer_get_current_allocated_bytes != NULL) return __sanitizer_get_current_allocated_bytes();
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}
