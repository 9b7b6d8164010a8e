/*
 * Buffers that the kernel picks for multishot receives awaited by Python (native/ring/receive_buffers.c), and the watch over
 * the time that Python takes between two waits (native/ring/stall.c), with the sign of life that another process reads.
 */
typedef struct tpc_receive_buffers tpc_receive_buffers;

/* `count` (a power of two, <= 32768) buffers of `size` bytes as group `group`. -EOPNOTSUPP: no buffer rings (before 5.19). */
int tpc_receive_buffers_new(tpc_ring *ring, uint16_t group, uint32_t count, uint32_t size,
                            tpc_receive_buffers **buffers);
/* After the ring was closed, which drained the receives. */
void tpc_receive_buffers_free(tpc_receive_buffers *buffers);

/* Each event: a: bytes (0: end of stream), pointer: the data, valid until the next tpc_ring_wait(), which gives the buffer back.
 * Without TPC_MORE in b the receive has ended: error, end of stream, or -ENOBUFS (submit again in the next turn).
 * -EOPNOTSUPP before 6.0. One set of buffers per ring. */
int64_t tpc_operation_receive_multishot(tpc_ring *ring, uint64_t token, int fd, tpc_receive_buffers *buffers);

/* Turns in which Python took longer than `threshold_ns` are counted; 0 switches the count off. */
void tpc_ring_stall_threshold(tpc_ring *ring, int64_t threshold_ns);
/* For a thread of its own (cffi lets the others run): returns 1 as soon as Python has taken `after_ns` in the turn under way, once
 * per turn; -ECANCELED after tpc_ring_stall_stop(). Looks every half of that while Python works, or every 20 ms. */
int tpc_ring_wait_stalled(tpc_ring *ring, int64_t after_ns);
void tpc_ring_stall_stop(tpc_ring *ring);
/* From now on 1 is added to the eventfd(2) `fd`, which must not block, at waits and serves, at most once per interval: so it
 * counts only while turns end, or the steps of a long one do. -1: no longer. */
void tpc_ring_beat_on(tpc_ring *ring, int fd, int64_t interval_ns);
/* The memory that the data pointers of events point into. */
void *tpc_receive_buffers_memory(tpc_receive_buffers *buffers);
