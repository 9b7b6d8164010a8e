/* A journal's entries by partition. Appends of one partition that follow each other, whatever lies between them in the
 * journal, are one run, so that who plans a recovery looks at few things. */

/* A run of appends, or one entry of another kind. */
typedef struct {
    uint64_t sequence;         /* of the first entry's commit */
    uint64_t payload_position; /* of the first entry, in the region */
    uint64_t payload_bytes;    /* of all */
    int64_t offset;            /* of the first entry */
    int64_t argument;          /* of the last entry */
    int32_t partition;
    uint32_t partition_number; /* partitions are counted as they appear */
    uint8_t topic_id[16];
    uint8_t kind;
    uint8_t flags;
    uint8_t payload[32]; /* of an entry of another kind, its beginning */
} tpc_journal_run;

/* One append's payload. */
typedef struct {
    uint64_t position;  /* in the region */
    int64_t offset;     /* of its first batch */
    int64_t end_offset; /* behind its last batch */
    uint32_t bytes;
    uint32_t run;
} tpc_journal_piece;

/* Zeros to begin with; to be freed with tpc_journal_runs_clear(). */
typedef struct {
    tpc_journal_run *runs;
    tpc_journal_piece *pieces; /* in the order of the journal */
    uint32_t *latest_runs;     /* by partition number */
    uint32_t *slots;           /* hash table of partition numbers + 1, 0: empty */
    uint64_t entries_count;
    uint32_t runs_count;
    uint32_t pieces_count;
    uint32_t partitions_count;
    uint32_t runs_capacity; /* internal, as the next two */
    uint32_t pieces_capacity;
    uint32_t slots_capacity;
} tpc_journal_runs;

/* Adds entries in the order of the journal; bytes are the region from bytes_position on, with them in it. 0 or -ENOMEM. */
int tpc_journal_runs_add(tpc_journal_runs *runs, const tpc_journal_entry *entries, uint32_t count, const uint8_t *bytes,
                         uint64_t bytes_position);
void tpc_journal_runs_clear(tpc_journal_runs *runs);

/* What is wanted of a run: batches that begin in [from_offset, upto_offset), to be put with those of a target. */
typedef struct {
    int64_t from_offset;
    int64_t upto_offset; /* not above from_offset: nothing of it */
    uint32_t target;     /* below the number of targets */
} tpc_journal_wanted;

/*
 * Sorts wanted payloads by target. Bytes are the region from bytes_position on. Takes pieces from *piece on as long as they
 * lie in the bytes and fit into out_bytes; *piece is then the next one to take. The bytes of target t are
 * out[t ? ends[t - 1] : 0 .. ends[t]). Returns how many bytes there are; -EBADMSG: a piece is not made of batches;
 * -EINVAL: a wanted target that does not exist.
 */
int64_t tpc_journal_gather(const tpc_journal_runs *runs, const tpc_journal_wanted *wanted, uint32_t *piece,
                           const uint8_t *bytes, uint64_t bytes_count, uint64_t bytes_position, uint8_t *out,
                           uint64_t out_bytes, uint64_t *ends, uint32_t targets_count);
/* The next piece from `piece` on of which something is wanted; pieces_count: none. */
uint32_t tpc_journal_next_wanted(const tpc_journal_runs *runs, const tpc_journal_wanted *wanted, uint32_t piece);
