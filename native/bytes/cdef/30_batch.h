/* Why: finer than the code, for logs and tests. tpc_batch_reason_text() has the words. */
enum tpc_batch_reason {
    TPC_BATCH_OK = 0,
    TPC_BATCH_EMPTY = 1,      /* no whole batch in the records field */
    TPC_BATCH_BAD_LENGTH = 2, /* a length no batch can have */
    TPC_BATCH_BAD_MAGIC = 3,  /* a magic that does not exist */
    TPC_BATCH_OLD_MAGIC = 4,  /* magic 0 or 1 */
    TPC_BATCH_MORE_THAN_ONE = 5,
    TPC_BATCH_COMPRESSION_TOO_NEW = 6, /* zstd before Produce version 7 */
    TPC_BATCH_BAD_BASE_OFFSET = 7,
    TPC_BATCH_TOO_LARGE = 8,
    TPC_BATCH_BAD_CRC = 9,
    TPC_BATCH_UNKNOWN_COMPRESSION = 10,
    TPC_BATCH_BAD_COUNT = 11, /* records_count or last_offset_delta impossible, or not matching */
    TPC_BATCH_CONTROL = 12,   /* clients write no control batches */
    TPC_BATCH_BAD_SEQUENCE = 13,
    TPC_BATCH_BAD_RECORD = 14, /* a record's structure */
    TPC_BATCH_BAD_TIMESTAMP = 15,
    TPC_BATCH_NO_KEY = 16, /* compacted topic */
    TPC_BATCH_OVER_SEGMENT = 17,
    TPC_BATCH_TRUNCATED = 18,  /* scan: the last batch is not whole */
    TPC_BATCH_BAD_ORDER = 19,  /* scan: offsets do not rise */
    TPC_BATCH_ARRAY_FULL = 20, /* scan: more batches than room; call again from the position */
    TPC_BATCH_BAD_EPOCH = 21,  /* scan: another leader epoch than its place in the log says */
    TPC_BATCH_REASONS_COUNT = 22
};

enum tpc_batch_attribute {
    TPC_BATCH_COMPRESSION_MASK = 7, /* 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd */
    TPC_BATCH_LOG_APPEND_TIME = 8,
    TPC_BATCH_TRANSACTIONAL = 16,
    TPC_BATCH_IS_CONTROL = 32
};

/* The 61 bytes before the records of a batch of magic 2, in host order. */
enum { TPC_BATCH_HEADER_BYTES = 61, TPC_BATCH_LENGTH_OVERHEAD_BYTES = 12 };

typedef struct {
    int64_t base_offset;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t producer_id; /* -1: none */
    int32_t batch_bytes; /* the whole batch: the length field and the 12 bytes before its end */
    int32_t partition_leader_epoch;
    uint32_t crc;
    int32_t last_offset_delta;
    int32_t base_sequence;
    int32_t records_count;
    int16_t attributes;
    int16_t producer_epoch;
    int8_t magic;
} tpc_batch_header;

/* What a batch in a Produce request is held against. */
typedef struct {
    int64_t now_ms;
    int64_t timestamp_before_ms_max; /* message.timestamp.before.max.ms; INT64_MAX: none */
    int64_t timestamp_after_ms_max;  /* message.timestamp.after.max.ms; INT64_MAX: none */
    int32_t batch_bytes_max;         /* max.message.bytes */
    int32_t segment_bytes_max;       /* segment.bytes; 0: not checked */
    int16_t produce_version;
    uint8_t log_append_time; /* the topic's message.timestamp.type is LogAppendTime */
    uint8_t compacted;       /* the topic refuses records without key */
} tpc_batch_limits;

enum tpc_batch_flag {
    TPC_BATCH_WALKED = 1, /* the records were looked at (not compressed) */
    TPC_BATCH_HAS_NULL_KEY = 2,
    TPC_BATCH_MAX_TIMESTAMP_WRONG = 4, /* not records_max_timestamp: tpc_batch_set_max_timestamp() puts it right */
    TPC_BATCH_TAIL_DROPPED = 8,        /* bytes of an incomplete batch follow; only header.batch_bytes are to be kept */
    TPC_BATCH_TELLS_LOG_START = 16     /* the answer has the log's start offset, as it has without an error; else -1 */
};

enum { TPC_BATCH_BAD_RECORDS_MAX = 16 };

typedef struct {
    tpc_batch_header header;       /* zeros when not even the header could be read */
    int64_t records_max_timestamp; /* of the records when walked, else what the header says */
    int32_t error_code;            /* Kafka's */
    int32_t reason;                /* enum tpc_batch_reason */
    uint32_t flags;                /* enum tpc_batch_flag */
    int32_t bad_records_count;     /* records refused one by one (timestamp, key); the first few are listed. 0 stands
                                         for the whole of a batch that was judged without unpacking it */
    int32_t bad_records[16];       /* indices within the batch */
    int16_t bad_record_errors[16]; /* INVALID_TIMESTAMP or INVALID_RECORD each */
} tpc_batch_report;

/* One record inside the records of a batch. Pointers point into the bytes given; lengths of -1 are nulls. */
typedef struct {
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers; /* headers_count times key length, key, value length, value */
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t key_bytes;
    int32_t value_bytes;
    int32_t headers_bytes;
    int32_t headers_count;
    int32_t record_bytes; /* the whole record with its length */
} tpc_record;

/* One batch of a scanned range. */
typedef struct {
    int64_t position; /* within the scanned bytes */
    int64_t base_offset;
    int64_t last_offset;
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t producer_id;
    int32_t batch_bytes;
    int32_t partition_leader_epoch;
    int32_t base_sequence;
    int32_t records_count;
    int16_t producer_epoch;
    int16_t attributes;
} tpc_batch_entry;

enum tpc_scan_flag {
    TPC_SCAN_CHECK_CRC = 1,
    TPC_SCAN_ALLOW_GAPS = 2, /* compacted logs: offsets rise but need not be contiguous */
    TPC_SCAN_CHECK_EPOCH = 4 /* batches have `leader_epoch` (-1: any); it ends at those from offset `epoch_end` on */
};

/* Goes in and out of tpc_batch_scan(): zero it, set next_offset (-1: take what the first batch says). */
typedef struct {
    int64_t position;      /* where the scan goes on: the end of the last whole and valid batch */
    int64_t next_offset;   /* the offset expected there */
    int32_t reason;        /* why it stopped: OK at the very end of the bytes */
    int32_t batches_count; /* filled by this call */
    int64_t epoch_end;     /* both with TPC_SCAN_CHECK_EPOCH only */
    int32_t leader_epoch;
} tpc_scan_state;

/* Reads the header. 0; -ENODATA: fewer bytes than the batch has; -EBADMSG: no batch of magic 2 begins here. */
int tpc_batch_header_read(const uint8_t *bytes, size_t bytes_count, tpc_batch_header *out);

/*
 * The records field of one partition in a Produce request: exactly one batch, checked in the order in which Kafka 4.3
 * does it, so that the error code is the same. Returns the code, which the report holds as well. Compressed batches are
 * not unpacked: their timestamps are judged by the header, and tpc_records_validate() does the rest for compacted topics.
 */
int tpc_batch_validate(const uint8_t *records, size_t records_bytes, const tpc_batch_limits *limits,
                       tpc_batch_report *out);

/*
 * The walk of tpc_batch_validate() over records that were unpacked from the batch whose header the report already holds.
 * Sets the report's error, flags, records_max_timestamp and bad_records.
 */
int tpc_records_validate(const uint8_t *records, size_t records_bytes, const tpc_batch_limits *limits,
                         tpc_batch_report *report);

/* The record at *position, which moves to the next one. 0; -ENODATA at the end; -EBADMSG: malformed. */
int tpc_record_read(const uint8_t *records, size_t records_bytes, size_t *position, tpc_record *out);

/* Up to out_max records from *position on. How many; -EBADMSG: the record after those already in `out` is malformed. */
int tpc_records_read(const uint8_t *records, size_t records_bytes, size_t *position, tpc_record *out, int out_max);

/*
 * Places in the batch of the records that have no key. How many; the first out_max of them are filled. -EBADMSG: a record is
 * malformed, or they are not as many as the batch says.
 */
int tpc_records_keyless(const uint8_t *records, size_t records_bytes, int32_t records_count, int32_t *out, int out_max);

/* The broker's fields of a valid batch; the CRC does not cover them. */
void tpc_batch_stamp(uint8_t *batch, int64_t base_offset, int32_t partition_leader_epoch);

/* tpc_batch_stamp() and LogAppendTime with its time, CRC made anew. -EBADMSG: the bytes are not exactly one batch. */
int tpc_batch_stamp_append_time(uint8_t *batch, size_t batch_bytes, int64_t base_offset, int32_t partition_leader_epoch,
                                int64_t timestamp_ms);

/* CreateTime and this max_timestamp, CRC made anew when that changes anything. -EBADMSG as above. */
int tpc_batch_set_max_timestamp(uint8_t *batch, size_t batch_bytes, int64_t max_timestamp);

/* Makes the CRC anew. -EBADMSG as above. */
int tpc_batch_seal(uint8_t *batch, size_t batch_bytes);

/* What a control batch says of its producer's transaction. */
enum { TPC_CONTROL_ABORT = 0, TPC_CONTROL_COMMIT = 1, TPC_CONTROL_BATCH_BYTES = 78 };

typedef struct {
    int32_t kind;
    int32_t coordinator_epoch; /* -1: it does not say */
} tpc_control_marker;

/* Of a whole batch with this header. False: it ends no transaction, as one that compaction has emptied. */
bool tpc_control_read(const uint8_t *batch, const tpc_batch_header *header, tpc_control_marker *out);

/* A marker of TPC_CONTROL_BATCH_BYTES, sealed, without offset and leader epoch. */
void tpc_control_build(uint8_t *batch, const tpc_control_marker *marker, int64_t producer_id, int16_t producer_epoch,
                       int64_t timestamp_ms);

/*
 * Walks consecutive batches from state->position: for recovery, building of indexes, slicing of fetches. Fills up to
 * out_max entries and stops at the first batch that is not whole and valid. With out NULL it fills nothing and looks for the end. Returns the entries filled, or -EINVAL
 * for a position outside the bytes.
 */
int tpc_batch_scan(const uint8_t *bytes, size_t bytes_count, uint32_t flags, tpc_scan_state *state,
                   tpc_batch_entry *out, int out_max);

const char *tpc_batch_reason_text(int reason);
