/*
 * Latency histogram with logarithmic buckets: any value of 64 bits lands in a bucket whose width is at most 1/1024 of it.
 *
 * Values under 2048 have a bucket each. Above, a value of b bits is shifted right by s = b - 11, which leaves 1024 to 2047,
 * and its bucket is s * 1024 + the shifted value. tpc_broker/bench/histogram.py computes the same places.
 */
#ifndef TPC_BENCH_HISTOGRAM_H
#define TPC_BENCH_HISTOGRAM_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

enum { HISTOGRAM_STEPS = 1024, HISTOGRAM_BUCKETS = 54 * HISTOGRAM_STEPS + HISTOGRAM_STEPS };

typedef struct {
    uint64_t counts[HISTOGRAM_BUCKETS];
} histogram;

static inline unsigned histogram_bucket(uint64_t value) {
    if (value < 2 * HISTOGRAM_STEPS) return (unsigned)value;
    unsigned shift = 64 - (unsigned)__builtin_clzll(value) - 11;
    return shift * HISTOGRAM_STEPS + (unsigned)(value >> shift);
}

static inline void histogram_add(histogram *at, uint64_t value) { at->counts[histogram_bucket(value)]++; }

/* [[bucket, count], ...] of the buckets that are not empty. */
static inline void histogram_print(const histogram *at, FILE *out) {
    const char *separator = "";
    fputc('[', out);
    for (unsigned place = 0; place < HISTOGRAM_BUCKETS; place++) {
        if (!at->counts[place]) continue;
        fprintf(out, "%s[%u,%" PRIu64 "]", separator, place, at->counts[place]);
        separator = ",";
    }
    fputc(']', out);
}

#endif
