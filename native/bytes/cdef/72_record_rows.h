/*
 * Records of batches for a reader that makes objects of them, many at a time: offsets and timestamps as arrays; keys and values,
 * and names and values of headers, as the text of a format of Python's struct, with which one call cuts all of them out of
 * the bytes. Each row's key, then its value, "Ns" for N bytes; nothing for a null; "Nx" in front of it for what lies between.
 * The memory is the caller's.
 */
enum { TPC_ROWS_FORMAT_BYTES = 52, TPC_ROWS_KEY = 1, TPC_ROWS_VALUE = 2 };

typedef struct {
    char *text;    /* room for TPC_ROWS_FORMAT_BYTES a row or header */
    int64_t bytes; /* written */
    int64_t begin; /* the byte at which what it cuts out begins, */
    int64_t end;   /* and the one behind it */
} tpc_rows_format;

typedef struct {
    int32_t rows_capacity;
    int32_t rows_count;
    int64_t *offsets; /* Kafka's, absolute */
    int64_t *timestamps_ms;
    uint8_t *present;   /* TPC_ROWS_KEY and TPC_ROWS_VALUE of what is not null */
    int32_t keys_count; /* not null */
    int32_t values_count;
    tpc_rows_format cells;
    int32_t *header_counts; /* of each row */
    int64_t headers_capacity;
    int64_t headers_count;
    int64_t header_nulls_count;
    uint8_t *header_nulls; /* of each header: its value is null */
    tpc_rows_format header_cells;
} tpc_rows;

/* Why tpc_rows_append_batches() stopped. */
enum tpc_rows_stop {
    TPC_ROWS_END = 0,  /* no whole batch is left */
    TPC_ROWS_FULL = 1, /* the next record does not fit in what room is left */
    TPC_ROWS_NEEDS_CALLER =
        2, /* the batch at the position is compressed, or it belongs to a transaction and that matters */
    TPC_ROWS_BAD_BATCH = 3, /* no batch of magic 2, or its records are malformed */
    TPC_ROWS_BAD_CRC = 4,
    TPC_ROWS_EPOCH = 5 /* the batch at the position has another leader epoch than the rows so far */
};

typedef struct {
    int64_t position;        /* in and out: where the next batch begins */
    int64_t record_position; /* in and out: in the records of that batch, where the next one begins */
    int64_t next_offset;     /* in and out: records below are passed over; it moves behind what was taken */
    int32_t records_seen;    /* in and out: of that batch */
    int32_t leader_epoch;    /* out: of all rows */
    int32_t is_plain;        /* in: no transaction matters. Control batches are passed over, others taken */
    int32_t stop;            /* out: enum tpc_rows_stop */
} tpc_rows_walk;

/*
 * More records of one batch as rows, from walk->record_position on: those at bytes[begin] (after its header, unpacked), in the same
 * bytes as the rows so far. 0: the batch is done with, and the walk is behind it; -ENOSPC: the rows are full; -EBADMSG:
 * malformed, and the rows so far are sound.
 */
int tpc_rows_append(tpc_rows *rows, const tpc_batch_header *header, const uint8_t *bytes, size_t begin,
                    size_t records_bytes, tpc_rows_walk *walk);

/* Consecutive batches from walk->position on, CRCs checked, as far as it needs nobody. Says in `walk` why it stopped. */
void tpc_rows_append_batches(tpc_rows *rows, const uint8_t *bytes, size_t bytes_count, tpc_rows_walk *walk);
