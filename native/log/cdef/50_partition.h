/*
 * The partitions that one core leads: their offsets, the batches still in memory, their producers.
 *
 * A handle is generation << 32 | slot, never 0 and never used again. Functions that take one return -ENOENT when its
 * partition was withdrawn. Ranges of offsets are half-open; only fields named last_ are inclusive.
 */
typedef struct tpc_plane tpc_plane;

/* What this core does with a partition that it has registered. */
enum tpc_partition_role {
    TPC_ROLE_NONE = 0, /* Produce is answered NOT_LEADER_OR_FOLLOWER, Fetch is left to Python */
    TPC_ROLE_LEADER = 1,
    TPC_ROLE_FOLLOWER = 2 /* as NONE for producers; takes what its leader sends, and may serve reads: 51_replica.h */
};

enum tpc_partition_flag {
    TPC_PARTITION_INTERNAL = 2, /* refuses batches of clients: only tpc_plane_append() */
    TPC_PARTITION_RELAXED = 4,  /* answered at once; readers still see only what is durable */
    TPC_PARTITION_LOG_APPEND_TIME = 8,
    TPC_PARTITION_PYTHON_VALIDATES = 16, /* tpc_plane_produce() leaves it to Python, which calls ..._with() */
    TPC_PARTITION_COMPACTED = 32         /* records need keys: batches that are compressed are left to Python */
};

typedef struct {
    int64_t tail_bytes_max;     /* the cache: memory for batches that are in segments already, and for finding them */
    int64_t producer_expiry_ms; /* producer.id.expiration.ms; 0: never by itself */
    int32_t produce_partitions_max; /* of one request; more are left to Python. 0: 10,000 */
    uint32_t
        unread_bytes_max; /* so much of a partition leaves memory without a fetch, and nobody reads it. 0: 256 MiB */
} tpc_plane_params;

typedef struct {
    const uint8_t *topic_name; /* copied */
    uint32_t topic_name_bytes;
    int32_t partition;
    uint8_t topic_id[16];
    int64_t log_start_offset;
    int64_t log_end_offset;          /* recovered, so all of it is durable and in segments */
    int64_t high_watermark;          /* of that, what is committed: with one voter all of it */
    int64_t timestamp_before_ms_max; /* INT64_MAX: none */
    int64_t timestamp_after_ms_max;
    int64_t bytes_admitted; /* segment space reserved for appends; INT64_MAX: not limited */
    int32_t leader_epoch;
    int32_t batch_bytes_max;   /* max.message.bytes */
    int32_t segment_bytes_max; /* 0: not checked */
    uint32_t flags;            /* enum tpc_partition_flag */
} tpc_partition_params;

typedef struct {
    uint8_t topic_id[16];
    int64_t log_start_offset;
    int64_t last_stable_offset;
    int64_t high_watermark;
    int64_t durable_offset; /* in this core's journal */
    int64_t log_end_offset;
    int64_t tail_offset;     /* first in memory; log_end_offset when nothing is */
    int64_t written_offset;  /* everything below is in segments (not necessarily flushed) */
    int64_t tail_bytes;      /* in memory */
    int64_t unwritten_bytes; /* of those, not yet written behind */
    int64_t dirty_bytes;     /* of those, durable in the journal */
    int64_t bytes_admitted;
    int64_t in_place_end_offset; /* behind the last one of the unwritten that was written in place; -1: there is none */
    int32_t partition;
    int32_t leader_epoch;
    uint32_t flags;
    uint32_t producers_count;
    uint32_t appends_undurable;
    int32_t role; /* enum tpc_partition_role */
    uint32_t watched;
    uint32_t is_replicated;
} tpc_partition_state;

/* What clients, and leaders on other nodes, have had of a partition since it was registered. */
typedef struct {
    uint64_t appends; /* batches */
    uint64_t append_bytes;
    uint64_t reads; /* answers with records of it */
    uint64_t read_bytes;
} tpc_partition_use;

/* A batch in memory, or a run of small ones that lie in a row. Whoever got it from ..._take() owns one reference of the frame. */
typedef struct {
    tpc_slice slice;
    int64_t base_offset;
    int64_t next_offset;
    uint64_t sequence;       /* the journal's commit that carries it */
    uint32_t in_place_block; /* of its segment's file: these are in the file already; blocks of 4 KiB */
    uint32_t in_place_blocks;
} tpc_tail_batch;

enum { TPC_PRODUCER_BATCHES_MAX = 5 };

typedef struct {
    int64_t base_offset;
    int64_t last_offset;
    int64_t timestamp_ms; /* the batch's max_timestamp */
    int32_t base_sequence;
    int32_t last_sequence;
} tpc_producer_batch;

/* What a partition knows of one producer; batches from the oldest to the newest. */
typedef struct {
    int64_t producer_id;
    int64_t last_append_ms;                   /* monotonic, from the wall clock at the start on */
    struct tpc_open_transaction *transaction; /* NULL: none is open */
    int32_t coordinator_epoch;                /* of its last marker; -1: none was heard of */
    int16_t producer_epoch;
    uint8_t batches_count;
    uint8_t sequence_lost; /* after a loss: the next sequence is taken whatever it is, once */
    tpc_producer_batch batches[5];
} tpc_producer_state;

/* What clients are told of one producer. Where no batch of its epoch is known, its sequence and timestamp are -1. */
typedef struct {
    int64_t producer_id;
    int64_t last_timestamp_ms; /* of its last batch, the largest */
    int64_t transaction_first_offset;
    int32_t last_sequence;
    int32_t coordinator_epoch;
    int32_t producer_epoch;
    int32_t reserved;
} tpc_told_producer;

typedef struct {
    int64_t producer_id;
    int64_t first_offset;
    int64_t last_offset;   /* of its marker */
    int64_t stable_offset; /* none whose marker comes later has begun below it */
} tpc_told_aborted;

/* The largest number of those that a partition keeps though segments have them. */
enum { TPC_ABORTED_MAX = 4096 };

/* Which of a partition's are known without its segments, and for how many more there is room. */
typedef struct {
    int64_t from_offset;
    int32_t room;
    int32_t reserved;
} tpc_known_aborted;

/* An entry that the reopened journal has to begin with: the partition is cut at this offset, behind the beginning of
 * this leader epoch. */
typedef struct {
    uint8_t topic_id[16];
    int64_t offset;
    int32_t partition;
    int32_t last_epoch_kept;
} tpc_partition_cut;

typedef struct {
    int64_t base_offset;
    int64_t next_offset;
    int64_t append_ms;  /* LogAppendTime that was stamped, -1 with CreateTime */
    uint64_t sequence;  /* of the commit that carries them; 0: durable, as a duplicate may be */
    int32_t error_code; /* Kafka's, 0: appended */
    int32_t reason;     /* enum tpc_batch_reason when validation refused */
    int32_t duplicate;  /* 1: these records were appended before, at these offsets */
    int32_t relaxed;    /* 1: nobody has to wait */
    int32_t leader_epoch;
    uint32_t reserved;
} tpc_append_result;

typedef struct {
    uint64_t partitions;
    uint64_t appends; /* batches, of clients and of Python */
    uint64_t append_bytes;
    uint64_t produces_taken;
    uint64_t produces_decoded;  /* how often one was read: once when it is taken, twice at most when it is left */
    uint64_t produce_fallbacks; /* to Python */
    uint64_t produces_timed_out;
    uint64_t produces_pending; /* now */
    uint64_t partition_errors; /* partitions of Produce answered with an error */
    uint64_t duplicates;
    uint64_t answers_doubted;   /* refused, since their records were not where they would have been told to be */
    uint64_t appends_undurable; /* now */
    uint64_t appends_rolled_back;
    uint64_t tail_runs;       /* now: of batches that share an entry of the tail */
    int64_t tail_bytes;       /* now */
    int64_t tail_clean_bytes; /* now, written behind: the cache */
    int64_t tail_bytes_max;   /* now: its bound */
    uint64_t tail_evicted_bytes;
    uint64_t tail_lacking_bytes; /* of these, what those who read had not come to yet */
    uint64_t reads;
    uint64_t reads_below_tail;
    uint64_t cuts_pending;
    uint64_t prepared_answers;    /* given out: 57_prepared.h */
    uint64_t producers;           /* now */
    uint64_t producers_forgotten; /* ever, because there were too many */
} tpc_plane_statistics;

int tpc_plane_new(tpc_ring *ring, tpc_journal *journal, tpc_connections *connections, tpc_budget *budget,
                  const tpc_plane_params *params, tpc_plane **out);

/* Drops everything; pending produces are forgotten without an answer (close the connections first). */
void tpc_plane_free(tpc_plane *plane);

void tpc_plane_get_statistics(const tpc_plane *plane, tpc_plane_statistics *statistics);
void tpc_plane_set_tail_bytes_max(tpc_plane *plane, int64_t bytes_max);
/* What the bound is, if that is more, as long as a replica that C brings records to is behind: below the tail they are in
 * segments only, and Python's to read. */
void tpc_plane_set_tail_bytes_behind_max(tpc_plane *plane, int64_t bytes_max);
/* Gives up so many bytes of the cache that are above its bound, the oldest first. 1: there are more. Writing behind does it,
 * too. */
int tpc_plane_evict(tpc_plane *plane, int64_t bytes);
/* What is known of producers takes so much memory at most, tables beside it; 0: any. */
void tpc_plane_bound_producers(tpc_plane *plane, int64_t bytes_max);
/* Memory that was given back to malloc goes back to the kernel, but for about so many bytes of it. */
void tpc_plane_trim_memory(int64_t kept_bytes);

/* Wall clock for stamping and validation, in place of the system's; -1: the system's again. For tests. */
void tpc_plane_set_clock(tpc_plane *plane, int64_t wall_ms);
/* The same for how long producers are silent. */
void tpc_plane_set_monotonic(tpc_plane *plane, int64_t monotonic_ms);

/* -EEXIST: name or id with this index is there; -EINVAL: bounds that contradict each other. */
int tpc_partition_register(tpc_plane *plane, const tpc_partition_params *params, uint64_t *handle);

/* Everything of params but names, ids, offsets, bytes_admitted and leader_epoch. */
int tpc_partition_update(tpc_plane *plane, uint64_t handle, const tpc_partition_params *params);
int tpc_partition_set_log_start(tpc_plane *plane, uint64_t handle, int64_t log_start_offset);
/* TPC_EVENT_ROOM_LOW, once, when appends have used up half of what is admitted then. -EINVAL: fewer than nothing. */
int tpc_partition_admit(tpc_plane *plane, uint64_t handle, int64_t bytes_more);

/* Up to where a log has to come before somebody is answered. */
enum { TPC_LEVEL_DURABLE = 0, TPC_LEVEL_COMMITTED = 1 };

/*
 * Until what was appended in this leader epoch, and ends at end_offset, is durable here or committed. 1: it is; 0:
 * TPC_EVENT_WAIT_OVER comes, whatever happens to it: KAFKA_STORAGE_ERROR when the journal has failed, NOT_LEADER_OR_FOLLOWER
 * when the role ended or the partition was withdrawn. -ESTALE: it is not known any more what became of it.
 */
int tpc_partition_wait(tpc_plane *plane, uint64_t handle, int32_t level, int64_t end_offset, int32_t leader_epoch,
                       uint64_t token);

/* TPC_EVENT_PARTITION_ADVANCED at the next move of the high watermark, once. */
int tpc_partition_watch(tpc_plane *plane, uint64_t handle);

/*
 * From now on the partition has this role in this term, which is its leader epoch: a step of its own, after registering it.
 * As FOLLOWER it ends what waits, with NOT_LEADER_OR_FOLLOWER; as LEADER what waits goes on: its records are in the log.
 * -EINVAL: the term is below its leader epoch, there is no such role, FOLLOWER of a partition that is not replicated, or LEADER
 * in a term in which a failed journal has lost some of its records: their offsets would have two.
 */
int tpc_partition_arm(tpc_plane *plane, uint64_t handle, int32_t role, int32_t term);
/*
 * It has no role; offsets, tail and producers stay. What waits is told NOT_LEADER_OR_FOLLOWER, unless `keep_waits`: between
 * two terms of one leader nothing is lost.
 */
int tpc_partition_disarm(tpc_plane *plane, uint64_t handle, int keep_waits);

/*
 * The handle dies at once; produces that wait for this partition are answered NOT_LEADER_OR_FOLLOWER for it. Memory that
 * slices still refer to goes with the last of them. What is not written behind is dropped: drain first to keep it.
 */
int tpc_partition_withdraw(tpc_plane *plane, uint64_t handle);

int tpc_partition_get_state(const tpc_plane *plane, uint64_t handle, tpc_partition_state *state);
int tpc_partition_get_use(const tpc_plane *plane, uint64_t handle, tpc_partition_use *use);
/* A read that Python has answered. */
void tpc_partition_count_read(tpc_plane *plane, uint64_t handle, uint64_t bytes);
uint64_t tpc_partition_find_name(tpc_plane *plane, const uint8_t *name, uint32_t name_bytes, int32_t partition);
uint64_t tpc_partition_find_id(const tpc_plane *plane, const uint8_t *topic_id, int32_t partition);

/*
 * Whole batches from memory, from the one that holds `offset` on, none that reaches above upto_offset, in all at most
 * bytes_max (min_one: the first one whatever its size). Slices are the caller's references. The count; 0 at the end;
 * -ERANGE: offset lies below what memory holds, read the segment.
 */
int tpc_partition_read(tpc_plane *plane, uint64_t handle, int64_t offset, int64_t bytes_max, int64_t upto_offset,
                       int min_one, tpc_slice *slices, uint32_t slices_max);
void tpc_slices_release(tpc_slice *slices, uint32_t count);

/* Partitions with durable batches to write behind, each once; how many were filled in. */
uint32_t tpc_plane_dirty(const tpc_plane *plane, uint64_t *handles, uint32_t handles_max);
/* Whether a batch of a commit below the sequence is not written behind. */
int tpc_plane_is_unwritten_below(const tpc_plane *plane, uint64_t sequence);
/* Those of them for which it is time: with bytes_min to write or more, or dirty for age_ns_min, and the longest dirty ones
 * as long as the others together have more than bytes_max. */
uint32_t tpc_plane_dirty_due(const tpc_plane *plane, int64_t bytes_min, int64_t age_ns_min, int64_t bytes_max,
                             uint64_t *handles, uint32_t handles_max);
/* TPC_EVENT_WRITE_BEHIND_DUE, once: at the next batch that becomes durable in a partition that then has bytes_min to write
 * or more, or when all partitions together have more than bytes_max. */
void tpc_plane_watch_due(tpc_plane *plane, int64_t bytes_min, int64_t bytes_max);

/*
 * The oldest durable batches not yet written behind, at most bytes_max (of those written in place some more) but at least
 * one. References are the caller's (tpc_tail_batches_release). They stay readable; ..._done() says up to where the segment
 * has them, which makes them cache that may be evicted. One taker per partition at a time.
 */
int tpc_partition_write_behind_take(tpc_plane *plane, uint64_t handle, int64_t bytes_max, tpc_tail_batch *batches,
                                    uint32_t batches_max);

/* Where large batches may be written in place into their segment (native/journal/in_place.h). */
typedef struct {
    int64_t segment_base_offset;
    int64_t written_offset;    /* behind the last batch that Python has counted as written */
    int64_t written_position;  /* where that ends in the file */
    int64_t segment_bytes_max; /* the batch that would go beyond it is for the next segment */
    int64_t reserved_position; /* space in the file is reserved up to here */
    int32_t descriptor;        /* opened with O_DIRECT; duplicated */
    int32_t batch_bytes_min;   /* smaller batches go through the journal; two blocks at least */
} tpc_in_place_window_params;

/*
 * Opens an in-place window, in place of one that is there. -ENOENT; -EINVAL: impossible params; -EAGAIN: not now (the journal
 * failed, or cuts are not durable yet, or written_offset is not where memory begins to be unwritten).
 */
int tpc_partition_open_in_place_window(tpc_plane *plane, uint64_t handle, const tpc_in_place_window_params *params);
/* Nothing more is written in place; what is under way goes on. */
void tpc_partition_close_in_place_window(tpc_plane *plane, uint64_t handle);
/* More space was reserved. 1: there is an in-place window, 0: there is none. */
int tpc_partition_set_in_place_space(tpc_plane *plane, uint64_t handle, int64_t reserved_position);
/* How many bytes that were; the others stay as they were. -EINVAL: the offset is none that could have been taken. */
int64_t tpc_partition_write_behind_done(tpc_plane *plane, uint64_t handle, int64_t upto_offset);
void tpc_tail_batches_release(tpc_tail_batch *batches, uint32_t count);
/* How many bytes taken batches have, and all of them in a row in `out`, which has room for so many; in between the ring
 * serves when it is time (tpc_ring_serve). */
uint64_t tpc_tail_batches_bytes(const tpc_tail_batch *batches, uint32_t count);
void tpc_tail_batches_copy(tpc_plane *plane, const tpc_tail_batch *batches, uint32_t count, uint8_t *out);
/* The first one at or behind a place that was written in place; `count` when there is none. */
uint32_t tpc_tail_batches_next_in_place(const tpc_tail_batch *batches, uint32_t count, uint32_t from);
/* Bytes of the leading batches that lie wholly in the first `bytes` of them. */
uint64_t tpc_tail_batches_within(const tpc_tail_batch *batches, uint32_t count, uint64_t bytes);

/*
 * Append of the broker's own (internal topics): one or more whole batches, copied, stamped, journalled. Producers are
 * remembered, their sequences not judged; a transactional batch begins a transaction, a marker ends one. -ENOENT; -EPERM: not armed as leader; -EAGAIN: the
 * journal is full; -ENOSPC: not admitted; -EIO: the journal failed. 0 with result->error_code for what the bytes themselves
 * are guilty of.
 */
int tpc_plane_append(tpc_plane *plane, uint64_t handle, const uint8_t *batches, uint32_t bytes,
                     tpc_append_result *result);

/*
 * Ends a producer's transaction by a marker, as a coordinator of this epoch wants it. Refused are a coordinator with an epoch
 * below that of the last marker (TRANSACTION_COORDINATOR_FENCED), and a producer epoch below the known one, or, from
 * transaction_version 2 on, not above it (INVALID_PRODUCER_EPOCH): unless nothing is open, for then this may be that marker once
 * more, whose answer was lost (KIP-1228). Errors as of tpc_plane_append(); -EINVAL: no id or epoch of a producer; -EAGAIN: or the
 * log was cut, and its producers are found out anew.
 */
int tpc_plane_append_marker(tpc_plane *plane, uint64_t handle, int64_t producer_id, int16_t producer_epoch,
                            int32_t coordinator_epoch, int commits, int16_t transaction_version,
                            tpc_append_result *result);

/*
 * Producers in the encoding of checkpoints (tpc_broker/log/state.py), and behind them in 24 bytes each the transactions whose
 * markers may be above the high watermark: producer id, first offset, offset behind the marker.
 * load: they take the place of those with their ids, and are
 * silent since the time that is stored, or from now on where they would have to be forgotten at once (a backfill's records are
 * old) or it is to come; -EINVAL: the bytes are none, -EBUSY: appends are on their way to the journal: nothing was done. dump:
 * without batches at or above upto_offset, durable ones only; how many bytes, at most 4 + TPC_PRODUCER_ENCODED_MAX for each
 * producer, or -ENOBUFS.
 */
enum { TPC_PRODUCER_ENCODED_MAX = 151 };
int tpc_partition_load_producers(tpc_plane *plane, uint64_t handle, const uint8_t *encoded, uint32_t bytes,
                                 bool sequence_lost);
int tpc_partition_dump_producers(const tpc_plane *plane, uint64_t handle, int64_t upto_offset, uint8_t *encoded,
                                 uint32_t bytes_max);
/* All producers as of the log's end, in no order, or those with an open transaction and of the others as many as there is room
 * for; how many. -ENOBUFS: not even the former have room; -EAGAIN: the log was cut, and they are found out anew. */
int tpc_partition_tell_producers(const tpc_plane *plane, uint64_t handle, tpc_told_producer *told, uint32_t told_max);
/* Of transactions that were aborted those with markers at or above from_offset, and that reach into [offset, upto), in the order
 * of the markers. How many there are; `out` has the first ones. Of those below only segments know. */
int tpc_partition_aborted(const tpc_plane *plane, uint64_t handle, int64_t offset, int64_t upto, tpc_told_aborted *out,
                          uint32_t out_max, tpc_known_aborted *known);
/* Segments say that these are all whose markers lie in [offset, upto), the latter being known->from_offset. -ESTALE: it is not
 * any more; -EINVAL: they are more than TPC_ABORTED_MAX. At most known->room are right. */
int tpc_partition_add_aborted(tpc_plane *plane, uint64_t handle, int64_t offset, int64_t upto,
                              const tpc_told_aborted *added, uint32_t added_count);
/* Forgets producers without an open transaction that were silent for producer_expiry_ms; how many. An append does it too before the table grows. */
int tpc_partition_expire_producers(tpc_plane *plane, uint64_t handle);
/* How many slots of the hash table of producers a search looks at, at most. For tests. */
int tpc_partition_longest_search(const tpc_plane *plane, uint64_t handle);

/*
 * The journal goes on, its first entries being the cuts of what was rolled back, and behind each the next leader epoch of its
 * partition when that is led here: it is in its state at once. *sequence: the last of them. As tpc_journal_reopen().
 */
int tpc_plane_reopen_journal(tpc_plane *plane, int32_t descriptor, int32_t mode, uint64_t run_id, uint64_t *sequence);
/* The commit that carries those cuts, and adoptions; 0: they are durable, or the journal has failed. */
uint64_t tpc_plane_cuts_sequence(const tpc_plane *plane);
/*
 * An ADOPTED entry, by which the files of a partition give way to others. It is not taken back: should the journal fail before
 * it is durable, the reopened one begins with it, behind the cuts (tpc_plane_cuts_sequence). One of a partition at a time.
 * Errors as of tpc_journal_append(); -ENOMEM.
 */
int tpc_plane_adopt(tpc_plane *plane, const uint8_t topic_id[16], int32_t partition, int32_t moves,
                    const uint8_t *payload, uint32_t payload_bytes, uint64_t *sequence);

/* ---- Produce ---- */

/* Why tpc_plane_produce() left a request to Python. */
enum tpc_produce_fallback {
    TPC_FALLBACK_NONE = 0,
    TPC_FALLBACK_MALFORMED = 1, /* the body does not decode: close the connection */
    TPC_FALLBACK_VERSION = 2,   /* a version that is not served */
    TPC_FALLBACK_TOO_MANY = 3,  /* partitions, see produce_partitions_max */
    TPC_FALLBACK_UNKNOWN = 4,   /* a partition that is not in the table, or not led: only metadata knows the answer */
    TPC_FALLBACK_PYTHON_VALIDATES = 5,
    TPC_FALLBACK_JOURNAL_FULL = 6, /* park it, try again after recycling */
    TPC_FALLBACK_NOT_ADMITTED = 7, /* reserve segment space, tpc_partition_admit(), try again */
    TPC_FALLBACK_NO_MEMORY = 8,
    TPC_FALLBACK_GAP = 9, /* a replicated partition lacks what comes before a batch: ask its quorum who leads it */
    TPC_FALLBACK_UNCOMMITTED = 10, /* more than a leader may have waits for a quorum, or for a hand-over: try again */
    TPC_FALLBACK_VERIFY = 11, /* a transactional batch, of a transaction that is not open here: ask its coordinator */
    TPC_FALLBACK_AUTHORIZE = 12, /* whether its subject may write is not known here */
    TPC_FALLBACK_REASONS_COUNT = 13
};

/* What Python says of one partition of a request, in the order of the request. */
typedef struct {
    const uint8_t *error_message; /* copied */
    int32_t error_message_bytes;  /* -1: none */
    int32_t leader_id;            /* for NOT_LEADER_OR_FOLLOWER from version 10 on; -1: not said */
    int32_t leader_epoch;
    int16_t error_code; /* 0: go on, and do not ask again */
    int16_t
        gap_code; /* for a batch of TPC_FALLBACK_GAP, the quorum was asked: what it is refused with; 0: it was not */
    uint32_t
        guard; /* for a batch of TPC_FALLBACK_VERIFY: of the verification that its coordinator has answered; 0: none */
    const int32_t *keyless; /* places in the batch of the records that a compacted topic refuses; copied */
    int32_t keyless_count;  /* 0: the error is not about single records */
} tpc_produce_verdict;

typedef struct {
    const uint8_t *host; /* copied */
    const uint8_t *rack;
    int32_t host_bytes;
    int32_t rack_bytes; /* -1: none */
    int32_t node_id;
    int32_t port;
} tpc_plane_endpoint;

/*
 * A whole Produce request. 1: taken, answered from here when it is durable (relaxed partitions do not wait, acks=0 has
 * no answer), the request belongs to the plane. 0: left, nothing changed; tpc_plane_fallback_reason() says why.
 */
int tpc_plane_produce(tpc_plane *plane, tpc_request *request);
int tpc_plane_fallback_reason(const tpc_plane *plane);

/* One partition of a Produce; what begins at a place begins so many bytes behind the beginning of the body. */
typedef struct {
    int32_t partition;
    int32_t records_place;
    int32_t records_bytes; /* -1: null */
    int32_t name_place;    /* of the topic */
    int32_t name_bytes;    /* -1: it has the id, from version 13 on */
    uint8_t topic_id[16];
} tpc_asked_part;

typedef struct {
    const tpc_asked_part *parts; /* valid until the plane is asked about another request */
    int32_t parts_count;
    int32_t timeout_ms;
    int32_t transactional_id_place;
    int32_t transactional_id_bytes; /* -1: it has none */
} tpc_asked_produce;

/* What a Produce that was left asks for, without reading it once more. 0, or of enum tpc_produce_fallback why it cannot be had:
 * MALFORMED, VERSION, TOO_MANY or NO_MEMORY. */
int tpc_plane_produce_asked(tpc_plane *plane, tpc_request *request, tpc_asked_produce *out);

/*
 * The same with Python's verdicts, one per partition of the request. A partition that is still unknown is answered
 * NOT_LEADER_OR_FOLLOWER. -EINVAL: verdicts_count is not the number of partitions; 0 and 1 as above.
 */
int tpc_plane_produce_with(tpc_plane *plane, tpc_request *request, const tpc_produce_verdict *verdicts,
                           int32_t verdicts_count, const tpc_plane_endpoint *endpoints, int32_t endpoints_count);

/*
 * One partition's records of a Produce request that came by another way (from another core): checked and appended as
 * tpc_plane_produce() does, the answer is the caller's. 0 with *result (error_code, or wait for next_offset unless the
 * partition is relaxed); -ENOENT; -EAGAIN, -ENOSPC: as tpc_plane_append().
 */
int tpc_plane_produce_records(tpc_plane *plane, uint64_t handle, const uint8_t *records, uint32_t bytes,
                              int16_t produce_version, tpc_append_result *result);

/*
 * Whether batches of transactions are taken: at first they are not, and a request that has any, or a transactional id, is
 * refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
 */
void tpc_plane_take_transactions(tpc_plane *plane, int on);

/*
 * A producer's coordinator is about to be asked whether a partition, which is led here, is part of its transaction: before the
 * first batch of that, whose sequence this is. `begins_anew`: it has to be 0 where nothing is known of the producer. *guard is
 * for the verdict. 0; INVALID_PRODUCER_EPOCH; -ENOENT; -EPERM; -EBUSY: too many are under way; -ENOMEM.
 */
int tpc_plane_begin_verification(tpc_plane *plane, uint64_t handle, int64_t producer_id, int16_t producer_epoch,
                                 int32_t sequence, int begins_anew, uint32_t *guard);
/* To be called once for each that began, when its request is carried out, or given up. */
void tpc_plane_end_verification(tpc_plane *plane, uint64_t handle, int64_t producer_id, uint32_t guard);

/* Makes tpc_plane_produce(), tpc_plane_fetch() and the prepared answers the hot handler: they are tried inside the wait, before
 * Python. */
void tpc_plane_set_hot(tpc_plane *plane, int on);
