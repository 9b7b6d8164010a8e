#include "keyed_hash.h"

#include <string.h>
#include <sys/auxv.h>
#include <sys/random.h>

static uint64_t key[2];

/* When the library is loaded, before anybody can ask. Without the system call there are the kernel's 16 bytes for the process. */
__attribute__((constructor)) static void draw_key(void) {
    if (getrandom(key, sizeof key, 0) == (ssize_t)sizeof key) return;
    const void *given = (const void *)getauxval(AT_RANDOM);
    if (given) memcpy(key, given, sizeof key);
}

typedef struct {
    uint64_t a, b, c, d;
} sip;

static inline uint64_t rotate(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

static inline void round_of(sip *state) {
    state->a += state->b, state->b = rotate(state->b, 13) ^ state->a, state->a = rotate(state->a, 32);
    state->c += state->d, state->d = rotate(state->d, 16) ^ state->c;
    state->a += state->d, state->d = rotate(state->d, 21) ^ state->a;
    state->c += state->b, state->b = rotate(state->b, 17) ^ state->c, state->c = rotate(state->c, 32);
}

static inline void take(sip *state, uint64_t word) {
    state->d ^= word;
    round_of(state);
    state->a ^= word;
}

uint64_t tpc_keyed_hash(uint64_t number, const uint8_t *bytes, size_t count) {
    return tpc_keyed_hash_with(key, number, bytes, count);
}

uint64_t tpc_keyed_hash_with(const uint64_t seed[2], uint64_t number, const uint8_t *bytes, size_t count) {
    sip state = {seed[0] ^ 0x736f6d6570736575ull, seed[1] ^ 0x646f72616e646f6dull, seed[0] ^ 0x6c7967656e657261ull,
                 seed[1] ^ 0x7465646279746573ull};
    uint64_t word, last = (uint64_t)(sizeof number + count) << 56;
    take(&state, number);
    for (; count >= sizeof word; bytes += sizeof word, count -= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        take(&state, word);
    }
    for (size_t i = 0; i < count; i++) last |= (uint64_t)bytes[i] << 8 * i;
    take(&state, last);
    state.c ^= 0xff;
    for (int i = 0; i < 3; i++) round_of(&state);
    return state.a ^ state.b ^ state.c ^ state.d;
}
