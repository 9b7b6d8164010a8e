/* Mutations through native/bytes/packed_batch.c: a part of bytes_mutations.c. Its lengths are believed, so that an input
 * says what the columns are like: how many rows, and of each its nulls, lengths, headers and time stamp. */

enum { PACKED_ROWS_MAX = 16, PACKED_CELLS_MAX = 8 * PACKED_ROWS_MAX, PACKED_BYTES_MAX = 128 * PACKED_CELLS_MAX };

typedef struct {
    int32_t count, lengths[PACKED_CELLS_MAX];
    size_t used;
    uint8_t bytes[PACKED_BYTES_MAX];
} packed_column;

typedef struct {
    int32_t rows_count, header_counts[PACKED_ROWS_MAX];
    int64_t timestamps_ms[PACKED_ROWS_MAX], room;
    bool has_keys, has_headers;
    packed_column keys, values, headers;
} packed_columns;

/* A heap block of exactly that size. */
static void *exactly(const void *bytes, size_t size) {
    void *made = malloc(size);
    if (size) memcpy(made, bytes, size);
    return made;
}

static void packed_cell(packed_columns *of, packed_column *column, int32_t length) {
    column->lengths[column->count++] = length;
    for (int32_t i = 0; i < length; i++, column->used++) column->bytes[column->used] = (uint8_t)(column->used * 7);
    if (length > 0) of->room += length;
}

/* False: the input ends in the middle. */
static bool packed_take(const input *in, size_t *at, void *out, size_t size) {
    if (in->size - *at < size) return false;
    memcpy(out, in->bytes + *at, size);
    *at += size;
    return true;
}

static bool packed_row(packed_columns *of, const input *in, size_t *at) {
    struct {
        uint8_t key, value, headers, name, held;
        uint8_t timestamp_ms[8];
    } row;
    if (!packed_take(in, at, &row, sizeof row)) return false;
    memcpy(&of->timestamps_ms[of->rows_count], row.timestamp_ms, 8);
    if (of->has_keys) packed_cell(of, &of->keys, row.key & 1 ? -1 : row.key >> 1);
    packed_cell(of, &of->values, row.value & 1 ? -1 : row.value >> 1);
    int32_t count = of->has_headers ? row.headers % 4 : 0;
    of->header_counts[of->rows_count++] = count;
    for (int32_t i = 0; i < count; i++) {
        packed_cell(of, &of->headers, row.name >> 1);
        packed_cell(of, &of->headers, row.held & 1 ? -1 : row.held >> 1);
    }
    of->room += TPC_PACKED_RECORD_BYTES_MAX + count * TPC_PACKED_HEADER_BYTES_MAX;
    return true;
}

static bool packed_parse(packed_columns *of, const input *in) {
    size_t at = 0;
    uint8_t head[2];
    if (!packed_take(in, &at, head, sizeof head)) return false;
    of->has_keys = head[1] & 1;
    of->has_headers = head[1] & 2;
    for (int rows = 1 + head[0] % PACKED_ROWS_MAX; rows > 0; rows--)
        if (!packed_row(of, in, &at)) return false;
    return true;
}

/* Into a block of so many bytes, from blocks of exactly theirs. */
static int64_t packed_into(const packed_columns *of, uint8_t *out, int64_t room) {
    const packed_column *columns[] = {&of->keys, &of->values, &of->headers};
    uint8_t *bytes[3];
    int32_t *lengths[3];
    for (int i = 0; i < 3; i++) {
        bytes[i] = exactly(columns[i]->bytes, columns[i]->used);
        lengths[i] = exactly(columns[i]->lengths, 4 * (size_t)columns[i]->count);
    }
    int64_t *timestamps_ms = exactly(of->timestamps_ms, 8 * (size_t)of->rows_count);
    int32_t *counts = exactly(of->header_counts, 4 * (size_t)of->rows_count);
    int64_t used = tpc_packed_records(of->rows_count, timestamps_ms, bytes[1], lengths[1], of->has_keys, bytes[0],
                                      lengths[0], of->has_headers, counts, bytes[2], lengths[2], out, room);
    for (int i = 0; i < 3; i++) {
        free(bytes[i]);
        free(lengths[i]);
    }
    free(timestamps_ms);
    free(counts);
    return used;
}

static const uint8_t *packed_same(const uint8_t *found, int64_t found_bytes, const uint8_t *cells, int32_t length,
                                  const char *what) {
    require(found_bytes == length && (length <= 0 || memcmp(found, cells, (size_t)length) == 0), what);
    return cells + (length > 0 ? length : 0);
}

/* What the reader of records makes of it is what it was made of. */
static void packed_read(const packed_columns *of, const uint8_t *records, size_t records_bytes) {
    size_t position = 0;
    const uint8_t *key = of->keys.bytes, *value = of->values.bytes;
    for (int32_t row = 0; row < of->rows_count; row++) {
        tpc_record record;
        require(tpc_record_read(records, records_bytes, &position, &record) == 0, "a record can be read");
        require(record.offset_delta == row && record.headers_count == of->header_counts[row], "its place and headers");
        require(record.timestamp_delta == (int64_t)((uint64_t)of->timestamps_ms[row] - (uint64_t)of->timestamps_ms[0]),
                "its time");
        key = packed_same(record.key, record.key_bytes, key, of->has_keys ? of->keys.lengths[row] : -1, "its key");
        value = packed_same(record.value, record.value_bytes, value, of->values.lengths[row], "its value");
    }
    require(position == records_bytes, "nothing behind the records");
}

/* In a frame: its size, correlation id, length and all around it. */
static void packed_framed(const tpc_packed_around *around, const uint8_t *frame, int64_t frame_bytes,
                          const uint8_t *batch, int64_t batch_bytes) {
    wire_reader reader = wire_reader_of(frame, (size_t)frame_bytes);
    require(wire_read_i32(&reader) == frame_bytes - 4, "its size");
    require(memcmp(wire_take(&reader, 4), around->head + 4, 4) == 0, "key and version");
    require(wire_read_i32(&reader) == 9, "its correlation id");
    size_t rest = (size_t)around->head_bytes - 12;
    require(memcmp(wire_take(&reader, rest), around->head + 12, rest) == 0, "what is before it");
    int64_t length = around->is_compact ? (int64_t)wire_read_uvarint(&reader) - 1 : wire_read_i32(&reader);
    require(length == batch_bytes, "its length");
    require(memcmp(wire_take(&reader, (size_t)batch_bytes), batch, (size_t)batch_bytes) == 0, "one in a frame");
    require(wire_left(&reader) == (size_t)around->tail_bytes, "nothing behind the tail");
    require(memcmp(reader.at, around->tail, (size_t)around->tail_bytes) == 0, "what is behind it");
}

/* One record at once is the same, alone and in frames; a byte too few is told. */
static void packed_alone(const packed_columns *of, const uint8_t *batch, int64_t batch_bytes) {
    uint8_t *key = exactly(of->keys.bytes, of->keys.used), *value = exactly(of->values.bytes, of->values.used);
    uint8_t *head = exactly("sizeKyVrcorrelated", 18), *tail = exactly("end", 3);
    int64_t length_bytes = batch_bytes + 1 < 0x80 ? 1 : 2;
    tpc_packed_around plain = {head, tail, 18, 0, false}, compact = {head, tail, 12, 3, true};
    const tpc_packed_around *arounds[] = {NULL, &plain, &compact};
    const int64_t wanted[] = {batch_bytes, 18 + 4 + batch_bytes, 12 + length_bytes + batch_bytes + 3};
    for (int which = 0; which < 3; which++)
        for (int64_t lacks = 0; lacks < 2; lacks++) {
            int64_t room = wanted[which] - lacks;
            uint8_t *out = malloc((size_t)room);
            int64_t used =
                tpc_packed_one(out, room, arounds[which], 9, of->timestamps_ms[0], key,
                               of->has_keys ? of->keys.lengths[0] : -1, value, of->values.lengths[0], 0, 5, 6, 7);
            require(used == (lacks ? -ENOSPC : wanted[which]), "room for one");
            if (!lacks && which) packed_framed(arounds[which], out, used, batch, batch_bytes);
            require(lacks || which || memcmp(out, batch, (size_t)batch_bytes) == 0, "one at once");
            free(out);
        }
    free(head);
    free(tail);
    free(key);
    free(value);
}

static int run_packed(const input *in) {
    packed_columns *of = calloc(1, sizeof *of);
    int result = packed_parse(of, in) ? 0 : 1;
    if (result == 0) {
        uint8_t *roomy = malloc((size_t)of->room);
        int64_t used = packed_into(of, roomy, of->room);
        require(used > 0 && used <= of->room, "as many bytes as records are said to take");
        int64_t batch_bytes = TPC_BATCH_HEADER_BYTES + used;
        uint8_t *batch = malloc((size_t)batch_bytes), *short_of_one = malloc((size_t)used - 1);
        require(packed_into(of, batch + TPC_BATCH_HEADER_BYTES, used) == used, "as many as there are");
        require(memcmp(batch + TPC_BATCH_HEADER_BYTES, roomy, (size_t)used) == 0, "the same bytes in less room");
        require(packed_into(of, short_of_one, used - 1) == -ENOSPC, "one too few");
        int64_t newest = of->timestamps_ms[0];
        for (int32_t i = 1; i < of->rows_count; i++)
            if (of->timestamps_ms[i] > newest) newest = of->timestamps_ms[i];
        tpc_packed_header(batch, batch_bytes, 0, of->rows_count, of->timestamps_ms[0], newest, 5, 6, 7);
        tpc_scan_state scan = {.next_offset = -1};
        tpc_batch_scan(batch, (size_t)batch_bytes, TPC_SCAN_CHECK_CRC, &scan, NULL, 0);
        require(scan.reason == TPC_BATCH_OK && scan.position == batch_bytes, "a whole batch");
        packed_read(of, batch + TPC_BATCH_HEADER_BYTES, (size_t)used);
        if (of->rows_count == 1 && !of->has_headers) packed_alone(of, batch, batch_bytes);
        free(roomy);
        free(batch);
        free(short_of_one);
    }
    free(of);
    return result;
}
