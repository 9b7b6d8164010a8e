/*
 * The steady state of replication in C (native/replication/steady.h). Python's machine arms a group for one term and takes it back with
 * tpc_steady_disarm(); in between C appends, acknowledges and commits, and hands over whatever is not steady.
 */
enum { TPC_STEADY_PEERS_MAX = 6, TPC_STEADY_APPEND_KIND = 1, TPC_STEADY_ACK_KIND = 2 };
/* Machines of a core that say that they are there: those of its partitions, and on core 0 the metadata's. */
enum { TPC_STEADY_OF_PARTITIONS = 0, TPC_STEADY_OF_METADATA = 1, TPC_STEADY_MACHINES = 2 };
enum { TPC_STEADY_BEAT_MS = 100, TPC_STEADY_GAP_MS = 1000 };

/* A replica beside the leader. */
typedef struct {
    uint64_t link; /* where its appends leave; 0: nowhere, and its match stays what it is */
    uint64_t incarnation;
    int64_t match_offset; /* durable there, of the term; -1: nothing */
    int64_t next_offset;  /* behind what was sent, or is sent again; out only: in, it is match_offset */
    int64_t known_offset; /* of the commit, as it last said; -1: nothing */
    uint32_t votes;
    uint32_t reserved;
} tpc_steady_peer_state;

typedef struct {
    int64_t log_end_offset;
    int64_t durable_offset;
    int64_t commit_offset;
    int64_t uncommitted_bytes; /* of a leader, about */
    uint64_t sequence;         /* the commit of the journal that carries the last append; 0: all are durable */
    int32_t term;
    int32_t role;                 /* enum tpc_partition_role */
    int64_t leader_commit_offset; /* of a follower: as far as its leader has said; -1: nothing */
    uint32_t peers_count;
    uint32_t is_stopped;            /* C has taken its role away: the journal failed, or it was disarmed */
    tpc_steady_peer_state peers[6]; /* TPC_STEADY_PEERS_MAX */
} tpc_steady_state;

typedef struct {
    uint64_t links_up; /* now */
    uint64_t links_lost;
    uint64_t leaders, followers; /* now: armed */
    uint64_t appends_sent, append_bytes_sent;
    uint64_t appends_taken, append_bytes_taken;
    uint64_t acks_sent, acks_taken;
    uint64_t commits;             /* how often a high watermark rose here */
    uint64_t unsteady;            /* entries that were Python's */
    uint64_t held;                /* entries that a follower had no room for when they came */
    uint64_t wanted, given_bytes; /* stretches that followers needed from segments, and what was read for them */
    uint64_t asked_again;         /* how often a follower was, for want of an answer */
    uint64_t frames_sent, frames_taken;
    uint64_t sent_bytes, taken_bytes;
    uint64_t beats_sent, beats_taken;
} tpc_steady_statistics;

/*
 * A connected stream socket to another node's core becomes a link; who is there is known: its node. 0 with *link,
 * never 0; or -errno, and the socket is the caller's. TPC_EVENT_STEADY_LINK tells when it is gone. `tls`: a session that has
 * shaken hands, whose the link becomes in the same way, with ciphertext that it has not read; NULL: the link is plain.
 */
int tpc_steady_adopt(tpc_plane *plane, int descriptor, int32_t node, tpc_tls_session *tls, const uint8_t *unread,
                     size_t unread_bytes, uint64_t *link);
/* TPC_EVENT_STEADY_LINK comes later. */
void tpc_steady_close(tpc_plane *plane, uint64_t link);

/*
 * From now on C says every TPC_STEADY_BEAT_MS over the link that a machine of this core is there, or not any more. It does so as long as this
 * thread takes turns, Python's included. 0; -ENOENT: the link is gone; -EINVAL: no such machine.
 */
int tpc_steady_beat(tpc_plane *plane, uint64_t link, uint32_t machine, int is_said);
/* By how much beats were late at worst since the last call for this machine, in ns. -EINVAL: no such machine. */
int64_t tpc_steady_take_late(tpc_plane *plane, uint32_t machine);
/*
 * Since when a machine of the other end was heard so without a gap of TPC_STEADY_GAP_MS, and when last, by CLOCK_MONOTONIC; both 0: never. Also of a link
 * that is gone, until its number's slot has another. 0; -ENOENT; -EINVAL.
 */
int tpc_steady_heard(const tpc_plane *plane, uint64_t link, uint32_t machine, int64_t *since_ns, int64_t *last_ns);

/*
 * From now on the partition is C's, in the role that it is armed for in `term`, whose marker is durable here; the term began at
 * start_offset. Of a leader: what it has committed is of the term. 0; -EPERM, -ESTALE: another role or term; -EBUSY: armed already, or something
 * of it waits for Python (tpc_plane_take_appended(), tpc_steady_take()); -EINVAL; -ENOMEM.
 */
int tpc_steady_lead(tpc_plane *plane, uint64_t handle, uint64_t own_incarnation, int32_t term, int64_t start_offset,
                    int own_votes, int64_t uncommitted_bytes_max, const tpc_steady_peer_state *peers, uint32_t count);
/* Acknowledgements leave over leader_link (0: nowhere) until the leader is heard on another. */
int tpc_steady_follow(tpc_plane *plane, uint64_t handle, uint64_t own_incarnation, int32_t term, int64_t start_offset,
                      int32_t leader_node, uint64_t leader_incarnation, uint64_t leader_link,
                      int64_t leader_commit_offset);
/* A peer's acknowledgement that came by Python's link. -ENOENT: it is Python's to take. */
int tpc_steady_ack(tpc_plane *plane, uint64_t handle, uint64_t link, uint64_t source, int32_t term,
                   int64_t durable_offset, int64_t commit_offset);
/* It is Python's again, at once and wholly; what waits for commits goes on waiting. 0, or -ENOENT: it was not C's. */
int tpc_steady_disarm(tpc_plane *plane, uint64_t handle, tpc_steady_state *state);
/* How it stands, without a change. */
int tpc_steady_get_state(const tpc_plane *plane, uint64_t handle, tpc_steady_state *state);

/* What was not steady, oldest first: in bytes of the frame's entry, batches included; the frame is the caller's to release. */
typedef struct {
    uint64_t link;
    uint8_t topic_id[16];
    int32_t partition;
    int32_t term;
    uint64_t source, target; /* incarnations */
    int64_t offset;
    int64_t commit_offset;
    uint32_t kind; /* TPC_STEADY_APPEND_KIND or TPC_STEADY_ACK_KIND */
    uint32_t batches_bytes;
    tpc_frame *frame; /* NULL: no batches */
    const uint8_t *batches;
} tpc_steady_message;

/* 1 with *message, 0: there is none. After it TPC_EVENT_STEADY comes with the next one. */
int tpc_steady_take(tpc_plane *plane, tpc_steady_message *message);

/*
 * A follower needs what begins at an offset of its leader's log, and that is in segments only: whoever carries it reads it for C. Told once;
 * it waits until tpc_steady_give(), or until the group is taken back.
 */
typedef struct {
    uint64_t handle;
    uint64_t link, incarnation; /* of the follower */
    int64_t offset;
    int32_t term;
    uint32_t peer; /* its place among the leader's */
} tpc_steady_want;

/* 1 with *want, 0: there is none. After it TPC_EVENT_STEADY comes with the next one. */
int tpc_steady_take_want(tpc_plane *plane, tpc_steady_want *want);
/* Stored batches that begin at the offset, copied. 0; -ENOENT: nobody waits for them any more; -EBADMSG: they are not what
 * comes next of the term, and it waits. */
int tpc_steady_give(tpc_plane *plane, const tpc_steady_want *want, const uint8_t *batches, uint32_t bytes);

/*
 * Peers that owe an answer, and have said nothing new for after_ns (twice as long each time that they were asked in vain, 8 times at most), are
 * asked again: what they were sent may be lost, as when a follower had no room for it. What is behind `match` is sent once more, one append
 * until there is an answer. Told is who lacks records, and from which offset on; how many.
 */
uint32_t tpc_steady_ask_again(tpc_plane *plane, int64_t now_ns, int64_t after_ns, tpc_steady_want *asked,
                              uint32_t asked_max);

/* Leaders that nothing has become of since then, although something is under way: neither an answer nor durable records; how many. */
uint32_t tpc_steady_stalled(tpc_plane *plane, int64_t since_ns, uint64_t *handles, uint32_t handles_max);

void tpc_steady_get_statistics(const tpc_plane *plane, tpc_steady_statistics *statistics);
