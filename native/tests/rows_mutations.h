/* Mutations through native/bytes/record_rows.c: a part of bytes_mutations.c. */

enum { ROWS_MAX = 16, HEADERS_MAX = 12 };

/* The format cuts as many cells out as there are, all of them within what the rows were taken from. */
static void require_format(const tpc_rows_format *format, int64_t cells_count, int64_t room, size_t bytes_count) {
    require(format->bytes <= room * TPC_ROWS_FORMAT_BYTES, "format in its room");
    int64_t at = format->begin, number = 0, cells = 0;
    for (int64_t i = 0; i < format->bytes; i++) {
        char code = format->text[i];
        if (code >= '0' && code <= '9') {
            number = number * 10 + (code - '0');
            continue;
        }
        require(code == 'x' || code == 's', "a code of the format");
        cells += code == 's';
        at += number;
        number = 0;
    }
    require(cells == cells_count, "a cell for each");
    require(at == format->end && at >= 0 && (size_t)at <= bytes_count, "cells within the bytes");
}

static void require_rows(const tpc_rows *rows, size_t bytes_count) {
    require(rows->rows_count >= 0 && rows->rows_count <= ROWS_MAX, "rows in their room");
    require(rows->headers_count <= HEADERS_MAX, "headers in their room");
    require_format(&rows->cells, rows->keys_count + rows->values_count, ROWS_MAX, bytes_count);
    require_format(&rows->header_cells, 2 * rows->headers_count - rows->header_nulls_count, HEADERS_MAX, bytes_count);
    int64_t headers = 0;
    for (int32_t i = 0; i < rows->rows_count; i++) headers += rows->header_counts[i];
    require(headers == rows->headers_count, "all headers are there");
    for (int32_t i = 1; i < rows->rows_count; i++) require(rows->offsets[i] > rows->offsets[i - 1], "offsets rise");
}

static void rows_empty(tpc_rows *rows) {
    rows->rows_count = rows->keys_count = rows->values_count = 0;
    rows->headers_count = rows->header_nulls_count = 0;
    rows->cells = (tpc_rows_format){.text = rows->cells.text};
    rows->header_cells = (tpc_rows_format){.text = rows->header_cells.text};
}

/* All pieces of the batch at the walk's position as if its records had been unpacked; false when there is no way on. */
static int rows_caller(tpc_rows *rows, const input *in, tpc_rows_walk *walk) {
    tpc_batch_header header;
    const uint8_t *at = in->bytes + walk->position;
    require(tpc_batch_header_read(at, in->size - (size_t)walk->position, &header) == 0,
            "the caller gets a whole batch");
    size_t records_bytes = (size_t)header.batch_bytes - TPC_BATCH_HEADER_BYTES;
    for (;;) {
        int result = tpc_rows_append(rows, &header, in->bytes, (size_t)walk->position + TPC_BATCH_HEADER_BYTES,
                                     records_bytes, walk);
        require(result == 0 || result == -ENOSPC || result == -EBADMSG, "result of a batch");
        require_rows(rows, in->size);
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
                     .cells = {.text = malloc((size_t)ROWS_MAX * TPC_ROWS_FORMAT_BYTES)},
                     .header_counts = malloc(4 * ROWS_MAX),
                     .header_nulls = malloc(HEADERS_MAX),
                     .header_cells = {.text = malloc((size_t)HEADERS_MAX * TPC_ROWS_FORMAT_BYTES)},
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
    free(rows.cells.text);
    free(rows.header_counts);
    free(rows.header_nulls);
    free(rows.header_cells.text);
    return walk.stop == TPC_ROWS_END ? 0 : 1;
}
