/* A cut: a shard's content at one moment as the body of a file, read piece by piece while its objects go on
 * changing. docs/checkpoint.md documents the body, and a test compares the two. Files and
 * their digests are the owner's. One thread at a time. */
#ifndef PS_CUT_H
#define PS_CUT_H

#include "shard/ps_object.h"

#define PS_SAVE_HEAD_BYTES 48 /* before an object's CREATE */

enum {
    PS_SAVE_TORN = 1,    /* of an object: some values already have the step after `steps` */
    PS_SAVE_CHANGED = 2, /* of a table in an export: only the rows that have changed since the one before */
};

typedef struct ps_cut ps_cut;

/* Begin a cut of objects[0..n), after `pass` complete passes, in *out; they outlive it. `flags`: of CUT. With
 * PS_EXPORT it has the values alone, as of objects of SGD without an entry rule, and of a table only what has
 * changed since the last such cut; with PS_ALL too all rows. PS_OK; PS_EINVAL if a dense object has no values
 * yet, or PS_ENOMEM; then *out is NULL, and the next export needs PS_ALL. */
int ps_cut_begin(ps_cut **out, ps_object *const *objects, uint32_t n, uint64_t pass, uint32_t flags,
                 ps_err *err);

/* Copy the next bytes of the body, at most `size`. Returns their number; less than `size`: the end. */
size_t ps_cut_read(ps_cut *c, void *to, size_t size);

/* Release a cut, also before its end. Returns true if all that was read is of its moment; false if there was
 * no memory to keep something that has changed. NULL is allowed. */
bool ps_cut_end(ps_cut *c);

#endif
