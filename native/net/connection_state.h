/*
 * The connections' own state, shared by the files of this room and by who has a kind of connection of its own (link.c,
 * native/replication/steady_link.c). Each of them calls only those above it:
 *
 *   connection_table.c          slots, and where a connection stands between its opening and its end
 *   connection_identity.c       whether it is served, and by whom
 *   connection_quota.c          what counts for it, and how long it is muted
 *   connection_answers.c        its answers in their order, and their memory
 *   connection_framing.c        bytes to frames
 *   connection_send_operation.c what sending has in the kernel
 *   connection_send_file.c      answers out of files to a socket
 *   connection_tls.c            between framing, answers and the socket of a listener with TLS
 *   connection_receive.c        sockets to framing
 *   connection_requests.c       frames to requests
 *   link.c                      frames of links, and their streams
 *   connection_send.c           answers to sockets
 *   connection_accept.c         listeners, and who comes to them
 *   connection.c                their end, their turn, statistics
 *
 * What is received is framed, and each frame goes to the connection's sink; what is sent stands in its outbox, the ring of
 * answers. A client's connection and a link differ in their sinks and in what puts something into the outbox.
 *
 * Theory of operation. A connection does its submissions in one place, the turn hook: whatever gives it something to do
 * (an answer, room to receive again, a lost receive) puts it on the `attention` list, and the hook attends to each once.
 *
 * Life: OPEN, perhaps FLUSHING (takes no more requests, sends what is answered), CLOSING, gone. Closing shuts the socket down,
 * which makes the kernel finish what it holds of it, cancels the receive, and waits until `operations` is 0; then the
 * descriptor is closed, CLOSED pushed and the slot's generation raised. A handler that works on a connection holds one
 * `operations` itself, so that it cannot vanish under its feet when a callee closes it.
 */
#ifndef TPC_CONNECTION_STATE_H
#define TPC_CONNECTION_STATE_H

#include <assert.h>
#include <liburing.h>
#include <sys/uio.h>

#include "connection.h"
#include "peer_counts.h"
#include "quota.h"

enum {
    TPC_BUFFER_GROUP_CONNECTIONS = 1,
    SEND_SLICES_MAX = 64,
    ANSWER_CHUNK_BYTES = 2048, /* answers of a connection that are encoded one behind the other */
    ANSWER_ROOM_BYTES_MIN = 256,
    ANSWER_CHUNKS_KEPT = 128,
    ANSWERS_FIRST = 8,          /* answer slots of a connection's first request; doubled when needed */
    FRAME_FIRST_BYTES = 1024,   /* of a request that did not arrive in one piece */
    SCRATCH_BYTES = 65536,      /* one receive without provided buffers */
    CIPHERTEXT_BYTES = 1 << 18, /* one receive of a connection of large requests under TLS, with them */
    RECEIVES_PER_POLL_MAX = 4,
    CLOSES_PER_TURN_MAX = 32, /* of each cause that may come to thousands at once: a close costs some 20 us */
    DISCARD_BYTES = 16384,
    DISCARDS_MAX = 64,
    LARGE_REQUEST_BYTES_MIN = 131072,
    LARGE_REQUESTS_CREDIT = 8, /* so many small requests later a connection no longer counts as one of large ones */
    INTO_FRAME_BYTES_MIN = 32768,
    INTO_FRAME_BYTES_MAX = 1 << 20,
    LISTENERS_MAX = 64,
    ANSWERS_SHARE = 4,           /* of the budget: one part in so many is for answers that wait for their readers */
    ANSWER_BYTES_SURE = 65536,   /* of one answer, as long as there is any room at all */
    FETCH_AHEAD_BYTES = 1 << 20, /* unsent of a connection when its next Fetch is taken */
};

/* A ring list; a node that is in no list points to itself. */
typedef struct node {
    struct node *next;
    struct node *previous;
} node;

static inline void node_init(node *it) { it->next = it->previous = it; }
static inline bool node_linked(const node *it) { return it->next != it; }

static inline void node_remove(node *it) {
    it->next->previous = it->previous;
    it->previous->next = it->next;
    node_init(it);
}

static inline void node_to_tail(node *list, node *it) {
    if (node_linked(it)) node_remove(it);
    it->previous = list->previous;
    it->next = list;
    list->previous->next = it;
    list->previous = it;
}

#define NODE_OWNER(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))

enum answer_state { ANSWER_WAITING = 0, ANSWER_READY = 1, ANSWER_NONE = 2 };

/* The answer of one request, in the ring of its connection. Each slice holds a reference. */
typedef struct {
    tpc_slice single;  /* the slice when there is one, and no `slices` */
    tpc_slice *slices; /* else an array of `count` */
    uint64_t bytes;
    uint64_t memory_bytes; /* of them: not in files */
    uint32_t count;
    uint32_t request_bytes;
    tpc_quota_bucket *fetch_quota; /* of a Fetch: where its bytes count; NULL: nowhere */
    uint64_t fetch_quota_key;      /* whose that was then */
    int64_t received_ns;           /* when the request was whole */
    int16_t api_key;
    int16_t api_version;
    bool holds_files; /* some slices are stretches of files; there are at least two then */
    uint8_t state;
} answer;

static inline tpc_slice *answer_slices(answer *it) { return it->slices ? it->slices : &it->single; }

struct connection;

/* What a connection that wants to send waits for: the send itself, room in its socket, or a stretch of a file. */
enum sending_kind { SENDING_BYTES = 0, SENDING_POLL = 1, SENDING_READ = 2, SENDING_SEALED = 3 };

/* One of them in the kernel, with references of its own: with zero copy it outlives the connection. */
typedef struct sending {
    struct connection *connection; /* NULL after the result: only the notification is due */
    struct sending *next_free;
    uint32_t index;
    uint32_t generation;
    uint32_t count;
    bool in_kernel;
    bool zero_copy;
    uint8_t kind;
    uint64_t bytes;
    struct msghdr message;
    struct iovec vector[SEND_SLICES_MAX];
    tpc_frame *frames[SEND_SLICES_MAX];
} sending;

/* Where the frames of a connection go: its kind. */
typedef struct {
    /* A whole frame where it was received, without its length. False: nothing has changed, and it comes as a frame. */
    bool (*take_bytes)(struct connection *it, uint8_t *bytes, uint32_t length);
    /* A whole frame, `it->lead` bytes behind the beginning of its memory. Takes it; the connection may be closing then. One that
     * it defers comes once more when the connection is attended to. */
    void (*take_frame)(struct connection *it, tpc_frame *frame);
    /* Asked between two frames: whether it takes no more now, and, once that was so, whether it takes some again. */
    bool (*is_full)(const struct connection *it);
    bool (*may_resume)(const struct connection *it);
    /* Memory for a frame is taken whatever the budget says: the sink has a bound of its own. */
    bool is_forced;
    /* As tpc_alignment_handler; NULL: it does not matter where a frame lies. */
    bool (*align)(struct connection *it, const uint8_t *data, size_t bytes, uint32_t *residue);
    /* It begins to close, and nothing comes any more; its descriptor is closed, and it is freed next. NULL: nobody minds. */
    void (*closing)(struct connection *it);
    void (*gone)(struct connection *it);
} connection_sink;

enum connection_state { CONNECTION_OPEN, CONNECTION_FLUSHING, CONNECTION_CLOSING };

typedef struct connection {
    tpc_connections *owner;
    const connection_sink *sink;
    uint32_t slot;
    uint32_t generation;
    int descriptor;
    int error;
    uint32_t operations;
    uint16_t listener; /* that accepted it */
    bool has_peer;     /* it is counted in `peers`, under `peer` */
    peer_address peer;
    uint8_t stage;               /* enum tpc_stage */
    bool is_watched;             /* whether it is served has to be looked at */
    uint32_t subject;            /* whose requests these are; 0: nobody's yet */
    int64_t session_deadline_ns; /* 0: none */
    tpc_frame *named;            /* the subject's names, as a link carries them; NULL: they are not known */
    int64_t stranger_bytes;      /* counted in strangers_bytes */
    uint8_t state;
    uint8_t reason;
    uint8_t close_when;  /* while FLUSHING */
    uint8_t length_have; /* bytes of `length_field` that arrived */
    uint8_t length_field[4];
    bool receive_armed;
    bool receive_cancelled; /* a cancel is on its way */
    bool paused;            /* above a bound of its own */
    bool starved;           /* the budget had no room; in `starved` */
    bool end_of_file;       /* seen, and what was parked before it may still be taken */
    int reset_error;        /* its socket failed with this because the peer is gone; 0: it has not */
    bool zero_copy_refused; /* by the socket, or because the peer is on this host; asked at the first large send */
    bool zero_copy_asked;

    uint8_t left_reason;      /* why the borrowed handler has left the Produce that comes next; 0: it has not */
    uint32_t announced;       /* length of the request when it is whole */
    uint8_t lead;             /* it begins so many bytes behind the beginning of `partial` */
    uint32_t largest_bytes;   /* of the requests so far */
    uint8_t large_credit;     /* > 0: it sends large requests */
    bool multishot_armed;     /* the receive that is armed is one */
    bool poll_armed;          /* it is a poll */
    bool receiving_forgotten; /* the request is given up, and `receiving` goes with the completion */
    tpc_frame *partial;
    tpc_frame *receiving; /* the kernel receives into it: a reference of its own */
    tpc_frame *deferred;  /* a whole Fetch that is not taken yet: what is before it has to leave first */
    tpc_frame *backlog;   /* arrived while paused or starved, not parsed: [backlog_position, length) */
    uint32_t backlog_position;
    tpc_frame *plain; /* decrypted, not parsed: [plain_position, length) */
    uint32_t plain_position;

    uint32_t answers_capacity; /* a power of two, or 0 */
    answer *answers;
    tpc_frame *chunk;       /* see tpc_answer_room(); none while nothing is to be sent */
    int64_t first_sequence; /* the oldest whose answer has not left */
    int64_t next_sequence;
    uint32_t requests_unanswered;
    uint32_t requests_in_python; /* while there are any, the hot handler is not asked: it would overtake them */
    uint32_t head_slice;         /* where the answer of first_sequence is to be sent on */
    uint32_t head_offset;
    uint64_t held_bytes;
    uint64_t unsent_bytes;
    sending *sending;

    struct tls_filter *tls;     /* NULL: what its socket carries is plain; see connection_tls.c */
    struct steady_link *steady; /* its socket is a link to another node; see steady_link.c */
    struct link *link;          /* its socket is a link; see link.c */
    struct link *carrier;       /* it has no socket: a stream of this link */
    uint64_t client;            /* of a stream: the connection at the core that it came to */
    uint64_t carried_bytes;     /* of a stream: requests that count against its carrier's share */
    uint32_t carried;           /* of a stream: requests that came */
    uint32_t client_core;       /* of a stream */
    uint32_t released;          /* of a stream: 1 + the sequence of the request that is not to wait */
    bool forwards;              /* it may be a stream of links to other cores */

    node attention;
    node by_activity;   /* all connections, longest idle first */
    node by_send;       /* those with a send in the kernel, longest without progress first */
    node by_assembly;   /* those with an unfinished request that may go on, longest without progress first */
    node by_starvation; /* those that wait for memory, longest waiting first; in one of the two at most */
    node by_opening;    /* those that are not let in, longest first */
    int64_t opened_ns;
    int64_t active_ns;
    int64_t send_progress_ns;
    int64_t assembly_progress_ns;
    int64_t starved_ns;
    int64_t refused_ns;
    int16_t refusal; /* of a Produce, then; see tpc_connection_refusal() */
    uint32_t mark;   /* of a prepared answer (prepared.c); 0: none */

    struct quota_client *quota; /* what counts for it (connection_quota.c); NULL: that was not looked up */
    uint8_t *user;              /* who is behind it; NULL: nobody has said */
    uint32_t user_bytes;
    uint32_t muted_place; /* 1 + its place in the heap of the muted; 0: it is not muted */
    int64_t muted_since_ns;
    int64_t muted_until_ns; /* meanwhile it takes no request */

    uint64_t requests;
    uint64_t received_bytes;
    uint64_t sent_bytes;
} connection;

/* What the end of a connection is, past the table that it stands in. */
typedef struct {
    /* It has begun to close: its parts let go of what they hold. */
    void (*closing)(connection *it);
    /* Neither the kernel nor a handler works for it any more. Ends with connection_discard(). */
    void (*closed)(connection *it);
    /* Its memory is freed next. It need not have been closed: it may be one that nobody was told of. */
    void (*freed)(connection *it);
} connection_life;

typedef struct {
    connection *connection;
    uint32_t generation;
    uint32_t next_free;
} slot;

typedef struct {
    int descriptor;
    uint32_t generation;
    bool armed;
    bool stopped;
    bool cancelled;
    int64_t retry_ns;              /* INT64_MAX: not waiting */
    tpc_listener_statistics ended; /* of connections that are no more; and all that were refused */
} listener;

struct tpc_connections {
    tpc_ring *ring;
    tpc_budget *budget;
    tpc_connection_limits limits;
    const connection_life *life;

    slot *slots;
    uint32_t slots_count;
    uint32_t slots_free; /* chain through next_free, UINT32_MAX ends it */
    uint32_t connections_count;
    peer_counts peers;    /* of clients that came to a listener, and were adopted */
    uint32_t *open_shown; /* their number, for whoever places new ones; NULL: nobody wants to know */

    listener listeners[LISTENERS_MAX];
    tpc_tls_context *listener_tls[LISTENERS_MAX]; /* of those that it accepts from now on; NULL: they are plain */
    uint32_t listeners_count;
    bool accepting;
    uint8_t listener_stages[LISTENERS_MAX]; /* in which its connections begin */
    bool requires_subject;                  /* rights are asked for */
    node strangers;                         /* in a stage in which they are not served */
    int64_t strangers_bytes;                /* of memory, as far as it was counted */

    bool multishot; /* receive with the buffer ring; else poll and receive */
    struct io_uring_buf_ring *buffer_ring;
    size_t buffer_ring_bytes;
    uint8_t *buffers;
    uint8_t *scratch;

    sending **sendings;
    uint32_t sendings_count;
    sending *sendings_free;

    node attention;
    node by_activity;
    node by_send;
    node by_assembly;
    node by_starvation;
    node by_handshake; /* of TLS filters, the oldest connection first */
    node handshaking;  /* of those, with a session: the oldest session first */
    uint32_t handshaking_count;
    int64_t handshakes_ns;      /* what handshakes have taken in this turn */
    uint32_t left_closed;       /* connections whose clients had left, closed in this turn */
    uint8_t *tls_scratch;       /* two records; NULL until a connection has TLS */
    uint32_t frames_leaving;    /* of requests that were given up while the kernel received into them */
    int64_t starved_at_bytes;   /* what the budget had used when the starved last tried */
    int64_t starved_at_answers; /* and what the answers held */
    int64_t answers_held_bytes; /* in memory, of answers that have not left, and of those that Python is making */

    tpc_frame *chunks[ANSWER_CHUNKS_KEPT]; /* for whoever answers next */
    uint32_t chunks_count;

    tpc_hot_handler hot;
    void *hot_context;
    tpc_hot_handler borrowed;
    void *borrowed_context;
    tpc_alignment_handler alignment;
    void *alignment_context;
    struct links *links;        /* NULL: there are none */
    uint32_t links_connections; /* links and streams */
    uint32_t steady_links;      /* connections to other nodes */
    struct quotas *quotas;      /* NULL: none was ever set */
    tpc_connection_statistics statistics;
    tpc_latencies latencies;
};

static inline uint64_t connection_id(const connection *it) { return (uint64_t)it->generation << 32 | it->slot; }

static inline void connection_hold(connection *it) {
    it->operations++;
    it->owner->statistics.operations++;
}

static inline void connection_needs_attention(connection *it) {
    if (it->state != CONNECTION_CLOSING && !node_linked(&it->attention))
        node_to_tail(&it->owner->attention, &it->attention);
}

/* Its socket brings nothing more; what has come before is still taken. */
static inline void connection_end_of_file(connection *it) {
    it->end_of_file = true;
    connection_needs_attention(it);
}

/* connection_table.c */
connection *connection_find(tpc_connections *connections, uint64_t id);
/* The connection of a completion; the kernel still worked for it, so it is there. */
connection *connection_of_completion(tpc_connections *connections, uint64_t user_data);
/* Without links and their streams. */
uint32_t connections_of_clients(const tpc_connections *connections);
/* Their number has changed: whoever wants to know is told. */
void connections_counted(tpc_connections *connections);
/* One that nobody is told of. NULL: no memory. */
connection *connection_make(tpc_connections *connections, int descriptor, uint16_t listener,
                            const connection_sink *sink);
/* As if it had never been there; the descriptor is the caller's. */
void connection_withdraw(connection *it);
/* Its place is free, and so is its memory. */
void connection_discard(connection *it);
/* Tells Python that it is there. -ENOBUFS, and then it is gone. */
int connection_announce(connection *it);
/* Its parts have let go of everything when this returns; it may be gone, unless somebody holds it. */
void connection_begin_close(connection *it, int reason, int error);
void connection_let_go(connection *it);
void connection_touch(connection *it);

/* connection_identity.c */
/* The stage of its listener is its own. */
void identity_begin(connection *it);
/* It took nothing since then. */
void identity_unmuted(connection *it, int64_t since_ns);
void identity_closing(connection *it);
void identity_free(connection *it);
/* Closes who was not let in for too long; the instant at which to look again. */
int64_t identity_turn(tpc_connections *connections, int64_t now_ns);
bool identity_may_be_served(const connection *it);
int identity_refusal(const connection *it, int16_t api_key);
bool identity_must_wait(const connection *it);
/* Whether streams of that listener's clients have to come with a subject. */
bool identity_is_required(const tpc_connections *connections, uint16_t listener);
/* What a connection that is not let in holds has changed. */
void identity_count(connection *it);
/* Before it takes so many bytes more. False: it is closing, since all that are not let in would hold too much. */
bool identity_has_room(connection *it, int64_t more);

/* Whether C may serve it by itself: in place, from a frame, or by a place for its bytes. */
static inline bool connection_may_be_served(const connection *it) {
    return !it->is_watched || identity_may_be_served(it);
}

/* Why it is to be closed instead of served, by anybody: of enum tpc_close_reason; TPC_CLOSE_NONE: it is not. */
static inline int connection_refusal(const connection *it, int16_t api_key) {
    return it->is_watched ? identity_refusal(it, api_key) : TPC_CLOSE_NONE;
}

/* Whether its next request stays unparsed: until the one before is answered, or until Python has said whose it is. */
static inline bool connection_must_wait(const connection *it) { return it->is_watched && identity_must_wait(it); }

/* connection_quota.c */
void quotas_free(tpc_connections *connections);
/* Whether anything counts what this client does. */
bool quota_counts(connection *it, const tpc_request *request);
/* A whole request, about to be answered: counts it, and mutes its connection if it is above a quota. */
void quota_take(connection *it, tpc_request *request, uint32_t bytes, answer *place_of_answer);
/* The answer to a Fetch, in bytes. */
void quota_fetched(connection *it, const answer *place, uint64_t bytes);
/* Around the part of a request that C does. */
int64_t quota_time_begins(const connection *it);
void quota_time_ends(connection *it, int64_t began_ns);
/* Whether one more connection of an address may come; then it counts. */
bool quota_admits(tpc_connections *connections, uint16_t listener, const peer_address *peer);
/* Its time is over or it is closing: it stands in no list any more. */
void quota_unmute(connection *it);
/* It is about to be freed. */
void quota_forget(connection *it);
int64_t quota_turn(tpc_connections *connections, int64_t now_ns);

/* connection_answers.c */
/* A place for the answer of the next request, and its sequence is used up. 0 or -ENOMEM. */
int answers_reserve_place(connection *it, const tpc_request *request, uint32_t request_bytes);
/* The one that was reserved last; and it is taken back. */
answer *answers_last_place(const connection *it);
void answers_return_place(connection *it);
/* False: what nobody reads holds so much that nothing is made for a further Fetch. */
bool answers_have_room(const tpc_connections *connections);
/* Something behind what the connection sends. The references are consumed. `memory`: it counts as memory of answers.
 * 0; -ENOMEM: the connection is closed. */
int answers_push(connection *it, const tpc_slice *slices, uint32_t count, bool memory);
/* The oldest answer of a stream, when it is there, off its ring: slices with their references (NULL: it has none), which
 * the caller frees when they are not `single`. */
bool answers_take(connection *it, answer *taken);
/* Steps over answers that are none; gives the memory of a burst back when the last one has left. */
void answers_skip_none(connection *it);
/* So many bytes of those that are ready have left. */
void answers_progressed(connection *it, uint64_t bytes);
void answers_forget(connection *it);

/* The place of one that is reserved. */
static inline answer *answer_at(const connection *it, int64_t sequence) {
    return &it->answers[(uint64_t)sequence & (it->answers_capacity - 1)];
}

/* connection_framing.c */
/* Parses until the bytes end or the connection must not take more; how many were taken. */
size_t framing_parse(connection *it, uint8_t *data, size_t bytes);
/* Where the next bytes of an unfinished request may be written if at least `bytes` of it are missing. NULL: they are not,
 * or the connection is starved now. */
uint8_t *framing_room(connection *it, uint32_t bytes);
/* So many bytes more of the request are in its frame. */
void framing_arrived(connection *it, size_t bytes);
/* Nothing more is to be received: above a bound of the connection; or for want of memory, in which case it stands among the
 * starved. */
void framing_pause(connection *it);
void framing_starve(connection *it);
void framing_end_starvation(connection *it);
/* Tells how large a connection's requests are, which decides how the next ones are received. */
void framing_note_size(connection *it, uint32_t bytes);

/* How much of the unfinished request is there. */
static inline uint32_t framing_have_bytes(const connection *it) {
    return it->partial != NULL ? it->partial->length - it->lead : 0;
}

/* connection_send_operation.c */
sending *send_take(tpc_connections *connections);
void send_return(tpc_connections *connections, sending *it);
/* The kernel needs its bytes no more. */
void send_release_frames(sending *it);
/* The entry of an operation; NULL: there is none, and the sending was returned. */
struct io_uring_sqe *send_entry(const connection *it, sending *to);
void send_begun(connection *it, sending *to, enum sending_kind kind);
/* Closes it, with the reason that the error is. */
void send_broke(connection *it, int error);

/* connection_send_file.c */
bool send_with_files(connection *it);
/* Reads what is next of a file into memory, where it takes its place in the answer. */
bool send_read_stretch(connection *it, const tpc_slice *slice);
void send_stretch_read(connection *it, sending *by, int32_t result);

/* connection_tls.c: of connections with a `tls`. */
int tls_open(connection *it, tpc_tls_context *context);
/* One that has shaken hands elsewhere, with what was received and not decrypted there. Takes the session. -ENOMEM: it does not. */
int tls_adopt(connection *it, tpc_tls_session *session, const uint8_t *unread, size_t unread_bytes);
/* How many of these bytes of ciphertext were taken. */
size_t tls_take(connection *it, const uint8_t *data, size_t bytes);
/* What was decrypted and had to wait. */
void tls_take_kept(connection *it);
/* Of any connection: whether there is something of that. */
bool tls_keeps_bytes(const connection *it);
/* Of any connection: it takes nothing now, until the next turn or until it has a name. */
bool tls_waits(const connection *it);
bool tls_waits_for_turn(const connection *it);
bool tls_send(connection *it);
void tls_sent(connection *it, const sending *by, uint64_t bytes);
void tls_closing(connection *it);
/* Of any connection. */
void tls_free(connection *it);
int64_t tls_turn(tpc_connections *connections, int64_t now_ns);
void tls_stop(tpc_connections *connections);

/* connection_receive.c */
int receive_start(tpc_connections *connections);
void receive_stop(tpc_connections *connections);
void receive_on_completion(void *context, uint64_t user_data, int32_t result, uint32_t flags);
/* Goes on with what was parked, arms or cancels the receive as the state demands. False: no submission entry was left. */
bool receive_attend(connection *it);
void receive_forget(connection *it);
void receive_discard(connection *it);
/* Bytes of a connection without a socket. */
void receive_feed(connection *it, uint8_t *data, size_t bytes);
/* Whether a frame can be given to its sink past those bytes. */
bool receive_takes_frames(const connection *it);
/* Nothing comes any more: a stream of which nothing waits to be taken closes at once. */
void receive_end_of_file(connection *it);

/* connection_requests.c */
extern const connection_sink request_sink;

/* link.c */
void links_free(tpc_connections *connections);
/* The connection begins to close: a link, a stream, or a client that forwards. */
void links_connection_closing(connection *it);
/* It is gone, and about to be freed. */
void links_connection_gone(connection *it);
/* Sends what a stream has answered; whether that was anything. */
bool links_send_answers(connection *it);

/* connection_send.c */
void send_on_completion(void *context, uint64_t user_data, int32_t result, uint32_t flags);
/* Submits what is answered in order. False: no submission entry was left. */
bool send_attend(connection *it);
/* Whether a FLUSHING connection has sent what it was to send. */
bool send_is_flushed(const connection *it);

/* connection_accept.c */
void accept_on_completion(void *context, uint64_t user_data, int32_t result, uint32_t flags);
int64_t accept_turn(tpc_connections *connections, int64_t now_ns);

#endif
