/* A producer's columns into a batch. */
#include <errno.h>

#include "bytes.h"
#include "varlong.h"
#include "wire.h"

/* A column that is read from its first cell to its last. */
typedef struct {
    const uint8_t *bytes;
    const int32_t *lengths; /* NULL: all null */
} packed_cells;

static inline int32_t next_length(const packed_cells *cells) { return cells->lengths ? *cells->lengths : -1; }

static inline int64_t cell_bytes(int32_t length) { return varlong_bytes(length) + (length > 0 ? length : 0); }

static inline uint8_t *put_next(uint8_t *out, packed_cells *cells) {
    int32_t length = next_length(cells);
    if (cells->lengths) cells->lengths++;
    out = put_varlong(out, length);
    if (length <= 0) return out;
    memcpy(out, cells->bytes, (size_t)length);
    cells->bytes += length;
    return out + length;
}

static int64_t headers_bytes(const packed_cells *headers, int32_t count) {
    int64_t bytes = varlong_bytes(count);
    for (int32_t i = 0; i < 2 * count; i++) bytes += cell_bytes(headers->lengths[i]);
    return bytes;
}

int64_t tpc_packed_records(int32_t rows_count, const int64_t *timestamps_ms, const uint8_t *values,
                           const int32_t *value_lengths, bool has_keys, const uint8_t *keys, const int32_t *key_lengths,
                           bool has_headers, const int32_t *header_counts, const uint8_t *headers,
                           const int32_t *header_lengths, uint8_t *out, int64_t out_bytes) {
    packed_cells value = {values, value_lengths}, key = {keys, has_keys ? key_lengths : NULL};
    packed_cells header = {headers, header_lengths};
    uint8_t *at = out;
    for (int32_t row = 0; row < rows_count; row++) {
        int64_t delta = (int64_t)((uint64_t)timestamps_ms[row] - (uint64_t)timestamps_ms[0]);
        int32_t count = has_headers ? header_counts[row] : 0;
        int64_t body = 1 + varlong_bytes(delta) + varlong_bytes(row) + cell_bytes(next_length(&key)) +
                       cell_bytes(next_length(&value)) + headers_bytes(&header, count);
        if (body > INT32_MAX || varlong_bytes(body) + body > out_bytes - (at - out)) return -ENOSPC;
        at = put_varlong(at, body);
        *at++ = 0;
        at = put_varlong(at, delta);
        at = put_varlong(at, row);
        at = put_next(at, &key);
        at = put_next(at, &value);
        at = put_varlong(at, count);
        for (int32_t i = 0; i < 2 * count; i++) at = put_next(at, &header);
    }
    return at - out;
}

enum { CRC_AT = 17, CRC_FROM = 21 };

void tpc_packed_header(uint8_t *batch, int64_t batch_bytes, int16_t attributes, int32_t records_count,
                       int64_t base_timestamp, int64_t max_timestamp, int64_t producer_id, int16_t producer_epoch,
                       int32_t base_sequence) {
    wire_set_u64(batch, 0);
    wire_set_u32(batch + 8, (uint32_t)(batch_bytes - TPC_BATCH_LENGTH_OVERHEAD_BYTES));
    wire_set_u32(batch + 12, UINT32_MAX);
    batch[16] = 2;
    wire_set_u16(batch + CRC_FROM, (uint16_t)attributes);
    wire_set_u32(batch + 23, (uint32_t)(records_count - 1));
    wire_set_u64(batch + 27, (uint64_t)base_timestamp);
    wire_set_u64(batch + 35, (uint64_t)max_timestamp);
    wire_set_u64(batch + 43, (uint64_t)producer_id);
    wire_set_u16(batch + 51, (uint16_t)producer_epoch);
    wire_set_u32(batch + 53, (uint32_t)base_sequence);
    wire_set_u32(batch + 57, (uint32_t)records_count);
    wire_set_u32(batch + CRC_AT, tpc_crc32c(0, batch + CRC_FROM, (size_t)(batch_bytes - CRC_FROM)));
}

static int64_t lone_record_bytes(int32_t key_length, int32_t value_length) {
    int64_t body = 4 + cell_bytes(key_length) + cell_bytes(value_length); /* attributes, two deltas, no headers */
    return varlong_bytes(body) + body;
}

/* How a request tells the length of its records. */
static uint8_t *put_length(uint8_t *at, bool is_compact, uint32_t bytes) {
    if (!is_compact) {
        wire_set_u32(at, bytes);
        return at + 4;
    }
    uint32_t left = bytes + 1;
    for (; left >= 0x80; left >>= 7) *at++ = (uint8_t)(left | 0x80);
    *at++ = (uint8_t)left;
    return at;
}

enum { SIZE_BYTES = 4, CORRELATION_ID_AT = 8, LENGTH_BYTES_MAX = 5 };

int64_t tpc_packed_one(uint8_t *out, int64_t out_bytes, const tpc_packed_around *around, int32_t correlation_id,
                       int64_t timestamp_ms, const uint8_t *key, int32_t key_length, const uint8_t *value,
                       int32_t value_length, int16_t attributes, int64_t producer_id, int16_t producer_epoch,
                       int32_t base_sequence) {
    int64_t records_bytes = lone_record_bytes(key_length, value_length);
    int64_t batch_bytes = TPC_BATCH_HEADER_BYTES + records_bytes;
    uint8_t length[LENGTH_BYTES_MAX], *batch = out;
    int64_t length_bytes = around ? put_length(length, around->is_compact, (uint32_t)batch_bytes) - length : 0;
    int64_t used = batch_bytes + (around ? around->head_bytes + length_bytes + around->tail_bytes : 0);
    if (used > out_bytes || used > INT32_MAX) return -ENOSPC;
    if (around) {
        memcpy(out, around->head, (size_t)around->head_bytes);
        wire_set_u32(out, (uint32_t)(used - SIZE_BYTES));
        wire_set_u32(out + CORRELATION_ID_AT, (uint32_t)correlation_id);
        memcpy(out + around->head_bytes, length, (size_t)length_bytes);
        batch += around->head_bytes + length_bytes;
        memcpy(batch + batch_bytes, around->tail, (size_t)around->tail_bytes);
    }
    tpc_packed_records(1, &timestamp_ms, value, &value_length, true, key, &key_length, false, NULL, NULL, NULL,
                       batch + TPC_BATCH_HEADER_BYTES, records_bytes);
    tpc_packed_header(batch, batch_bytes, attributes, 1, timestamp_ms, timestamp_ms, producer_id, producer_epoch,
                      base_sequence);
    return used;
}
