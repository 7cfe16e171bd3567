/* What a shard holds, as the body of a file: docs/checkpoint.md says the same for people, and a test
 * compares the two. Knows files by their descriptors alone: names and renaming are the owner's. One
 * thread at a time. */
#ifndef PS_SAVE_H
#define PS_SAVE_H

#include "ps_object.h"
#include "ps_sha256.h"

#define PS_SAVE_HEAD_BYTES 24 /* before an object's CREATE */

enum {
    PS_SAVE_TORN = 1, /* of an object: part of the values has the step after `steps` already */
};

/* Append objects[0..n) to the file, which is open for reading and writing and ends at its offset, then
 * the SHA-256 of all that is in it, and wait until it is on the disk. `buffer` of `size` bytes is all
 * the memory it takes. PS_OK; PS_EINVAL if a dense object has no values yet, then nothing was
 * written; PS_ESYS, then the file is of no use. */
int ps_save_objects(int fd, ps_object *const *objects, uint32_t n, void *buffer, size_t size, ps_err *err);

#endif
