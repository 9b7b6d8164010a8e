/*
 * Fetch: sessions, reads from memory, the wait for min_bytes. A plain Fetch is answered inside the ring's wait; whatever
 * needs more (metadata, a segment that is not at hand, transactions) is left to Python, which gets the fetch as it stands:
 * a session is looked up and moved on once, whoever answers.
 */

/* Why a Fetch was left to Python. */
enum tpc_fetch_fallback {
    TPC_FETCH_FALLBACK_NONE = 0,
    TPC_FETCH_FALLBACK_MALFORMED = 1, /* the body does not decode: close the connection */
    TPC_FETCH_FALLBACK_VERSION = 2,   /* a version that is not served */
    TPC_FETCH_FALLBACK_NO_MEMORY = 3,
    TPC_FETCH_FALLBACK_FOLLOWER = 4,     /* a replica asks */
    TPC_FETCH_FALLBACK_UNKNOWN = 5,      /* a partition that is not in the table, or not led: the metadata know why */
    TPC_FETCH_FALLBACK_INTERNAL = 6,     /* a topic of the broker's own */
    TPC_FETCH_FALLBACK_LEADER_EPOCH = 7, /* not the epoch that the client believes */
    TPC_FETCH_FALLBACK_LAST_EPOCH = 8,   /* the client asks whether its log diverges */
    TPC_FETCH_FALLBACK_TRANSACTIONS = 9, /* committed records are wanted where only segments know which were aborted */
    TPC_FETCH_FALLBACK_SEGMENT = 10,     /* below what memory holds, and no window is open there */
    TPC_FETCH_FALLBACK_COLD = 11,        /* a window is open, but the page cache lacks the batches' headers */
    TPC_FETCH_FALLBACK_NEARER = 12,      /* the client's rack has a replica that may be read */
    TPC_FETCH_FALLBACK_OFFSET = 13,      /* a replica has not got the offset; others may */
    TPC_FETCH_FALLBACK_AUTHORIZE = 14,   /* whether its subject may read is not known here */
    TPC_FETCH_FALLBACK_REASONS_COUNT = 15
};

/* The largest number of batches that one partition gives to one answer from memory. */
enum { TPC_READ_BATCHES_MAX = 1024 };

/* What is asked of one partition. Belongs to the request, or to the session, where later requests may change it. */
typedef struct tpc_fetch_asked {
    const uint8_t *topic_name; /* NULL: named by id */
    int64_t fetch_offset;
    int32_t topic_name_bytes; /* -1: named by id */
    int32_t partition;
    int32_t bytes_max;
    int32_t current_leader_epoch; /* -1: not given */
    int32_t last_fetched_epoch;   /* -1: not given */
    uint8_t topic_id[16];
} tpc_fetch_asked;

/* A Fetch whose session was looked up: what remains is to read and to answer. */
typedef struct tpc_fetch {
    uint64_t connection;
    int64_t sequence;
    int64_t deadline_ns;               /* monotonic: answered by then with what there is */
    struct tpc_request *request;       /* NULL while it is with Python */
    tpc_frame *frame;                  /* names point into it */
    struct tpc_fetch_session *session; /* NULL: none */
    tpc_fetch_asked **parts;
    struct tpc_fetch_wait *waits;      /* of a parked one, one per part */
    struct tpc_fetch *next, *previous; /* in a slot of the timer wheel, or among those left to Python */
    struct tpc_fetch *woken_next;
    int32_t parts_count;
    int32_t error_code; /* Kafka's, of the session; there are no parts then */
    int32_t session_id; /* for the answer */
    int32_t correlation_id;
    int32_t response_bytes_min;
    int32_t response_bytes_max;
    int16_t version;
    int8_t isolation_level;
    uint8_t incremental;
    uint8_t is_follower;
    uint8_t state; /* private */
    uint8_t woken;
    uint8_t retried;
    uint8_t with_names;     /* parts of its own, not the session's */
    uint8_t left_reason;    /* enum tpc_fetch_fallback: why it was left to Python last */
    uint32_t subject;       /* who asks */
    uint64_t rack;          /* of the client, as a bit of tpc_plane_set_racks(); 0: of none that is known */
    int64_t reserved_bytes; /* for its answer, see tpc_fetch_reserve() */
    int64_t waiting_bytes;  /* private: what it is charged while it waits, or is with Python */
} tpc_fetch;

/* What became of one partition, as far as sessions care. */
typedef struct {
    int64_t high_watermark;
    int64_t log_start_offset;
    int32_t error_code;
    uint8_t has_records;
    uint8_t is_elsewhere; /* the client is told to read from another replica */
    uint16_t reserved;
} tpc_fetch_outcome;

typedef struct {
    uint64_t taken;       /* answered from here, or parked to be */
    uint64_t parked;      /* of those, had to wait */
    uint64_t handed_over; /* of those, left to Python after all */
    uint64_t timed_out;   /* of those parked, answered because their time was over */
    uint64_t woken;       /* those parked have looked so often whether there is enough now */
    uint64_t parked_now;
    uint64_t sessions;           /* now */
    uint64_t session_partitions; /* now, in all sessions */
    uint64_t sessions_evicted;
    uint64_t sessions_refused; /* for want of bytes: new ones, and those that were to grow */
    int64_t session_bytes;     /* now, of all sessions */
    int64_t waiting_bytes;     /* now, of fetches that wait, or are with Python */
    uint64_t hurried;          /* did not wait, for want of these bytes */
    uint64_t record_bytes;     /* in answers from here */
    uint64_t segment_bytes;    /* of those, from segments */
    uint64_t windows;          /* now */
    uint64_t left[15];         /* by enum tpc_fetch_fallback */
} tpc_fetch_statistics;

/* Bounds that the settings say: the largest answer, and the number of sessions, whose slots are taken from sessions that
 * were not used for eviction_ms when all are. */
int tpc_plane_set_fetch_limits(tpc_plane *plane, int32_t response_bytes_max, uint32_t sessions_max,
                               int64_t eviction_ms);

/* In place of FETCH_SESSION_BYTES_MAX, the bound of all sessions together, and of all fetches that wait. For tests. */
void tpc_plane_set_fetch_session_bytes(tpc_plane *plane, int64_t bytes_max);

/* Where session ids come from, in place of chance. For tests. */
void tpc_plane_set_fetch_seed(tpc_plane *plane, uint64_t seed);

/*
 * A whole Fetch request. 1: taken, answered from here now or later, the request belongs to the plane. 0: left; Python goes
 * on with tpc_fetch_begin(), which knows how far it got.
 */
int tpc_plane_fetch(tpc_plane *plane, tpc_request *request);

/*
 * The fetch of a request that was left, made now unless tpc_plane_fetch() has begun it. The caller's, until
 * tpc_fetch_end(). -EBADMSG: malformed; -EPROTONOSUPPORT; -ENOMEM.
 */
int tpc_fetch_begin(tpc_plane *plane, tpc_request *request, tpc_fetch **fetch);

/*
 * A fetch of Python's that was left for want of rights, which are installed by now. 1: it is the plane's again, with its request.
 * 0: it stays the caller's, for whatever reason there is now.
 */
int tpc_fetch_again(tpc_plane *plane, tpc_request *request, tpc_fetch *fetch);

/*
 * Room for what is read for its answer, charged before it is read. 0, and how many bytes the answer may have (at most its
 * response_bytes_max); -ENOBUFS: answers that nobody reads hold all there is, so wait. Given back by tpc_fetch_unreserve(),
 * and at the end.
 */
int tpc_fetch_reserve(tpc_plane *plane, tpc_fetch *fetch, int64_t *bytes_max);
void tpc_fetch_unreserve(tpc_plane *plane, tpc_fetch *fetch);

/* Which partitions go into the answer, given what became of each, in order; the session remembers. */
void tpc_fetch_select(tpc_fetch *fetch, const tpc_fetch_outcome *outcomes, uint8_t *chosen);
void tpc_fetch_end(tpc_plane *plane, tpc_fetch *fetch);

/* Every fetch that waits is answered with what there is (drain). */
void tpc_plane_release_fetches(tpc_plane *plane);

void tpc_plane_get_fetch_statistics(const tpc_plane *plane, tpc_fetch_statistics *statistics);

/* The parts of a session in their order, for tests; how many there are, -ENOENT: no such session. */
int tpc_fetch_session_describe(const tpc_plane *plane, int32_t session_id, int32_t *expected_epoch,
                               tpc_fetch_asked *parts, tpc_fetch_outcome *sent, int32_t parts_max);
/* How many of them the fullest bucket of the session's hash table holds. For tests. */
int tpc_fetch_session_longest_chain(const tpc_plane *plane, int32_t session_id);

/* A stretch of a segment that C may find batches in and send from. */
typedef struct {
    const uint8_t *entries; /* of the offset index, as in its file: relative last offset, position; big-endian */
    int64_t segment_base_offset;
    int64_t from_offset;    /* the first offset that is certainly in here ... */
    int64_t upto_offset;    /* ... and the first that is not */
    int64_t from_position;  /* where a batch begins */
    int64_t end_position;   /* where one ends */
    uint32_t entries_count; /* those whose batches begin in here */
    int32_t descriptor;     /* duplicated */
    int32_t to_segment_end; /* 1: the segment ends at end_position ... */
    int32_t is_sealed;      /* ... for good */
} tpc_window_params;

int tpc_partition_open_window(tpc_plane *plane, uint64_t handle, const tpc_window_params *params);

/* Whether a read below the tail was left because there is no window for it. */
int tpc_partition_wants_window(tpc_plane *plane, uint64_t handle, int64_t offset, int64_t bytes_max);

/* Before segments are cut or made anew. */
int tpc_partition_close_windows(tpc_plane *plane, uint64_t handle);

/* Segments below the offset, all of them written, have given way to cleaned ones: what is told of them from here on is
 * what these hold. No window, nothing in memory and no aborted transaction is left of the ones before. */
int tpc_partition_replaced(tpc_plane *plane, uint64_t handle, int64_t upto_offset);
