/*
 * Fetch's inner structures, shared by fetch_request.c (a request), fetch_sessions.c (which partitions it means),
 * fetch.c (an attempt), fetch_wait.c (parked ones) and fetch_left.c (those that Python has). Everybody else uses
 * cdef/55_fetch.h.
 *
 * Theory of operation. A request becomes a tpc_fetch when its session has been looked up and moved on, which happens once
 * and cannot be undone. An attempt then reads all its partitions; it ends in an answer, in the wait (parked), or with
 * Python, to whom the fetch goes as it is. A parked one stands in the lists of its partitions and in the timer wheel; a
 * high watermark that moves (of committed records: a last stable offset), its deadline, or a partition that is withdrawn makes
 * it attempt again.
 */
#ifndef TPC_FETCH_INTERNAL_H
#define TPC_FETCH_INTERNAL_H

#include <errno.h>
#include <stdlib.h>

#include "bytes.h"
#include "segment_window.h"
#include "plane.h"
#include "cdef/55_fetch.h"

enum { TPC_FETCH_WHEEL_SLOTS = 1024, TPC_FETCH_LEFT_BUCKETS = 1024, TPC_READ_COMMITTED = 1 };

enum tpc_fetch_state { TPC_FETCH_FRESH = 0, TPC_FETCH_PARKED = 1, TPC_FETCH_IN_PYTHON = 2 };

/* A partition as its session, or a single request, knows it. */
typedef struct tpc_fetch_known {
    tpc_fetch_asked asked;
    struct tpc_fetch_known *previous, *next; /* the session's order */
    struct tpc_fetch_known *bucket_next;
    uint64_t hash;
    uint64_t handle;             /* its partition when it was last looked up; 0: never */
    int64_t sent_high_watermark; /* -1: nothing, or an error */
    int64_t sent_log_start_offset;
    uint32_t references; /* the session's, and fetches' under way */
    bool in_session;
} tpc_fetch_known;

typedef struct tpc_fetch_session {
    struct tpc_fetch_session *previous, *next; /* least recently used first */
    struct tpc_fetch_session *bucket_next;
    struct tpc_fetch_sessions *owner;
    tpc_fetch_known *first, *last;
    tpc_fetch_known **buckets;
    uint32_t buckets_count; /* a power of two */
    uint32_t parts_count;
    uint32_t references; /* the table's, and fetches' under way */
    int32_t session_id;
    int32_t expected_epoch;
    uint32_t subject; /* that has made it */
    bool uses_topic_ids;
    int64_t last_used_ms;
} tpc_fetch_session;

typedef struct tpc_fetch_sessions {
    tpc_fetch_session *first, *last;
    tpc_fetch_session **buckets;
    uint32_t buckets_count;
    uint32_t count;
    uint32_t slots_max;
    bool are_owned; /* subjects are asked about: a session is its own subject's */
    int64_t eviction_ms;
    uint64_t chance;
    uint64_t evicted;
    uint64_t refused; /* for want of bytes: a new session, or one that was to grow */
    uint64_t parts_count;
    int64_t bytes; /* of sessions and their partitions, those that only a fetch under way still holds included */
    int64_t bytes_max;
} tpc_fetch_sessions;

/* The watch of one parked fetch over one partition. */
typedef struct tpc_fetch_wait {
    struct tpc_fetch_wait *previous, *next;
    tpc_partition *partition; /* NULL: not in its list */
    tpc_fetch *fetch;
    int64_t upto_offset; /* how far it could be read when it was looked at last */
} tpc_fetch_wait;

/* What one partition gives, during an attempt. */
typedef struct {
    tpc_partition *partition;
    int64_t high_watermark, last_stable_offset, log_start_offset;
    uint64_t bytes;
    tpc_tail_stretch tail;      /* from memory */
    tpc_segment_window *window; /* or a stretch of a segment */
    int64_t position;
    uint32_t aborted_at; /* its first one in the scratch */
    int32_t aborted_count;
    int16_t error_code;
} tpc_fetch_reading;

typedef struct tpc_fetches {
    tpc_fetch_sessions sessions;
    int32_t response_bytes_max;
    int64_t memory_left_bytes; /* of the answer under way: what may still be kept for it */
    bool is_clipped;           /* there was more, but not the memory */
    uint8_t *rack_names;       /* tpc_plane_set_racks() */
    uint32_t *rack_ends;
    uint32_t racks_count;

    /* Scratch of one request at a time. */
    tpc_fetch_part *decoded;
    tpc_fetch_forgotten *forgotten;
    int32_t decoded_capacity, forgotten_capacity;
    tpc_fetch_reading *readings;
    tpc_fetch_outcome *outcomes;
    tpc_fetch_result *results;
    int32_t *topics; /* a hash table: 1 + the first result of each topic */
    uint32_t *splits;
    uint8_t *chosen;
    int32_t readings_capacity;
    tpc_aborted_transaction *aborted; /* of all readings */
    uint32_t aborted_count, aborted_capacity;
    uint8_t *header;
    size_t header_capacity;
    tpc_slice *pieces;
    uint32_t pieces_capacity;

    tpc_fetch **parked_by_slot; /* of their connections; only kept when links can release them */
    uint32_t parked_slots;
    tpc_fetch *wheel[TPC_FETCH_WHEEL_SLOTS];
    uint64_t wheel_used[TPC_FETCH_WHEEL_SLOTS / 64];
    int64_t wheel_ms; /* slots up to here were looked at */
    tpc_fetch *woken_first, *woken_last;
    tpc_fetch *left
        [TPC_FETCH_LEFT_BUCKETS]; /* with Python, which has not asked for them yet; by the slots of their connections */
    uint32_t left_count;
    int64_t waiting_bytes, waiting_bytes_max;
    tpc_fetch_statistics statistics;
} tpc_fetches;

/* fetch_sessions.c */
int tpc_fetch_sessions_init(tpc_fetch_sessions *sessions);
void tpc_fetch_sessions_free(tpc_fetch_sessions *sessions);
/* Fills in session, parts, error_code, session_id and incremental. 0 or -ENOMEM, and then no session has changed but one
 * that the request ends. */
int tpc_fetch_find_context(tpc_fetch_sessions *sessions, const tpc_fetch_request *request, bool by_id,
                           const tpc_fetch_part *asked, const tpc_fetch_forgotten *forgotten, int64_t now_ms,
                           tpc_fetch *fetch);
void tpc_fetch_forget_context(tpc_fetch_sessions *sessions, tpc_fetch *fetch);
const tpc_fetch_session *tpc_fetch_session_find(const tpc_fetch_sessions *sessions, int32_t session_id);

/* An array of the scratch; -ENOMEM: it stays as it is. */
static inline int tpc_fetch_resize(void *array, size_t bytes) {
    void **at = array;
    void *resized = realloc(*at, bytes);
    if (!resized) return -ENOMEM;
    *at = resized;
    return 0;
}

static inline tpc_fetch_known *tpc_fetch_known_of(tpc_fetch_asked *asked) { return (tpc_fetch_known *)asked; }

/* How far a fetch reads. */
static inline int64_t tpc_fetch_upto(const tpc_fetch *fetch, const tpc_partition *partition) {
    return fetch->isolation_level == TPC_READ_COMMITTED ? tpc_partition_last_stable_offset(partition)
                                                        : partition->high_watermark;
}

/* aborted.c: those that reach into what was read, [offset, upto). 0 or -ENOMEM. */
int tpc_fetch_tell_aborted(tpc_fetches *fetches, tpc_fetch_reading *reading, int64_t offset, int64_t upto);

/* fetch_limits.c: none yet, with the bounds that hold before any are set. */
tpc_fetches *tpc_fetches_new(void);
/* Charges what it takes while it waits. False: it is not to wait, since those that do have all there is. */
bool tpc_fetch_may_wait(tpc_fetches *fetches, tpc_fetch *fetch);
/* Charges what Python makes of it. Where there is not so much it is answered as soon as it was read. */
void tpc_fetch_charge_python(tpc_fetches *fetches, tpc_fetch *fetch);

/* fetch_request.c */
void tpc_fetches_free(tpc_plane *plane);

/* fetch.c: room in the scratch for so many partitions. 0 or -ENOMEM. */
int tpc_fetch_reserve_readings(tpc_fetches *fetches, int32_t parts);
enum tpc_fetch_outcome_kind { TPC_FETCH_ANSWERED, TPC_FETCH_TOO_LITTLE, TPC_FETCH_NOT_HERE };
/* Reads, and answers when there is enough or `last`; then the fetch is gone. *reason: why it is not to be had here. */
enum tpc_fetch_outcome_kind tpc_fetch_attempt(tpc_plane *plane, tpc_fetch *fetch, bool last,
                                              enum tpc_fetch_fallback *reason);
tpc_partition *tpc_fetch_partition_of(tpc_plane *plane, tpc_fetch_asked *asked);
void tpc_fetch_free(tpc_plane *plane, tpc_fetch *fetch);
/* The fetch's partitions as they stand in its answer, topics together; last[i]: the next one has another topic. 0 or -ENOMEM. */
int tpc_fetch_order(tpc_plane *plane, const tpc_fetch *fetch, int32_t *order, uint8_t *last);
/* Takes the fetch and its request: above a quota. */
void tpc_fetch_answer_nothing(tpc_plane *plane, tpc_fetch *fetch);

/* fetch_left.c: Python will ask for it, with its request, which goes there by another way. */
void tpc_fetch_leave(tpc_fetches *fetches, tpc_fetch *fetch, enum tpc_fetch_fallback reason);
/* To Python, with its request. */
void tpc_fetch_hand_over(tpc_plane *plane, tpc_fetch *fetch, enum tpc_fetch_fallback reason);
/* Of this request; NULL: there is none. */
tpc_fetch *tpc_fetch_find_left(tpc_fetches *fetches, const tpc_request *request);
/* The same, and it is not with Python any more. */
tpc_fetch *tpc_fetch_take_left(tpc_fetches *fetches, const tpc_request *request);
/* Those whose connection has gone. */
void tpc_fetch_forget_left_of_gone(tpc_plane *plane);

/* fetch_near.c: the bit of the client's rack; 0: it names none, or one that no replica is in. */
uint64_t tpc_fetch_rack_of(const tpc_fetches *fetches, const tpc_fetch_request *asked);

/* fetch_wait.c */
int tpc_fetch_park(tpc_plane *plane, tpc_fetch *fetch);
/* Whoever waits for this partition looks again, at once. */
void tpc_fetch_look_again(tpc_plane *plane, tpc_partition *partition);
/* What this connection waits for, if it does, is answered with what there is. */
void tpc_fetch_release(tpc_plane *plane, uint64_t connection);
extern const tpc_plane_observer tpc_fetch_observer;
int64_t tpc_fetch_turn(void *plane, int64_t now_ns);
void tpc_fetch_forget_parked(tpc_plane *plane);

#endif
