/* Errors of the C core: a negative code as the return value, and the story in a ps_err. */
#ifndef PS_ERR_H
#define PS_ERR_H

#include "ps_cpu.h"

enum {
    PS_OK = 0,
    PS_EINVAL = -1,  /* an argument that makes no sense */
    PS_ENOMEM = -2,  /* no memory */
    PS_EAGAIN = -3,  /* not yet: more bytes or more time are needed */
    PS_EPROTO = -4,  /* bytes that can't be of this protocol */
    PS_ECONN = -5,   /* the other side is gone, or was never there */
    PS_ESYS = -6,    /* a system call failed; ps_err.sys says how */
    PS_ELIMIT = -7,  /* above a named limit */
    PS_EREMOTE = -8, /* the other side said no; the text is its own */
};

/* Why a call failed. Filled by the first function that fails, passed up by the others. */
typedef struct ps_err {
    int code;       /* PS_OK or one of the negative codes */
    int sys;        /* errno of the call that failed, 0 if none did */
    char text[256]; /* what failed, where, and the system's words; always ends with a zero byte */
} ps_err;

/* Fill `err` (NULL is allowed) and return `code`. The text is the formatted one and, if `sys` is
 * not 0, ": " and what the system calls that errno; what does not fit is cut off. Can't fail. */
int ps_fail(ps_err *err, int code, int sys, const char *fmt, ...) PS_PRINTF(4, 5);

#endif
