/*
 * CRC-32C, reflected, polynomial 0x1EDC6F41 (reflected 0x82F63B78), as Kafka's batches and our journal use it.
 *
 * The CPU's crc32 instruction takes 8 bytes per cycle but needs three cycles for its result. So a long buffer is cut
 * into three lanes that are computed side by side, and joined: the checksum of lane A followed by n bytes is "A moved
 * over n zero bytes" xor the lane that follows. Moving over n zero bytes is linear over GF(2), hence four look-ups in a
 * table of 4 x 256 words per n. Two values of n serve: long lanes for big buffers, short ones for the rest and for
 * batches of a few records.
 *
 * Newer CPUs multiply eight words without carry at a time (VPCLMULQDQ with AVX-512), and take a long buffer twice as fast
 * again: "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Gopal and others, Intel 2009). 64
 * bytes are a polynomial of 512 bits, four of 128; multiplied by x^n mod P they stand n bits further on, where they are
 * added to what is there. The last 16 bytes have the checksum of all.
 *
 * All tables are filled when the library is loaded (about a tenth of a millisecond), so that no call has to lock.
 */
#include <string.h>

#include "bytes.h"

#if defined(__x86_64__)
#include <immintrin.h>
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

HARDWARE static uint32_t inverted_hardware(uint32_t crc, const uint8_t *at, size_t bytes_count) {
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
    return crc;
}

HARDWARE static uint32_t crc32c_hardware(uint32_t crc, const void *bytes, size_t bytes_count) {
    return ~inverted_hardware(~crc, bytes, bytes_count);
}
#endif

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2")))
enum { WIDE_BYTES = 64, WIDE_STEP_BYTES = 4 * WIDE_BYTES, WIDE_BYTES_MIN = 2 * WIDE_STEP_BYTES };

/* x^n mod P for the two words of a polynomial that is to stand so many bits further on. */
typedef struct {
    uint64_t of_first, of_second;
} wide_move;

static wide_move by_128, by_512, by_2048;

static int wide_present(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("vpclmulqdq");
}

static uint64_t power_of_x(unsigned n) {
    uint32_t power = 0x80000000u;
    while (n--) power = (power >> 1) ^ (power & 1 ? POLYNOMIAL_REFLECTED : 0);
    return power;
}

/* The first word stands 64 bits before the second. A product of reflected words is one bit short, and these are of 32. */
static wide_move move_by(unsigned bits) { return (wide_move){power_of_x(bits + 64 - 33), power_of_x(bits - 33)}; }

static void fill_wide(void) { by_128 = move_by(128), by_512 = move_by(512), by_2048 = move_by(2048); }

WIDE static inline __m512i wide_onto(__m512i from, __m512i by, __m512i onto) {
    __m512i first = _mm512_clmulepi64_epi128(from, by, 0x00), second = _mm512_clmulepi64_epi128(from, by, 0x11);
    return _mm512_ternarylogic_epi64(first, second, onto, 0x96); /* xor of the three */
}

WIDE static inline __m128i onto(__m128i from, __m128i by, __m128i next) {
    __m128i first = _mm_clmulepi64_si128(from, by, 0x00), second = _mm_clmulepi64_si128(from, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(first, second), next);
}

WIDE static inline __m128i multiplier(const wide_move *by) {
    return _mm_set_epi64x((int64_t)by->of_second, (int64_t)by->of_first);
}

WIDE static uint32_t crc32c_wide(uint32_t crc, const void *bytes, size_t bytes_count) {
    const uint8_t *at = bytes;
    if (bytes_count < WIDE_BYTES_MIN) return ~inverted_hardware(~crc, at, bytes_count);
    __m512i sum[4], by = _mm512_broadcast_i32x4(multiplier(&by_2048));
    for (int i = 0; i < 4; i++) sum[i] = _mm512_loadu_si512(at + (size_t)i * WIDE_BYTES);
    sum[0] = _mm512_xor_si512(sum[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int32_t)~crc)));
    for (at += WIDE_STEP_BYTES, bytes_count -= WIDE_STEP_BYTES; bytes_count >= WIDE_STEP_BYTES;
         at += WIDE_STEP_BYTES, bytes_count -= WIDE_STEP_BYTES)
        for (int i = 0; i < 4; i++) sum[i] = wide_onto(sum[i], by, _mm512_loadu_si512(at + (size_t)i * WIDE_BYTES));
    by = _mm512_broadcast_i32x4(multiplier(&by_512));
    __m512i all = wide_onto(wide_onto(wide_onto(sum[0], by, sum[1]), by, sum[2]), by, sum[3]);
    for (; bytes_count >= WIDE_BYTES; at += WIDE_BYTES, bytes_count -= WIDE_BYTES)
        all = wide_onto(all, by, _mm512_loadu_si512(at));
    __m128i last = _mm512_castsi512_si128(all), next = multiplier(&by_128);
    last = onto(last, next, _mm512_extracti32x4_epi32(all, 1));
    last = onto(last, next, _mm512_extracti32x4_epi32(all, 2));
    last = onto(last, next, _mm512_extracti32x4_epi32(all, 3));
    crc = CRC_EIGHT(CRC_EIGHT(0, (uint64_t)_mm_cvtsi128_si64(last)), (uint64_t)_mm_extract_epi64(last, 1));
    return ~inverted_hardware(crc, at, bytes_count);
}
#endif

static uint32_t (*crc32c)(uint32_t, const void *, size_t) = tpc_crc32c_portable;
static uint32_t (*crc32c_lanes)(uint32_t, const void *, size_t) = tpc_crc32c_portable;
static const char *method = "portable";

__attribute__((constructor)) static void choose_method(void) {
    fill_slices();
#ifdef HARDWARE_NAME
    if (hardware_present()) {
        fill_move(move_long, LANE_LONG_BYTES);
        fill_move(move_short, LANE_SHORT_BYTES);
        crc32c = crc32c_lanes = crc32c_hardware;
        method = HARDWARE_NAME;
    }
#endif
#if defined(__x86_64__)
    if (wide_present()) {
        fill_wide();
        crc32c = crc32c_wide;
        method = "vpclmulqdq";
    }
#endif
}

uint32_t tpc_crc32c(uint32_t crc, const void *bytes, size_t bytes_count) { return crc32c(crc, bytes, bytes_count); }

uint32_t tpc_crc32c_lanes(uint32_t crc, const void *bytes, size_t bytes_count) {
    return crc32c_lanes(crc, bytes, bytes_count);
}

const char *tpc_crc32c_method(void) { return method; }
