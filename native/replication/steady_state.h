/*
 * What the files of the steady state share, each of which uses those in front of it: replica_append.c, steady_link.c (a
 * link, and what leaves over it), steady.c (the machine), steady_lag.c and steady_beats.c, steady_turn.c, steady_life.c
 * (frames that come). replica.c stands on the machine.
 */
#ifndef TPC_STEADY_STATE_H
#define TPC_STEADY_STATE_H

#include "bytes.h"
#include "connection_state.h"
#include "steady.h"

enum {
    STEADY_MARKS = 8,
    STEADY_SLOT_BITS = 12,
    STEADY_LINKS_MAX = 1 << STEADY_SLOT_BITS,
    STEADY_PEER_UNACKED_BYTES_MAX = 4 << 20,
    STEADY_LINK_UNACKED_BYTES_MAX = 32 << 20,
    STEADY_LINK_UNSENT_BYTES_MAX = 8 << 20,
    STEADY_LINK_WANTS_MAX = 4,
    STEADY_APPEND_BYTES_MAX = 1 << 20, /* of one entry; a single batch may be larger */
    STEADY_COPIED_BYTES_MAX = 8192,    /* of an append: it leaves together with others */
    STEADY_SLICES_MAX = 48,            /* of the tail, in one append */
};

/* What is under way, by where it ends: of more messages than there are marks the newest share one. */
typedef struct {
    struct {
        int64_t end_offset;
        int64_t bytes;
    } marks[STEADY_MARKS];
    uint32_t first, count;
    int64_t bytes;
} steady_marks;

typedef struct {
    uint64_t link, incarnation;
    bool votes;
    enum { STEADY_WANTS_NOTHING, STEADY_WANTS, STEADY_WAITS } want; /* of what is in segments only */
    int64_t match_offset, next_offset, told_offset, known_offset;
    int64_t sent_offset; /* as far as it was ever sent: beyond next where it is sent something again */
    int64_t waits_ns;    /* since when it owes an answer, or its last one that said something new; 0: it owes none */
    uint32_t asked;      /* how often it was asked again in vain: then it is sent one append at a time */
    steady_marks unacked;
} steady_peer;

struct steady_message;

typedef struct tpc_steady {
    tpc_partition *partition;
    uint64_t own_incarnation;
    int32_t term;
    int64_t start_offset;
    bool is_leader;
    bool is_stopped;
    node sending; /* a leader with something to send */
    node telling; /* a leader whose peers do not know the commit yet, by tell_ns */
    node busy;    /* a leader that waits for answers */
    node wanting; /* a leader with a peer that needs what is in segments only, which nobody was told yet */
    node acks;    /* a follower that owes one, in its link's list */
    node holding; /* a follower that has no room for what it was sent */
    int64_t tell_ns;
    int64_t progress_ns;

    bool own_votes;
    uint32_t peers_count;
    steady_peer peers[TPC_STEADY_PEERS_MAX];
    steady_marks uncommitted;
    int64_t uncommitted_bytes_max;

    uint64_t leader_incarnation;
    int32_t leader_node;
    int64_t leader_commit_offset;
    uint64_t leader_link; /* where it was last heard */
    int64_t acked_offset; /* what its leader was told to be durable here; -1: nothing */
    struct steady_message *held_first, *held_last;
    int64_t held_ns;             /* since when */
    int64_t held_bytes_admitted; /* when room was asked for last; -1: it was not */
} tpc_steady;

typedef struct steady_link {
    tpc_plane *plane;
    connection *connection; /* NULL: it is closing */
    uint64_t id;
    int32_t node;
    int64_t unacked_bytes;
    uint32_t wants;      /* stretches that are read for its other end */
    uint32_t beats;      /* machines of this core that are to be said to be there: a bit of each */
    uint32_t beats_said; /* the same, as the last BEAT has said */
    node acks;           /* followers that owe its other end an answer */
    tpc_frame *gathered; /* entries of small appends that leave together; NULL: none */
    uint32_t gathered_count, gathered_kind;
} steady_link;

typedef struct steady_message {
    struct steady_message *next;
    tpc_steady_message said;
} steady_message;

/* When the machines of a link's other end were heard. */
typedef struct {
    uint64_t link;
    uint32_t machines; /* those that the last BEAT has named: all that comes behind it says that they are there */
    int64_t since_ns[TPC_STEADY_MACHINES], last_ns[TPC_STEADY_MACHINES];
} steady_heard;

struct tpc_steady_links {
    steady_link *links[STEADY_LINKS_MAX];
    steady_heard heard[STEADY_LINKS_MAX]; /* by slot; of a link that is gone until there is another */
    int64_t beat_ns;                      /* when the next beats leave, of all links together */
    int64_t late_ns[TPC_STEADY_MACHINES]; /* how late they left at worst, since a machine asked */
    int64_t busy_ns;                      /* what this thread had run and waited for a CPU when they left last */
    uint32_t links_count;                 /* slots that were ever used */
    uint64_t lives;
    node sending, telling, busy, wanting, holding;
    steady_message *messages_first, *messages_last;
    tpc_steady_statistics statistics;
};

/* Its group is driven by the machine or by C, never by both. */
static inline bool steady_is_pythons(const tpc_partition *partition) {
    return !partition->steady || partition->steady->is_stopped;
}

/* Of a group that is C's, and not stopped: only in the term and the role in which it was given. */
static inline void steady_verify(const tpc_steady *it) {
    TPC_PARTITION_INVARIANT(it->partition, !it->is_stopped && it->partition->steady == it);
    TPC_PARTITION_INVARIANT(it->partition, it->partition->leader_epoch == it->term);
    TPC_PARTITION_INVARIANT(it->partition,
                            it->partition->role == (it->is_leader ? TPC_ROLE_LEADER : TPC_ROLE_FOLLOWER));
}

/* steady.c */
_Noreturn void steady_peer_broken(const tpc_steady *it, const steady_peer *peer, const char *condition,
                                  const char *file, int line) __attribute__((cold));
#define STEADY_PEER_HOLDS(it, peer, condition) \
    (__builtin_expect(!(condition), 0) ? steady_peer_broken(it, peer, #condition, __FILE__, __LINE__) : (void)0)

/* Of a leader's peer: it has no more than it was ever sent, which is no more than there is. */
static inline void steady_verify_peer(const tpc_steady *it, const steady_peer *peer) {
    STEADY_PEER_HOLDS(it, peer, peer->match_offset <= peer->next_offset);
    STEADY_PEER_HOLDS(it, peer, peer->next_offset <= peer->sent_offset);
    STEADY_PEER_HOLDS(it, peer, peer->sent_offset <= it->partition->log_end_offset);
    STEADY_PEER_HOLDS(it, peer, (peer->unacked.count == 0) == (peer->unacked.bytes == 0));
}

/* steady.c */
void steady_take_append(tpc_plane *plane, steady_link *from, const tpc_steady_entry *entry, tpc_frame *frame);
/* What followers hold is tried again; when the first of them gives up. */
int64_t steady_take_held(tpc_plane *plane, int64_t now_ns);
void steady_take_ack(tpc_plane *plane, steady_link *from, const tpc_steady_entry *entry);
/* Whether more may be sent to it now. */
bool steady_has_room(const steady_link *to, const steady_peer *peer);
void steady_sent(tpc_plane *plane, tpc_steady *it, steady_peer *peer, steady_link *to, int64_t end_offset,
                 uint32_t bytes);

/* steady_link.c */
steady_link *steady_link_find(const tpc_plane *plane, uint64_t id);
/* Its connection, until connection_let_go(): a send may close it, and free the link. */
connection *steady_link_hold(steady_link *it);
/* Nothing is read for it any more. */
void steady_want_nothing(steady_peer *peer, steady_link *to);
/* An append behind what the peer was sent, of records in the tail: where they end; -1: there is no memory for it. The
 * link is held, here and below. */
int64_t steady_send_stretch(steady_link *to, const tpc_steady *it, const steady_peer *peer,
                            const tpc_tail_stretch *stretch);
/* The same of a copy of stored batches; false: there is no memory for it. */
bool steady_send_read(steady_link *to, const tpc_steady *it, const steady_peer *peer, const uint8_t *batches,
                      uint32_t bytes);
/* The same of no records, to tell the commit. */
bool steady_send_commit(steady_link *to, const tpc_steady *it, const steady_peer *peer);
void steady_send_beat(steady_link *to, uint32_t machines);
/* The appends that were gathered leave, and behind them the acks that its other end is owed. */
void steady_send_acks(steady_link *it);

/* steady_turn.c */
int64_t steady_turn(void *plane, int64_t now_ns);

/* steady_lag.c: a peer's next items have left the tail; false: as much is read for its link as may be */
bool steady_want(tpc_plane *plane, tpc_steady *it, steady_peer *peer, steady_link *to);

/* steady_beats.c; when the next are due */
int64_t steady_beat_all(tpc_plane *plane, int64_t now_ns);
void steady_take_beat(tpc_plane *plane, const steady_link *from, uint32_t machines);
void steady_hear(tpc_plane *plane, const steady_link *from); /* a frame has come */
void steady_unheard(tpc_plane *plane, uint64_t link);

/* replica_append.c: what continues a follower's log, all of it of its term; frame NULL: the bytes are lent. 0 or
 * -errno, as tpc_partition_append_replica(); -EBADMSG: the batches are damaged, or do not continue the log. */
int tpc_replica_append_steady(tpc_plane *plane, tpc_partition *partition, tpc_frame *frame, uint8_t *batches,
                              uint32_t bytes);
/* Whether so many bytes could be taken now: of the segment's room and the journal's. */
bool tpc_replica_has_room(tpc_plane *plane, const tpc_partition *partition, uint32_t bytes);
/* commit.c: it is above the commit offset, and durable; tpc_plane_publish_advanced() is the caller's. */
void tpc_partition_committed(tpc_plane *plane, tpc_partition *partition, int64_t commit_offset);

#endif
