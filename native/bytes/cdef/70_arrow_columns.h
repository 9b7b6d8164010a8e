/*
 * Records of batches to and from Arrow's columns. Arrow's layouts: a binary column is rows + 1 offsets of 32 bits into its
 * data and a bitmap of what is not null, least significant bit first; a list column is rows + 1 offsets into its items.
 * The memory is the caller's; nothing here allocates.
 */

/* A binary column to be filled. `data` NULL: the column is not wanted. */
typedef struct {
    uint8_t *data;
    int32_t *offsets; /* one more than the rows or items there is room for */
    uint8_t *valid;
    int64_t data_capacity;
    int64_t nulls_count;
} tpc_binary_builder;

typedef struct {
    int64_t rows_capacity;
    int64_t rows_count;
    int64_t headers_capacity;
    int64_t headers_count;
    int64_t *offsets; /* Kafka's, absolute */
    int64_t *timestamps_us;
    int32_t *timestamp_types; /* 0 create time, 1 append time */
    int32_t *header_offsets;  /* of the list of headers; NULL: not wanted */
    tpc_binary_builder key;
    tpc_binary_builder value;
    tpc_binary_builder header_name;
    tpc_binary_builder header_value;
} tpc_columns;

/* Why tpc_columns_append_batches() stopped. */
enum tpc_columns_stop {
    TPC_COLUMNS_END = 0,          /* no whole batch is left, or the next one begins at end_offset or behind it */
    TPC_COLUMNS_FULL = 1,         /* the batch at the position does not fit in what room is left */
    TPC_COLUMNS_NEEDS_CALLER = 2, /* the batch at the position is compressed, transactional or a control batch */
    TPC_COLUMNS_BAD_BATCH = 3,    /* no batch of magic 2, or its records are malformed */
    TPC_COLUMNS_BAD_CRC = 4
};

typedef struct {
    int64_t position;     /* in and out: where the next batch begins */
    int64_t first_offset; /* rows of [first_offset, end_offset) are taken */
    int64_t end_offset;
    int64_t next_offset; /* out: behind the last batch that was consumed */
    int32_t stop;        /* enum tpc_columns_stop */
} tpc_columns_walk;

/*
 * The records of one batch (after its header, unpacked) as rows. `header` gives base offset, timestamps and count.
 * 0; -ENOSPC: they do not fit, and no row was added; -EBADMSG: malformed, and no row was added.
 */
int tpc_columns_append(tpc_columns *columns, const tpc_batch_header *header, const uint8_t *records,
                       size_t records_bytes, int64_t first_offset, int64_t end_offset);

/* Consecutive batches from walk->position on, CRCs checked, as far as it needs nobody. Says in `walk` why it stopped. */
void tpc_columns_append_batches(tpc_columns *columns, const uint8_t *bytes, size_t bytes_count, tpc_columns_walk *walk);

/* A binary column to be read. `offsets` NULL: every row is null. Bit valid_bit_offset + i of `valid` belongs to row i. */
typedef struct {
    const uint8_t *data;
    const int32_t *offsets;
    const uint8_t *valid; /* NULL: no row is null */
    int64_t valid_bit_offset;
} tpc_binary_input;

typedef struct {
    tpc_binary_input key;
    tpc_binary_input value;
    const int64_t *timestamps_ms;
    const int32_t *header_offsets; /* NULL: no headers */
    tpc_binary_input header_name;
    tpc_binary_input header_value;
} tpc_records_input;

typedef struct {
    int64_t base_timestamp; /* of the first record */
    int64_t max_timestamp;
    int32_t records_count;
} tpc_records_output;

/*
 * The records of one batch from the rows that `rows` lists, as many as fit. Returns the bytes written; output->records_count
 * is how many rows that is (0: not even the first one fits).
 */
int64_t tpc_records_write(const tpc_records_input *input, const int32_t *rows, int32_t rows_count, uint8_t *out,
                          int64_t out_bytes, tpc_records_output *output);

/* The partition of each row as Kafka's default partitioner chooses it by the key (murmur2), -1 for a null key. */
void tpc_records_partitions(const tpc_binary_input *key, int64_t rows_count, int32_t partitions_count, int32_t *out);
