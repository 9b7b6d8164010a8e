/*
 * Columns of keys and values, for whoever replays a log of which only each key's last value counts. A call reads records of
 * one meaning: of no transaction, or of one producer's, or the end of one.
 */
#include <errno.h>

#include "batch.h"
#include "bytes.h"

enum {
    CRC_COVERS_FROM = 21,
    CONTROL_KEY_BYTES = 4,
    CONTROL_TYPE_AT = 2,
    ABORT_TYPE = 0,
    COMMIT_TYPE = 1,
    LOOK_AHEAD = 32 /* batches, for the marker of one: their headers, some 10 ns each */
};

/* The header of the batch at walk->position. 0; else why it is not to be read. */
static int look_at_batch(const uint8_t *bytes, size_t bytes_count, const tpc_key_values_walk *walk,
                         tpc_batch_header *header) {
    const uint8_t *at = bytes + walk->position;
    int reason = batch_check_stored(at, bytes_count - (size_t)walk->position, header);
    if (reason == TPC_BATCH_TRUNCATED) return TPC_KEY_VALUES_END;
    if (reason != TPC_BATCH_OK) return -EBADMSG;
    if (tpc_crc32c(0, at + CRC_COVERS_FROM, (size_t)header->batch_bytes - CRC_COVERS_FROM) != header->crc)
        return -EBADMSG;
    return header->attributes & TPC_BATCH_COMPRESSION_MASK ? TPC_KEY_VALUES_COMPRESSED : 0;
}

/* Of a control batch: which kind of end of a transaction it is, PLAIN: none. */
static int kind_of_control(const uint8_t *bytes, int64_t begin, const tpc_batch_header *header) {
    size_t position = (size_t)begin + TPC_BATCH_HEADER_BYTES;
    tpc_record record;
    if (!(header->attributes & TPC_BATCH_TRANSACTIONAL) || header->records_count == 0) return TPC_KEY_VALUES_PLAIN;
    if (tpc_record_read(bytes, (size_t)(begin + header->batch_bytes), &position, &record) != 0) return -EBADMSG;
    if (!record.key || record.key_bytes != CONTROL_KEY_BYTES) return TPC_KEY_VALUES_PLAIN;
    int type = record.key[CONTROL_TYPE_AT] << 8 | record.key[CONTROL_TYPE_AT + 1];
    if (type != ABORT_TYPE && type != COMMIT_TYPE) return TPC_KEY_VALUES_PLAIN;
    return type == COMMIT_TYPE ? TPC_KEY_VALUES_COMMIT : TPC_KEY_VALUES_ABORT;
}

/* Whether the transaction of the batch at walk->position is committed by a marker that comes soon. The marker itself is read,
 * and its CRC checked, when the walk comes there. */
static bool is_committed_soon(const uint8_t *bytes, size_t bytes_count, const tpc_key_values_walk *walk,
                              const tpc_batch_header *of) {
    int64_t position = walk->position + of->batch_bytes;
    for (int batches = 0; batches < LOOK_AHEAD && (size_t)position < bytes_count; batches++) {
        tpc_batch_header header;
        if (batch_check_stored(bytes + position, bytes_count - (size_t)position, &header) != TPC_BATCH_OK) return false;
        if (header.producer_id == of->producer_id && header.attributes & TPC_BATCH_IS_CONTROL) {
            if (header.attributes & TPC_BATCH_COMPRESSION_MASK) return false;
            int kind = kind_of_control(bytes, position, &header);
            if (kind != TPC_KEY_VALUES_PLAIN) return kind == TPC_KEY_VALUES_COMMIT;
        }
        position += header.batch_bytes;
    }
    return false;
}

/* A record of a transaction that commits counts from its own place in the log on, as one of none does: so where that is certain
 * it is one. */
static int kind_of(const uint8_t *bytes, size_t bytes_count, const tpc_key_values_walk *walk,
                   const tpc_batch_header *header) {
    if (header->attributes & TPC_BATCH_IS_CONTROL) {
        int kind = kind_of_control(bytes, walk->position, header);
        return kind > 0 && walk->is_none_open ? TPC_KEY_VALUES_PLAIN : kind; /* it ends nothing */
    }
    bool is_open = header->attributes & TPC_BATCH_TRANSACTIONAL && header->producer_id >= 0 && header->records_count;
    return is_open && !is_committed_soon(bytes, bytes_count, walk, header) ? TPC_KEY_VALUES_TRANSACTION
                                                                           : TPC_KEY_VALUES_PLAIN;
}

/* Goes on behind the header of the batch that was looked at; behind all of it where none of its records counts. */
static void begin_batch(tpc_key_values_walk *walk, const tpc_batch_header *header, int kind) {
    bool has_none = header->attributes & TPC_BATCH_IS_CONTROL || header->records_count == 0;
    walk->kind = (int16_t)kind;
    walk->producer_id = header->producer_id;
    walk->producer_epoch = header->producer_epoch;
    walk->batch_end = walk->position + header->batch_bytes;
    walk->batch_offset = header->base_offset + header->last_offset_delta + 1;
    walk->records_left = has_none ? 0 : header->records_count;
    walk->batches_passed += has_none;
    walk->position =
        header->attributes & TPC_BATCH_IS_CONTROL ? walk->batch_end : walk->position + TPC_BATCH_HEADER_BYTES;
}

static bool end_batch(tpc_key_values_walk *walk) {
    if (walk->position != walk->batch_end) return false;
    walk->batch_end = 0;
    walk->next_offset = walk->batch_offset;
    return true;
}

static tpc_key_value place_of(const uint8_t *bytes, const tpc_record *record) {
    tpc_key_value place = {-1, -1, -1, -1};
    if (record->key) {
        place.key_begin = (int32_t)(record->key - bytes);
        place.key_end = place.key_begin + record->key_bytes;
    }
    if (record->value) {
        place.value_begin = (int32_t)(record->value - bytes);
        place.value_end = place.value_begin + record->value_bytes;
    }
    return place;
}

/* Records of the batch that was begun, as far as there is room. How many are filled then, or -EBADMSG. */
static int read_batch(const uint8_t *bytes, tpc_key_values_walk *walk, tpc_key_value *out, int filled, int out_max) {
    for (; walk->records_left > 0 && filled + walk->batches_passed < out_max; walk->records_left--) {
        size_t position = (size_t)walk->position;
        tpc_record record;
        if (tpc_record_read(bytes, (size_t)walk->batch_end, &position, &record) != 0) return -EBADMSG;
        walk->position = (int64_t)position;
        out[filled++] = place_of(bytes, &record);
    }
    if (walk->records_left == 0 && !end_batch(walk)) return -EBADMSG;
    return filled;
}

int tpc_key_values_read(const uint8_t *bytes, size_t bytes_count, tpc_key_values_walk *walk, tpc_key_value *out,
                        int out_max) {
    int filled = 0;
    if (bytes_count > INT32_MAX || walk->position < 0 || (size_t)walk->position > bytes_count ||
        walk->records_left < 0 || walk->batch_end < 0 || (size_t)walk->batch_end > bytes_count ||
        (walk->batch_end && walk->batch_end < walk->position))
        return -EINVAL;
    walk->batches_passed = 0;
    walk->stopped = TPC_KEY_VALUES_FULL;
    if (!walk->batch_end) walk->kind = TPC_KEY_VALUES_PLAIN;
    while (filled + walk->batches_passed < out_max) {
        if (!walk->batch_end) {
            tpc_batch_header header;
            walk->stopped = look_at_batch(bytes, bytes_count, walk, &header);
            if (walk->stopped) return walk->stopped < 0 ? walk->stopped : filled;
            int kind = kind_of(bytes, bytes_count, walk, &header);
            if (kind < 0) return kind;
            if (kind != TPC_KEY_VALUES_PLAIN && filled + walk->batches_passed) return filled; /* by the next call */
            begin_batch(walk, &header, kind);
        }
        filled = read_batch(bytes, walk, out, filled, out_max);
        if (filled < 0 || walk->kind != TPC_KEY_VALUES_PLAIN) return filled;
    }
    return filled;
}
