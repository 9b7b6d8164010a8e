/*
 * Record batch v2: its header, its checks, its stamps.
 *
 *   0 base_offset i64 | 8 length i32 | 12 partition_leader_epoch i32 | 16 magic i8 | 17 crc u32 | 21 attributes i16
 *   23 last_offset_delta i32 | 27 base_timestamp i64 | 35 max_timestamp i64 | 43 producer_id i64 | 51 producer_epoch i16
 *   53 base_sequence i32 | 57 records_count i32 | 61 records
 *
 * length counts what follows it; crc covers everything from the attributes on. So a broker may set base_offset and
 * partition_leader_epoch without touching the crc.
 */
#include <errno.h>
#include <string.h>

#include "batch.h"
#include "bytes.h"
#include "wire.h"

enum {
    AT_LENGTH = 8,
    AT_LEADER_EPOCH = 12,
    AT_MAGIC = 16,
    AT_CRC = 17,
    AT_ATTRIBUTES = 21,
    AT_LAST_OFFSET_DELTA = 23,
    AT_BASE_TIMESTAMP = 27,
    AT_MAX_TIMESTAMP = 35,
    AT_PRODUCER_ID = 43,
    AT_PRODUCER_EPOCH = 51,
    AT_BASE_SEQUENCE = 53,
    AT_RECORDS_COUNT = 57,
    HEADER_TO_MAGIC_BYTES = 17,
    LENGTH_MIN = 14, /* what the oldest message format needs: Kafka's first test of any length */
    COMPRESSION_ZSTD = 4,
    PRODUCE_VERSION_ZSTD = 7,
};

static void read_header(const uint8_t *at, tpc_batch_header *out) {
    out->base_offset = (int64_t)wire_u64(at);
    out->batch_bytes = (int32_t)(wire_u32(at + AT_LENGTH) + TPC_BATCH_LENGTH_OVERHEAD_BYTES);
    out->partition_leader_epoch = (int32_t)wire_u32(at + AT_LEADER_EPOCH);
    out->magic = (int8_t)at[AT_MAGIC];
    out->crc = wire_u32(at + AT_CRC);
    out->attributes = (int16_t)wire_u16(at + AT_ATTRIBUTES);
    out->last_offset_delta = (int32_t)wire_u32(at + AT_LAST_OFFSET_DELTA);
    out->base_timestamp = (int64_t)wire_u64(at + AT_BASE_TIMESTAMP);
    out->max_timestamp = (int64_t)wire_u64(at + AT_MAX_TIMESTAMP);
    out->producer_id = (int64_t)wire_u64(at + AT_PRODUCER_ID);
    out->producer_epoch = (int16_t)wire_u16(at + AT_PRODUCER_EPOCH);
    out->base_sequence = (int32_t)wire_u32(at + AT_BASE_SEQUENCE);
    out->records_count = (int32_t)wire_u32(at + AT_RECORDS_COUNT);
}

/*
 * The size of the batch or old message at `at`. TPC_BATCH_TRUNCATED when the bytes end inside it. What is looked at, and
 * in which order, is Kafka's: a length first, then a magic, then whether all of it is there.
 */
static int whole_batch(const uint8_t *at, size_t left, size_t *batch_bytes) {
    if (left < TPC_BATCH_LENGTH_OVERHEAD_BYTES) return TPC_BATCH_TRUNCATED;
    int32_t length = (int32_t)wire_u32(at + AT_LENGTH);
    if (length < LENGTH_MIN) return TPC_BATCH_BAD_LENGTH;
    if (left < HEADER_TO_MAGIC_BYTES) return TPC_BATCH_TRUNCATED;
    if (at[AT_MAGIC] > 2) return TPC_BATCH_BAD_MAGIC;
    if (left - TPC_BATCH_LENGTH_OVERHEAD_BYTES < (size_t)length) return TPC_BATCH_TRUNCATED;
    *batch_bytes = (size_t)length + TPC_BATCH_LENGTH_OVERHEAD_BYTES;
    /* Sizes are i32 everywhere else; only a batch within 12 bytes of 2 GiB is concerned. */
    return *batch_bytes > INT32_MAX ? TPC_BATCH_BAD_LENGTH : TPC_BATCH_OK;
}

static uint32_t computed_crc(const uint8_t *batch, size_t batch_bytes) {
    return tpc_crc32c(0, batch + AT_ATTRIBUTES, batch_bytes - AT_ATTRIBUTES);
}

int tpc_batch_header_read(const uint8_t *bytes, size_t bytes_count, tpc_batch_header *out) {
    size_t batch_bytes;
    int reason = whole_batch(bytes, bytes_count, &batch_bytes);
    if (reason == TPC_BATCH_TRUNCATED) return -ENODATA;
    if (reason || bytes[AT_MAGIC] != 2 || batch_bytes < TPC_BATCH_HEADER_BYTES) return -EBADMSG;
    read_header(bytes, out);
    return 0;
}

/* Kafka says where the log starts when its log refused the batch, save for damage and size. */
static bool tells_log_start(int reason) {
    return reason == TPC_BATCH_BAD_BASE_OFFSET ||
           (reason >= TPC_BATCH_UNKNOWN_COMPRESSION && reason <= TPC_BATCH_NO_KEY);
}

static int refuse(tpc_batch_report *report, int reason) {
    static const int16_t codes[TPC_BATCH_REASONS_COUNT] = {
        [TPC_BATCH_EMPTY] = TPC_ERROR_INVALID_RECORD,
        [TPC_BATCH_BAD_LENGTH] = TPC_ERROR_CORRUPT_MESSAGE,
        [TPC_BATCH_BAD_MAGIC] = TPC_ERROR_CORRUPT_MESSAGE,
        [TPC_BATCH_OLD_MAGIC] = TPC_ERROR_INVALID_RECORD,
        [TPC_BATCH_MORE_THAN_ONE] = TPC_ERROR_INVALID_RECORD,
        [TPC_BATCH_COMPRESSION_TOO_NEW] = TPC_ERROR_UNSUPPORTED_COMPRESSION_TYPE,
        [TPC_BATCH_BAD_BASE_OFFSET] = TPC_ERROR_INVALID_RECORD,
        [TPC_BATCH_TOO_LARGE] = TPC_ERROR_MESSAGE_TOO_LARGE,
        [TPC_BATCH_BAD_CRC] = TPC_ERROR_CORRUPT_MESSAGE,
        [TPC_BATCH_UNKNOWN_COMPRESSION] = TPC_ERROR_UNKNOWN_SERVER_ERROR,
        [TPC_BATCH_BAD_COUNT] = TPC_ERROR_INVALID_RECORD,
        [TPC_BATCH_CONTROL] = TPC_ERROR_INVALID_RECORD,
        [TPC_BATCH_BAD_SEQUENCE] = TPC_ERROR_INVALID_RECORD,
        [TPC_BATCH_BAD_RECORD] = TPC_ERROR_INVALID_RECORD,
        [TPC_BATCH_BAD_TIMESTAMP] = TPC_ERROR_INVALID_TIMESTAMP,
        [TPC_BATCH_NO_KEY] = TPC_ERROR_INVALID_RECORD,
        [TPC_BATCH_OVER_SEGMENT] = TPC_ERROR_RECORD_LIST_TOO_LARGE,
    };
    report->reason = reason;
    report->error_code = codes[reason];
    if (!tells_log_start(reason)) report->flags &= ~(uint32_t)TPC_BATCH_TELLS_LOG_START;
    return report->error_code;
}

/* The field as a whole: exactly one batch of magic 2, which is the first thing Kafka looks at. */
static int check_field(const uint8_t *records, size_t records_bytes, const tpc_batch_limits *limits,
                       size_t *batch_bytes, tpc_batch_report *report) {
    int reason = whole_batch(records, records_bytes, batch_bytes);
    if (reason) return reason == TPC_BATCH_TRUNCATED ? TPC_BATCH_EMPTY : reason;
    if (records[AT_MAGIC] != 2) return TPC_BATCH_OLD_MAGIC;
    if (limits->produce_version < PRODUCE_VERSION_ZSTD &&
        (wire_u16(records + AT_ATTRIBUTES) & TPC_BATCH_COMPRESSION_MASK) == COMPRESSION_ZSTD)
        return TPC_BATCH_COMPRESSION_TOO_NEW;
    size_t tail_bytes = records_bytes - *batch_bytes, next_bytes;
    if (tail_bytes == 0) return TPC_BATCH_OK;
    reason = whole_batch(records + *batch_bytes, tail_bytes, &next_bytes);
    if (reason == TPC_BATCH_OK) return TPC_BATCH_MORE_THAN_ONE;
    if (reason != TPC_BATCH_TRUNCATED) return reason;
    report->flags |= TPC_BATCH_TAIL_DROPPED;
    return TPC_BATCH_OK;
}

static int check_header(const uint8_t *batch, size_t batch_bytes, const tpc_batch_limits *limits,
                        tpc_batch_header *header) {
    if (wire_u64(batch) != 0) return TPC_BATCH_BAD_BASE_OFFSET;
    if (batch_bytes > (size_t)(limits->batch_bytes_max < 0 ? 0 : limits->batch_bytes_max)) return TPC_BATCH_TOO_LARGE;
    if (batch_bytes < TPC_BATCH_HEADER_BYTES) return TPC_BATCH_BAD_CRC;
    read_header(batch, header);
    if (computed_crc(batch, batch_bytes) != header->crc) return TPC_BATCH_BAD_CRC;
    if ((header->attributes & TPC_BATCH_COMPRESSION_MASK) > COMPRESSION_ZSTD) return TPC_BATCH_UNKNOWN_COMPRESSION;
    if (header->records_count <= 0 || header->last_offset_delta != header->records_count - 1)
        return TPC_BATCH_BAD_COUNT;
    if (header->attributes & TPC_BATCH_IS_CONTROL) return TPC_BATCH_CONTROL;
    if (header->producer_id > -1 && header->base_sequence < 0) return TPC_BATCH_BAD_SEQUENCE;
    return TPC_BATCH_OK;
}

int tpc_batch_validate(const uint8_t *records, size_t records_bytes, const tpc_batch_limits *limits,
                       tpc_batch_report *out) {
    size_t batch_bytes;
    memset(out, 0, offsetof(tpc_batch_report, bad_records)); /* of which bad_records_count are filled in */
    out->flags = TPC_BATCH_TELLS_LOG_START;
    int reason = check_field(records, records_bytes, limits, &batch_bytes, out);
    if (!reason) reason = check_header(records, batch_bytes, limits, &out->header);
    if (reason) return refuse(out, reason);
    if (out->header.attributes & TPC_BATCH_COMPRESSION_MASK)
        reason = batch_judge_by_header(limits, out);
    else
        reason = batch_walk(records + TPC_BATCH_HEADER_BYTES, batch_bytes - TPC_BATCH_HEADER_BYTES, limits, out);
    if (reason) return refuse(out, reason);
    if (limits->segment_bytes_max > 0 && batch_bytes > (size_t)limits->segment_bytes_max)
        return refuse(out, TPC_BATCH_OVER_SEGMENT);
    return 0;
}

int tpc_records_validate(const uint8_t *records, size_t records_bytes, const tpc_batch_limits *limits,
                         tpc_batch_report *report) {
    report->error_code = report->reason = TPC_BATCH_OK;
    report->bad_records_count = 0;
    report->flags |= TPC_BATCH_TELLS_LOG_START;
    int reason = batch_walk(records, records_bytes, limits, report);
    return reason ? refuse(report, reason) : 0;
}

static bool exactly_one_batch(const uint8_t *batch, size_t batch_bytes) {
    size_t whole_bytes;
    return whole_batch(batch, batch_bytes, &whole_bytes) == TPC_BATCH_OK && whole_bytes == batch_bytes &&
           batch_bytes >= TPC_BATCH_HEADER_BYTES && batch[AT_MAGIC] == 2;
}

int tpc_batch_seal(uint8_t *batch, size_t batch_bytes) {
    if (!exactly_one_batch(batch, batch_bytes)) return -EBADMSG;
    wire_set_u32(batch + AT_CRC, computed_crc(batch, batch_bytes));
    return 0;
}

void tpc_batch_stamp(uint8_t *batch, int64_t base_offset, int32_t partition_leader_epoch) {
    wire_set_u64(batch, (uint64_t)base_offset);
    wire_set_u32(batch + AT_LEADER_EPOCH, (uint32_t)partition_leader_epoch);
}

int tpc_batch_stamp_append_time(uint8_t *batch, size_t batch_bytes, int64_t base_offset, int32_t partition_leader_epoch,
                                int64_t timestamp_ms) {
    if (!exactly_one_batch(batch, batch_bytes)) return -EBADMSG;
    tpc_batch_stamp(batch, base_offset, partition_leader_epoch);
    wire_set_u16(batch + AT_ATTRIBUTES, wire_u16(batch + AT_ATTRIBUTES) | TPC_BATCH_LOG_APPEND_TIME);
    wire_set_u64(batch + AT_MAX_TIMESTAMP, (uint64_t)timestamp_ms);
    return tpc_batch_seal(batch, batch_bytes);
}

int tpc_batch_set_max_timestamp(uint8_t *batch, size_t batch_bytes, int64_t max_timestamp) {
    if (!exactly_one_batch(batch, batch_bytes)) return -EBADMSG;
    uint16_t attributes = wire_u16(batch + AT_ATTRIBUTES);
    if (!(attributes & TPC_BATCH_LOG_APPEND_TIME) && wire_u64(batch + AT_MAX_TIMESTAMP) == (uint64_t)max_timestamp)
        return 0;
    wire_set_u16(batch + AT_ATTRIBUTES, attributes & (uint16_t)~TPC_BATCH_LOG_APPEND_TIME);
    wire_set_u64(batch + AT_MAX_TIMESTAMP, (uint64_t)max_timestamp);
    return tpc_batch_seal(batch, batch_bytes);
}

/* A stored batch: what it must be, whoever wrote it. Control and emptied (compacted) batches are fine here. */
static int check_stored(const uint8_t *at, size_t left, uint32_t flags, int64_t next_offset, tpc_batch_header *header) {
    size_t batch_bytes;
    int reason = whole_batch(at, left, &batch_bytes);
    if (reason) return reason;
    if (at[AT_MAGIC] != 2) return TPC_BATCH_OLD_MAGIC;
    if (batch_bytes < TPC_BATCH_HEADER_BYTES) return TPC_BATCH_BAD_LENGTH;
    read_header(at, header);
    if (header->base_offset < 0 || header->base_offset > INT64_MAX - 1 - (int64_t)INT32_MAX) return TPC_BATCH_BAD_ORDER;
    if (header->last_offset_delta < 0 || header->records_count < 0 ||
        header->records_count - 1 > header->last_offset_delta)
        return TPC_BATCH_BAD_COUNT;
    if (next_offset >= 0 && header->base_offset != next_offset &&
        !((flags & TPC_SCAN_ALLOW_GAPS) && header->base_offset > next_offset))
        return TPC_BATCH_BAD_ORDER;
    if ((flags & TPC_SCAN_CHECK_CRC) && computed_crc(at, batch_bytes) != header->crc) return TPC_BATCH_BAD_CRC;
    return TPC_BATCH_OK;
}

int batch_check_stored(const uint8_t *at, size_t left, tpc_batch_header *header) {
    return check_stored(at, left, TPC_SCAN_ALLOW_GAPS, -1, header);
}

static void fill_entry(const tpc_batch_header *header, int64_t position, tpc_batch_entry *entry) {
    *entry = (tpc_batch_entry){
        .position = position,
        .base_offset = header->base_offset,
        .last_offset = header->base_offset + header->last_offset_delta,
        .base_timestamp = header->base_timestamp,
        .max_timestamp = header->max_timestamp,
        .producer_id = header->producer_id,
        .batch_bytes = header->batch_bytes,
        .partition_leader_epoch = header->partition_leader_epoch,
        .base_sequence = header->base_sequence,
        .records_count = header->records_count,
        .producer_epoch = header->producer_epoch,
        .attributes = header->attributes,
    };
}

int tpc_batch_scan(const uint8_t *bytes, size_t bytes_count, uint32_t flags, tpc_scan_state *state,
                   tpc_batch_entry *out, int out_max) {
    int filled = 0;
    if (state->position < 0 || (size_t)state->position > bytes_count) return -EINVAL;
    state->reason = TPC_BATCH_OK;
    while ((size_t)state->position < bytes_count) {
        tpc_batch_header header;
        if (out && filled >= out_max) {
            state->reason = TPC_BATCH_ARRAY_FULL;
            break;
        }
        const uint8_t *at = bytes + state->position;
        state->reason = check_stored(at, bytes_count - (size_t)state->position, flags, state->next_offset, &header);
        if (state->reason) break;
        if (flags & TPC_SCAN_CHECK_EPOCH) {
            if (header.base_offset >= state->epoch_end) break;
            if (state->leader_epoch >= 0 && header.partition_leader_epoch != state->leader_epoch) {
                state->reason = TPC_BATCH_BAD_EPOCH;
                break;
            }
        }
        if (out) fill_entry(&header, state->position, &out[filled++]);
        state->position += header.batch_bytes;
        state->next_offset = header.base_offset + header.last_offset_delta + 1;
    }
    state->batches_count = filled;
    return filled;
}

const char *tpc_batch_reason_text(int reason) {
    static const char *const texts[TPC_BATCH_REASONS_COUNT] = {
        [TPC_BATCH_OK] = "ok",
        [TPC_BATCH_EMPTY] = "no whole record batch",
        [TPC_BATCH_BAD_LENGTH] = "a length that no batch can have",
        [TPC_BATCH_BAD_MAGIC] = "unknown magic",
        [TPC_BATCH_OLD_MAGIC] = "message format 0 or 1",
        [TPC_BATCH_MORE_THAN_ONE] = "more than one record batch",
        [TPC_BATCH_COMPRESSION_TOO_NEW] = "zstd before Produce version 7",
        [TPC_BATCH_BAD_BASE_OFFSET] = "base offset is not 0",
        [TPC_BATCH_TOO_LARGE] = "larger than max.message.bytes",
        [TPC_BATCH_BAD_CRC] = "checksum does not match",
        [TPC_BATCH_UNKNOWN_COMPRESSION] = "unknown compression",
        [TPC_BATCH_BAD_COUNT] = "record count and last offset delta do not fit",
        [TPC_BATCH_CONTROL] = "control batch from a client",
        [TPC_BATCH_BAD_SEQUENCE] = "producer id without a sequence",
        [TPC_BATCH_BAD_RECORD] = "malformed record",
        [TPC_BATCH_BAD_TIMESTAMP] = "timestamp out of range",
        [TPC_BATCH_NO_KEY] = "record without key in a compacted topic",
        [TPC_BATCH_OVER_SEGMENT] = "larger than segment.bytes",
        [TPC_BATCH_TRUNCATED] = "incomplete batch",
        [TPC_BATCH_BAD_ORDER] = "offsets do not follow",
        [TPC_BATCH_ARRAY_FULL] = "more batches follow",
        [TPC_BATCH_BAD_EPOCH] = "another leader epoch",
    };
    return reason >= 0 && reason < TPC_BATCH_REASONS_COUNT ? texts[reason] : "unknown reason";
}
