/* A shard's content as the body of a file: docs/checkpoint.md documents it, and a test
 * compares the two. Knows files by their descriptors alone: names and renaming are the owner's. One
 * thread at a time. */
#ifndef PS_SAVE_H
#define PS_SAVE_H

#include "ps_object.h"
#include "ps_sha256.h"

#define PS_SAVE_HEAD_BYTES 32 /* before an object's CREATE */

enum {
    PS_SAVE_TORN = 1, /* of an object: some values already have the step after `steps` */
};

/* Append objects[0..n) to the file, which is open for reading and writing and ends at its offset, then
 * the SHA-256 of its whole content, and wait until it is on the disk. Uses only `buffer` of `size` bytes
 * as memory. PS_OK; PS_EINVAL if a dense object has no values yet, then nothing was
 * written; PS_ESYS, then the file is unusable. */
int ps_save_objects(int fd, ps_object *const *objects, uint32_t n, void *buffer, size_t size, ps_err *err);

#endif
