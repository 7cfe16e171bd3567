/* A shard's content as the body of a file: docs/checkpoint.md documents it, and a test compares the two.
 * Files and their digests are the owner's, which takes the bytes in order. One thread at a time. */
#ifndef PS_SAVE_H
#define PS_SAVE_H

#include "shard/ps_object.h"

#define PS_SAVE_HEAD_BYTES 48 /* before an object's CREATE */

enum {
    PS_SAVE_TORN = 1, /* of an object: some values already have the step after `steps` */
};

/* The owner: `put` takes the next n bytes, and returns PS_OK, or a code that ends the save, with `err`. */
typedef struct ps_save {
    int (*put)(void *owner, const void *data, size_t n, ps_err *err);
    void *owner;
} ps_save;

/* Hand objects[0..n), after `pass` complete passes, to the owner, in pieces of `size` bytes, a multiple of 8,
 * but for the last one. Uses only `buffer` of that size as memory. The file's header is a multiple of 8
 * bytes. PS_OK; PS_EINVAL if a dense object has no values yet, then nothing was put; the owner's code. */
int ps_save_objects(const ps_save *to, ps_object *const *objects, uint32_t n, uint64_t pass, void *buffer,
                    size_t size, ps_err *err);

#endif
