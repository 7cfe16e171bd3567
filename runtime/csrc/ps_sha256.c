/* SHA-256, by the names of FIPS 180-4, section 6.2. */
#include "ps_sha256.h"

#include <string.h>

const uint32_t ps_sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static uint32_t get_be32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void put_be32(uint8_t *p, uint32_t x) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(x >> (24 - 8 * i));
}

static void schedule(uint32_t w[64], const uint8_t *block) {
    for (int t = 0; t < 16; t++) w[t] = get_be32(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = s1 + w[t - 7] + s0 + w[t - 16];
    }
}

static void compress(uint32_t state[8], const uint8_t *block) {
    uint32_t w[64];
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    schedule(w, block);
    for (int t = 0; t < 64; t++) {
        uint32_t sum1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25), ch = (e & f) ^ (~e & g);
        uint32_t sum0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22), maj = (a & b) ^ (a & c) ^ (b & c);
        uint32_t t1 = h + sum1 + ch + ps_sha256_k[t] + w[t];
        h = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + sum0 + maj;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

void ps_sha256_init_isa(ps_sha256 *s, ps_isa isa) {
    *s = (ps_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                               0x1f83d9ab, 0x5be0cd19},
                     .fast = isa != PS_ISA_BASE && ps_cpu_sha()};
}

void ps_sha256_init(ps_sha256 *s) {
    ps_sha256_init_isa(s, PS_ISA_BEST);
}

static void take_blocks(ps_sha256 *s, const uint8_t *block, size_t n) {
    if (s->fast) ps_sha256_blocks(s->state, block, n);
    else
        for (size_t i = 0; i < n; i++) compress(s->state, block + i * sizeof s->block);
}

void ps_sha256_add(ps_sha256 *s, const void *data, size_t n) {
    const uint8_t *from = data;
    size_t used = s->bytes % sizeof s->block;
    s->bytes += n;
    if (used > 0) {
        size_t k = sizeof s->block - used < n ? sizeof s->block - used : n;
        memcpy(s->block + used, from, k);
        from += k;
        n -= k;
        if (used + k < sizeof s->block) return;
        take_blocks(s, s->block, 1);
    }
    take_blocks(s, from, n / sizeof s->block);
    if (n % sizeof s->block > 0)
        memcpy(s->block, from + n / sizeof s->block * sizeof s->block, n % sizeof s->block);
}

void ps_sha256_end(ps_sha256 *s, uint8_t digest[PS_SHA256_BYTES]) {
    const uint8_t end[64] = {0x80};
    uint8_t bits[8];
    uint64_t n = s->bytes;
    put_be32(bits, (uint32_t)(n >> 29));
    put_be32(bits + 4, (uint32_t)(n << 3));
    ps_sha256_add(s, end, 1 + (119 - n % 64) % 64); /* up to 8 bytes before the end of a block */
    ps_sha256_add(s, bits, sizeof bits);
    for (int i = 0; i < 8; i++) put_be32(digest + 4 * i, s->state[i]);
}
