/* SHA-256 (FIPS 180-4), fed in pieces: the digest at the end of a saved shard. Pure; can't fail. */
#ifndef PS_SHA256_H
#define PS_SHA256_H

#include <stddef.h>
#include <stdint.h>

#include "ps_cpu.h"

#define PS_SHA256_BYTES 32

typedef struct ps_sha256 {
    uint32_t state[8];
    uint64_t bytes;    /* so far */
    uint8_t block[64]; /* the bytes since the last whole block */
    bool fast;         /* by the processor's instructions */
} ps_sha256;

/* Begin an empty digest, by the processor's instructions if it has them. */
void ps_sha256_init(ps_sha256 *s);

/* Begin one in a given build, PS_ISA_BASE without those instructions: for tests. */
void ps_sha256_init_isa(ps_sha256 *s, ps_isa isa);

/* Add data[0..n). */
void ps_sha256_add(ps_sha256 *s, const void *data, size_t n);

/* Finish: the digest of all that was added; `s` is used up. */
void ps_sha256_end(ps_sha256 *s, uint8_t digest[PS_SHA256_BYTES]);

/* The constants of the rounds. */
extern const uint32_t ps_sha256_k[64];

/* Take n blocks into the state by the processor's instructions; only if ps_cpu_sha(). Can't fail. */
void ps_sha256_blocks(uint32_t state[8], const uint8_t *block, size_t n);

#endif
