/*
 * Links: each core sends requests that came to it, but are another's to answer, over a connection to that core
 * (native/net/link.h). Python makes the sockets; all else is C's.
 */
typedef struct {
    uint64_t links_up;  /* now: those that this core sends over, and those that it is sent to */
    uint64_t lost;      /* links that ended */
    uint64_t streams;   /* now: clients of other cores whose requests come here */
    uint64_t pages;     /* now, of the tables of streams: 256 neighbouring places each */
    uint64_t forwarded; /* requests, or parts of them, that were sent to other cores */
    uint64_t forwarded_bytes;
    uint64_t answered; /* of these, by their answers */
    uint64_t failed;   /* of these, because there was no link, or because it ended */
    uint64_t served;   /* requests of other cores that came here */
    uint64_t served_bytes;
    uint64_t held_bytes; /* now: of these, not answered yet */
    uint64_t pauses;     /* receiving stopped because they were too many */
    uint64_t refused;    /* streams that came with no subject, two, or one that was malformed */
} tpc_link_statistics;

/* More than a core has places for connections, its clients' and those of the node's other cores. A stream is numbered by its
 * client's place, so a link that brings a larger one is refused. */
enum { TPC_LINK_PLACES_MAX = 33554432 };

/* From now on there may be links. `life` is another number at each start of a process. 0 or -ENOMEM. */
int tpc_links_open(tpc_connections *connections, uint32_t core, uint64_t life);

/*
 * A connected stream socket of this host becomes a link: one that this core sends over to `core` (dialled 1), of which there
 * is one at most, or one that it is sent to (dialled 0). 0; -EEXIST: there is one; -EINVAL, -ENOMEM. The socket is the
 * caller's then.
 * TPC_EVENT_LINK says when the other end has said who it is, and when it is gone.
 */
int tpc_link_adopt(tpc_connections *connections, int descriptor, uint32_t core, int dialled);
/* Whether requests for the core can be sent now. */
int tpc_link_is_up(const tpc_connections *connections, uint32_t core);
/* How many bytes of unanswered requests one link may bring here; then it pauses. */
void tpc_links_set_share(tpc_connections *connections, uint64_t bytes_max);
void tpc_links_statistics(const tpc_connections *connections, tpc_link_statistics *statistics);
