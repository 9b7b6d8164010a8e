/* Signed varints as records have them: zigzag, at most 64 bits. */
#ifndef TPC_VARLONG_H
#define TPC_VARLONG_H

#include <stdint.h>

static inline uint64_t zigzag(int64_t value) { return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63); }

static inline int64_t varlong_bytes(int64_t value) {
    int64_t bytes = 1;
    for (uint64_t left = zigzag(value) >> 7; left; left >>= 7) bytes++;
    return bytes;
}

static inline uint8_t *put_varlong(uint8_t *out, int64_t value) {
    uint64_t left = zigzag(value);
    for (; left >= 0x80; left >>= 7) *out++ = (uint8_t)(left | 0x80);
    *out++ = (uint8_t)left;
    return out;
}

#endif
