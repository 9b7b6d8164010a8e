/*
 * Records of batches into Arrow's columns. A batch is added whole or not at all: the counts are put back when it does not
 * fit or is malformed, and what was written behind them is written again by the next batch.
 */
#include <errno.h>

#include "bytes.h"
#include "wire.h"

enum { RECORDS_AT_ONCE = 128 };

static inline bool binary_append(tpc_binary_builder *column, int64_t row, const uint8_t *bytes, int32_t bytes_count) {
    if (column->data == NULL) return true;
    int32_t at = column->offsets[row];
    int32_t taken = bytes_count < 0 ? 0 : bytes_count;
    if (taken > column->data_capacity - at || at > INT32_MAX - taken) return false;
    if (taken) memcpy(column->data + at, bytes, (size_t)taken);
    column->offsets[row + 1] = at + taken;
    uint8_t bit = (uint8_t)(1u << (row & 7));
    if (bytes_count < 0) {
        column->valid[row >> 3] &= (uint8_t)~bit;
        column->nulls_count++;
    } else {
        column->valid[row >> 3] |= bit;
    }
    return true;
}

static bool headers_append(tpc_columns *columns, int64_t row, const tpc_record *record) {
    if (columns->header_offsets == NULL) return true;
    if (record->headers_count > columns->headers_capacity - columns->headers_count) return false;
    wire_reader reader = wire_reader_of(record->headers, (size_t)record->headers_bytes);
    for (int32_t i = 0; i < record->headers_count; i++) {
        int32_t name_bytes = wire_read_varint(&reader);
        const uint8_t *name = wire_take(&reader, (size_t)name_bytes);
        int32_t value_bytes = wire_read_varint(&reader);
        const uint8_t *value = value_bytes < 0 ? NULL : wire_take(&reader, (size_t)value_bytes);
        if (!binary_append(&columns->header_name, columns->headers_count, name, name_bytes) ||
            !binary_append(&columns->header_value, columns->headers_count, value, value_bytes))
            return false;
        columns->headers_count++;
    }
    columns->header_offsets[row + 1] = (int32_t)columns->headers_count;
    return true;
}

static bool record_append(tpc_columns *columns, const tpc_batch_header *header, const tpc_record *record) {
    int64_t row = columns->rows_count;
    if (row == columns->rows_capacity) return false;
    bool append_time = (header->attributes & TPC_BATCH_LOG_APPEND_TIME) != 0;
    uint64_t timestamp = append_time ? (uint64_t)header->max_timestamp
                                     : (uint64_t)header->base_timestamp + (uint64_t)record->timestamp_delta;
    columns->offsets[row] = (int64_t)((uint64_t)header->base_offset + (uint64_t)(int64_t)record->offset_delta);
    columns->timestamps_us[row] = (int64_t)(timestamp * 1000u);
    columns->timestamp_types[row] = append_time;
    if (!binary_append(&columns->key, row, record->key, record->key_bytes) ||
        !binary_append(&columns->value, row, record->value, record->value_bytes) ||
        !headers_append(columns, row, record))
        return false;
    columns->rows_count++;
    return true;
}

static int append_all(tpc_columns *columns, const tpc_batch_header *header, const uint8_t *records,
                      size_t records_bytes, int64_t first_offset, int64_t end_offset) {
    tpc_record taken[RECORDS_AT_ONCE];
    size_t position = 0;
    int64_t seen = 0;
    while (position < records_bytes) {
        int count = tpc_records_read(records, records_bytes, &position, taken, RECORDS_AT_ONCE);
        if (count < 0) return count;
        seen += count;
        for (int i = 0; i < count; i++) {
            int64_t offset = (int64_t)((uint64_t)header->base_offset + (uint64_t)(int64_t)taken[i].offset_delta);
            if (offset < first_offset || offset >= end_offset) continue;
            if (!record_append(columns, header, &taken[i])) return -ENOSPC;
        }
    }
    return seen == header->records_count ? 0 : -EBADMSG;
}

int tpc_columns_append(tpc_columns *columns, const tpc_batch_header *header, const uint8_t *records,
                       size_t records_bytes, int64_t first_offset, int64_t end_offset) {
    tpc_columns before = *columns;
    int result = append_all(columns, header, records, records_bytes, first_offset, end_offset);
    if (result < 0) *columns = before;
    return result;
}

/* The batch at the walk's position; false when the walk is over. */
static bool append_batch(tpc_columns *columns, const uint8_t *bytes, size_t bytes_count, tpc_columns_walk *walk) {
    const uint8_t *at = bytes + walk->position;
    tpc_batch_header header;
    int result = tpc_batch_header_read(at, bytes_count - (size_t)walk->position, &header);
    walk->stop = TPC_COLUMNS_END;
    if (result == -ENODATA) return false;
    walk->stop = TPC_COLUMNS_BAD_BATCH;
    if (result < 0) return false;
    walk->stop = TPC_COLUMNS_END;
    if (header.base_offset >= walk->end_offset) return false;
    int64_t next_offset = (int64_t)((uint64_t)header.base_offset + (uint64_t)(int64_t)header.last_offset_delta + 1);
    if (next_offset > walk->first_offset) {
        walk->stop = TPC_COLUMNS_NEEDS_CALLER;
        if (header.attributes & (TPC_BATCH_COMPRESSION_MASK | TPC_BATCH_TRANSACTIONAL | TPC_BATCH_IS_CONTROL))
            return false;
        walk->stop = TPC_COLUMNS_BAD_CRC;
        if (tpc_crc32c(0, at + 21, (size_t)header.batch_bytes - 21) != header.crc) return false;
        result = tpc_columns_append(columns, &header, at + TPC_BATCH_HEADER_BYTES,
                                    (size_t)header.batch_bytes - TPC_BATCH_HEADER_BYTES, walk->first_offset,
                                    walk->end_offset);
        walk->stop = result == -ENOSPC ? TPC_COLUMNS_FULL : TPC_COLUMNS_BAD_BATCH;
        if (result < 0) return false;
        walk->stop = TPC_COLUMNS_END;
    }
    walk->position += header.batch_bytes;
    walk->next_offset = next_offset;
    return true;
}

void tpc_columns_append_batches(tpc_columns *columns, const uint8_t *bytes, size_t bytes_count,
                                tpc_columns_walk *walk) {
    walk->stop = TPC_COLUMNS_END;
    while (walk->position >= 0 && (size_t)walk->position < bytes_count &&
           append_batch(columns, bytes, bytes_count, walk)) {
    }
}
