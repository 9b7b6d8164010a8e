/*
 * The plane's inner structures, shared by partition.c (table, offsets), tail.c (batches in memory), append.c (journalled
 * appends and their fate) and produce.c (requests). Other modules use cdef/50_partition.h.
 */
#ifndef TPC_PARTITION_H
#define TPC_PARTITION_H

#include "connection.h"
#include "frame.h"
#include "journal.h"
#include "pool.h"
#include "producer.h"
#include "ring.h"

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
    int64_t last_stable_offset_fixed; /* -1: follows the high watermark */
    int64_t high_watermark;
    int64_t log_end_offset;
    int64_t written_offset;
    int64_t timestamp_before_ms_max;
    int64_t timestamp_after_ms_max;
    int64_t bytes_admitted;
    int64_t surveyed_bytes; /* what the Produce of number `survey` brings to this partition, as far as it was looked at */
    uint64_t survey;
    int32_t leader_epoch;
    int32_t batch_bytes_max;
    int32_t segment_bytes_max;
    uint32_t flags;
    bool watched;

    /* The tail: a circular array of runs of batches, oldest first; the first tail_clean of them are written behind. */
    tpc_tail_batch *tail;
    uint32_t tail_capacity; /* 0 or a power of two */
    uint32_t tail_head;
    uint32_t tail_count;
    uint32_t tail_clean;
    int64_t tail_bytes;
    int64_t room_low_bytes; /* TPC_EVENT_ROOM_LOW below this; 0: never */
    int64_t dirty_bytes;
    tpc_frame *chunk;       /* small batches lie in it one after the other; NULL: none */

    struct tpc_partition *dirty_previous, *dirty_next;
    bool dirty;
    int64_t dirty_since_ns; /* or since it was last written behind */

    tpc_producers producers;
    uint32_t appends_undurable;
    struct tpc_undurable *undurable_newest; /* NULL: it has none */

    int64_t committed_from_offset;      /* no transaction reaches into what lies at or behind it */
    struct tpc_fetch_wait *fetch_waits; /* parked fetches that watch it */
    struct tpc_segment_window *windows; /* of its segments, for fetches below the tail */
    struct tpc_placement *placement;    /* where large batches go straight; NULL: nowhere */
} tpc_partition;

/* Appends to a partition that the journal has not acknowledged, with what it takes to undo them: one with a producer id, or those
 * without that follow each other in one commit. Oldest first in the plane's list. */
typedef struct tpc_undurable {
    struct tpc_undurable *previous, *next;
    uint64_t handle;
    uint8_t topic_id[16];
    int32_t index;
    int64_t base_offset;
    int64_t next_offset;
    int64_t bytes;
    uint64_t sequence;
    uint32_t appends;
    int64_t producer_id;          /* -1: none involved */
    tpc_producer_state *producer; /* before the append; NULL: it was not known */
} tpc_undurable;

typedef struct {
    tpc_partition *partition; /* NULL: free */
    uint32_t generation;
    uint32_t free_next;
} tpc_partition_slot;

enum { TPC_PENDING_LISTS = 64, TPC_POOLED_MAX = 4096, TPC_SPARE_CHUNKS_MAX = 64 };

/* One request's partitions, while it is worked on. */
typedef struct {
    int32_t capacity;
    tpc_produce_part *parts;
    tpc_partition **partitions; /* NULL: not in the table */
    uint32_t *lengths;          /* of what is to be appended */
    tpc_produce_result *results;
    uint32_t *places;
} tpc_produce_scratch;

struct tpc_plane {
    tpc_ring *ring;
    tpc_journal *journal;
    tpc_connections *connections; /* NULL: no produce requests, appends only */
    tpc_budget *budget;
    tpc_plane_params params;
    int64_t clock_ms; /* -1: the system's */

    tpc_partition_slot *slots;
    uint32_t slots_count, slots_capacity, slot_free; /* slot_free: UINT32_MAX: none */
    tpc_partition **by_name, **by_id;
    tpc_partition *named_last; /* the last one found by its name: requests of a connection mostly name one many times */
    uint32_t buckets; /* of each table, a power of two */

    tpc_partition *dirty_first, *dirty_last; /* by dirty_since_ns */
    uint32_t dirty_count;
    int64_t dirty_bytes;
    int64_t due_bytes_min, due_bytes_max; /* INT64_MAX: nobody is to be told */

    tpc_frame *spare_chunks[TPC_SPARE_CHUNKS_MAX]; /* for small batches, of full size; nobody else has a reference */
    uint32_t spare_chunks_count;
    int64_t tail_bytes_kept; /* of batches written behind; from params.tail_bytes_first to params.tail_bytes_max */

    /* One token (a handle) per batch written behind, in that order: who is evicted next. Circular. */
    uint64_t *clean;
    uint64_t clean_head, clean_tail;
    uint32_t clean_capacity;

    tpc_undurable *undurable_first, *undurable_last;
    uint64_t undurable_count;

    tpc_partition_cut *cuts;
    uint32_t cuts_count, cuts_capacity;
    uint64_t cuts_sequence; /* the commit that carries them, 0: not journalled yet */

    tpc_produce_scratch scratch;
    uint64_t surveys;        /* of Produce requests; also the number of the latest */
    int32_t left_reason;     /* enum tpc_produce_left */
    tpc_pool undurables, producer_states, pendings; /* pendings: those of one partition */
    int64_t now_ms, now_of_ns; /* the wall clock as of that time of the ring */

    struct tpc_fetches *fetches; /* sessions, parked fetches: fetch.h */

    struct tpc_pending *pending[TPC_PENDING_LISTS]; /* by the sequence waited for, modulo */
    int64_t pending_deadline_ns;                    /* no pending produce times out before it */
    tpc_plane_statistics statistics;
};

int64_t tpc_plane_now_ms(tpc_plane *plane);

/* partition.c */
tpc_partition *tpc_partition_of(const tpc_plane *plane, uint64_t handle);
tpc_partition *tpc_partition_named(tpc_plane *plane, const uint8_t *name, uint32_t name_bytes, int32_t index);
tpc_partition *tpc_partition_identified(const tpc_plane *plane, const uint8_t *topic_id, int32_t index);
int64_t tpc_partition_last_stable_offset(const tpc_partition *partition);
void tpc_partition_verify(const tpc_partition *partition);
void tpc_partition_advance(tpc_plane *plane, tpc_partition *partition, int64_t high_watermark);

/* tail.c. Reserve comes before, and makes add infallible. */
int tpc_tail_reserve(tpc_plane *plane, tpc_partition *partition, uint32_t bytes);
/* Where a batch stays: small ones are copied behind the one before, large ones stay in their frame, which is retained. */
bool tpc_tail_copies(uint32_t bytes);
void tpc_tail_add(tpc_plane *plane, tpc_partition *partition, const tpc_tail_batch *batch);
/* Forgets the newest batches, down to the one that begins with `offset`. */
void tpc_tail_cut(tpc_plane *plane, tpc_partition *partition, int64_t offset);
void tpc_tail_became_durable(tpc_plane *plane, tpc_partition *partition, int64_t bytes);
const tpc_tail_batch *tpc_tail_find(const tpc_partition *partition, int64_t offset);
/* Whole batches that follow each other: `bytes` of `count` runs, without the first bytes of the first one. */
typedef struct {
    uint32_t first, count;
    uint32_t skipped_bytes;
    uint64_t bytes;
} tpc_tail_stretch;

/* What a read from `offset` gets, nothing when nothing fits. -ERANGE: the offset lies below the tail. */
int tpc_tail_measure(const tpc_partition *partition, int64_t offset, int64_t bytes_max, int64_t upto_offset, bool min_one,
                     uint32_t runs_max, tpc_tail_stretch *stretch);
/* Its piece in the run at `place` of `count`, `left_bytes` being what this and the later ones have; no reference is taken. */
tpc_slice tpc_tail_piece(const tpc_partition *partition, const tpc_tail_stretch *stretch, uint32_t place, uint64_t left_bytes);
void tpc_tail_drop(tpc_plane *plane, tpc_partition *partition);
/* A reader wanted what is in memory no more: from now on more is kept, up to the bound. */
void tpc_tail_missed(tpc_plane *plane);
void tpc_tail_free_spare(tpc_plane *plane);
void tpc_tail_evict(tpc_plane *plane);
/* Of the batches in memory, what is not written behind, durable or not. */
int64_t tpc_tail_unwritten_bytes(const tpc_partition *partition);
const tpc_tail_batch *tpc_tail_newest(const tpc_partition *partition); /* NULL: none is in memory */

/* append.c */
typedef struct {
    tpc_frame *frame; /* a reference is taken on success */
    uint8_t *batch;
    uint32_t bytes;
    bool stamp_time;       /* LogAppendTime */
    bool set_max_timestamp;
    int64_t max_timestamp; /* with set_max_timestamp */
    int64_t now_ms;
} tpc_append_batch;

/* Stamps, journals and keeps one validated batch. 0, or -errno and nothing happened. */
int tpc_append_batch_to(tpc_plane *plane, tpc_partition *partition, const tpc_append_batch *batch,
                        tpc_batch_header *header, tpc_append_result *result);
void tpc_append_durable(void *plane, uint64_t sequence);
void tpc_append_failed(void *plane, uint64_t first_failed_sequence, int error);

/* placement.c: batches that are written once. */
typedef struct {
    int64_t base_offset, next_offset;
    tpc_frame *frame;
    const uint8_t *batch;
    uint32_t bytes;
    uint32_t first_block, blocks; /* out: of the segment's file, written straight */
} tpc_placed_batch;

/* Whether the partition's next batch may go straight to its segment. */
bool tpc_placement_takes(tpc_plane *plane, tpc_partition *partition, const tpc_placed_batch *batch);
/* Where a batch will lie that has just begun to arrive, if it is taken; false: it will not be. */
bool tpc_placement_expect(tpc_partition *partition, uint32_t bytes, int64_t *position);
/* As tpc_journal_append(), for a batch that was taken. Before the batch stands in the tail. */
int tpc_placement_append(tpc_plane *plane, tpc_partition *partition, tpc_placed_batch *batch, uint64_t *sequence);
/* A batch follows, straight or not; the placement ends with it when the next one is for another segment. */
void tpc_placement_follow(tpc_partition *partition, const tpc_placed_batch *batch);
void tpc_placement_close(tpc_partition *partition);
void tpc_placements_close_all(tpc_plane *plane);

/* produce.c: one partition's records against everything a produce is held against. 0 or -errno. */
typedef struct {
    tpc_frame *frame;
    uint8_t *records;
    uint32_t bytes;
    int16_t version;
    int64_t now_ms;
} tpc_produce_records;

int tpc_produce_to(tpc_plane *plane, tpc_partition *partition, const tpc_produce_records *records,
                   tpc_batch_report *report, tpc_append_result *result);

/* produce.c */
void tpc_produce_scratch_free(tpc_produce_scratch *scratch);

/* pending.c: the answers of requests, and the fate of those that wait. */
typedef struct {
    uint64_t handle;
    uint64_t sequence; /* 0: nothing to wait for */
    uint32_t place;    /* of the error code in the answer */
} tpc_pending_wait;

typedef struct tpc_pending {
    struct tpc_pending *next;
    uint64_t connection;
    int64_t request_sequence;
    uint64_t wait_sequence; /* highest of waits not durable yet; 0: none */
    int64_t deadline_ns;
    tpc_slice answer;       /* as it will be when all goes well */
    int32_t errors_count;
    int32_t parts_count;
    int16_t api_version;
    tpc_pending_wait waits[];
} tpc_pending;

/* Its waits are those of no partition. */
tpc_pending *tpc_pending_new(tpc_plane *plane, const tpc_request *request, int32_t parts_count);
void tpc_pending_free(tpc_plane *plane, tpc_pending *pending);
/* Encodes the answer, and gives it now or when the waits are over. Takes the pending. */
void tpc_pending_begin(tpc_plane *plane, tpc_pending *pending, const tpc_request *request,
                       const tpc_node_endpoint *endpoints, int32_t endpoints_count);
void tpc_pending_durable(tpc_plane *plane, uint64_t sequence_from, uint64_t sequence_upto);
void tpc_pending_failed(tpc_plane *plane, uint64_t first_failed_sequence);
void tpc_pending_withdraw(tpc_plane *plane, uint64_t handle);
int64_t tpc_pending_turn(void *plane, int64_t now_ns);
void tpc_pending_forget(tpc_plane *plane);

#endif
