/* What the frames of one core may take together. Lives as long as its last frame, whoever frees it first. */
typedef struct {
    int64_t bytes_used;   /* capacities of the frames that live, headers included */
    int64_t bytes_max;    /* of all but the cache */
    int64_t bytes_cached; /* of bytes_used: batches that lie in segments as well; they have a bound of their own */
    void (*reclaim)(void *context,
                    int64_t bytes); /* gives up what the cache keeps beside them; NULL: there is no cache */
    void *reclaim_context;
    int64_t bytes_peak;
    int64_t bytes_peak_lately; /* since somebody who looks now and then has set it to bytes_used */
    int64_t frames;            /* how many live */
    int64_t refusals;          /* how often tpc_frame_new or tpc_frame_grow found no room */
    int64_t closed;            /* the owner has let go; the last frame frees it */
} tpc_budget;

/* A reference-counted buffer. One thread: the counts are not atomic. */
typedef struct tpc_frame {
    tpc_budget *budget;
    uint32_t references;
    uint32_t length;     /* bytes that mean something */
    uint32_t capacity;   /* bytes that may be written */
    uint16_t holds_file; /* 1: what it stands for is a stretch of a file, see frame.h */
    uint16_t shift;      /* its memory begins so many bytes in front of it */
    uint8_t data[];
} tpc_frame;

/* Some bytes of a frame. A slice that is stored holds one reference of its frame. */
typedef struct {
    tpc_frame *frame;
    const uint8_t *data;
    uint32_t length;
    uint32_t reserved;
} tpc_slice;

tpc_budget *tpc_budget_new(int64_t bytes_max);
void tpc_budget_free(tpc_budget *budget);

tpc_frame *tpc_frame_new(tpc_budget *budget, uint32_t length);
tpc_frame *tpc_frame_new_forced(tpc_budget *budget, uint32_t length);
tpc_frame *tpc_frame_retain(tpc_frame *frame);
void tpc_frame_release(tpc_frame *frame);
