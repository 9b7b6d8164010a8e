typedef struct tpc_connections tpc_connections;

/* Why a connection ended: the `a` of TPC_EVENT_CLOSED, whose `b` is an errno (0 when there is none to tell),
 * or the announced length when that was at fault. */
enum tpc_close_reason {
    TPC_CLOSE_NONE = 0,
    TPC_CLOSE_LOCAL = 1,           /* the broker asked for it */
    TPC_CLOSE_PEER = 2,            /* end of file, after the last complete request was handed over */
    TPC_CLOSE_RESET = 3,           /* ECONNRESET, EPIPE and their kin */
    TPC_CLOSE_FRAME_TOO_LARGE = 4, /* announced length above request_bytes_max */
    TPC_CLOSE_FRAME_NEGATIVE = 5,  /* announced length below zero */
    TPC_CLOSE_FRAME_EMPTY = 6,     /* announced length 0: not even a header */
    TPC_CLOSE_HEADER_MALFORMED = 7,
    TPC_CLOSE_BUDGET = 8,        /* memory was short and this one kept an unfinished request without sending */
    TPC_CLOSE_SEND_DEADLINE = 9, /* the peer took no byte of its answers for send_deadline_ms */
    TPC_CLOSE_IDLE = 10,
    TPC_CLOSE_IO_ERROR = 11,            /* any other errno */
    TPC_CLOSE_REQUEST_INVALID = 12,     /* the broker could not make sense of the body, or acks=0 met an error */
    TPC_CLOSE_SHUTDOWN = 13,            /* the core is stopping */
    TPC_CLOSE_AUTHENTICATION = 14,      /* it was not let in */
    TPC_CLOSE_UNAUTHENTICATED = 15,     /* it asked for something before it was let in */
    TPC_CLOSE_AUTHENTICATION_LATE = 16, /* it was not let in within authentication_ms_max */
    TPC_CLOSE_STRANGER_TOO_LARGE = 17,  /* announced length above authentication_bytes_max, before it was let in */
    TPC_CLOSE_SESSION_OVER = 18,        /* it asked for something past the deadline of its session (KIP-368) */
    TPC_CLOSE_TLS = 19,                 /* what came was not TLS, or was refused; see tpc_tls_error_text() */
    TPC_CLOSE_HANDSHAKE_DEADLINE = 20,  /* the handshake of TLS took too long */
    TPC_CLOSE_REASONS_COUNT = 21
};

enum tpc_close_when {
    TPC_CLOSE_NOW = 0,
    TPC_CLOSE_AFTER_ANSWERED = 1, /* takes no more requests; closes when what is answered in order has been sent */
    TPC_CLOSE_AFTER_TAKEN = 2     /* takes no more requests; closes when every request taken is answered and sent */
};

/* Every bound of the connections of one core. 0 in a duration means: none. */
typedef struct {
    uint32_t connections_max;        /* further ones are accepted and closed at once, and counted */
    uint32_t request_bytes_max;      /* of one request, without its 4-byte length */
    uint32_t pipelined_requests_max; /* taken, and answer not yet sent, per connection; then receiving pauses */
    uint32_t zero_copy_local;        /* 1: zero copy also to peers on this host, where it costs more than it saves */
    uint64_t receive_share_bytes;    /* of requests and answers per connection; then receiving pauses */
    uint64_t zero_copy_bytes_min;    /* sends from this size on are made without a copy; 0: never */
    uint32_t send_deadline_ms;
    uint32_t idle_ms_max;
    uint32_t assembly_stall_ms_max; /* an unfinished request may stand still this long while memory is short */
    uint32_t receive_buffers_count; /* a power of two */
    uint32_t receive_buffer_bytes;
    uint32_t handshake_ms_max;         /* of TLS, from the opening of the connection */
    uint32_t handshakes_max;           /* of TLS, begun and not at their end; for one more the oldest goes */
    uint32_t accept_retry_ms;          /* pause after EMFILE and the like */
    uint32_t connections_per_ip_max;   /* of one address; handled as connections_max */
    uint32_t authentication_bytes_max; /* of one request of a connection that is not let in yet */
    uint32_t authentication_ms_max;    /* from its opening until it must be let in */
    uint64_t strangers_bytes_max;      /* of memory, of all that are not let in yet */
} tpc_connection_limits;

/*
 * One request, header decoded. Whoever takes it (Python from the event, or the hot handler) owns it: it stays valid,
 * also when its connection closes, until tpc_request_release() or one of the tpc_request_answer*() functions.
 */
typedef struct tpc_request {
    uint64_t connection;
    int64_t sequence;         /* per connection: 0, 1, 2 ... */
    tpc_frame *frame;         /* the whole request without its length field; retain it to keep the bytes longer */
    const uint8_t *body;      /* inside the frame, behind the header */
    const uint8_t *client_id; /* inside the frame */
    int64_t received_ns;      /* monotonic */
    uint32_t body_bytes;
    int32_t client_id_bytes; /* -1: null */
    int32_t correlation_id;
    int16_t api_key;
    int16_t api_version;
    uint8_t flexible;         /* the body has compact strings and tagged fields */
    uint8_t in_python;        /* handed over as an event, not yet answered or taken back */
    uint16_t listener;        /* number of the one that accepted its connection: what is told may differ by it */
    uint32_t header_bytes;    /* in front of the body */
    uint8_t fallback_reason;  /* enum tpc_produce_fallback: why C has left a Produce; 0: it was not asked */
    uint32_t subject;         /* who has sent it; 0: nobody, or not known yet */
    uint32_t throttle_ms;     /* to be said in its answer; its connection takes nothing for so long (31_quota.h) */
    tpc_frame *decoded;       /* what a Produce that was left says (produce.c); NULL: that is not kept */
    struct tpc_request *next; /* for whoever owns it */
} tpc_request;

typedef struct {
    uint64_t opened;
    uint64_t closed;
    uint64_t refused;        /* above connections_max, or connections_per_ip_max */
    uint64_t refused_per_ip; /* of them, above the latter */
    uint64_t accept_failures;
    uint64_t requests;
    uint64_t requests_hot; /* taken by the hot handler */
    uint64_t answers;
    uint64_t answers_none;
    uint64_t answers_void; /* their connection was gone */
    uint64_t received_bytes;
    uint64_t sent_bytes;
    uint64_t receives;
    uint64_t sends;
    uint64_t sends_partial;
    uint64_t sends_zero_copy;
    uint64_t sends_of_files;        /* from the page cache */
    uint64_t reads_of_files;        /* stretches that were not there */
    uint64_t pauses;                /* receiving stopped because of a bound of the connection */
    uint64_t starvations;           /* receiving stopped because the budget was used up */
    uint64_t receive_buffers_short; /* the kernel found no provided buffer */
    uint64_t handshakes;            /* of TLS, that were brought to an end */
    uint64_t handshakes_put_off;    /* steps of them that waited for the next turn */
    uint64_t closed_by_reason[21];
    uint64_t requests_unanswered; /* now */
    uint64_t answer_bytes_unsent; /* now */
    uint64_t answer_bytes_held;   /* now: in memory, those that Python is making included */
    uint64_t assembling_bytes;    /* now: arrived, but not a whole request yet */
    uint32_t connections;         /* now, those being closed included */
    uint32_t operations;          /* now: of the kernel, over all connections and listeners */
    uint32_t sends_in_kernel;     /* now: zero-copy notifications that are due included */
    uint32_t slots;
} tpc_connection_statistics;

/* What came to one listener's socket. Connections of links are not in it. */
typedef struct {
    uint64_t opened;
    uint64_t refused; /* above connections_max, or connections_per_ip_max */
    uint64_t requests;
    uint64_t received_bytes;
    uint64_t sent_bytes;
    uint64_t connections; /* now */
} tpc_listener_statistics;

enum { TPC_LATENCY_APIS = 95, TPC_LATENCY_SPANS = 25, TPC_SLOWEST = 16 };

/* The times of one API's requests, from the arrival of the whole request until its answer was ready to be sent:
 * spans[i] are those of less than 2^i us, the last one all longer ones too. */
typedef struct {
    uint64_t sum_ns;
    uint64_t spans[TPC_LATENCY_SPANS];
} tpc_api_latency;

/* took_ns 0: there is none. */
typedef struct {
    int64_t took_ns;
    int64_t answered_ns; /* monotonic */
    uint64_t connection;
    uint64_t answer_bytes;
    uint32_t request_bytes;
    int16_t api_key;
    int16_t api_version;
} tpc_slow_request;

typedef struct {
    tpc_api_latency apis[TPC_LATENCY_APIS]; /* by API key */
    int64_t window_until_ns;
    int64_t floor_ns;                             /* the shortest time among the slowest, once they are TPC_SLOWEST */
    tpc_slow_request slowest[TPC_SLOWEST];        /* of this minute */
    tpc_slow_request slowest_before[TPC_SLOWEST]; /* of the one before */
} tpc_latencies;

typedef struct {
    uint64_t connection;
    int64_t opened_ns;
    int64_t active_ns;
    uint64_t requests;
    uint64_t received_bytes;
    uint64_t sent_bytes;
    uint64_t held_bytes; /* unanswered requests and unsent answers */
    uint32_t requests_unanswered;
    int32_t descriptor;
    uint32_t paused;
    uint32_t closing;
    uint32_t listener;
    char peer[64]; /* "127.0.0.1:4711", "[::1]:4711", "unix" */
} tpc_connection_info;

/* NULL with errno when memory or the buffer ring cannot be had (the latter only falls back). The ring outlives it. */
tpc_connections *tpc_connections_new(tpc_ring *ring, tpc_budget *budget, const tpc_connection_limits *limits);
/* Frees what is left; -EBUSY while the kernel still works for a connection or listener. */
int tpc_connections_free(tpc_connections *connections);

/* Accepts from a listening socket, which stays the caller's and open until after tpc_connections_stop_accepting(). Sets
 * TCP_NODELAY on it, which accepted sockets inherit. A listener number >= 0 or -errno. */
int tpc_connections_listen(tpc_connections *connections, int descriptor);
/*
 * Who comes to a listener from now on, which may be one that is yet to come, speaks TLS by this context. The connections that
 * are there keep what they have. 0 or -EINVAL: no such number. Where the context asks clients for certificates, TPC_EVENT_SECURED comes when a handshake is whole, and nothing of
 * the connection is served until tpc_connection_named().
 */
int tpc_connections_secure(tpc_connections *connections, uint32_t listener, tpc_tls_context *context);
/* As text without a zero at its end: its length. 0: it gave no certificate; -ENOENT: it has no such name; -ENAMETOOLONG;
 * -ENOTCONN. `where` is of enum tpc_tls_name. */
int tpc_connection_peer_name(tpc_connections *connections, uint64_t connection, int where, char *into, uint32_t room);
/* It is known who it is. 0 or -ENOTCONN. */
int tpc_connection_named(tpc_connections *connections, uint64_t connection);
/* Takes over an accepted or connected stream socket, as if that listener had accepted it. 0, or -errno and the descriptor
 * stays the caller's: -EINVAL: no such number; -EMFILE above connections_max, -EUSERS above
 * connections_per_ip_max, -EDQUOT above a quota. */
int tpc_connections_adopt(tpc_connections *connections, int descriptor, uint32_t listener, uint64_t *connection);
/* The number of open connections is kept there from now on: memory that is shared with who places them. */
void tpc_connections_show_open(tpc_connections *connections, uint32_t *place);
void tpc_connections_stop_accepting(tpc_connections *connections);
void tpc_connections_close_all(tpc_connections *connections, int reason, int when);

/*
 * Answers. Any order; each connection sends in the order of its requests. The 4-byte length is put before them here: what
 * is given begins with the correlation id. 0, or -ENOTCONN (connection gone: quiet), -EALREADY (answered before), -EINVAL
 * (no such request), -ENOMEM (the connection is closed then).
 *
 * Slices: the caller's references are consumed in any case. A slice whose frame is NULL is copied during the call.
 */
int tpc_answer_slices(tpc_connections *connections, uint64_t connection, int64_t sequence, const tpc_slice *slices,
                      uint32_t count);
int tpc_answer_bytes(tpc_connections *connections, uint64_t connection, int64_t sequence, const uint8_t *data,
                     size_t length);
/* Nothing is sent for this request (acks=0). */
int tpc_answer_none(tpc_connections *connections, uint64_t connection, int64_t sequence);

/* The same, and the request is released. */
int tpc_request_answer_slices(tpc_connections *connections, tpc_request *request, const tpc_slice *slices,
                              uint32_t count);
int tpc_request_answer_bytes(tpc_connections *connections, tpc_request *request, const uint8_t *data, size_t length);
int tpc_request_answer_none(tpc_connections *connections, tpc_request *request);
void tpc_request_release(tpc_request *request);

/* 0 or -ENOTCONN. `when` is of enum tpc_close_when; a later call may only make it sooner. */
int tpc_connection_close(tpc_connections *connections, uint64_t connection, int reason, int when);
/* 0 or -ENOTCONN. */
int tpc_connection_describe(tpc_connections *connections, uint64_t connection, tpc_connection_info *info);
/* Of the last prepared answer with a mark that it was given (57_prepared.h); 0: there was none, or it is gone. */
uint32_t tpc_connection_mark(tpc_connections *connections, uint64_t connection);
void tpc_connections_statistics(tpc_connections *connections, tpc_connection_statistics *statistics);
/* Of listener n in statistics[n], up to `count` of them; how many there are. Looks at every connection. */
uint32_t tpc_connections_listener_statistics(const tpc_connections *connections, tpc_listener_statistics *statistics,
                                             uint32_t count);
/* Valid as long as the connections are. */
const tpc_latencies *tpc_connections_latencies(const tpc_connections *connections);
/* Changes bounds while running; buffers and slots stay as they were made. */
void tpc_connections_set_limits(tpc_connections *connections, const tpc_connection_limits *limits);

/* Of one that came before its connection was let in (31_identity.h): who asks. */
void tpc_request_set_subject(tpc_request *request, uint32_t subject);

/* The hot handler (see connection.h); NULL: none. */
typedef int (*tpc_hot_handler)(void *context, tpc_request *request);
void tpc_connections_set_hot(tpc_connections *connections, tpc_hot_handler handler, void *context);

/* For measuring: answers every request inside the wait with its own body. */
void tpc_connections_set_echo(tpc_connections *connections, int on);
