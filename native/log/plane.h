/*
 * The plane: everything that one core knows of its partitions, with its life, and with who is told what becomes of appends.
 *
 * commit.c publishes that records are durable, and that they are committed; the partition table publishes that a partition has
 * no role any more, or is withdrawn. Fetches and the tail observe that, in the order in which tpc_plane_new() registers them;
 * none of them is called by its name. Who waits for a single offset of a partition stands in its list instead.
 */
#ifndef TPC_PLANE_H
#define TPC_PLANE_H

#include "connection.h"
#include "in_place_window.h"
#include "partition.h"
#include "pool.h"
#include "prepared.h"
#include "segment_window.h"
#include "cdef/58_grants.h"

/* Members may be NULL. None of them may append. */
typedef struct tpc_plane_observer {
    /* durable_offset of a partition has moved, by so many bytes of records. */
    void (*partition_durable)(tpc_plane *plane, tpc_partition *partition, int64_t bytes);
    /* Its high watermark may have moved. */
    void (*partition_committed)(tpc_plane *plane, tpc_partition *partition);
    /* Everything that moves together has moved: whoever looks at several partitions looks now. */
    void (*advanced)(tpc_plane *plane);
    /* Who may read or write what is other than it was (grants.h): whoever waits is asked about now. */
    void (*rights_changed)(tpc_plane *plane);
    /* Readers of committed records may see more, or others. */
    void (*looks_changed)(tpc_plane *plane, tpc_partition *partition);
    /* It begins to be led here; it was not before. */
    void (*leads)(tpc_plane *plane, tpc_partition *partition);
    /* The partition has no role any more. */
    void (*disarmed)(tpc_plane *plane, tpc_partition *partition);
    /* The partition is in the table no more, and about to be freed. It was disarmed before. */
    void (*withdrawn)(tpc_plane *plane, tpc_partition *partition);
} tpc_plane_observer;

enum { TPC_PLANE_OBSERVERS_MAX = 4 };

/* What the log tells and asks whoever copies it to other nodes (native/replication). */
typedef struct {
    /* A leader's replicated log has grown by so many bytes. */
    void (*appended)(tpc_plane *plane, tpc_partition *partition, uint32_t bytes);
    /* durable_offset of a replicated one has moved. */
    void (*durable)(tpc_plane *plane, tpc_partition *partition);
    /* Its appends are nobody's to take any more. */
    void (*forget_appended)(tpc_plane *plane, tpc_partition *partition);
    /* Its role ends, or is about to be another one. */
    void (*stop)(tpc_plane *plane, tpc_partition *partition);
    /* It is about to be freed. */
    void (*forget)(tpc_plane *plane, tpc_partition *partition);
    /* Kafka's error code for what would be appended with these acks. */
    int16_t (*refusal)(const tpc_partition *partition, int16_t acks);
    /* Whether a replica still needs from memory what is below an offset. */
    bool (*is_lacked)(const tpc_plane *plane, const tpc_partition *partition, int64_t offset);
} tpc_plane_replication;

typedef struct {
    tpc_partition *partition; /* NULL: free */
    uint32_t generation;
    uint32_t free_next;
} tpc_partition_slot;

enum { TPC_POOLED_MAX = 4096, TPC_SPARE_CHUNKS_MAX = 64 };

/* One request's partitions, while it is worked on. */
typedef struct {
    int32_t capacity;
    tpc_produce_part *parts;
    tpc_partition **partitions; /* NULL: not in the table */
    bool *refused;              /* its right to write; only where subjects are asked about */
    uint32_t *lengths;          /* of what is to be appended */
    tpc_produce_result *results;
    uint32_t *places;
    tpc_asked_part *asked;
} tpc_produce_scratch;

void tpc_produce_scratch_free(tpc_produce_scratch *scratch);

/* produce.c, for handlers.c: a Produce that lies in borrowed memory (1: carried out, 0: left) ... */
int tpc_produce_borrowed(tpc_plane *plane, tpc_request *request);
extern const tpc_plane_observer tpc_produce_observer; /* produce_errors.c */
/* NULL: there is none here. */
tpc_partition *tpc_produce_partition_of(tpc_plane *plane, const tpc_produce_part *part, int16_t version);

/* A log that a replica has ended earlier: a cut, should the journal fail before its entry is durable. */
typedef struct tpc_truncation {
    struct tpc_truncation *next;
    tpc_partition_cut cut;
    uint64_t sequence;
} tpc_truncation;

/* An entry by which a partition's files give way to others: it is not taken back, should the journal fail before it is durable. */
typedef struct tpc_adoption {
    struct tpc_adoption *next;
    uint8_t topic_id[16];
    int32_t partition, moves;
    uint64_t sequence;
    uint32_t bytes;
    uint8_t payload[];
} tpc_adoption;

struct tpc_plane {
    tpc_ring *ring;
    tpc_journal *journal;
    tpc_connections *connections; /* NULL: no produce requests, appends only */
    tpc_budget *budget;
    tpc_plane_params params;
    int64_t tail_bytes_behind_max;
    int64_t clock_ms, monotonic_ms; /* -1: the system's */
    bool takes_transactions;
    uint32_t guards;       /* given so far */
    int64_t aborted_count; /* aborted.c: of all partitions; and the slot of the one that gave some up last */
    uint32_t aborted_hand;

    uint64_t producers_count, producers_max; /* of all partitions; 0: not bounded */
    uint32_t looked_slot, looked_number;     /* producer_bound.c */

    tpc_partition_slot *slots;
    uint32_t slots_count, slots_capacity, slot_free; /* slot_free: UINT32_MAX: none */
    tpc_partition **by_name, **by_id;
    tpc_partition *named_last; /* the last one found by its name: requests of a connection mostly name one many times */
    uint32_t buckets;          /* of each table, a power of two */

    tpc_partition *dirty_first, *dirty_last; /* by dirty_since_ns */
    uint32_t dirty_count;
    int64_t dirty_bytes;
    int64_t due_bytes_min, due_bytes_max; /* INT64_MAX: nobody is to be told */

    tpc_frame *spare_chunks[TPC_SPARE_CHUNKS_MAX]; /* for small batches, of full size; nobody else has a reference */
    uint32_t spare_chunks_count;

    /* One token (a handle) per batch written behind, in that order: who is evicted next. Circular. */
    uint64_t *clean;
    uint64_t clean_head, clean_tail;
    uint32_t clean_capacity;

    tpc_undo_record *undo_first, *undo_last;
    uint64_t undo_count;

    tpc_partition_cut *cuts;
    uint32_t cuts_count, cuts_capacity;
    uint64_t cuts_sequence;      /* the commit that carries them, 0: not journalled yet */
    tpc_truncation *truncations; /* of replicas, on their way to the journal */
    tpc_adoption *adoptions;     /* on their way to the journal, of different partitions */

    tpc_produce_scratch scratch;
    uint64_t surveys;                                 /* of Produce requests; also the number of the latest */
    int32_t fallback_reason;                          /* enum tpc_produce_fallback */
    tpc_pool undo_records, producer_states, pendings; /* pendings: those of one partition */
    int64_t now_ms, now_of_ns;                        /* the wall clock as of that time of the ring */
    int64_t began_ms, began_ns;                       /* the wall clock and the ring's, at the beginning */

    tpc_prepared prepared[TPC_PREPARED_MAX];
    uint64_t prepared_count; /* ever */

    struct tpc_grants *grants;  /* grants.h; NULL: nobody is asked about */
    uint64_t grants_generation; /* of the rules, or of the last ones that there were; it never falls */
    uint32_t datagrams_subject; /* 0: nobody's */
    tpc_grant_statistics grant_statistics;

    struct tpc_forwarding *forwarding; /* forward.h; NULL: nothing is sent to other cores */

    tpc_windows windows;         /* of all partitions */
    struct tpc_fetches *fetches; /* sessions, parked fetches: fetch.h */

    struct tpc_pending *pending_first, *pending_last; /* as they came */
    int64_t pending_deadline_ns;                      /* no pending produce times out before it */
    struct tpc_python_wait *python_waits;             /* commit.c */
    tpc_partition *appended_first, *appended_last;    /* replica.c: leaders whose appends Python has not taken */
    struct tpc_steady_links *steady;                  /* steady.h */
    tpc_plane_statistics statistics;

    const tpc_plane_replication *replication;
    const tpc_plane_observer *observers[TPC_PLANE_OBSERVERS_MAX];
    uint32_t observers_count;
};

int64_t tpc_plane_now_ms(tpc_plane *plane);
int64_t tpc_plane_monotonic_ms(tpc_plane *plane); /* the wall clock at the beginning, and what has passed since */

/* The observer must outlive the plane. */
void tpc_plane_observe(tpc_plane *plane, const tpc_plane_observer *observer);
void tpc_plane_publish_partition_durable(tpc_plane *plane, tpc_partition *partition, int64_t bytes);
void tpc_plane_publish_partition_committed(tpc_plane *plane, tpc_partition *partition);
void tpc_plane_publish_advanced(tpc_plane *plane);
void tpc_plane_publish_rights_changed(tpc_plane *plane);
void tpc_plane_publish_looks_changed(tpc_plane *plane, tpc_partition *partition);
void tpc_plane_publish_leads(tpc_plane *plane, tpc_partition *partition);
void tpc_plane_publish_disarmed(tpc_plane *plane, tpc_partition *partition);
void tpc_plane_publish_withdrawn(tpc_plane *plane, tpc_partition *partition);

#endif
