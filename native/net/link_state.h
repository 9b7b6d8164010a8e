/* What link.c (frames, calls, life) and link_streams.c (the table of streams) share. link.h says how links work. */
#ifndef TPC_LINK_STATE_H
#define TPC_LINK_STATE_H

#include "connection_state.h"
#include "invariant.h"
#include "link.h"

enum { LINK_PAGE_BITS = 8, LINK_PAGE_STREAMS = 1 << LINK_PAGE_BITS, LINK_CORES_MAX = 1024 };

/* A client at one end of a link, by the slot of its connection there. */
typedef struct {
    uint64_t client;             /* 0: none */
    connection *connection;      /* where requests are taken */
    tpc_link_call *first, *last; /* where they come from: under way, in order */
    uint32_t sequence;           /* of the next one that is sent */
} link_stream;

/* The streams of neighbouring slots; there is one only where there is a stream. */
typedef struct {
    uint32_t used;
    link_stream streams[LINK_PAGE_STREAMS];
} link_page;

typedef struct link {
    struct link *next;
    struct links *owner;
    connection *connection;
    uint32_t core; /* at the other end */
    bool dialled;  /* this core sends requests over it */
    bool is_up;    /* the other end has said who it is */
    uint64_t life;
    uint16_t feature_level; /* what both understand */
    link_page **pages;
    uint32_t pages_capacity;
    uint64_t held_bytes;
} link;

typedef struct links {
    tpc_connections *connections;
    uint32_t core;
    uint64_t life;
    uint64_t share_bytes;
    tpc_link_listener listener;
    void (*take_datagram)(void *context, const uint8_t *bytes, uint32_t count);
    void *datagram_context;
    link *first;
    link *dialled[LINK_CORES_MAX];
    tpc_link_statistics statistics;
} links;

/* link_streams.c */
/* The place of its slot, whosever it is, and the client's own; NULL: there is none. */
link_stream *link_find_slot(const link *it, uint64_t client);
link_stream *link_find_stream(const link *it, uint64_t client);
/* The client's own from now on, whoever had the place before. NULL: no memory, or no core has so many clients. */
link_stream *link_begin_stream(link *it, uint64_t client);
/* Its place is gone then. While the link closes somebody may look through the pages, which go with the link. */
void link_end_stream(link *it, link_stream *stream);

#endif
