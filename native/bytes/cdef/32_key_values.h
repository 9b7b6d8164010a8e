/* Where a record's key and value are in the bytes that were read. A begin of -1: null. */
typedef struct {
    int32_t key_begin, key_end;
    int32_t value_begin, value_end;
} tpc_key_value;

/* Why tpc_key_values_read() came back. */
enum {
    TPC_KEY_VALUES_FULL = 0, /* there may be more */
    TPC_KEY_VALUES_END = 1,  /* the bytes end, or the last batch is cut off */
    TPC_KEY_VALUES_OTHER = 2 /* at `position` is a whole batch that is compressed, transactional or control */
};

/* Goes in and out: zero it at first. */
typedef struct {
    int64_t position;       /* of the next record, or batch */
    int64_t batch_end;      /* of the batch that is read; 0: none is */
    int64_t next_offset;    /* behind the last batch that was read whole */
    int64_t batch_offset;   /* behind the one that is read */
    int32_t records_left;   /* of that one */
    int32_t batches_passed; /* by this call: without a record */
    int32_t stopped;
    int32_t takes_other;    /* the batch at `position`, or in which it is, is read whatever it means, and nothing behind it */
    int64_t producer_id;    /* this and the next two: of the batch where it stopped with OTHER */
    int16_t producer_epoch;
    int16_t attributes;
    int32_t reserved;
} tpc_key_values_walk;

/*
 * Keys and values of a log's records, across batches, CRCs checked, gaps allowed. A batch without records takes a place, too,
 * so a call is as short as out_max is small. A batch where it stops with OTHER is read by the next call if the caller sets
 * takes_other, unless it is compressed; that is 0 again when it was read whole. How many were filled; -EBADMSG: what is at `position` is damaged; -EINVAL.
 */
int tpc_key_values_read(const uint8_t *bytes, size_t bytes_count, tpc_key_values_walk *walk, tpc_key_value *out,
                        int out_max);
