/*
 * Records that come as datagrams (docs/datagrams.md), by one UDP port that all cores share: native/requests/datagram.h.
 */
typedef struct tpc_datagrams tpc_datagrams;

enum { TPC_DATAGRAM_BYTES_MAX = 16384, TPC_DATAGRAMS_A_TURN = 256 };

typedef struct {
    uint64_t received;
    uint64_t received_bytes;
    uint64_t forwarded_here; /* of other cores, besides */
    uint64_t appended;       /* records */
    uint64_t batches;        /* that they made */
    uint64_t acknowledged;
    uint64_t refused;   /* answered with an error */
    uint64_t malformed; /* no header of this version, or one that says what cannot be */
    uint64_t oversized;
    uint64_t unknown;          /* the topic or the partition is */
    uint64_t unowned;          /* it came here, or was sent here, and is not led here */
    uint64_t invalid;          /* the topic does not take it: no key, a time stamp out of bounds, internal */
    uint64_t forwarded;        /* to the core that owns the partition */
    uint64_t forward_failures; /* it was not to be had, or had too many */
    uint64_t without_room;     /* journal, segment or memory had none in time */
    uint64_t failed;           /* appended, and never durable */
    uint64_t answers_lost;     /* the socket took no more */
    uint64_t kernel_drops;     /* of this core's socket */
    uint64_t waiting;          /* batches that are not durable yet, now */
    uint64_t routes;           /* topics, now */
} tpc_datagram_statistics;

/*
 * Takes datagrams from a UDP socket, which stays the caller's and must not block. `core`: this one. 0 or -errno. Before the plane
 * is freed, tpc_datagrams_stop(), and, when tpc_datagrams_quiet() or it lasts too long, tpc_datagrams_free().
 */
int tpc_datagrams_new(tpc_plane *plane, int descriptor, uint32_t core, tpc_datagrams **out);
/* From now on they are taken: when the partitions are open. */
void tpc_datagrams_start(tpc_datagrams *datagrams);
/* Whether who asks for an acknowledgement gets one, and errors. At first: yes. */
void tpc_datagrams_set_answers(tpc_datagrams *datagrams, int on);
/* The owners of the partitions of a topic, in place of what was said of it before. `topic`: as in the datagrams. count 0: it is
 * gone. 0 or -ENOMEM. */
int tpc_datagrams_set_route(tpc_datagrams *datagrams, uint32_t topic, const uint8_t *topic_id, const uint16_t *cores,
                            uint32_t count);
/* Nothing more is taken. Records that were appended are answered no more. */
void tpc_datagrams_stop(tpc_datagrams *datagrams);
int tpc_datagrams_quiet(const tpc_datagrams *datagrams);
void tpc_datagrams_free(tpc_datagrams *datagrams);
void tpc_datagrams_get_statistics(const tpc_datagrams *datagrams, tpc_datagram_statistics *statistics);
