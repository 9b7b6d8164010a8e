/*
 * CRC-32C, reflected, polynomial 0x1EDC6F41 (reflected 0x82F63B78), as Kafka's batches and our journal use it.
 *
 * The CPU's crc32 instruction takes 8 bytes per cycle but needs three cycles for its result. So a long buffer is cut
 * into three lanes that are computed side by side, and joined: the checksum of lane A followed by n bytes is "A moved
 * over n zero bytes" xor the lane that follows. Moving over n zero bytes is linear over GF(2), hence four look-ups in a
 * table of 4 x 256 words per n. Two values of n serve: long lanes for big buffers, short ones for the rest and for
 * batches of a few records.
 *
 * All tables are filled when the library is loaded (about a tenth of a millisecond), so that no call has to lock.
 */
#include <string.h>

#include "bytes.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the byte helpers are written for little-endian machines");

#define POLYNOMIAL_REFLECTED 0x82F63B78u
#define LANE_LONG_BYTES 4096u
#define LANE_SHORT_BYTES 256u

static uint32_t slices[8][256];

static void fill_slices(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ ((crc & 1) ? POLYNOMIAL_REFLECTED : 0);
        slices[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int slice = 1; slice < 8; slice++)
            slices[slice][byte] = (slices[slice - 1][byte] >> 8) ^ slices[0][slices[slice - 1][byte] & 0xff];
}

static uint32_t step_eight(uint64_t word) {
    return slices[7][word & 0xff] ^ slices[6][(word >> 8) & 0xff] ^ slices[5][(word >> 16) & 0xff] ^
           slices[4][(word >> 24) & 0xff] ^ slices[3][(word >> 32) & 0xff] ^ slices[2][(word >> 40) & 0xff] ^
           slices[1][(word >> 48) & 0xff] ^ slices[0][word >> 56];
}

uint32_t tpc_crc32c_portable(uint32_t crc, const void *bytes, size_t bytes_count) {
    const uint8_t *at = bytes;
    crc = ~crc;
    for (; bytes_count >= 8; bytes_count -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc = step_eight(word ^ crc);
    }
    for (; bytes_count > 0; bytes_count--, at++) crc = (crc >> 8) ^ slices[0][(crc ^ *at) & 0xff];
    return ~crc;
}

#if defined(__x86_64__) || (defined(__aarch64__) && defined(__ARM_FEATURE_CRC32))

#if defined(__x86_64__)
#define HARDWARE_NAME "sse4.2"
#define HARDWARE __attribute__((target("sse4.2")))
#define CRC_EIGHT(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC_ONE(crc, byte) _mm_crc32_u8((crc), (byte))
static int hardware_present(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
}
#else
#define HARDWARE_NAME "armv8"
#define HARDWARE
#define CRC_EIGHT(crc, word) __crc32cd((crc), (word))
#define CRC_ONE(crc, byte) __crc32cb((crc), (byte))
static int hardware_present(void) { return 1; }
#endif

static uint32_t move_long[4][256];
static uint32_t move_short[4][256];

static void fill_move(uint32_t table[4][256], size_t zero_bytes) {
    for (int row = 0; row < 4; row++) {
        uint32_t basis[8];
        for (int bit = 0; bit < 8; bit++) {
            uint32_t crc = 1u << (8 * row + bit);
            for (size_t done = 0; done < zero_bytes; done += 8) crc = step_eight(crc);
            basis[bit] = crc;
        }
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t sum = 0;
            for (int bit = 0; bit < 8; bit++) sum ^= (byte >> bit & 1) ? basis[bit] : 0;
            table[row][byte] = sum;
        }
    }
}

static inline uint32_t move(const uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff] ^ table[2][(crc >> 16) & 0xff] ^ table[3][crc >> 24];
}

static inline uint64_t load(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

HARDWARE static inline uint32_t three_lanes(uint32_t crc, const uint8_t *at, size_t lane_bytes,
                                            const uint32_t table[4][256]) {
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < lane_bytes; i += 8) {
        crc = CRC_EIGHT(crc, load(at + i));
        second = CRC_EIGHT(second, load(at + lane_bytes + i));
        third = CRC_EIGHT(third, load(at + 2 * lane_bytes + i));
    }
    return move(table, move(table, crc) ^ second) ^ third;
}

HARDWARE static uint32_t crc32c_hardware(uint32_t crc, const void *bytes, size_t bytes_count) {
    const uint8_t *at = bytes;
    crc = ~crc;
    for (; bytes_count >= 3 * LANE_LONG_BYTES; bytes_count -= 3 * LANE_LONG_BYTES, at += 3 * LANE_LONG_BYTES)
        crc = three_lanes(crc, at, LANE_LONG_BYTES, move_long);
    for (; bytes_count >= 3 * LANE_SHORT_BYTES; bytes_count -= 3 * LANE_SHORT_BYTES, at += 3 * LANE_SHORT_BYTES)
        crc = three_lanes(crc, at, LANE_SHORT_BYTES, move_short);
    for (; bytes_count >= 32; bytes_count -= 32, at += 32) {
        crc = CRC_EIGHT(crc, load(at));
        crc = CRC_EIGHT(crc, load(at + 8));
        crc = CRC_EIGHT(crc, load(at + 16));
        crc = CRC_EIGHT(crc, load(at + 24));
    }
    for (; bytes_count >= 8; bytes_count -= 8, at += 8) crc = CRC_EIGHT(crc, load(at));
    for (; bytes_count > 0; bytes_count--, at++) crc = CRC_ONE(crc, *at);
    return ~crc;
}
#endif

static uint32_t (*crc32c)(uint32_t, const void *, size_t) = tpc_crc32c_portable;
static const char *method = "portable";

__attribute__((constructor)) static void choose_method(void) {
    fill_slices();
#ifdef HARDWARE_NAME
    if (hardware_present()) {
        fill_move(move_long, LANE_LONG_BYTES);
        fill_move(move_short, LANE_SHORT_BYTES);
        crc32c = crc32c_hardware;
        method = HARDWARE_NAME;
    }
#endif
}

uint32_t tpc_crc32c(uint32_t crc, const void *bytes, size_t bytes_count) { return crc32c(crc, bytes, bytes_count); }

const char *tpc_crc32c_method(void) { return method; }
