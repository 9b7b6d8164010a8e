/* SipHash's state and its round, for keyed hashes of any number of rounds. */
#ifndef TPC_SIP_H
#define TPC_SIP_H

#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t a, b, c, d;
} tpc_sip;

static inline tpc_sip tpc_sip_begin(const uint64_t key[2]) {
    return (tpc_sip){key[0] ^ 0x736f6d6570736575ull, key[1] ^ 0x646f72616e646f6dull, key[0] ^ 0x6c7967656e657261ull,
                     key[1] ^ 0x7465646279746573ull};
}

static inline uint64_t tpc_sip_rotate(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

static inline void tpc_sip_rounds(tpc_sip *state, int count) {
    for (int i = 0; i < count; i++) {
        state->a += state->b, state->b = tpc_sip_rotate(state->b, 13) ^ state->a,
                              state->a = tpc_sip_rotate(state->a, 32);
        state->c += state->d, state->d = tpc_sip_rotate(state->d, 16) ^ state->c;
        state->a += state->d, state->d = tpc_sip_rotate(state->d, 21) ^ state->a;
        state->c += state->b, state->b = tpc_sip_rotate(state->b, 17) ^ state->c,
                              state->c = tpc_sip_rotate(state->c, 32);
    }
}

static inline void tpc_sip_take(tpc_sip *state, uint64_t word, int rounds) {
    state->d ^= word;
    tpc_sip_rounds(state, rounds);
    state->a ^= word;
}

/* So many bytes, and last what is over of them with `length`, of all that is hashed, behind it. */
static inline void tpc_sip_take_bytes(tpc_sip *state, const uint8_t *bytes, size_t count, size_t length, int rounds) {
    uint64_t word, last = (uint64_t)length << 56;
    for (; count >= sizeof word; bytes += sizeof word, count -= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        tpc_sip_take(state, word, rounds);
    }
    for (size_t i = 0; i < count; i++) last |= (uint64_t)bytes[i] << 8 * i;
    tpc_sip_take(state, last, rounds);
}

static inline uint64_t tpc_sip_end(tpc_sip *state, int rounds) {
    tpc_sip_rounds(state, rounds);
    return state->a ^ state->b ^ state->c ^ state->d;
}

#endif
