/* SHA-256 (FIPS 180-4), fed in pieces: the digest at the end of a saved shard. Pure; can't fail. */
#ifndef PS_SHA256_H
#define PS_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define PS_SHA256_BYTES 32

typedef struct ps_sha256 {
    uint32_t state[8];
    uint64_t bytes;    /* so far */
    uint8_t block[64]; /* the bytes since the last whole block */
} ps_sha256;

/* Begin an empty digest. */
void ps_sha256_init(ps_sha256 *s);

/* Add data[0..n). */
void ps_sha256_add(ps_sha256 *s, const void *data, size_t n);

/* Finish: the digest of all that was added; `s` is used up. */
void ps_sha256_end(ps_sha256 *s, uint8_t digest[PS_SHA256_BYTES]);

#endif
