/*
 * Columns of keys and values, for whoever replays a log of which only each key's last value counts. Batches that have a
 * meaning beside their records are shown to the caller first.
 */
#include <errno.h>

#include "batch.h"
#include "bytes.h"

enum { CRC_COVERS_FROM = 21 };

static const int16_t FOR_OTHERS = TPC_BATCH_COMPRESSION_MASK | TPC_BATCH_TRANSACTIONAL | TPC_BATCH_IS_CONTROL;

/* The batch at walk->position. 0: its records are to be read; else why not. */
static int begin_batch(const uint8_t *bytes, size_t bytes_count, tpc_key_values_walk *walk) {
    const uint8_t *at = bytes + walk->position;
    tpc_batch_header header;
    int reason = batch_check_stored(at, bytes_count - (size_t)walk->position, &header);
    if (reason == TPC_BATCH_TRUNCATED) return TPC_KEY_VALUES_END;
    if (reason != TPC_BATCH_OK) return -EBADMSG;
    if (tpc_crc32c(0, at + CRC_COVERS_FROM, (size_t)header.batch_bytes - CRC_COVERS_FROM) != header.crc)
        return -EBADMSG;
    walk->producer_id = header.producer_id;
    walk->producer_epoch = header.producer_epoch;
    walk->attributes = header.attributes;
    if (header.attributes & (walk->takes_other ? TPC_BATCH_COMPRESSION_MASK : FOR_OTHERS)) {
        walk->takes_other = 0;
        return TPC_KEY_VALUES_OTHER;
    }
    walk->batch_end = walk->position + header.batch_bytes;
    walk->batch_offset = header.base_offset + header.last_offset_delta + 1;
    walk->records_left = header.records_count;
    walk->batches_passed += header.records_count == 0;
    walk->position += TPC_BATCH_HEADER_BYTES;
    return 0;
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

int tpc_key_values_read(const uint8_t *bytes, size_t bytes_count, tpc_key_values_walk *walk, tpc_key_value *out,
                        int out_max) {
    int filled = 0;
    if (bytes_count > INT32_MAX || walk->position < 0 || (size_t)walk->position > bytes_count ||
        walk->records_left < 0 || walk->batch_end < 0 || (size_t)walk->batch_end > bytes_count ||
        (walk->batch_end && walk->batch_end < walk->position))
        return -EINVAL;
    walk->batches_passed = 0;
    walk->stopped = TPC_KEY_VALUES_FULL;
    while (filled + walk->batches_passed < out_max) {
        if (!walk->batch_end) {
            int stopped = begin_batch(bytes, bytes_count, walk);
            if (stopped < 0) return stopped;
            walk->stopped = stopped;
            if (stopped) break;
        }
        for (; walk->records_left > 0 && filled + walk->batches_passed < out_max; walk->records_left--) {
            size_t position = (size_t)walk->position;
            tpc_record record;
            if (tpc_record_read(bytes, (size_t)walk->batch_end, &position, &record) != 0) return -EBADMSG;
            walk->position = (int64_t)position;
            out[filled++] = place_of(bytes, &record);
        }
        if (walk->records_left) break;
        if (!end_batch(walk)) return -EBADMSG;
        if (walk->takes_other) {
            walk->takes_other = 0;
            break;
        }
    }
    return filled;
}
