/*
 * The records inside a batch. One record:
 *
 *   length varint | attributes i8 | timestamp_delta varlong | offset_delta varint | key_length varint | key
 *   value_length varint | value | headers_count varint | headers_count x (key_length, key, value_length, value)
 *
 * varint and varlong are zigzag LEB128; a negative length is null (not allowed for header keys). What is refused here is
 * what Kafka's own reader refuses, and one thing more: an offset_delta that is not the record's index, which Kafka stores
 * as it comes and which would give two records one offset.
 */
#include <errno.h>

#include "batch.h"
#include "wire.h"

static inline const uint8_t *read_nullable(wire_reader *reader, int32_t *bytes_count) {
    int32_t length = wire_read_varint(reader);
    *bytes_count = length < 0 ? -1 : length;
    return length < 0 ? NULL : wire_take(reader, (size_t)length);
}

static void skip_headers(wire_reader *reader, int32_t count) {
    if (count < 0 || (size_t)count > wire_left(reader)) {
        reader->bad = true;
        return;
    }
    for (int32_t i = 0; i < count && !reader->bad; i++) {
        int32_t bytes_count;
        read_nullable(reader, &bytes_count);
        if (bytes_count < 0) reader->bad = true;
        read_nullable(reader, &bytes_count);
    }
}

/* Takes one record from the reader; false when it is malformed. */
static inline bool take_record(wire_reader *reader, tpc_record *out) {
    const uint8_t *start = reader->at;
    int32_t body_bytes = wire_read_varint(reader);
    if (reader->bad || body_bytes < 0 || (size_t)body_bytes > wire_left(reader)) return false;
    wire_reader body = wire_reader_of(reader->at, (size_t)body_bytes);
    wire_read_u8(&body);
    out->timestamp_delta = wire_read_varlong(&body);
    out->offset_delta = wire_read_varint(&body);
    out->key = read_nullable(&body, &out->key_bytes);
    out->value = read_nullable(&body, &out->value_bytes);
    out->headers_count = wire_read_varint(&body);
    out->headers = body.at;
    if (__builtin_expect(out->headers_count != 0, 0)) skip_headers(&body, out->headers_count);
    if (body.bad || body.at != body.end) return false;
    out->headers_bytes = (int32_t)(body.end - out->headers);
    reader->at += body_bytes;
    if (reader->at - start > INT32_MAX) return false;
    out->record_bytes = (int32_t)(reader->at - start);
    return true;
}

int tpc_records_read(const uint8_t *records, size_t records_bytes, size_t *position, tpc_record *out, int out_max) {
    if (*position > records_bytes) return -EBADMSG;
    wire_reader reader = wire_reader_of(records + *position, records_bytes - *position);
    int filled = 0;
    while (filled < out_max && wire_left(&reader) > 0) {
        if (!take_record(&reader, &out[filled])) return -EBADMSG;
        *position += (size_t)out[filled++].record_bytes;
    }
    return filled;
}

int tpc_record_read(const uint8_t *records, size_t records_bytes, size_t *position, tpc_record *out) {
    int taken = tpc_records_read(records, records_bytes, position, out, 1);
    return taken < 0 ? taken : taken == 0 ? -ENODATA : 0;
}

int tpc_records_keyless(const uint8_t *records, size_t records_bytes, int32_t records_count, int32_t *out,
                        int out_max) {
    wire_reader reader = wire_reader_of(records, records_bytes);
    int found = 0;
    for (int32_t index = 0; index < records_count; index++) {
        tpc_record record;
        if (!take_record(&reader, &record)) return -EBADMSG;
        if (record.key) continue;
        if (found < out_max) out[found] = index;
        found++;
    }
    return records_count < 0 || wire_left(&reader) > 0 ? -EBADMSG : found;
}

static int64_t saturating_add(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? (b < 0 ? INT64_MIN : INT64_MAX) : sum;
}

typedef struct {
    int64_t first_ms, last_ms; /* both allowed */
    bool create_time;          /* the topic keeps the producers' timestamps */
    bool batch_append_time;    /* the batch claims LogAppendTime, so all its records have max_timestamp */
} timestamp_rule;

static timestamp_rule rule_of(const tpc_batch_limits *limits, const tpc_batch_header *header) {
    return (timestamp_rule){
        .first_ms = limits->timestamp_before_ms_max == INT64_MAX
                        ? INT64_MIN
                        : saturating_add(limits->now_ms, -limits->timestamp_before_ms_max),
        .last_ms = saturating_add(limits->now_ms, limits->timestamp_after_ms_max),
        .create_time = !limits->log_append_time,
        .batch_append_time = (header->attributes & TPC_BATCH_LOG_APPEND_TIME) != 0,
    };
}

static inline bool timestamp_allowed(const timestamp_rule *rule, int64_t timestamp) {
    if (rule->create_time && timestamp != -1) return timestamp >= rule->first_ms && timestamp <= rule->last_ms;
    return !rule->batch_append_time;
}

static void note_bad_record(tpc_batch_report *report, int32_t index, int16_t error_code) {
    if (report->bad_records_count < TPC_BATCH_BAD_RECORDS_MAX) {
        report->bad_records[report->bad_records_count] = index;
        report->bad_record_errors[report->bad_records_count] = error_code;
    }
    report->bad_records_count++;
}

/* As in Kafka, the first refused record decides what the whole batch is refused with. */
static int reason_of_bad_records(const tpc_batch_report *report) {
    if (report->bad_records_count == 0) return TPC_BATCH_OK;
    return report->bad_record_errors[0] == TPC_ERROR_INVALID_TIMESTAMP ? TPC_BATCH_BAD_TIMESTAMP : TPC_BATCH_NO_KEY;
}

static void note_max_timestamp(const tpc_batch_limits *limits, tpc_batch_report *report) {
    if (limits->log_append_time) return;
    if (report->records_max_timestamp != report->header.max_timestamp ||
        (report->header.attributes & TPC_BATCH_LOG_APPEND_TIME))
        report->flags |= TPC_BATCH_MAX_TIMESTAMP_WRONG;
}

int batch_walk(const uint8_t *records, size_t records_bytes, const tpc_batch_limits *limits, tpc_batch_report *report) {
    const tpc_batch_header *header = &report->header;
    const timestamp_rule rule = rule_of(limits, header);
    wire_reader reader = wire_reader_of(records, records_bytes);
    report->records_max_timestamp = -1;
    report->flags = (report->flags & ~(uint32_t)TPC_BATCH_MAX_TIMESTAMP_WRONG) | TPC_BATCH_WALKED;
    for (int32_t index = 0; index < header->records_count; index++) {
        tpc_record record;
        if (!take_record(&reader, &record) || record.offset_delta != index) return TPC_BATCH_BAD_RECORD;
        int64_t timestamp = rule.batch_append_time
                                ? header->max_timestamp
                                : (int64_t)((uint64_t)header->base_timestamp + (uint64_t)record.timestamp_delta);
        if (record.key == NULL) report->flags |= TPC_BATCH_HAS_NULL_KEY;
        if (record.key == NULL && limits->compacted)
            note_bad_record(report, index, TPC_ERROR_INVALID_RECORD);
        else if (!timestamp_allowed(&rule, timestamp))
            note_bad_record(report, index, TPC_ERROR_INVALID_TIMESTAMP);
        if (timestamp > report->records_max_timestamp) report->records_max_timestamp = timestamp;
    }
    if (wire_left(&reader) > 0) return TPC_BATCH_BAD_RECORD;
    note_max_timestamp(limits, report);
    return reason_of_bad_records(report);
}

int batch_judge_by_header(const tpc_batch_limits *limits, tpc_batch_report *report) {
    const tpc_batch_header *header = &report->header;
    const timestamp_rule rule = rule_of(limits, header);
    report->records_max_timestamp = header->max_timestamp;
    if (!timestamp_allowed(&rule, header->max_timestamp) ||
        (rule.create_time && !rule.batch_append_time && !timestamp_allowed(&rule, header->base_timestamp)))
        note_bad_record(report, 0, TPC_ERROR_INVALID_TIMESTAMP);
    note_max_timestamp(limits, report);
    return reason_of_bad_records(report);
}
