/* Datagrams with a record each, and the batch that is made of them. */
#include <errno.h>

#include "bytes.h"
#include "wire.h"

enum {
    KNOWN_FLAGS = TPC_DATAGRAM_ACKNOWLEDGE | TPC_DATAGRAM_HAS_KEY | TPC_DATAGRAM_HAS_TIMESTAMP,
    TIMESTAMP_BYTES = 8,
    CRC_POSITION = 17,
    CHECKED_POSITION = 21
};

int tpc_datagram_decode(const uint8_t *bytes, size_t bytes_count, tpc_datagram *out) {
    if (bytes_count < TPC_DATAGRAM_HEADER_BYTES || bytes_count > UINT16_MAX || bytes[0] != TPC_DATAGRAM_VERSION ||
        bytes[1] & TPC_DATAGRAM_ANSWER)
        return -EBADMSG;
    *out = (tpc_datagram){.flags = bytes[1],
                          .key_bytes = wire_u16(bytes + 2),
                          .topic = wire_u32(bytes + 4),
                          .partition = wire_u32(bytes + 8),
                          .request_id = wire_u32(bytes + 12),
                          .timestamp_ms = -1};
    const uint8_t *at = bytes + TPC_DATAGRAM_HEADER_BYTES;
    size_t left = bytes_count - TPC_DATAGRAM_HEADER_BYTES;
    bool has_key = out->flags & TPC_DATAGRAM_HAS_KEY, has_timestamp = out->flags & TPC_DATAGRAM_HAS_TIMESTAMP;
    size_t head = (has_timestamp ? TIMESTAMP_BYTES : 0) + (size_t)out->key_bytes;
    if (out->flags & ~KNOWN_FLAGS || head > left || (!has_key && out->key_bytes)) return -EINVAL;
    if (has_timestamp) {
        out->timestamp_ms = (int64_t)wire_u64(at);
        if (out->timestamp_ms < 0) return -EINVAL;
        at += TIMESTAMP_BYTES;
    }
    if (has_key) out->key = at;
    out->value = at + out->key_bytes;
    out->value_bytes = (uint32_t)(left - head);
    return 0;
}

void tpc_datagram_answer(const tpc_datagram *asked, int16_t error_code, uint8_t *out) {
    out[0] = TPC_DATAGRAM_VERSION;
    out[1] = TPC_DATAGRAM_ANSWER;
    wire_set_u16(out + 2, (uint16_t)error_code);
    wire_set_u32(out + 4, asked->topic);
    wire_set_u32(out + 8, asked->partition);
    wire_set_u32(out + 12, asked->request_id);
}

/* ---- the batch ---- */

static uint64_t zigzag(int64_t value) { return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63); }

static uint32_t varint_bytes(uint64_t value) {
    uint32_t bytes = 1;
    for (; value >= 0x80; value >>= 7) bytes++;
    return bytes;
}

static uint8_t *put_varint(uint8_t *at, int64_t value) {
    uint64_t left = zigzag(value);
    for (; left >= 0x80; left >>= 7) *at++ = (uint8_t)(left | 0x80);
    *at++ = (uint8_t)left;
    return at;
}

static int64_t timestamp_delta(const tpc_batch_builder *builder, const tpc_datagram *record) {
    return builder->records_count ? record->timestamp_ms - builder->base_timestamp : 0;
}

/* Behind its length: attributes, the two deltas, key, value, and that there are no headers. */
static uint32_t body_bytes(const tpc_batch_builder *builder, const tpc_datagram *record) {
    return 1 + varint_bytes(zigzag(timestamp_delta(builder, record))) + varint_bytes(zigzag(builder->records_count)) +
           varint_bytes(zigzag(record->key ? record->key_bytes : -1)) + record->key_bytes +
           varint_bytes(zigzag(record->value_bytes)) + record->value_bytes + 1;
}

uint32_t tpc_batch_builder_record_bytes(const tpc_batch_builder *builder, const tpc_datagram *record) {
    uint32_t body = body_bytes(builder, record);
    return varint_bytes(zigzag(body)) + body + (builder->records_count ? 0 : TPC_BATCH_HEADER_BYTES);
}

void tpc_batch_builder_add(tpc_batch_builder *builder, const tpc_datagram *record, uint8_t *batch) {
    if (!builder->records_count) {
        builder->bytes = TPC_BATCH_HEADER_BYTES;
        builder->base_timestamp = builder->max_timestamp = record->timestamp_ms;
    }
    uint8_t *at = put_varint(batch + builder->bytes, body_bytes(builder, record));
    *at++ = 0;
    at = put_varint(at, timestamp_delta(builder, record));
    at = put_varint(at, builder->records_count);
    at = put_varint(at, record->key ? record->key_bytes : -1);
    if (record->key_bytes) memcpy(at, record->key, record->key_bytes);
    at = put_varint(at + record->key_bytes, record->value_bytes);
    if (record->value_bytes) memcpy(at, record->value, record->value_bytes);
    at += record->value_bytes;
    *at++ = 0;
    builder->bytes = (uint32_t)(at - batch);
    builder->records_count++;
    if (record->timestamp_ms > builder->max_timestamp) builder->max_timestamp = record->timestamp_ms;
}

void tpc_batch_builder_finish(const tpc_batch_builder *builder, uint8_t *batch) {
    memset(batch, 0, TPC_BATCH_HEADER_BYTES);
    wire_set_u32(batch + 8, builder->bytes - TPC_BATCH_LENGTH_OVERHEAD_BYTES);
    wire_set_u32(batch + 12, UINT32_MAX); /* the leader epoch: not known yet */
    batch[16] = 2;
    wire_set_u32(batch + 23, (uint32_t)builder->records_count - 1);
    wire_set_u64(batch + 27, (uint64_t)builder->base_timestamp);
    wire_set_u64(batch + 35, (uint64_t)builder->max_timestamp);
    memset(batch + 43, 0xff, 8 + 2 + 4); /* no producer, epoch, sequence */
    wire_set_u32(batch + 57, (uint32_t)builder->records_count);
    uint32_t crc = tpc_crc32c(0, batch + CHECKED_POSITION, builder->bytes - CHECKED_POSITION);
    wire_set_u32(batch + CRC_POSITION, crc);
}
