/*
 * Encoding of the two hot answers. Every encoder writes the whole frame, its 4 bytes of size first, and returns how many
 * bytes that takes. If that is more than out_bytes the output is useless: ask again with more room (out_bytes 0 asks for
 * the size alone). Strings are pointer and length; length -1 is null. Neighbours with the same topic_index form a topic,
 * so partitions come in the order of topics.
 * -EPROTONOSUPPORT: a version that is not served; -EMSGSIZE: the frame would be over 2 GiB; -EINVAL: a string over
 * 32,767 bytes.
 */

/* A leader that the client ought to know, sent with CurrentLeader. */
typedef struct {
    const uint8_t *host;
    const uint8_t *rack;
    int32_t host_bytes;
    int32_t rack_bytes; /* -1: none */
    int32_t node_id;
    int32_t port;
} tpc_node_endpoint;

/* A record because of which a batch was refused. */
typedef struct {
    const uint8_t *message;
    int32_t message_bytes; /* -1: none */
    int32_t batch_index;
} tpc_record_error;

typedef struct {
    const uint8_t *topic_name;
    const uint8_t *error_message;
    const tpc_record_error *record_errors;
    int64_t base_offset;        /* -1 with an error */
    int64_t log_append_time_ms; /* -1: CreateTime */
    int64_t log_start_offset;   /* -1 with most errors */
    int32_t topic_name_bytes;
    int32_t error_message_bytes; /* -1: none */
    int32_t record_errors_count;
    int32_t topic_index;
    int32_t partition;
    int32_t leader_id; /* -1 and -1: not said */
    int32_t leader_epoch;
    int16_t error_code;
    uint8_t topic_id[16]; /* from version 13 on */
} tpc_produce_result;

/* `places`, unless NULL, gets for each result where in the output its error code is. */
int64_t tpc_produce_encode(int16_t version, int32_t correlation_id, int32_t throttle_ms,
                           const tpc_produce_result *results, int results_count, const tpc_node_endpoint *endpoints,
                           int endpoints_count, uint8_t *out, size_t out_bytes, uint32_t *places);
/* Changes an encoded answer: the partition at `place` failed after all; without `keep_offset` its offsets are -1. */
void tpc_produce_answer_fail(int16_t version, uint8_t *answer, uint32_t place, int16_t error_code, int keep_offset);

typedef struct {
    int64_t producer_id;
    int64_t first_offset;
} tpc_aborted_transaction;

typedef struct {
    const uint8_t *topic_name;
    const tpc_aborted_transaction *aborted;
    int64_t high_watermark;
    int64_t last_stable_offset;
    int64_t log_start_offset;
    int64_t diverging_end_offset; /* -1 and -1: not said */
    int64_t snapshot_end_offset;  /* -1 and -1: not said */
    int32_t topic_name_bytes;
    int32_t aborted_count; /* -1: null, as for read uncommitted */
    int32_t topic_index;
    int32_t partition;
    int32_t diverging_epoch;
    int32_t leader_id; /* -1 and -1: not said */
    int32_t leader_epoch;
    int32_t snapshot_epoch;
    int32_t preferred_read_replica; /* -1: none */
    int32_t records_bytes;          /* -1: null */
    int16_t error_code;
    uint8_t topic_id[16]; /* from version 13 on */
} tpc_fetch_result;

typedef struct {
    int32_t correlation_id;
    int32_t throttle_ms;
    int32_t session_id;
    int16_t version;
    int16_t error_code;
} tpc_fetch_answer;

/*
 * The frame without the records, which are sent from where they lie: the records of results[i] belong behind the first
 * splits[i] bytes of the output (splits rise; splits may be NULL). The frame's size counts them. Returns the bytes of
 * the output alone.
 */
int64_t tpc_fetch_encode(const tpc_fetch_answer *answer, const tpc_fetch_result *results, int results_count,
                         const tpc_node_endpoint *endpoints, int endpoints_count, uint8_t *out, size_t out_bytes,
                         uint32_t *splits);
