#include "ps_err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int ps_fail(ps_err *err, int code, int sys, const char *fmt, ...) {
    if (err == NULL) return code;
    err->code = code;
    err->sys = sys;

    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);

    if (n < 0) err->text[0] = '\0';
    size_t used = n < 0 ? 0 : (size_t)n;
    /* strerror: safe in threads with glibc 2.32 and later, and with musl. */
    if (sys != 0 && used < sizeof err->text)
        snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(sys));
    return code;
}
