/* Mutations through native/bytes/record_rows.c: a part of bytes_mutations.c. */

enum { ROWS_MAX = 16, HEADERS_MAX = 12 };

/* The format cuts as many bytes out as it says, all of them within what the rows were taken from. */
static void require_rows(const tpc_rows *rows, size_t bytes_count) {
    require(rows->rows_count >= 0 && rows->rows_count <= ROWS_MAX, "rows in their room");
    require(rows->headers_count <= HEADERS_MAX, "headers in their room");
    require(rows->format_bytes <= (int64_t)ROWS_MAX * TPC_ROWS_FORMAT_BYTES, "format in its room");
    int64_t at = rows->begin, number = 0, cells = 0, headers = 0;
    for (int64_t i = 0; i < rows->format_bytes; i++) {
        char code = rows->format[i];
        if (code >= '0' && code <= '9') {
            number = number * 10 + (code - '0');
            continue;
        }
        require(code == 'x' || code == 's', "a code of the format");
        cells += code == 's';
        at += number;
        number = 0;
    }
    require(cells == rows->keys_count + rows->values_count, "a cell for each key and value");
    require(at == rows->end && at >= 0 && (size_t)at <= bytes_count, "cells within the bytes");
    for (int32_t i = 0; i < rows->rows_count; i++) headers += rows->header_counts[i];
    require(headers <= rows->headers_count, "all headers are there");
    for (int64_t i = 0; i < rows->headers_count; i++) {
        const tpc_rows_header *header = &rows->headers[i];
        require(header->begin >= 0 && (size_t)(header->begin + header->name_bytes) <= bytes_count, "a header's name");
        require(header->value_bytes < 0 || (size_t)(header->value_begin + header->value_bytes) <= bytes_count,
                "a header's value");
    }
    for (int32_t i = 1; i < rows->rows_count; i++) require(rows->offsets[i] > rows->offsets[i - 1], "offsets rise");
}

static void rows_empty(tpc_rows *rows) {
    rows->rows_count = rows->keys_count = rows->values_count = 0;
    rows->format_bytes = rows->begin = rows->end = rows->headers_count = 0;
}

/* All pieces of the batch at the walk's position as if its records had been unpacked; false when there is no way on. */
static int rows_caller(tpc_rows *rows, const input *in, tpc_rows_walk *walk) {
    tpc_batch_header header;
    const uint8_t *at = in->bytes + walk->position;
    require(tpc_batch_header_read(at, in->size - (size_t)walk->position, &header) == 0,
            "the caller gets a whole batch");
    size_t records_bytes = (size_t)header.batch_bytes - TPC_BATCH_HEADER_BYTES;
    for (;;) {
        int result = tpc_rows_append(rows, &header, at + TPC_BATCH_HEADER_BYTES, records_bytes, walk);
        require(result == 0 || result == -ENOSPC || result == -EBADMSG, "result of a batch");
        require_rows(rows, records_bytes);
        int is_full = result == -ENOSPC && rows->rows_count;
        rows_empty(rows);
        if (!is_full) return result == 0;
    }
}

static int run_rows(const input *in) {
    tpc_rows_walk walk = {.next_offset = in->version & 1 ? 103 : 0, .is_plain = in->version >> 1 & 1};
    tpc_rows rows = {.rows_capacity = ROWS_MAX,
                     .offsets = malloc(8 * ROWS_MAX),
                     .timestamps_ms = malloc(8 * ROWS_MAX),
                     .present = malloc(ROWS_MAX),
                     .format = malloc((size_t)ROWS_MAX * TPC_ROWS_FORMAT_BYTES),
                     .header_counts = malloc(4 * ROWS_MAX),
                     .headers = malloc(HEADERS_MAX * sizeof(tpc_rows_header)),
                     .headers_capacity = HEADERS_MAX};
    for (int going = 1; going;) {
        int64_t position = walk.position, next_offset = walk.next_offset;
        tpc_rows_append_batches(&rows, in->bytes, in->size + lie, &walk);
        require(walk.position >= position && (size_t)walk.position <= in->size, "the walk goes on");
        require(walk.next_offset >= next_offset, "offsets go on");
        require_rows(&rows, in->size);
        int has_rows = rows.rows_count > 0;
        rows_empty(&rows);
        if (walk.stop == TPC_ROWS_FULL || walk.stop == TPC_ROWS_EPOCH)
            going = has_rows;
        else
            going = walk.stop == TPC_ROWS_NEEDS_CALLER && (has_rows || rows_caller(&rows, in, &walk));
    }
    free(rows.offsets);
    free(rows.timestamps_ms);
    free(rows.present);
    free(rows.format);
    free(rows.header_counts);
    free(rows.headers);
    return walk.stop == TPC_ROWS_END ? 0 : 1;
}
