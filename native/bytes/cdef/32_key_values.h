/* Where a record's key and value are in the bytes that were read. A begin of -1: null. */
typedef struct {
    int32_t key_begin, key_end;
    int32_t value_begin, value_end;
} tpc_key_value;

/* Why tpc_key_values_read() came back. */
enum {
    TPC_KEY_VALUES_FULL = 0,      /* there may be more */
    TPC_KEY_VALUES_END = 1,       /* the bytes end, or the last batch is cut off */
    TPC_KEY_VALUES_COMPRESSED = 2 /* at `position` is a whole batch that is compressed: for the caller to pass over */
};

/* What a call has read. */
enum {
    TPC_KEY_VALUES_PLAIN = 0,       /* records that count from here on, of any number of batches */
    TPC_KEY_VALUES_TRANSACTION = 1, /* some of a batch of a transaction: how it ends is not known */
    TPC_KEY_VALUES_ABORT = 2,       /* a marker, which takes one place and fills none */
    TPC_KEY_VALUES_COMMIT = 3
};

/* Goes in and out: zero it at first. */
typedef struct {
    int64_t position;       /* of the next record, or batch */
    int64_t batch_end;      /* of the batch that is read; 0: none is */
    int64_t next_offset;    /* behind the last batch that was read whole */
    int64_t batch_offset;   /* behind the one that is read */
    int64_t producer_id;    /* of the transaction, or of the one that the marker ends */
    int32_t records_left;   /* of the batch that is read */
    int32_t batches_passed; /* by this call: without a record that counts */
    int32_t is_none_open; /* in: the caller knows of no open transaction: a marker that comes before one ends nothing */
    int32_t stopped;
    int16_t producer_epoch;
    int16_t kind;
} tpc_key_values_walk;

/*
 * Keys and values of a log's records, across batches, CRCs checked, gaps allowed. A batch without records takes a place, too,
 * so a call is as short as out_max is small; control batches that end no transaction are such. How many were filled; -EBADMSG:
 * what is at `position` is damaged; -EINVAL.
 */
int tpc_key_values_read(const uint8_t *bytes, size_t bytes_count, tpc_key_values_walk *walk, tpc_key_value *out,
                        int out_max);
