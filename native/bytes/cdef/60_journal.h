/* Reading the journal back. Its bytes are described in journal_format.h; positions here count from the first byte of the
 * data region (block 2 of the file), so that they are multiples of 4096 where a commit begins. */

enum tpc_journal_stop {
    TPC_JOURNAL_CHAIN_ENDS = 0, /* no next commit: a torn tail, unless tpc_journal_find_damage() disagrees */
    TPC_JOURNAL_MORE_ROOM = 1,  /* the array is full: call again with the same bytes */
    TPC_JOURNAL_MORE_BYTES = 2, /* give the region from wanted_position on, wanted_bytes at least */
    TPC_JOURNAL_BAD_ENTRIES = 3 /* a commit with the right checksum and impossible entries: damage */
};

/* Goes in and out of tpc_journal_scan(). Set the first seven, zero the rest. */
typedef struct {
    uint64_t region_bytes; /* a multiple of 4096 */
    uint64_t position;     /* where the next commit is expected; after the scan: behind the last one */
    uint64_t next_sequence;
    uint8_t journal_id[16];
    uint32_t previous_crc;
    uint8_t any_previous_crc;  /* take the first commit whatever it says about the one before */
    uint8_t wrapped;           /* internal: looking at the region's first block */
    uint8_t inside_commit;     /* internal: the commit at `position` is checked, entries are being handed out */
    uint8_t stop;              /* enum tpc_journal_stop */
    uint32_t entry_position;   /* internal: of the next entry, from the commit's start */
    uint32_t entries_left;     /* internal */
    uint64_t durable_sequence; /* of the last commit */
    uint64_t run_id;           /* of the last commit */
    uint64_t submitted_ms;     /* of the last commit */
    uint64_t commits_count;
    uint64_t wrapped_position; /* where the chain left the region's end for its beginning; 0: it did not */
    uint64_t wanted_position;
    uint64_t wanted_bytes;
} tpc_journal_scan_state;

typedef struct {
    uint64_t sequence;         /* of the commit */
    uint64_t payload_position; /* in the region */
    int64_t offset;
    int64_t argument;
    uint32_t payload_bytes;
    int32_t partition;
    uint8_t topic_id[16];
    uint8_t kind;
    uint8_t flags;
} tpc_journal_entry;

/*
 * Follows the chain of commits as far as the bytes go, which are the region from bytes_position on. Every commit is
 * checked whole (identity, sequence, chain, checksum, entries) before its first entry is handed out. Returns how many
 * entries are in `out`; state->stop says why no more. -EINVAL: region_bytes or positions that are no multiples of 4096.
 */
int tpc_journal_scan(const uint8_t *bytes, size_t bytes_count, uint64_t bytes_position, tpc_journal_scan_state *state,
                     tpc_journal_entry *out, int out_max);

/* In: region_bytes, journal_id, first_missing_sequence, position 0. */
typedef struct {
    uint64_t region_bytes;
    uint64_t position; /* next block to look at; with 0 returned: go on from here, region_bytes is the end */
    uint64_t first_missing_sequence;
    uint8_t journal_id[16];
    uint64_t wanted_bytes;   /* at least so many from position on */
    uint64_t found_sequence; /* of the commit that knows better */
    uint64_t found_durable_sequence;
    uint64_t torn_count; /* whole commits from first_missing_sequence on that prove nothing */
} tpc_journal_damage;

/*
 * Whether a valid commit of this journal says that first_missing_sequence had been durable. Looks at every block of the
 * bytes, which are the region from bytes_position on, beginning at state->position. 1: yes, it is at state->position;
 * 0: not in these bytes; -EINVAL as above.
 */
int tpc_journal_find_damage(const uint8_t *bytes, size_t bytes_count, uint64_t bytes_position,
                            tpc_journal_damage *state);

/*
 * Makes the checksum of the commit in the buffer and puts it into its header, which says how long it is (commit_bytes).
 * 0; -EINVAL: that length is impossible or not in the buffer.
 */
int tpc_journal_commit_seal(uint8_t *commit, size_t buffer_bytes);
