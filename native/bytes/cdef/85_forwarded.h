/*
 * Requests that are sent on in parts, and the parts of their answers. What a partition is told is copied as it is: the
 * encoders here know where it begins and ends, not what it says.
 */

/* The fields behind the request's header, for the parts with chosen[i] != 0. The records are not written: they belong in
 * front of the byte at splits[i]. As the encoders of 50_response.h, but nothing comes before the fields. */
int64_t tpc_produce_request_encode(int16_t version, const tpc_produce_request *request, const tpc_produce_part *parts,
                                   int32_t parts_count, const uint8_t *chosen, uint8_t *out, size_t out_bytes,
                                   uint32_t *splits);

/* A Fetch without a session: waits, limits and isolation level of `request`, and these parts; neighbours with the same
 * topic_index form a topic. */
int64_t tpc_fetch_request_encode(int16_t version, const tpc_fetch_request *request, const tpc_fetch_part *parts,
                                 int32_t parts_count, uint8_t *out, size_t out_bytes);

/* What an answer tells of one partition: [begin, end) of its bytes. */
typedef struct {
    uint32_t begin;
    uint32_t end;
    uint32_t records_begin; /* of a Fetch: behind their length field */
    int32_t records_bytes;  /* 0 for none */
    int64_t high_watermark;
    int64_t log_start_offset; /* -1 before version 5 */
    int32_t partition;
    int16_t error_code;
    int16_t reserved;
} tpc_answer_entry;

/* The partitions of a whole answer, which begins with its length field, in their order. How many; -EBADMSG: malformed, or
 * more than there may be; -EPROTONOSUPPORT. */
int32_t tpc_produce_answer_entries(int16_t version, const uint8_t *answer, size_t answer_bytes,
                                   tpc_answer_entry *entries, int32_t entries_max);
int32_t tpc_fetch_answer_entries(int16_t version, const uint8_t *answer, size_t answer_bytes, tpc_answer_entry *entries,
                                 int32_t entries_max);

/* What a partition is told when it cannot be asked; how many bytes, at most TPC_ERROR_ENTRY_BYTES_MAX. */
enum { TPC_ERROR_ENTRY_BYTES_MAX = 64 };
uint32_t tpc_produce_error_entry(int16_t version, int32_t partition, int16_t error_code, uint8_t *out);
uint32_t tpc_fetch_error_entry(int16_t version, int32_t partition, int16_t error_code, uint8_t *out);
