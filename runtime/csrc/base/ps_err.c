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

/* Set the text, cut between characters. */
static void set_text(ps_err *err, const char *text) {
    size_t n = (size_t)ps_fit(text, sizeof err->text - 1);
    memcpy(err->text, text, n);
    err->text[n] = '\0';
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

    size_t used = n < 0 ? 0 : strlen(text);
    text[used] = '\0';
    /* strerror: safe in threads with glibc 2.32 and later, and with musl. */
    if (sys != 0) snprintf(text + used, sizeof text - used, ": %s", strerror(sys));
    set_text(err, text);
    return code;
}

int ps_fail_about(ps_err *err, const char *name) {
    if (err == NULL) return PS_EINVAL;
    char text[2 * sizeof err->text];
    snprintf(text, sizeof text, "'%.*s': %s", ps_fit(name, 64), name, err->text);
    set_text(err, text);
    return err->code;
}
