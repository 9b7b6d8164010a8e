/*
 * Records that come as datagrams (docs/datagrams.md). All numbers are big-endian:
 *
 *   u8 version | u8 flags | u16 key_bytes | u32 topic | u32 partition | u32 request_id | i64 timestamp_ms, if told | key | value
 *
 * The answer is the same header without anything behind it: flag ANSWER, and an error code of Kafka's in place of key_bytes.
 */
enum { TPC_DATAGRAM_VERSION = 1, TPC_DATAGRAM_HEADER_BYTES = 16 };

enum tpc_datagram_flag {
    TPC_DATAGRAM_ACKNOWLEDGE = 1,
    TPC_DATAGRAM_HAS_KEY = 2, /* without it the key is null */
    TPC_DATAGRAM_HAS_TIMESTAMP = 4,
    TPC_DATAGRAM_ANSWER = 128
};

typedef struct {
    const uint8_t *key; /* NULL: null */
    const uint8_t *value;
    int64_t timestamp_ms; /* -1: none was told */
    uint32_t topic;       /* CRC-32C of its name */
    uint32_t partition;
    uint32_t request_id;
    uint32_t value_bytes;
    uint16_t key_bytes;
    uint8_t flags;
} tpc_datagram;

/* 0; -EBADMSG: it has no header of this version, or is an answer, and nobody is told anything; -EINVAL: the header says what
 * cannot be: unknown flags, or more than there is. Then topic, partition, request id and flags are there. */
int tpc_datagram_decode(const uint8_t *bytes, size_t bytes_count, tpc_datagram *out);
/* The answer to it: 16 bytes at `out`. */
void tpc_datagram_answer(const tpc_datagram *asked, int16_t error_code, uint8_t *out);

/* A batch that is made of records one by one, in memory of whoever makes it. */
typedef struct {
    int64_t base_timestamp;
    int64_t max_timestamp;
    uint32_t bytes; /* so far, the header's included */
    int32_t records_count;
} tpc_batch_builder;

/* What a record takes in the batch as it is. */
uint32_t tpc_batch_builder_record_bytes(const tpc_batch_builder *builder, const tpc_datagram *record);
/* Adds it at the end of the `builder->bytes` that are at `batch`, where there is room. timestamp_ms is set. */
void tpc_batch_builder_add(tpc_batch_builder *builder, const tpc_datagram *record, uint8_t *batch);
/* The header in front of one or more records, without a producer. */
void tpc_batch_builder_finish(const tpc_batch_builder *builder, uint8_t *batch);
