#include "keyed_hash.h"
#include "sip.h"

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

uint64_t tpc_keyed_hash(uint64_t number, const uint8_t *bytes, size_t count) {
    return tpc_keyed_hash_with(key, number, bytes, count);
}

uint64_t tpc_keyed_hash_with(const uint64_t seed[2], uint64_t number, const uint8_t *bytes, size_t count) {
    tpc_sip state = tpc_sip_begin(seed);
    tpc_sip_take(&state, number, 1);
    tpc_sip_take_bytes(&state, bytes, count, sizeof number + count, 1);
    state.c ^= 0xff;
    return tpc_sip_end(&state, 3);
}
