/* A save: a cut that is handed over at once. One thread at a time. */
#ifndef PS_SAVE_H
#define PS_SAVE_H

#include "shard/ps_cut.h"

/* The owner: `put` takes the next n bytes, and returns PS_OK, or a code that ends the save, with `err`. */
typedef struct ps_save {
    int (*put)(void *owner, const void *data, size_t n, ps_err *err);
    void *owner;
} ps_save;

/* Hand objects[0..n), after `pass` complete passes, to the owner, in pieces of `size` bytes but for the last
 * one. Uses only `buffer` of that size as memory. PS_OK; PS_EINVAL if a dense object has no values yet, then
 * nothing was put; PS_ENOMEM; the owner's code. */
int ps_save_objects(const ps_save *to, ps_object *const *objects, uint32_t n, uint64_t pass, void *buffer,
                    size_t size, ps_err *err);

#endif
