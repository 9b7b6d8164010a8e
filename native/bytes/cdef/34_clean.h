/* Compaction: which records of a log stay, and its batches without the others. No I/O, no memory of its own. */

enum { TPC_CLEAN_HORIZON = 64 }; /* attribute: base_timestamp is when the batch's tombstones may go (KIP-534) */

/* Why a walk came back. */
enum tpc_clean_stop {
    TPC_CLEAN_END = 0,     /* the bytes end at `place`, or inside the batch there */
    TPC_CLEAN_UNPACK = 1,  /* the records of the batch at `place` have to be unpacked */
    TPC_CLEAN_CONTROL = 2, /* a control batch is at `place` */
    TPC_CLEAN_ROOM = 3,    /* the output or `seen` is full; the output has to take `needed_bytes` */
    TPC_CLEAN_FULL = 4,    /* the map is: it has the keys of all records below `end_offset` */
    TPC_CLEAN_BAD = 5      /* what is at `place` is damaged; `reason` is a tpc_batch_reason */
};

/* What becomes of a batch. */
enum tpc_clean_outcome {
    TPC_CLEAN_STAYS = 0, /* byte for byte, but for a horizon that is not believed */
    TPC_CLEAN_REWRITTEN = 1,
    TPC_CLEAN_EMPTIED = 2,   /* its header stays */
    TPC_CLEAN_GONE = 3,      /* nothing of it stays */
    TPC_CLEAN_UNREADABLE = 4 /* it stays, as its records cannot be read */
};

enum tpc_clean_marker {
    TPC_CLEAN_MARKER_STAYS = 0,
    TPC_CLEAN_MARKER_DATED = 1, /* it stays, and gets a horizon */
    TPC_CLEAN_MARKER_GOES = 2
};

enum { TPC_CLEAN_SEEN_MAX = 64 };

/* One key: 24 bytes. All zero: free. */
typedef struct {
    uint64_t hash[2];
    int64_t next_offset; /* 1 + the offset of its newest record */
} tpc_clean_key;

/* An aborted transaction, with the offset of its marker. */
typedef struct {
    int64_t producer_id;
    int64_t first_offset;
    int64_t last_offset;
    int64_t batches_seen; /* of its data, by tpc_clean_batches() */
} tpc_clean_aborted;

/*
 * Functions of liblz4 (LZ4_decompress_safe, LZ4_compress_default) and libzstd (ZSTD_decompressDCtx, ZSTD_compress2 with
 * their contexts, ZSTD_isError), with which most batches need no caller to unpack them; NULL: there are none. Contexts
 * have their parameters, and records of up to small_bytes one of their own.
 */
typedef struct {
    void *lz4_unpack;
    void *lz4_pack;
    void *zstd_unpack;
    void *zstd_pack;
    void *zstd_is_error;
    void *zstd_unpack_context;
    void *zstd_pack_context;
    void *zstd_pack_small_context;
    int64_t small_bytes;
    uint8_t *unpacked; /* a larger batch is the caller's */
    int64_t unpacked_bytes;
    uint8_t *kept; /* the records that stay of one: 3 times as large */
    int64_t kept_bytes;
    /* What collecting has unpacked, for writing. Aligned to 8; none without room for unpacked_bytes. */
    uint8_t *remembered;
    int64_t remembered_bytes;
    int64_t remembered_end; /* 0 at first, as the next */
    int64_t remembered_at;  /* of the batch that is written next, or of one before it */
} tpc_clean_codecs;

/* What happened to one batch that was unpacked: what the header of its successor says. */
typedef struct {
    int64_t base_timestamp;
    int64_t max_timestamp;
    int64_t records_bytes; /* of REWRITTEN: in the output, not packed */
    int64_t removed_upto;
    int32_t records_count;
    int32_t outcome;
    int16_t attributes;
    int16_t is_horizon_new;
    int16_t deltas_stay; /* base_timestamp does: those of append times mean nothing, and made anew they may be longer */
    int16_t reserved;
} tpc_clean_verdict;

/* One job: the caller fills in everything down to `may_grow`, all zero behind it. */
typedef struct {
    tpc_clean_key *keys;
    int64_t slots_count;
    int64_t keys_max; /* below slots_count */
    uint64_t hash_key[2];
    tpc_clean_aborted *aborted; /* by producer_id, then first_offset */
    int64_t aborted_count;
    const int64_t *kept_offsets; /* ascending: a batch with one of these last offsets is emptied, but does not go */
    int64_t kept_count;
    uint8_t *marks; /* a bit for each record of the largest batch */
    int64_t marks_bytes;
    int64_t first_offset;   /* keys are collected from here on */
    int64_t now_ms;         /* tombstones of earlier horizons go */
    int64_t new_horizon_ms; /* what a batch gets that has none */
    tpc_clean_codecs codecs;
    int64_t batch_bytes_max; /* of one that is packed again for its horizon alone */
    int32_t may_grow;        /* 0: no batch becomes larger, so that some get no horizon */

    int64_t end_offset;        /* the map has the keys of all records below */
    int64_t source_end_offset; /* set for each segment: its batches end at or below */
    int64_t next_offset;       /* no batch begins below */
    int64_t place;             /* in the bytes: where the walk goes on */
    int32_t horizons_believed; /* set for each segment: a cleaner wrote it */
    int32_t tombstones_stay;   /* older values may be left: no tombstone behind them goes */
    int32_t stop;              /* out: enum tpc_clean_stop */
    int32_t reason;            /* out */
    int32_t batch_bytes;       /* out: of the batch at UNPACK, with its attributes */
    int32_t attributes;
    int64_t needed_bytes;  /* out */
    int64_t written_bytes; /* in the output; the caller sets it to 0 when it has taken them */
    int64_t keys_count;
    int64_t records_read; /* of tpc_clean_batches() and what goes on for it, as are those below */
    int64_t records_kept;
    int64_t batches_kept;
    int64_t batches_unreadable;
    int64_t removed_upto; /* 1 + the offset of the newest tombstone or marker that went */
    int64_t seen[64];     /* producers of transactions that were not aborted, some of them several times */
    int32_t seen_count;
    int32_t reserved;
} tpc_cleaner;

/*
 * Puts keys of whole batches into the map, from cleaner->place on. Control batches, records without a key, of aborted
 * transactions and in front of first_offset are passed over. Stops: END, UNPACK, FULL, BAD.
 */
int tpc_clean_collect(tpc_cleaner *cleaner, const uint8_t *bytes, size_t bytes_count);

/*
 * The same for the batch at UNPACK, whose records the caller has unpacked; NULL: they cannot be. Passes over it and
 * leaves END or FULL. What is no sequence of records has no keys.
 */
int tpc_clean_collect_unpacked(tpc_cleaner *cleaner, const uint8_t *batch, const uint8_t *records,
                               size_t records_bytes);

/*
 * Writes what stays of whole batches behind the written_bytes of the output. Stops: END, UNPACK, CONTROL, ROOM, BAD.
 */
int tpc_clean_batches(tpc_cleaner *cleaner, const uint8_t *bytes, size_t bytes_count, uint8_t *out, size_t out_bytes);

/*
 * Judges the unpacked records of the batch at UNPACK; NULL: they cannot be unpacked. Passes over it and writes what stays
 * of it, but for REWRITTEN, of which the records alone are written, to be packed and given to tpc_clean_packed(). Neither
 * moves written_bytes then. 0, or -ENOSPC: the output has to take needed_bytes, and nothing happened.
 */
int tpc_clean_unpacked(tpc_cleaner *cleaner, const uint8_t *batch, const uint8_t *records, size_t records_bytes,
                       uint8_t *out, size_t out_bytes, tpc_clean_verdict *verdict);

/*
 * The successor of a REWRITTEN batch, with its records packed again. When all of them stay, and it is larger than before and than
 * batch_bytes_max, the batch stays as it was and gets no horizon. 0 or -ENOSPC; -EINVAL: no batch can be so large.
 */
int tpc_clean_packed(tpc_cleaner *cleaner, const uint8_t *batch, const tpc_clean_verdict *verdict,
                     const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t out_bytes);

/* What becomes of the control batch at CONTROL (enum tpc_clean_marker). 0 or -ENOSPC. */
int tpc_clean_control(tpc_cleaner *cleaner, const uint8_t *batch, int what, uint8_t *out, size_t out_bytes);
