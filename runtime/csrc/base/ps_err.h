/* Errors of the C core: a negative code as the return value, and details in a ps_err. */
#ifndef PS_ERR_H
#define PS_ERR_H

#include <stddef.h>

#include "base/ps_cpu.h"

enum {
    PS_OK = 0,
    PS_EINVAL = -1,  /* an invalid argument */
    PS_ENOMEM = -2,  /* no memory */
    PS_EAGAIN = -3,  /* not yet: more bytes or more time are needed */
    PS_EPROTO = -4,  /* bytes that violate the protocol */
    PS_ECONN = -5,   /* the other side is gone, or was never there */
    PS_ESYS = -6,    /* a system call failed; ps_err.sys has its errno */
    PS_ELIMIT = -7,  /* above a named limit */
    PS_EREMOTE = -8, /* the other side refused; the text comes from it */
};

/* Cause of a failed call. Filled by the first function that fails, passed up by the others. */
typedef struct ps_err {
    int code;       /* PS_OK or one of the negative codes */
    int sys;        /* errno of the call that failed, 0 if none did */
    char text[256]; /* cause, place and the system's words; zero-terminated */
} ps_err;

/* Fill `err` (NULL is allowed) and return `code`. The text is the formatted one and, if `sys` is
 * not 0, ": " and the system's name of that errno; a longer text is cut off between characters. */
int ps_fail(ps_err *err, int code, int sys, const char *fmt, ...) PS_PRINTF(4, 5);

/* Put "'name': " before the text. Returns err->code. `name` is UTF-8. Can't fail. */
int ps_fail_about(ps_err *err, const char *name);

/* Return the bytes of the longest start of `text`, UTF-8, that has at most `most` of them and ends between
 * characters. Can't fail. */
int ps_fit(const char *text, size_t most);

#endif
