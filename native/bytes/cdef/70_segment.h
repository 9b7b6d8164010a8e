/* Appending batches to a segment: when it rolls, which index entries it gets, what its producers sent. No I/O. */

enum tpc_segment_stop {
    TPC_SEGMENT_END = 0,     /* all bytes are taken */
    TPC_SEGMENT_ROLL = 1,    /* the batch at `place` begins a new segment */
    TPC_SEGMENT_CONTROL = 2, /* a control batch with a producer id is at `place`; it is not taken */
    TPC_SEGMENT_EPOCH = 3,   /* the batch at `place` has a later leader epoch than `leader_epoch` */
    TPC_SEGMENT_ROOM = 4,    /* an array is full: fetch its entries and call again */
    TPC_SEGMENT_BAD = 5      /* no batch that may follow is at `place`; `reason` is a tpc_batch_reason */
};

/* Goes in and out of tpc_segment_walk(). The names are those of SegmentIndexes in Python. */
typedef struct {
    int64_t segment_bytes; /* settings of the topic */
    int64_t segment_ms;
    int64_t index_interval_bytes;
    int64_t offset_entries_max; /* the segment rolls when an index has so many */
    int64_t time_entries_max;
    int64_t base_offset; /* of the segment */
    int64_t position;    /* its size */
    int64_t largest_timestamp;
    int64_t largest_timestamp_offset;
    int64_t first_timestamp;
    int64_t bytes_since_entry;
    int64_t offset_entries; /* in its indexes so far */
    int64_t time_entries;
    int64_t last_entry_timestamp; /* of the time index; -1: it is empty */
    int64_t next_offset;          /* where the log ends */
    int64_t place;                /* in the bytes: where the walk goes on */
    int64_t skipped_bytes;        /* out: batches below next_offset in front of the first one taken */
    int32_t leader_epoch;         /* the latest known */
    int32_t stop;                 /* out: enum tpc_segment_stop */
    int32_t reason;               /* out */
    int32_t offset_entries_made;  /* out: entries in the arrays of this call */
    int32_t time_entries_made;
    int32_t producers_count;
} tpc_segment_state;

/* What one producer sent in the bytes walked over. */
typedef struct {
    int64_t producer_id;
    int64_t last_timestamp;           /* of its last batch */
    int64_t transaction_first_offset; /* of its first transactional batch here, -1: none */
    int16_t producer_epoch;           /* of its last batch */
    uint8_t epoch_changed;            /* within the bytes: what was known of it before is void */
    uint8_t batches_count;
    int32_t reserved;
    int64_t last_offset[5]; /* its last batches, from the oldest to the newest */
    int64_t timestamp[5];
    int32_t last_sequence[5];
    int32_t offset_delta[5];
} tpc_segment_producer;

/*
 * Takes batches from state->place on until the end of the bytes or a stop. Index entries are written as the index files
 * have them, 8 and 12 bytes each. Batches that lie below next_offset at the beginning are passed over. -EINVAL: a place
 * outside the bytes, a segment that begins below 0, or entries_max below 1.
 */
int tpc_segment_walk(const uint8_t *bytes, size_t bytes_count, tpc_segment_state *state, uint8_t *offset_entries,
                     uint8_t *time_entries, int32_t entries_max, tpc_segment_producer *producers,
                     int32_t producers_max);

/*
 * The index entries alone, of batches that are in one segment whoever wrote them. Stops: END, ROLL (they do not fit), ROOM,
 * BAD. -EINVAL as above.
 */
int tpc_segment_index(const uint8_t *bytes, size_t bytes_count, tpc_segment_state *state, uint8_t *offset_entries,
                      uint8_t *time_entries, int32_t entries_max);
