/*
 * A batch from columns as a producer keeps them: the bytes of all cells one behind the other, and their lengths, -1 for
 * null. Lengths are believed: whoever calls has them of the cells themselves. Nothing here allocates.
 */

/* What one record takes beside its key, value and headers at most; a header takes PACKED_HEADER_BYTES_MAX more. */
enum { TPC_PACKED_RECORD_BYTES_MAX = 36, TPC_PACKED_HEADER_BYTES_MAX = 10 };

/*
 * The records of one batch. Without has_keys every key is null. header_counts has a number for each row, header_lengths
 * those of name, value, name, value, …; without has_headers no row has any. Returns the bytes written, -ENOSPC when
 * out_bytes are too few. Time deltas are from the first row's time stamp.
 */
int64_t tpc_packed_records(int32_t rows_count, const int64_t *timestamps_ms, const uint8_t *values,
                           const int32_t *value_lengths, bool has_keys, const uint8_t *keys, const int32_t *key_lengths,
                           bool has_headers, const int32_t *header_counts, const uint8_t *headers,
                           const int32_t *header_lengths, uint8_t *out, int64_t out_bytes);

/*
 * The header of a whole batch, in front of its records, which lie there already, with the CRC. The base offset is 0 and the
 * leader epoch -1. producer_id -1: not idempotent. May be written again.
 */
void tpc_packed_header(uint8_t *batch, int64_t batch_bytes, int16_t attributes, int32_t records_count,
                       int64_t base_timestamp, int64_t max_timestamp, int64_t producer_id, int16_t producer_epoch,
                       int32_t base_sequence);

/*
 * What lies around the batch in a request's frame, which is the same for all batches of a partition: all up to the
 * batch's length, with any size and correlation id, and all behind it. is_compact: the length is a varint, plus 1.
 */
typedef struct {
    const uint8_t *head, *tail;
    int32_t head_bytes, tail_bytes;
    bool is_compact;
} tpc_packed_around;

/*
 * Both at once: the whole batch of one record without headers, lengths of -1 for null; in a frame unless around is NULL.
 * Returns the bytes written, -ENOSPC when out_bytes are too few.
 */
int64_t tpc_packed_one(uint8_t *out, int64_t out_bytes, const tpc_packed_around *around, int32_t correlation_id,
                       int64_t timestamp_ms, const uint8_t *key, int32_t key_length, const uint8_t *value,
                       int32_t value_length, int16_t attributes, int64_t producer_id, int16_t producer_epoch,
                       int32_t base_sequence);

/* The partition of a key as Kafka's default partitioner chooses it (murmur2). */
int32_t tpc_key_partition(const uint8_t *key, size_t key_bytes, int32_t partitions_count);

/* That of each key of a column, -1 for a null key. */
void tpc_keys_partitions(const uint8_t *keys, const int32_t *key_lengths, int32_t rows_count, int32_t partitions_count,
                         int32_t *out);
