/* Arrow's columns into the records of a batch, and Kafka's choice of the partition by key. */
#include "bytes.h"
#include "varlong.h"
#include "wire.h"

typedef struct {
    const uint8_t *bytes;
    int32_t bytes_count; /* -1: null */
} binary_cell;

static inline binary_cell cell_at(const tpc_binary_input *column, int64_t row) {
    if (column->offsets == NULL) return (binary_cell){NULL, -1};
    if (column->valid) {
        int64_t bit = column->valid_bit_offset + row;
        if (!(column->valid[bit >> 3] >> (bit & 7) & 1)) return (binary_cell){NULL, -1};
    }
    return (binary_cell){column->data + column->offsets[row], column->offsets[row + 1] - column->offsets[row]};
}

static inline int64_t cell_bytes(binary_cell cell) {
    return varlong_bytes(cell.bytes_count) + (cell.bytes_count > 0 ? cell.bytes_count : 0);
}

static inline uint8_t *put_cell(uint8_t *out, binary_cell cell) {
    out = put_varlong(out, cell.bytes_count);
    if (cell.bytes_count <= 0) return out;
    memcpy(out, cell.bytes, (size_t)cell.bytes_count);
    return out + cell.bytes_count;
}

/* A header's name is never null in the format; an absent one is written as empty. */
static inline binary_cell name_at(const tpc_records_input *input, int64_t item) {
    binary_cell name = cell_at(&input->header_name, item);
    return name.bytes_count < 0 ? (binary_cell){NULL, 0} : name;
}

static int64_t headers_bytes(const tpc_records_input *input, int32_t first, int32_t end) {
    int64_t bytes = varlong_bytes(end - first);
    for (int32_t item = first; item < end; item++)
        bytes += cell_bytes(name_at(input, item)) + cell_bytes(cell_at(&input->header_value, item));
    return bytes;
}

static uint8_t *put_headers(uint8_t *out, const tpc_records_input *input, int32_t first, int32_t end) {
    out = put_varlong(out, end - first);
    for (int32_t item = first; item < end; item++) {
        out = put_cell(out, name_at(input, item));
        out = put_cell(out, cell_at(&input->header_value, item));
    }
    return out;
}

/* Writes one record; the bytes it took, 0 when it does not fit. */
static int64_t put_record(const tpc_records_input *input, int64_t row, int32_t offset_delta, int64_t timestamp_delta,
                          uint8_t *out, int64_t room) {
    binary_cell key = cell_at(&input->key, row), value = cell_at(&input->value, row);
    int32_t first = input->header_offsets ? input->header_offsets[row] : 0;
    int32_t end = input->header_offsets ? input->header_offsets[row + 1] : 0;
    int64_t body = 1 + varlong_bytes(timestamp_delta) + varlong_bytes(offset_delta) + cell_bytes(key) +
                   cell_bytes(value) + headers_bytes(input, first, end);
    if (body > INT32_MAX || varlong_bytes(body) + body > room) return 0;
    uint8_t *at = put_varlong(out, body);
    *at++ = 0;
    at = put_varlong(at, timestamp_delta);
    at = put_varlong(at, offset_delta);
    at = put_cell(at, key);
    at = put_cell(at, value);
    at = put_headers(at, input, first, end);
    return at - out;
}

int64_t tpc_records_write(const tpc_records_input *input, const int32_t *rows, int32_t rows_count, uint8_t *out,
                          int64_t out_bytes, tpc_records_output *output) {
    int64_t written = 0;
    *output = (tpc_records_output){.base_timestamp = -1, .max_timestamp = -1, .records_count = 0};
    for (int32_t i = 0; i < rows_count; i++) {
        int64_t timestamp = input->timestamps_ms[rows[i]];
        if (i == 0) output->base_timestamp = output->max_timestamp = timestamp;
        int64_t delta = (int64_t)((uint64_t)timestamp - (uint64_t)output->base_timestamp);
        int64_t bytes = put_record(input, rows[i], i, delta, out + written, out_bytes - written);
        if (bytes == 0) break;
        if (timestamp > output->max_timestamp) output->max_timestamp = timestamp;
        written += bytes;
        output->records_count++;
    }
    return written;
}

/* MurmurHash2 with Kafka's seed (org.apache.kafka.common.utils.Utils.murmur2 gives the same numbers). */
static uint32_t murmur2(const uint8_t *bytes, uint32_t bytes_count) {
    const uint32_t m = 0x5bd1e995;
    uint32_t hash = 0x9747b28cu ^ bytes_count;
    for (; bytes_count >= 4; bytes += 4, bytes_count -= 4) {
        uint32_t word;
        memcpy(&word, bytes, 4);
        word *= m;
        word ^= word >> 24;
        hash = (hash * m) ^ (word * m);
    }
    if (bytes_count == 3) hash ^= (uint32_t)bytes[2] << 16;
    if (bytes_count >= 2) hash ^= (uint32_t)bytes[1] << 8;
    if (bytes_count >= 1) hash = (hash ^ bytes[0]) * m;
    hash = (hash ^ (hash >> 13)) * m;
    return hash ^ (hash >> 15);
}

void tpc_records_partitions(const tpc_binary_input *key, int64_t rows_count, int32_t partitions_count, int32_t *out) {
    for (int64_t row = 0; row < rows_count; row++) {
        binary_cell cell = cell_at(key, row);
        out[row] =
            cell.bytes_count < 0 ? -1 : tpc_key_partition(cell.bytes, (size_t)cell.bytes_count, partitions_count);
    }
}

int32_t tpc_key_partition(const uint8_t *key, size_t key_bytes, int32_t partitions_count) {
    return (int32_t)((murmur2(key, (uint32_t)key_bytes) & 0x7fffffffu) % (uint32_t)partitions_count);
}

void tpc_keys_partitions(const uint8_t *keys, const int32_t *key_lengths, int32_t rows_count, int32_t partitions_count,
                         int32_t *out) {
    for (int32_t row = 0; row < rows_count; row++) {
        int32_t length = key_lengths[row];
        out[row] = length < 0 ? -1 : tpc_key_partition(keys, (size_t)length, partitions_count);
        if (length > 0) keys += length;
    }
}
