/* Records of batches as rows of arrays and as a format of Python's struct: see cdef/72_record_rows.h. */
#include <errno.h>

#include "bytes.h"
#include "wire.h"

enum { RECORDS_AT_ONCE = 128, DIGITS_MAX = 20 };

static inline char *put_code(char *out, uint64_t count, char code) {
    char digits[DIGITS_MAX];
    int used = 0;
    do {
        digits[used++] = (char)('0' + count % 10);
        count /= 10;
    } while (count);
    while (used) *out++ = digits[--used];
    *out++ = code;
    return out;
}

/* The format's next piece: `bytes_count` bytes at the position `at`. */
static inline void put_piece(tpc_rows_format *format, int64_t at, int32_t bytes_count) {
    char *out = format->text + format->bytes;
    if (format->bytes == 0)
        format->begin = at;
    else if (at > format->end)
        out = put_code(out, (uint64_t)(at - format->end), 'x');
    out = put_code(out, (uint64_t)bytes_count, 's');
    format->end = at + bytes_count;
    format->bytes = out - format->text;
}

static bool headers_append(tpc_rows *rows, const uint8_t *base, const tpc_record *record) {
    if (record->headers_count > rows->headers_capacity - rows->headers_count) return false;
    wire_reader reader = wire_reader_of(record->headers, (size_t)record->headers_bytes);
    for (int32_t i = 0; i < record->headers_count; i++) {
        int32_t name_bytes = wire_read_varint(&reader);
        put_piece(&rows->header_cells, wire_take(&reader, (size_t)name_bytes) - base, name_bytes);
        int32_t value_bytes = wire_read_varint(&reader);
        rows->header_nulls[rows->headers_count++] = value_bytes < 0;
        if (value_bytes < 0)
            rows->header_nulls_count++;
        else
            put_piece(&rows->header_cells, wire_take(&reader, (size_t)value_bytes) - base, value_bytes);
    }
    return true;
}

static inline bool record_append(tpc_rows *rows, const tpc_batch_header *header, const uint8_t *base,
                                 const tpc_record *record, int64_t offset) {
    int32_t row = rows->rows_count;
    if (row == rows->rows_capacity) return false;
    if (__builtin_expect(record->headers_count != 0, 0) && !headers_append(rows, base, record)) return false;
    rows->header_counts[row] = record->headers_count;
    rows->offsets[row] = offset;
    rows->timestamps_ms[row] = header->attributes & TPC_BATCH_LOG_APPEND_TIME
                                   ? header->max_timestamp
                                   : (int64_t)((uint64_t)header->base_timestamp + (uint64_t)record->timestamp_delta);
    uint8_t present = 0;
    if (record->key_bytes >= 0) {
        present = TPC_ROWS_KEY;
        rows->keys_count++;
        put_piece(&rows->cells, record->key - base, record->key_bytes);
    }
    if (record->value_bytes >= 0) {
        present |= TPC_ROWS_VALUE;
        rows->values_count++;
        put_piece(&rows->cells, record->value - base, record->value_bytes);
    }
    rows->present[row] = present;
    rows->rows_count = row + 1;
    return true;
}

static bool is_sound(const tpc_batch_header *header) {
    int64_t last_offset;
    return header->base_offset >= 0 && header->last_offset_delta >= 0 && header->records_count >= 0 &&
           !__builtin_add_overflow(header->base_offset, (int64_t)header->last_offset_delta + 1, &last_offset);
}

/* `base`: what the rows' positions count from. */
static int append_some(tpc_rows *rows, const tpc_batch_header *header, const uint8_t *base, const uint8_t *records,
                       size_t records_bytes, tpc_rows_walk *walk) {
    tpc_record taken[RECORDS_AT_ONCE];
    while (walk->record_position >= 0 && (size_t)walk->record_position < records_bytes) {
        size_t position = (size_t)walk->record_position;
        int count = tpc_records_read(records, records_bytes, &position, taken, RECORDS_AT_ONCE);
        if (count < 0) { /* those before the malformed one */
            position = (size_t)walk->record_position;
            count = tpc_records_read(records, records_bytes, &position, taken, 1);
        }
        if (count < 0) return count;
        for (int i = 0; i < count; i++) {
            if (taken[i].offset_delta < 0 || taken[i].offset_delta > header->last_offset_delta) return -EBADMSG;
            int64_t offset = header->base_offset + taken[i].offset_delta;
            if (offset >= walk->next_offset) {
                if (!record_append(rows, header, base, &taken[i], offset)) return -ENOSPC;
                walk->next_offset = offset + 1;
            }
            walk->record_position += taken[i].record_bytes;
            walk->records_seen++;
        }
    }
    return walk->records_seen == header->records_count ? 0 : -EBADMSG;
}

static void pass_over(const tpc_batch_header *header, tpc_rows_walk *walk) {
    int64_t behind = header->base_offset + header->last_offset_delta + 1;
    if (behind > walk->next_offset) walk->next_offset = behind;
    walk->position += header->batch_bytes;
    walk->record_position = 0;
    walk->records_seen = 0;
}

int tpc_rows_append(tpc_rows *rows, const tpc_batch_header *header, const uint8_t *bytes, size_t begin,
                    size_t records_bytes, tpc_rows_walk *walk) {
    if (!is_sound(header)) return -EBADMSG;
    int result = append_some(rows, header, bytes, bytes + begin, records_bytes, walk);
    walk->leader_epoch = header->partition_leader_epoch;
    if (result == 0) pass_over(header, walk);
    return result;
}

static bool has_rows(const tpc_batch_header *header, const tpc_rows_walk *walk) {
    return header->base_offset + header->last_offset_delta >= walk->next_offset &&
           !(header->attributes & TPC_BATCH_IS_CONTROL);
}

static int stop_of(const tpc_rows *rows, const tpc_batch_header *header, const uint8_t *batch,
                   const tpc_rows_walk *walk) {
    if (!is_sound(header)) return TPC_ROWS_BAD_BATCH;
    if (walk->record_position == 0 && tpc_crc32c(0, batch + 21, (size_t)header->batch_bytes - 21) != header->crc)
        return TPC_ROWS_BAD_CRC;
    bool is_transactional = header->attributes & (TPC_BATCH_TRANSACTIONAL | TPC_BATCH_IS_CONTROL);
    if (is_transactional && !walk->is_plain) return TPC_ROWS_NEEDS_CALLER;
    if (!has_rows(header, walk)) return TPC_ROWS_END;
    if (header->attributes & TPC_BATCH_COMPRESSION_MASK) return TPC_ROWS_NEEDS_CALLER;
    return rows->rows_count && header->partition_leader_epoch != walk->leader_epoch ? TPC_ROWS_EPOCH : TPC_ROWS_END;
}

/* The batch at the walk's position; false when the walk is over. */
static bool append_batch(tpc_rows *rows, const uint8_t *bytes, size_t bytes_count, tpc_rows_walk *walk) {
    const uint8_t *batch = bytes + walk->position;
    tpc_batch_header header;
    int result = tpc_batch_header_read(batch, bytes_count - (size_t)walk->position, &header);
    walk->stop = result == -ENODATA ? TPC_ROWS_END : TPC_ROWS_BAD_BATCH;
    if (result < 0) return false;
    walk->stop = stop_of(rows, &header, batch, walk);
    if (walk->stop != TPC_ROWS_END) return false;
    if (has_rows(&header, walk)) {
        walk->leader_epoch = header.partition_leader_epoch;
        result = append_some(rows, &header, bytes, batch + TPC_BATCH_HEADER_BYTES,
                             (size_t)header.batch_bytes - TPC_BATCH_HEADER_BYTES, walk);
        walk->stop = result == -ENOSPC ? TPC_ROWS_FULL : TPC_ROWS_BAD_BATCH;
        if (result < 0) return false;
        walk->stop = TPC_ROWS_END;
    }
    pass_over(&header, walk);
    return true;
}

void tpc_rows_append_batches(tpc_rows *rows, const uint8_t *bytes, size_t bytes_count, tpc_rows_walk *walk) {
    walk->stop = TPC_ROWS_END;
    while (walk->position >= 0 && (size_t)walk->position < bytes_count &&
           append_batch(rows, bytes, bytes_count, walk)) {
    }
}
