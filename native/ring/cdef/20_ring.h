typedef struct tpc_ring tpc_ring;

/* What differs between kernel 5.8 and today. The mask `hidden` of tpc_ring_new() hides any of them, for tests. */
enum tpc_feature {
    TPC_FEATURE_SINGLE_ISSUER = 0,       /* 6.0 */
    TPC_FEATURE_DEFER_TASKRUN = 1,       /* 6.1 */
    TPC_FEATURE_COOP_TASKRUN = 2,        /* 5.19 */
    TPC_FEATURE_EXT_ARG = 3,             /* 5.11: wait with a time-out argument */
    TPC_FEATURE_MULTISHOT_ACCEPT = 4,    /* 5.19 */
    TPC_FEATURE_MULTISHOT_RECEIVE = 5,   /* 6.0 */
    TPC_FEATURE_BUFFER_RING = 6,         /* 5.19 */
    TPC_FEATURE_SEND_ZC = 7,             /* 6.0 */
    TPC_FEATURE_UNLINKAT = 8,            /* 5.11 */
    TPC_FEATURE_FTRUNCATE = 9,           /* 6.9 */
    TPC_FEATURE_SHUTDOWN = 10,           /* 5.11 */
    TPC_FEATURES_COUNT = 11
};

/* What tpc_ring_wait() reports to Python, in the order it happened. */
enum tpc_event_kind {
    TPC_EVENT_OPERATION = 1,        /* token: as given at submission; a: result (>= 0 or -errno); b: cqe flags */
    TPC_EVENT_REQUEST = 2,          /* token: connection id; a: request sequence; b: frame length; pointer: tpc_request */
    TPC_EVENT_OPENED = 3,           /* token: connection id; a: descriptor */
    TPC_EVENT_CLOSED = 4,           /* token: connection id; a: reason (enum tpc_close_reason); b: errno */
    TPC_EVENT_JOURNAL_DURABLE = 5,  /* a: durable sequence (contiguous) */
    TPC_EVENT_JOURNAL_FAILED = 6,   /* a: first failed sequence; b: errno */
    TPC_EVENT_PARTITION_ADVANCED = 7, /* token: partition handle; a: high watermark; b: last stable offset */
    TPC_EVENT_JOURNAL_SPACE = 8,    /* a: blocks in use; b: blocks in all: write behind and checkpoint, please */
    TPC_EVENT_ACCEPT_FAILED = 9,    /* token: listener; b: errno */
    TPC_EVENT_WAKE = 10
};

typedef struct {
    uint32_t kind;
    uint32_t reserved;
    uint64_t token;
    int64_t a;
    int64_t b;
    void *pointer;
} tpc_event;
