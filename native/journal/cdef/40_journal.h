/* The writing half of one core's journal; the bytes on the disk are described in native/bytes/journal_format.h. */
typedef struct tpc_journal tpc_journal;

enum tpc_journal_mode {
    TPC_JOURNAL_DIRECT_DSYNC = 0,      /* O_DIRECT descriptor, RWF_DSYNC on each write */
    TPC_JOURNAL_BUFFERED_DSYNC = 1,    /* page cache, RWF_DSYNC on each write */
    TPC_JOURNAL_BUFFERED_FDATASYNC = 2 /* page cache, each write linked to an fdatasync */
};

/* Bounds of one journal. */
enum {
    TPC_JOURNAL_COMMITS_MAX = 64, /* open, waiting and in flight together; more: -EAGAIN */
    TPC_JOURNAL_ENTRY_BYTES_MAX = 1 << 30,
    TPC_JOURNAL_PACE_NS_MAX = 40000000 /* between two commits, while the journal fills up */
};

/* A place in the chain of commits: where a reader starts to find the commit `sequence` and everything after it. */
typedef struct {
    uint64_t sequence;
    uint64_t block;        /* block of the file at which to look first, then at the region's first */
    uint64_t position;     /* the same place as a count that never wraps; for tpc_journal_recycle() of this run only */
    uint32_t previous_crc; /* what that commit carries as previous_crc */
    uint32_t is_end;       /* nothing ever follows it: tpc_journal_stop() was called, and every commit is durable */
} tpc_journal_cursor;

typedef struct {
    int32_t descriptor; /* belongs to the caller; must outlive the journal */
    int32_t mode;       /* enum tpc_journal_mode */
    uint8_t journal_id[16];
    uint64_t run_id;                /* new at every open and reopen */
    uint64_t region_blocks;         /* blocks 2 … 2 + region_blocks of the file hold commits */
    uint64_t sequence_next;         /* of the first commit of this run; everything below counts as durable */
    uint64_t block_next;            /* of the file: where that commit is to start, found by recovery */
    uint64_t block_first;           /* oldest block that may not be overwritten; block_next: none */
    uint32_t previous_crc;          /* of the last commit found, 0 in a new journal */
    uint32_t commits_in_flight_max; /* 0: 1 */
    uint32_t commit_bytes_max;      /* header and entries of a commit, 0: 1 MiB; a larger entry has one of its size */
    uint32_t buffers_pooled_max;    /* free commit buffers kept, 0: 4 */
    /* TPC_EVENT_JOURNAL_SPACE when this many are in use, 0: 3/8 of the region, 1/8 until it is as long as it may become */
    uint64_t space_event_blocks;
    uint64_t region_blocks_max;  /* what tpc_journal_extend() may bring; 0: it will not grow */
    uint64_t in_place_bytes_max; /* written in place and not recycled, 0: 256 MiB; the event comes at a quarter of it */
} tpc_journal_params;

typedef struct {
    uint64_t sequence_next; /* of the next commit to be opened */
    uint64_t durable_sequence;
    uint64_t blocks_used;
    uint64_t region_blocks;
    uint64_t blocks_wanted;      /* the region's length that something waits for; 0: nothing does */
    uint64_t space_event_blocks; /* as in the parameters, or as tpc_journal_want_space_at() said */
    uint64_t commits_durable;
    uint64_t commits_failed;
    uint64_t entries_appended;
    uint64_t bytes_appended;         /* entries, with their headers */
    uint64_t bytes_written;          /* blocks, with padding */
    uint64_t refused_full;           /* appends answered -EAGAIN */
    uint64_t commits_paced;          /* that were followed by a pause, for want of recycled space */
    uint64_t in_place_bytes_written; /* to segments, whole blocks */
    uint64_t in_place_bytes_staged;  /* copied for that */
    uint32_t commits_waiting;        /* with entries, not yet submitted */
    uint32_t commits_in_flight;
    int32_t error; /* errno of the failure that stopped the journal, 0: it works */
    uint32_t mode;
    uint32_t space_refused;           /* 1: something found no place since blocks were recycled, or added, last */
    uint64_t commit_spans[TPC_SPANS]; /* commits by the time from their submission until this core saw them written */
} tpc_journal_statistics;

/*
 * Opens for appending where recovery found the end. -EINVAL: impossible params. Takes TPC_KIND_JOURNAL and a turn hook of
 * the ring, so there is one per ring.
 */
int tpc_journal_open(tpc_ring *ring, const tpc_journal_params *params, tpc_journal **out);

/* -EBUSY while a write is in flight (the kernel still reads its buffer): run the ring, try again. Otherwise 0 and freed. */
int tpc_journal_close(tpc_journal *journal);

/*
 * Copies one entry into the open commit; *sequence: the commit that carries it, to be waited for with JOURNAL_DURABLE.
 * -EAGAIN: no recycled space, or TPC_JOURNAL_COMMITS_MAX commits wait; -EMSGSIZE: above half of what the region may become, so that it may never fit; -EIO: failed, reopen first;
 * -ESHUTDOWN: stopped.
 */
int tpc_journal_append(tpc_journal *journal, int32_t kind, const uint8_t *topic_id, int32_t partition, int64_t offset,
                       int64_t argument, const uint8_t *payload, uint32_t payload_bytes, uint64_t *sequence);

/*
 * Whether entries with payloads of these lengths would all be accepted now: 0, or the error of the append that fails.
 * -EMSGSIZE as well when only some of them are, and the region can never take all at once.
 */
int tpc_journal_would_fit(tpc_journal *journal, const uint32_t *payload_bytes, uint32_t count);

/* Takes nothing more, for good: appends get -ESHUTDOWN. What was appended becomes durable as ever. */
void tpc_journal_stop(tpc_journal *journal);

/* 1: everything that was appended is durable, and its listener knows; 0: not yet; -EIO: the journal failed. */
int tpc_journal_settled(const tpc_journal *journal);

/* Asks for TPC_EVENT_JOURNAL_DURABLE when `sequence` is durable; without anyone asking a commit raises no event. */
void tpc_journal_watch(tpc_journal *journal, uint64_t sequence);

/* The place just after the last durable commit: what a checkpoint that covers everything durable now may replay from; the next
 * recycling is for it. */
void tpc_journal_durable_cursor(tpc_journal *journal, tpc_journal_cursor *place);

/* TPC_EVENT_JOURNAL_SPACE from now on when so many blocks are in use; 0: as many as without this call. While the region may still
 * grow, and again when it has grown, it is as without. */
void tpc_journal_want_space_at(tpc_journal *journal, uint64_t blocks);

/* Blocks before this position may be overwritten from now on; called after the superblock says so. -EINVAL: not a place in use. */
int tpc_journal_recycle(tpc_journal *journal, uint64_t position);

/*
 * The region has so many blocks from now on; the new ones were written once and the superblock says so. -EAGAIN: what is
 * in use reaches around the region's end; try again after the next tpc_journal_recycle(). -EINVAL: fewer than before.
 */
int tpc_journal_extend(tpc_journal *journal, uint64_t region_blocks);

/*
 * After TPC_EVENT_JOURNAL_FAILED: goes on after the last durable commit, on the same or another descriptor of the same
 * file. -EBUSY while writes of the failed run are in flight; -EINVAL when nothing failed or the run id is not new; -ESHUTDOWN
 * when it was stopped: what was cut cannot be said any more.
 */
int tpc_journal_reopen(tpc_journal *journal, int32_t descriptor, int32_t mode, uint64_t run_id);

void tpc_journal_get_statistics(const tpc_journal *journal, tpc_journal_statistics *statistics);

/* Faults for the crash tests' mutants; -ENOTSUP unless built with -DTPC_MUTANTS. */
enum tpc_journal_mutant {
    TPC_MUTANT_NO_DSYNC = 1,          /* writes are not flushed */
    TPC_MUTANT_EARLY_ACKNOWLEDGE = 2, /* a commit counts as durable when it is submitted */
    TPC_MUTANT_IN_PLACE_NO_DSYNC = 4, /* what is written in place into segments is not flushed */
    TPC_MUTANT_IN_PLACE_EARLY = 8     /* a commit does not wait for what it writes in place */
};
int tpc_journal_set_mutants(tpc_journal *journal, uint32_t mutants);
