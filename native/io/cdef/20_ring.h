typedef struct tpc_ring tpc_ring;

/* What differs between kernel 5.8 and today. The mask `hidden` of tpc_ring_new() hides any of them, for tests. */
enum tpc_feature {
    TPC_FEATURE_SINGLE_ISSUER = 0,     /* 6.0 */
    TPC_FEATURE_DEFER_TASKRUN = 1,     /* 6.1 */
    TPC_FEATURE_COOP_TASKRUN = 2,      /* 5.19 */
    TPC_FEATURE_EXT_ARG = 3,           /* 5.11: wait with a time-out argument */
    TPC_FEATURE_MULTISHOT_ACCEPT = 4,  /* 5.19 */
    TPC_FEATURE_MULTISHOT_RECEIVE = 5, /* 6.0 */
    TPC_FEATURE_BUFFER_RING = 6,       /* 5.19 */
    TPC_FEATURE_SEND_ZC = 7,           /* 6.0 */
    TPC_FEATURE_UNLINKAT = 8,          /* 5.11 */
    TPC_FEATURE_FTRUNCATE = 9,         /* 6.9 */
    TPC_FEATURE_SENDMSG_ZC = 10,       /* 6.1 */
    TPC_FEATURE_CANCEL_ANY = 11,       /* 5.19: cancel everything with one entry */
    TPC_FEATURE_CACHESTAT = 12,        /* 6.5: what of a file is in the page cache */
    TPC_FEATURES_COUNT = 13
};

/* How entries are carried out. Nothing above the ring knows. */
enum tpc_backend {
    TPC_BACKEND_IO_URING = 0,
    TPC_BACKEND_PLAIN = 1,     /* epoll, non-blocking calls and threads (native/io/plain.c) */
    TPC_BACKEND_SIMULATED = 2, /* a test carries them out (22_simulated.h) */
};

/* What tpc_ring_wait() reports to Python, in the order it happened. */
enum tpc_event_kind {
    TPC_EVENT_OPERATION = 1, /* token: as given at submission; a: result (>= 0 or -errno); b: cqe flags */
    TPC_EVENT_REQUEST = 2,   /* token: connection id; a: request sequence; b: frame length; pointer: tpc_request */
    TPC_EVENT_OPENED = 3,    /* token: connection id; a: descriptor */
    TPC_EVENT_CLOSED = 4,    /* token: connection id; a: reason (enum tpc_close_reason); b: errno */
    TPC_EVENT_JOURNAL_DURABLE = 5,    /* a: durable sequence (contiguous) */
    TPC_EVENT_JOURNAL_FAILED = 6,     /* a: first failed sequence; b: errno */
    TPC_EVENT_PARTITION_ADVANCED = 7, /* token: partition handle; a: high watermark; b: last stable offset */
    TPC_EVENT_JOURNAL_SPACE = 8,      /* a: blocks in use; b: blocks in all: write behind and checkpoint, please */
    TPC_EVENT_ACCEPT_FAILED = 9,      /* token: listener; b: errno */
    TPC_EVENT_WAKE = 10,
    TPC_EVENT_WRITE_BEHIND_DUE = 11, /* token: partition handle; see tpc_plane_watch_due() */
    TPC_EVENT_LINK = 13,             /* token: the other core; a: 1 up, 0 gone; b: 1 when this core dialled */
    TPC_EVENT_APPENDED = 15,         /* see tpc_plane_take_appended() */
    TPC_EVENT_STEADY = 16,           /* see tpc_steady_take() */
    TPC_EVENT_STEADY_LINK = 17,      /* token: a link of tpc_steady_adopt() that is gone */
    TPC_EVENT_GRANT_WANTED = 20,     /* token: the subject, which wants to write; a, b: the topic's id (58_grants.h) */
    TPC_EVENT_SECURED = 18,          /* token: connection id; a: listener; see tpc_connections_secure() */
    TPC_EVENT_WAIT_OVER = 14,        /* token: as given to tpc_partition_wait(); a: Kafka's error code, 0: reached */
    TPC_EVENT_ROOM_LOW = 12 /* token: partition handle; a: bytes_admitted; b: what waits for room, 0: nothing does */
};

typedef struct {
    uint32_t kind;
    uint32_t reserved;
    uint64_t token;
    int64_t a;
    int64_t b;
    void *pointer;
} tpc_event;

enum { TPC_SPANS = 16 }; /* counters of times, by powers of two of 1 us; see tpc_span_of() */

typedef struct {
    uint64_t turns;       /* calls of tpc_ring_wait() */
    uint64_t enters;      /* io_uring_enter() system calls */
    uint64_t submissions; /* entries handed to the kernel */
    uint64_t completions;
    uint64_t events;                  /* handed to Python */
    uint64_t wakes;                   /* tpc_ring_wake() seen */
    uint64_t timeouts;                /* waits that ended with nothing but their time-out */
    uint64_t hot_limits;              /* waits that ended because hot work had its share */
    uint64_t outstanding;             /* entries taken whose last completion is still to come */
    uint64_t operations;              /* operations of Python under way */
    uint64_t overflows;               /* completions that the kernel had to keep outside the ring */
    int64_t wait_ns;                  /* time inside the kernel, waiting and submitting */
    int64_t work_ns;                  /* time in completion handlers and turn hooks */
    int64_t python_ns;                /* time outside of waits and serves */
    uint64_t stalls;                  /* turns in which Python took longer than the stall threshold */
    int64_t stall_ns_max;             /* the longest of them */
    uint64_t turns_with_events;       /* waits that ended because there was something for Python */
    uint64_t serves;                  /* calls of tpc_ring_serve() that found it was time */
    uint64_t python_spans[TPC_SPANS]; /* times that Python took between two visits of C: [i] of less than 2^i us */
} tpc_ring_statistics;

/* A ring with `entries` submission entries (fewer when memlock is short), owned by the calling thread. `hidden` is a mask
 * of 1 << enum tpc_feature that is not to be used although the kernel has it. 0; -ENOSYS, -EPERM, -ENOMEM … as
 * io_uring_setup(2) gave it when even the plainest ring was refused. */
int tpc_ring_new(unsigned entries, uint32_t hidden, enum tpc_backend backend, tpc_ring **ring);

/* Cancels what is under way, waits for every last completion (their handlers run) and frees the ring. 0, or
 * -ETIMEDOUT when something did not finish within `timeout_ns`: then the memory is left alone, because the kernel may
 * still write to it. Modules hung on the ring are stopped before, and unregister their handlers with NULL. */
int tpc_ring_close(tpc_ring *ring, int64_t timeout_ns);

/* Runs the turn hooks, submits and waits with one io_uring_enter(2), hands completions to their handlers, and returns at
 * the earliest of: an event for Python, `timeout_ns` (< 0: none), 10 ms or `work_max` completions of hot work since the first one
 * was handled, tpc_ring_wake(), a signal. The number of events written to `events`; what did not fit comes first next time.
 * Without events: 0 (hot work, wake-up), -ETIME (the time-out), -EINTR (run the signal handlers); other -errno: the ring
 * is unusable. */
int tpc_ring_wait(tpc_ring *ring, int64_t timeout_ns, unsigned work_max, tpc_event *events, unsigned events_max);

/*
 * For the midst of Python's part of a turn: when it has taken `after_ns` since C was left, the turn hooks run, what is queued is
 * submitted, and what has completed is handled, as in a wait but without waiting. Events for Python stay for the next wait.
 * 1: that was done; 0: it was too early.
 */
int tpc_ring_serve(tpc_ring *ring, int64_t after_ns);

/* Ends the current or the next wait. The one call that any thread, and a signal handler, may make. */
void tpc_ring_wake(tpc_ring *ring);

/* Submits what is queued without waiting: 0 or -errno. */
int tpc_ring_submit(tpc_ring *ring);

uint32_t tpc_ring_features(const tpc_ring *ring); /* usable: 1 << enum tpc_feature */
void tpc_ring_get_statistics(const tpc_ring *ring, tpc_ring_statistics *statistics);

/* The same as they are counted, but for `overflows`: for who looks at each turn. Until the ring is closed. */
const tpc_ring_statistics *tpc_ring_live_statistics(const tpc_ring *ring);

/* The longest that Python had the core between two waits since the last call of this, in ns, without what C took in between. */
int64_t tpc_ring_take_longest_turn(tpc_ring *ring);

/*
 * The ring keeps this open file open until it is torn down for good, which for the ring of a process that was killed is a
 * little after its death: a lock on it outlasts the last write. One file per ring; -EBUSY when there is one already.
 */
int tpc_ring_hold_file(tpc_ring *ring, int descriptor);
