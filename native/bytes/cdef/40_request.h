/* Strings are pointers into the frame with their length; -1 (and NULL) is null. Nothing is copied, nothing allocated. */

enum { TPC_API_KEYS_COUNT = 95, TPC_API_PRODUCE = 0, TPC_API_FETCH = 1, TPC_API_API_VERSIONS = 18 };
enum { TPC_API_SASL_HANDSHAKE = 17, TPC_API_SASL_AUTHENTICATE = 36 };

enum {
    TPC_PRODUCE_VERSION_MIN = 3,
    TPC_PRODUCE_VERSION_MAX = 13,
    TPC_FETCH_VERSION_MIN = 4,
    TPC_FETCH_VERSION_MAX = 18
};

typedef struct {
    const uint8_t *client_id;
    int32_t client_id_bytes;
    int32_t correlation_id;
    int32_t body_position; /* where the request itself begins within the frame */
    int16_t api_key;
    int16_t api_version;
    uint8_t flexible; /* compact strings and tagged fields in the body */
} tpc_request_header;

/*
 * The header of a frame (without its 4 bytes of size). 0; -EBADMSG: malformed; -ENOSYS: an API key that Kafka 4.4 does
 * not know, so that the header's form is not known either: key, version and correlation id are filled in. Whether the
 * version is served is the caller's question.
 */
int tpc_request_header_decode(const uint8_t *frame, size_t frame_bytes, tpc_request_header *out);

/* Whether the body of this request (and of its answer) is flexible; false for an unknown key. */
bool tpc_api_flexible(int16_t api_key, int16_t api_version);

typedef struct {
    const uint8_t *transactional_id;
    int32_t transactional_id_bytes;
    int32_t timeout_ms;
    int32_t topics_count;
    int32_t parts_count;
    int16_t acks;
} tpc_produce_request;

/* One partition of a Produce request. Partitions of a topic are neighbours, in the order of the request. */
typedef struct {
    const uint8_t *topic_name; /* NULL from version 13 on */
    const uint8_t *records;
    int32_t topic_name_bytes;
    int32_t topic_index; /* among the request's topics */
    int32_t partition;
    int32_t records_bytes;
    uint8_t topic_id[16]; /* zeros before version 13 */
} tpc_produce_part;

/*
 * The first part of a Produce request of which only the beginning is there: where its records begin (`records` may lie at the
 * end of the bytes), and how many bytes they are said to have. 0 or -EBADMSG: the bytes end before, or are wrong.
 */
int tpc_produce_peek(const uint8_t *body, size_t body_bytes, int16_t version, tpc_produce_part *part);

/*
 * 0; -EPROTONOSUPPORT: a version that is not served; -EBADMSG: malformed, or bytes left over; -E2BIG: more partitions
 * than parts_max (parts_count then says how many at least).
 */
int tpc_produce_decode(const uint8_t *body, size_t body_bytes, int16_t version, tpc_produce_request *out,
                       tpc_produce_part *parts, int parts_max);

typedef struct {
    const uint8_t *cluster_id;
    const uint8_t *rack_id;
    int64_t replica_epoch; /* -1 unless a follower says so (version 15) */
    int32_t cluster_id_bytes;
    int32_t rack_id_bytes; /* 0 before version 11 */
    int32_t replica_id;    /* -1: a consumer */
    int32_t wait_ms_max;
    int32_t response_bytes_min;
    int32_t response_bytes_max;
    int32_t session_id;
    int32_t session_epoch;
    int32_t topics_count;
    int32_t parts_count;
    int32_t forgotten_count;
    int8_t isolation_level; /* 0 read uncommitted, 1 read committed */
} tpc_fetch_request;

typedef struct {
    const uint8_t *topic_name; /* NULL from version 13 on */
    int64_t fetch_offset;
    int64_t log_start_offset; /* of a follower; -1 */
    int64_t high_watermark;   /* of a follower; INT64_MAX: not given */
    int32_t topic_name_bytes;
    int32_t topic_index;
    int32_t partition;
    int32_t current_leader_epoch; /* -1: not given */
    int32_t last_fetched_epoch;   /* -1: not given */
    int32_t partition_bytes_max;
    uint8_t topic_id[16];
    uint8_t replica_directory_id[16];
} tpc_fetch_part;

/* A partition that leaves the fetch session. */
typedef struct {
    const uint8_t *topic_name;
    int32_t topic_name_bytes;
    int32_t partition;
    uint8_t topic_id[16];
} tpc_fetch_forgotten;

/* As tpc_produce_decode(). */
int tpc_fetch_decode(const uint8_t *body, size_t body_bytes, int16_t version, tpc_fetch_request *out,
                     tpc_fetch_part *parts, int parts_max, tpc_fetch_forgotten *forgotten, int forgotten_max);
