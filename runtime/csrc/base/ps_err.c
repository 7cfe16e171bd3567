#include "base/ps_err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int ps_fit(const char *text, size_t most) {
    size_t n = 0;
    while (n < most && text[n] != '\0') n++;
    if (text[n] == '\0') return (int)n;
    while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--; /* in the middle of a character */
    return (int)n;
}

/* Write at text[used...], cut between characters. */
static void append(ps_err *err, size_t used, const char *before, const char *words) {
    char whole[2 * sizeof err->text];
    snprintf(whole, sizeof whole, "%s%s", before, words);
    size_t n = (size_t)ps_fit(whole, sizeof err->text - 1 - used);
    memcpy(err->text + used, whole, n);
    err->text[used + n] = '\0';
}

int ps_fail(ps_err *err, int code, int sys, const char *fmt, ...) {
    if (err == NULL) return code;
    err->code = code;
    err->sys = sys;

    char text[2 * sizeof err->text];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);

    append(err, 0, "", n < 0 ? "" : text);
    /* strerror: safe in threads with glibc 2.32 and later, and with musl. */
    if (sys != 0) append(err, strlen(err->text), ": ", strerror(sys));
    return code;
}

int ps_fail_about(ps_err *err, const char *name) {
    if (err == NULL) return PS_EINVAL;
    char text[sizeof err->text];
    memcpy(text, err->text, sizeof text);
    snprintf(err->text, sizeof err->text, "'%.*s': ", ps_fit(name, 64), name);
    append(err, strlen(err->text), "", text);
    return err->code;
}
