/*
 * A partition, and what the modules do with one: partition.c (table, offsets), partition_life.c (registered, led,
 * withdrawn), tail.c (batches in memory), append.c (journalled appends and their fate), commit.c (durable, committed,
 * visible, and who waits for that), produce.c and pending.c (requests). The core's state is in plane.h.
 */
#ifndef TPC_PARTITION_H
#define TPC_PARTITION_H

#include "frame.h"
#include "invariant.h"
#include "journal.h"
#include "producer.h"
#include "ring.h"

enum { TPC_ACKS_ALL = -1 };

/* What somebody waits for: that a partition's log is durable here (acks=1), or committed (acks=all), up to an offset. */
enum tpc_wait_level {
    TPC_WAIT_DURABLE = TPC_LEVEL_DURABLE,
    TPC_WAIT_COMMITTED = TPC_LEVEL_COMMITTED,
    TPC_WAIT_LEVELS = 2
};

/* Stands in its partition's list of its level, by end_offset; part of a structure of whoever waits. */
typedef struct tpc_commit_wait {
    struct tpc_commit_wait *previous, *next;
    struct tpc_partition *partition; /* NULL: it is over, or never began */
    int64_t end_offset;
    uint32_t level;
    /* Once, when it is over and in no list any more: Kafka's error code, 0 when the offset is reached. */
    void (*over)(tpc_plane *plane, struct tpc_commit_wait *wait, int16_t error_code);
} tpc_commit_wait;

typedef struct {
    tpc_commit_wait *first, *last;
} tpc_commit_waits;

/* What the subject that asked last has been granted (grants.h). */
typedef struct {
    uint64_t generation; /* 0: nobody has */
    uint32_t subject;
    uint8_t known, allowed; /* enum tpc_right */
} tpc_granted;

typedef struct tpc_partition {
    uint64_t handle;
    struct tpc_partition *name_next; /* chains of the two hash tables */
    struct tpc_partition *id_next;
    uint64_t name_hash;
    uint64_t id_hash;
    uint8_t *topic_name;
    uint32_t topic_name_bytes;
    int32_t index;
    uint8_t topic_id[16];

    int64_t log_start_offset;
    int64_t high_watermark; /* visible to readers */
    int64_t commit_offset;  /* durable with a majority of the voters: with one voter durable_offset */
    int64_t durable_offset; /* in this core's own journal */
    int64_t log_end_offset;
    int64_t written_offset; /* behind: in a segment */
    int64_t timestamp_before_ms_max;
    int64_t timestamp_after_ms_max;
    int64_t bytes_admitted;
    int64_t surveyed_bytes; /* what the Produce of number `survey` brings, as far as it was looked at */
    uint64_t survey;
    int32_t leader_epoch; /* the term in which it was armed last */
    int32_t spent_epoch;  /* offsets given out in it were taken back: nothing more is appended in it; -1: none */
    int32_t role;         /* enum tpc_partition_role */
    int32_t batch_bytes_max;
    int32_t segment_bytes_max;
    uint32_t flags;
    bool watched;
    tpc_granted granted;

    /* The tail: a circular array of runs of batches, oldest first; the first tail_clean of them are written behind. */
    tpc_tail_batch *tail;
    uint32_t tail_capacity; /* 0 or a power of two */
    uint32_t tail_head;
    uint32_t tail_count;
    uint32_t tail_clean;
    int64_t tail_bytes;
    int64_t room_low_bytes;      /* TPC_EVENT_ROOM_LOW below this; 0: never */
    int64_t unwritten_bytes;     /* not written behind, durable or not */
    int64_t dirty_bytes;         /* of these, durable */
    int64_t in_place_end_offset; /* behind the last batch in memory that was written in place; -1: there is none */
    tpc_frame *chunk;            /* small batches lie in it one after the other; NULL: none */
    int64_t read_offset;         /* where the latest fetch has begun */
    int64_t read_bytes_left;     /* so much more may leave memory before its reader counts as gone; 0: there is none */

    struct tpc_partition *dirty_previous, *dirty_next;
    bool dirty;
    int64_t dirty_since_ns; /* or since it was last written behind */

    tpc_producers producers;
    bool producers_stale; /* the log was cut, and they are as they were before */
    uint32_t appends_undurable;
    struct tpc_undo_record *undo_newest; /* NULL: it has none */
    tpc_commit_waits waits[TPC_WAIT_LEVELS];

    tpc_partition_use use;

    bool is_replicated; /* commit_offset is moved by Python */
    bool refuses_all_acks;
    int16_t refusal;     /* Kafka's error code for what would be appended; 0: none */
    bool is_appended;    /* it stands in the plane's list of those that have appended */
    int64_t told_offset; /* a leader's appends below it were taken */
    struct tpc_partition *appended_next;
    int32_t read_term;         /* in which it serves reads as a follower; -1: in none */
    int64_t refused_ns;        /* when a batch was last refused that will be sent again, or it began to lead ... */
    int16_t refused_with;      /* ... and Kafka's error code for what its client had sent behind; 0: never */
    uint64_t near_racks;       /* of a leader: consumers there read from another replica */
    struct tpc_steady *steady; /* C carries its replication (steady.h); NULL: Python does */

    int64_t aborted_from_offset; /* of the transactions with markers from here on those that were aborted are known */
    uint32_t aborted_counted;    /* of its aborted ones, in the plane's number of all */
    int64_t stale_from_offset;   /* with producers_stale: where the log was cut */
    struct tpc_fetch_wait *fetch_waits;          /* parked fetches that watch it */
    struct tpc_segment_window *windows;          /* of its segments, for fetches below the tail */
    struct tpc_in_place_window *in_place_window; /* where large batches go in place; NULL: nowhere */
} tpc_partition;

/* Appends to a partition that the journal has not acknowledged, with what it takes to undo them: one with a producer id, or those
 * without that follow each other in one commit. Oldest first in the plane's list. */
typedef struct tpc_undo_record {
    struct tpc_undo_record *previous, *next;
    uint64_t handle;
    uint8_t topic_id[16];
    int32_t index;
    int32_t leader_epoch; /* begun before them, durably: it stays when they are undone */
    int64_t base_offset;
    int64_t next_offset;
    int64_t bytes;
    uint64_t sequence;
    uint32_t appends;
    int64_t producer_id;          /* -1: none involved */
    tpc_producer_state *producer; /* before the append; NULL: it was not known */
} tpc_undo_record;

/* partition.c */
tpc_partition *tpc_partition_of(const tpc_plane *plane, uint64_t handle);
tpc_partition *tpc_partition_named(tpc_plane *plane, const uint8_t *name, uint32_t name_bytes, int32_t index);
tpc_partition *tpc_partition_identified(const tpc_plane *plane, const uint8_t *topic_id, int32_t index);
int64_t tpc_partition_last_stable_offset(const tpc_partition *partition);
/* What holds between a partition's offsets and counts whenever nobody is in the midst of changing them. */
void tpc_partition_verify(const tpc_partition *partition);
_Noreturn void tpc_partition_broken(const tpc_partition *partition, const char *condition, const char *file, int line);
#define TPC_PARTITION_INVARIANT(partition, condition) \
    (__builtin_expect(!(condition), 0) ? tpc_partition_broken((partition), #condition, __FILE__, __LINE__) : (void)0)
/* The table, at first without any. */
int tpc_partitions_init(tpc_plane *plane);
void tpc_partitions_free(tpc_plane *plane);
/* One more, of a name and an id that it has not: it is given a handle. 0 or -ENOMEM. */
int tpc_partitions_enter(tpc_plane *plane, tpc_partition *partition);
/* One less: nobody finds it, and its handle is never used again. */
void tpc_partitions_leave(tpc_plane *plane, tpc_partition *partition);

/* partition_life.c: all that there are give up what they have, at the plane's end. */
void tpc_partitions_drop(tpc_plane *plane);

/* commit.c */
/* This core's journal has everything below the offset, by so many bytes of records more; with one voter it is committed. */
void tpc_partition_durable(tpc_plane *plane, tpc_partition *partition, int64_t durable_offset, int64_t bytes);
/* Up to where a level has come. */
int64_t tpc_partition_reached(const tpc_partition *partition, enum tpc_wait_level level);
/* `over` is called later, not before this returns. The offset is not reached yet. */
void tpc_commit_wait_begin(tpc_partition *partition, tpc_commit_wait *wait, enum tpc_wait_level level,
                           int64_t end_offset,
                           void (*over)(tpc_plane *plane, tpc_commit_wait *wait, int16_t error_code));
/* It waits no more, and nobody is told. */
void tpc_commit_wait_end(tpc_commit_wait *wait);
/* All waits for anything at or above the offset are over, with an error. */
void tpc_commit_waits_fail(tpc_plane *plane, tpc_partition *partition, int64_t offset, int16_t error_code);
/* Those of Python: tpc_partition_wait(). */
void tpc_python_waits_forget(tpc_plane *plane);

/* replica.c */
/* Kafka's error code for an append with such acks; 0: it is taken. */
int16_t tpc_replica_refusal(const tpc_partition *partition, int16_t acks);
/* Whether a leader takes no record now, whatever its acks, and takes some again by itself or leads no more. */
bool tpc_replica_takes_nothing(const tpc_partition *partition);

/* tail.c. Reserve comes before, and makes add infallible. */
int tpc_tail_reserve(tpc_plane *plane, tpc_partition *partition, uint32_t bytes);
/* Where a batch stays: small ones are copied behind the one before, large ones stay in their frame, which is retained. */
bool tpc_tail_copies(uint32_t bytes);
void tpc_tail_add(tpc_plane *plane, tpc_partition *partition, const tpc_tail_batch *batch);
/* Forgets the newest batches, down to the one that begins with `offset`. None of them is written behind. */
void tpc_tail_cut(tpc_plane *plane, tpc_partition *partition, int64_t offset);
/* The same when all of them are durable, written behind or not. */
void tpc_tail_truncate(tpc_plane *plane, tpc_partition *partition, int64_t offset);
/* Whether the batch that holds the offset begins with it; true for one that memory does not hold. */
/* Somebody reads it, and has come so far. */
void tpc_tail_note_read(const tpc_plane *plane, tpc_partition *partition, int64_t offset);
bool tpc_tail_begins_at(const tpc_partition *partition, int64_t offset);
/* Calls for each batch in memory at or behind an offset, in order. */
void tpc_tail_each(const tpc_partition *partition, int64_t offset,
                   void (*look)(void *context, const uint8_t *batch, uint32_t bytes), void *context);
extern const struct tpc_plane_observer tpc_tail_observer;
const tpc_tail_batch *tpc_tail_find(const tpc_partition *partition, int64_t offset);
/* Whole batches that follow each other: `bytes` of `count` runs, without the first bytes of the first one. */
typedef struct {
    uint32_t first, count;
    uint32_t skipped_bytes;
    uint64_t bytes;
    int64_t next_offset; /* of what follows them; 0: they are none */
} tpc_tail_stretch;

/* What a read from `offset` gets, nothing when nothing fits. -ERANGE: the offset lies below the tail. */
int tpc_tail_measure(const tpc_partition *partition, int64_t offset, int64_t bytes_max, int64_t upto_offset,
                     bool min_one, uint32_t runs_max, tpc_tail_stretch *stretch);
/* Its piece in the run at `place` of `count`, `left_bytes` being what this and the later ones have; no reference is taken. */
tpc_slice tpc_tail_piece(const tpc_partition *partition, const tpc_tail_stretch *stretch, uint32_t place,
                         uint64_t left_bytes);
void tpc_tail_drop(tpc_plane *plane, tpc_partition *partition);
/* Of what segments have, the runs that begin in front of the offset. */
void tpc_tail_drop_clean(tpc_plane *plane, tpc_partition *partition, int64_t upto_offset);
void tpc_tail_free_spare(tpc_plane *plane);
void tpc_tail_reclaim(void *context, int64_t bytes);
const tpc_tail_batch *tpc_tail_newest(const tpc_partition *partition); /* NULL: none is in memory */

/* append.c */
typedef struct {
    tpc_frame *frame; /* a reference is taken on success */
    uint8_t *batch;
    uint32_t bytes;
    bool is_stamped; /* a replica's: offset, epoch and times are the leader's */
    bool stamp_time; /* LogAppendTime */
    bool set_max_timestamp;
    int64_t max_timestamp; /* with set_max_timestamp */
    int64_t now_ms;
    const tpc_control_marker *marker; /* what a control batch says; NULL: it is none */
} tpc_append_batch;

/* Of a batch that no client has sent; NULL: it ends no transaction. A control batch that does not says nothing of its producer,
 * and the header has none then. */
const tpc_control_marker *tpc_append_marker(const uint8_t *batch, tpc_batch_header *header, tpc_control_marker *marker);

/* Whether the bytes are whole, valid batches of magic 2, one after the other; *count: how many. Kafka's error code. */
int tpc_append_check_batches(const uint8_t *batches, uint32_t bytes, uint32_t *count);
/* Whether they would all fit into the journal: tpc_journal_would_fit(). */
int tpc_append_fits_journal(const tpc_plane *plane, const uint8_t *batches, uint32_t bytes, uint32_t count);
/* Stamps, journals and keeps one validated batch. 0, or -errno and nothing happened. */
int tpc_append_batch_to(tpc_plane *plane, tpc_partition *partition, const tpc_append_batch *batch,
                        tpc_batch_header *header, tpc_append_result *result);
void tpc_append_durable(void *plane, uint64_t sequence);
void tpc_append_failed(void *plane, uint64_t first_failed_sequence, int error);

/* produce.c: one partition's records against everything a produce is held against. 0 or -errno. */
typedef struct {
    uint64_t connection; /* that it came by; 0: none */
    int64_t received_ns;
    tpc_frame *frame;
    uint8_t *records;
    uint32_t bytes;
    int16_t version;
    int16_t acks;
    int16_t gap_code; /* as of tpc_produce_verdict */
    uint32_t guard;   /* of the verification; 0: there was none */
    int64_t now_ms;
    bool timestamps_checked; /* each when its record came: they are not judged again by a later clock */
} tpc_produce_records;

int tpc_produce_to(tpc_plane *plane, tpc_partition *partition, const tpc_produce_records *records,
                   tpc_batch_report *report, tpc_append_result *result);

/* produce_errors.c: the records that are refused, in an answer's place of a partition. */
void tpc_produce_tell_bad_records(const tpc_batch_report *report, tpc_produce_result *result);
void tpc_produce_tell_keyless(const tpc_produce_verdict *verdict, const tpc_partition *partition,
                              tpc_produce_result *result);

/* aborted.c: those that reach into [offset, upto), by markers, one after the other from *place = tpc_aborted_place(...) on. */
uint32_t tpc_aborted_place(const tpc_partition *partition, int64_t offset);
const tpc_aborted *tpc_aborted_next(const tpc_partition *partition, uint32_t *place, int64_t upto);
/* There is one more: where they are too many the oldest ones that segments have are forgotten. */
void tpc_aborted_bound(tpc_plane *plane, tpc_partition *partition);
/* Those below the log's start, which nobody reads any more. */
void tpc_aborted_delete(tpc_plane *plane, tpc_partition *partition);
/* Those that segments have, which may be others from now on. */
void tpc_aborted_forget(tpc_plane *plane, tpc_partition *partition);
/* Producers that are found out anew know of none; those that segments had before the log was cut stay. */
void tpc_aborted_keep(tpc_plane *plane, tpc_partition *partition);
/* It is about to be freed. */
void tpc_aborted_release(tpc_plane *plane, tpc_partition *partition);

/* verification.c */
bool tpc_records_transactional(const uint8_t *records, int32_t bytes);
bool tpc_produce_relaxed(const tpc_partition *partition, const tpc_produce_records *records);
/* Whether its transaction is open in the partition. */
bool tpc_produce_is_of_open(const tpc_partition *partition, const tpc_batch_header *header);
/* Whether the coordinator of its transaction has to be asked: guard 0, or once more. */
bool tpc_produce_lacks_verification(const tpc_partition *partition, const tpc_produce_part *part, int16_t version,
                                    uint32_t guard);
/* What a batch that passed all else is refused with. */
int16_t tpc_produce_transaction_refusal(const tpc_partition *partition, const tpc_produce_records *records,
                                        const tpc_batch_header *header);

/* produce_errors.c: records would have been acknowledged at offsets where they are not: counted, and told. The error code in place of that. */
int16_t tpc_produce_doubted(tpc_plane *plane, const tpc_partition *partition, int64_t base_offset, int64_t next_offset);

/* A batch was refused: with an error after which it is tried again, those that its client has sent behind it are too. The
 * partition may be NULL: it is not in the table. */
void tpc_produce_refused(tpc_plane *plane, uint64_t connection, tpc_partition *partition, int16_t error_code);

/* pending.c: the answers of requests, and the fate of those that wait. */
typedef struct {
    tpc_commit_wait wait;
    struct tpc_pending *pending;
    tpc_partition *partition; /* until it begins: what it is going to wait for, NULL: for nothing */
    int64_t end_offset;
    uint32_t place; /* of the error code in the answer */
} tpc_pending_wait;

typedef struct tpc_pending {
    struct tpc_pending *previous, *next; /* of all that wait, in the order in which they came */
    uint64_t connection;
    int64_t request_sequence;
    int64_t deadline_ns;
    tpc_slice answer; /* as it will be when all goes well */
    int32_t errors_count;
    int32_t parts_count;
    int32_t waits_left; /* not over */
    int16_t api_version;
    tpc_pending_wait waits[];
} tpc_pending;

/* Its waits are those of no partition. */
tpc_pending *tpc_pending_new(tpc_plane *plane, const tpc_request *request, int32_t parts_count);
void tpc_pending_free(tpc_plane *plane, tpc_pending *pending);
/* Encodes the answer, and gives it now or when the waits, at this level, are over. Takes the pending. */
void tpc_pending_begin(tpc_plane *plane, tpc_pending *pending, const tpc_request *request, enum tpc_wait_level level,
                       const tpc_node_endpoint *endpoints, int32_t endpoints_count);
int64_t tpc_pending_turn(void *plane, int64_t now_ns);
void tpc_pending_forget(tpc_plane *plane);

/* Above the bound of all producers: one that was long silent is forgotten, for one that is new. */
void tpc_plane_make_room_for_producer(tpc_plane *plane);

#endif
