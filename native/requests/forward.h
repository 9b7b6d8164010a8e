/*
 * Requests of clients for partitions that other cores own, on a listener that all cores share.
 *
 * Theory of operation. The core that a request came to keeps its answer's place and sends each owner its part of the request over
 * the link (link.h): a Produce to one core goes as it came, and its answer as well; any other is taken apart, and put
 * together from the answers. What this core owns of it goes over a link to itself, so that all parts have one way. A core that
 * cannot be asked is answered for with NOT_LEADER_OR_FOLLOWER, after which clients ask for metadata and try again.
 *
 * A Fetch keeps its session here; its parts are sent without one, wait at their owners, and end together: the first one
 * that has something releases the others.
 */
#ifndef TPC_FORWARD_H
#define TPC_FORWARD_H

#include "fetch.h"
#include "link.h"
#include "cdef/56_forward.h"

enum { TPC_FORWARD_CORES_MAX = 1024 };

struct tpc_forwarded;

/* What is sent on: a Produce (forward_produce.c), or a Fetch (forward_fetch.c). */
typedef struct {
    void (*finish)(struct tpc_forwarded *it);     /* takes it: all its parts are done */
    void (*progressed)(struct tpc_forwarded *it); /* a part is done, and others are not; NULL: they are waited for */
} tpc_forwarded_kind;

/* One owner's part of a request. */
typedef struct {
    tpc_link_call call; /* first: a call is its part */
    struct tpc_forwarded *whole;
    tpc_slice answer; /* with a reference, when it was answered */
    tpc_answer_entry *entries;
    int32_t entries_count, entries_at; /* of the answer; how many are used */
    uint32_t core;
    int32_t asked_count; /* partitions */
    uint8_t outcome;
    bool is_done;
} tpc_forwarded_part;

typedef struct tpc_forwarded {
    struct tpc_forwarded *next, *previous;
    const tpc_forwarded_kind *kind;
    tpc_plane *plane;
    tpc_request request; /* its header, and where its body is in `frame` */
    tpc_frame *frame;
    tpc_fetch *fetch;    /* NULL: a Produce */
    uint16_t *cores;     /* of each partition, in the order of `order` */
    int32_t *order;      /* of a Fetch: its partitions by topic */
    uint8_t *topics_end; /* of a Fetch: whether the next in order has another topic */
    int32_t asked_count;
    int32_t acks;
    uint32_t parts_count;
    uint32_t open;   /* parts that are not done */
    bool is_sending; /* parts are still being made */
    bool is_released;
    tpc_forwarded_part parts[];
} tpc_forwarded;

typedef struct tpc_route {
    struct tpc_route *name_next, *id_next;
    uint8_t *name;
    uint32_t name_bytes;
    uint8_t id[16];
    uint32_t count;
    uint16_t cores[];
} tpc_route;

enum { TPC_ROUTE_BUCKETS = 4096 };

typedef struct tpc_forwarding {
    uint32_t core;
    uint64_t listeners;
    tpc_forwarded *first;
    tpc_route *by_name[TPC_ROUTE_BUCKETS], *by_id[TPC_ROUTE_BUCKETS];
    tpc_forward_statistics statistics;
} tpc_forwarding;

/* Whether requests of this connection are sent on when they are another core's. */
static inline bool tpc_forwards(const tpc_plane *plane, const tpc_request *request) {
    return plane->forwarding && request->listener < 64 && plane->forwarding->listeners >> request->listener & 1 &&
           !tpc_connection_is_stream(plane->connections, request->connection);
}

void tpc_forward_free(tpc_plane *plane);
/* The core that a partition is known to belong to, else this one. The name counts when there is one. */
uint16_t tpc_forward_owner(const tpc_forwarding *forwarding, const uint8_t *name, int32_t name_bytes, const uint8_t *id,
                           int32_t partition);

/* A Produce whose partitions are `parts`: 1 when it was sent on, 0 when there is nothing to be sent on, -ENOMEM. It stays the
 * caller's. */
int tpc_forward_produce(tpc_plane *plane, const tpc_request *request, const tpc_produce_request *asked,
                        const tpc_produce_part *parts);
/* A Fetch: whether it was sent on, and then it is taken with its request. */
bool tpc_forward_fetch(tpc_plane *plane, tpc_fetch *fetch);

/* For forward_produce.c and forward_fetch.c. */
tpc_forwarded *tpc_forwarded_new(tpc_plane *plane, const tpc_forwarded_kind *kind, const tpc_request *request,
                                 int32_t asked_count, uint32_t parts_count);
void tpc_forwarded_free(tpc_forwarded *it);
/* The distinct ones of these cores, into `distinct`; how many. */
uint32_t tpc_forwarded_cores(const uint16_t *cores, int32_t count, uint16_t *distinct);
/* Sends a part; the slices' references are consumed. */
void tpc_forwarded_send(tpc_forwarded *it, tpc_forwarded_part *part, uint8_t kind, const tpc_slice *slices,
                        uint32_t count);
/* All parts were made: when none is under way any more, the answer is. */
void tpc_forwarded_sent(tpc_forwarded *it);
/* Reads where the partitions stand in the answers; a part whose answer is not what was asked for counts as lost. */
void tpc_forwarded_read(tpc_forwarded *it);
tpc_forwarded_part *tpc_forwarded_part_of(tpc_forwarded *it, uint16_t core);

#endif
