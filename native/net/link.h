/*
 * Links between the cores of a node, for the other C parts: requests go to the core that owns their partitions, C to C.
 *
 * Theory of operation. A link is a connection whose sink takes the link's frames (native/bytes/cdef/80_link.h) instead of
 * Kafka's. Each core dials one to every core that it forwards to: requests go one way on it, answers the other. So the end that
 * takes requests may stop receiving when it has too many, and the end that takes answers never stops: two cores cannot wait for
 * each other.
 *
 * A client whose requests are forwarded is a *stream* on the link. At its other end it is a connection like any other, only
 * without a socket: its requests come out of the link's frames, its answers go into the link's outbox. So sessions,
 * order, Python's queue, and what a connection may have under way are there what they are for clients. It has no budget of its
 * own to wait for at the link: what the link brings is charged without asking, and its bound is the link's share.
 *
 * A stream has the subject of its client, which the core that it came to has to say before its first request, in a frame of
 * its own. Whoever owns a partition so decides by the rights of who asks, and not by those of the core that passed it on.
 *
 * The answers of a stream come in the order of its requests. A link that ends fails what is under way on it; nothing is
 * ever sent twice.
 */
#ifndef TPC_LINK_H
#define TPC_LINK_H

#include "connection.h"
#include "cdef/35_link.h"

enum tpc_link_outcome {
    TPC_LINK_ANSWERED = 0,
    TPC_LINK_NO_ANSWER = 1, /* as acks=0 has */
    TPC_LINK_LOST = 2,      /* what became of it is not known */
    TPC_LINK_REFUSED = 3    /* its client's connection is to be closed */
};

/* A request under way on a link; part of whatever its sender keeps of it. */
typedef struct tpc_link_call {
    struct tpc_link_call *next;
    uint32_t sequence;
} tpc_link_call;

typedef struct {
    void *context;
    /* What became of a call; it is the sender's again. The answer has its length field; its frame may be NULL, and then its bytes
     * are there during the call only. */
    void (*done)(void *context, tpc_link_call *call, enum tpc_link_outcome outcome, const tpc_slice *answer);
    /* At the other end: the Fetch that this connection waits for is answered now. */
    void (*release)(void *context, uint64_t connection);
} tpc_link_listener;

void tpc_links_listen(tpc_connections *connections, tpc_link_listener listener);

/*
 * Sends a request over the link to `core`, in the order of the calls for the same client. The slices are the request
 * without its length field; their references are consumed. 0: `done` will be called, later. -ENOTCONN: there is no link now.
 */
int tpc_link_send(tpc_connections *connections, uint32_t core, uint64_t client, uint16_t listener, uint8_t kind,
                  const tpc_slice *slices, uint32_t count, tpc_link_call *call);
/* What the client waits for at that core is to be answered now. */
void tpc_link_release(tpc_connections *connections, uint32_t core, uint64_t client, const tpc_link_call *call);

/*
 * Datagrams that came to the wrong core. The slice's reference is consumed. 0; -ENOTCONN: there is no link now, or it does not
 * know them; -ENOBUFS: too many bytes wait to be sent over it. Nobody hears what becomes of it.
 */
int tpc_link_send_datagram(tpc_connections *connections, uint32_t core, const tpc_slice *slice);
/* Who takes those of other cores; NULL: nobody. The bytes are there during the call only. */
void tpc_links_on_datagram(tpc_connections *connections,
                           void (*take)(void *context, const uint8_t *bytes, uint32_t count), void *context);

/* Whether the connection is a stream: its requests were forwarded once and stay here. */
bool tpc_connection_is_stream(tpc_connections *connections, uint64_t connection);
/* Whether the request of a stream is not to wait for anything any more. */
bool tpc_connection_is_released(tpc_connections *connections, uint64_t connection, int64_t sequence);

#endif
